//! Exact standard input and output: no newline is added or removed, and a broken pipe does not panic.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};

use crate::wrap::wrapped;

/// Maximum input size. Far larger than any context, far smaller than memory.
const INPUT_BYTES_MAX: u64 = 256 << 20;

/// Reads standard input to its end.
///
/// # Errors
/// When it cannot be read or holds more than 256 MiB.
pub fn read_bytes() -> anyhow::Result<Vec<u8>> {
    read_all(io::stdin().lock(), "standard input")
}

fn read_all(input: impl Read, name: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = input.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > INPUT_BYTES_MAX {
        bail!("{name} has more than {} MiB", INPUT_BYTES_MAX >> 20);
    }
    Ok(bytes)
}

/// Reads standard input to its end as text, byte for byte: a newline at the end stays.
///
/// # Errors
/// As [`read_bytes`], and when the bytes are not UTF-8.
pub fn read_text() -> anyhow::Result<String> {
    text(read_bytes()?, "standard input")
}

/// Reads a file as text, byte for byte; `-` is standard input.
///
/// # Errors
/// When it cannot be read, holds more than 256 MiB or is not UTF-8.
pub fn read_text_file(path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return read_text();
    }
    let name = path.display().to_string();
    // Some systems open a folder and fail to read it; others say that access is denied.
    anyhow::ensure!(!path.is_dir(), "cannot read {name}: it is a folder");
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    text(read_all(file, &name)?, &name)
}

fn text(bytes: Vec<u8>, name: &str) -> anyhow::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{name} is not UTF-8 text: the byte at offset {offset} belongs to no character")
    })
}

/// Writes bytes to standard output as they are, and flushes.
///
/// # Errors
/// When standard output cannot be written. A broken pipe is among them; see [`crate::error::report`].
pub fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(bytes).and_then(|()| output.flush()).context("cannot write standard output")
}

/// Rejects an output path that is a model: overwriting it is certainly a mistake.
///
/// # Errors
/// When there is a GGUF file at `path`.
pub fn reject_model_output(path: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(!is_model(path), "{} is a model and will not be overwritten", path.display());
    Ok(())
}

/// Whether there is a GGUF file at `path`.
pub fn is_model(path: &Path) -> bool {
    let mut magic = [0; 4];
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    is_file && File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"GGUF"
}

/// Prints a message on standard error, escaped, since it may quote a file or a server, and on a terminal with line breaks between
/// words. Write errors are ignored.
pub fn notify(message: &str) {
    let lines: Vec<String> = message.split('\n').map(escape).collect();
    let text = wrapped(&lines.join("\n"), error_columns());
    let mut errors = io::stderr().lock();
    let clear = if HAS_STATUS_LINE.swap(false, Ordering::SeqCst) { "\r\x1b[K" } else { "" };
    let _ = writeln!(errors, "{clear}{text}");
}

/// Whether the terminal's last line is one that [`draw_status`] has drawn.
static HAS_STATUS_LINE: AtomicBool = AtomicBool::new(false);

/// Draws a line that the next message, or the next such line, replaces; an empty one is cleared. For a terminal that
/// [has commands](has_terminal_commands).
pub fn draw_status(line: &str) {
    let mut errors = io::stderr().lock();
    let was_there = HAS_STATUS_LINE.swap(!line.is_empty(), Ordering::SeqCst);
    if was_there || !line.is_empty() {
        let _ = write!(errors, "\r{line}\x1b[K").and_then(|()| errors.flush());
    }
}

/// Columns of the terminal that shows standard output, if one does. It may change at any time.
pub fn output_columns() -> Option<usize> {
    let size = io::stdout().is_terminal().then(|| terminal_size::terminal_size_of(io::stdout()))??;
    Some(size.0.0.into())
}

/// Columns of the terminal that shows standard error, if one does.
pub fn error_columns() -> Option<usize> {
    let size = io::stderr().is_terminal().then(|| terminal_size::terminal_size_of(io::stderr()))??;
    Some(size.0.0.into())
}

/// Whether a terminal understands more than plain lines.
pub fn has_terminal_commands() -> bool {
    cfg!(windows) || std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Whether the system's language settings say that text is not UTF-8.
pub fn is_ascii_only() -> bool {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let language = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
    language.is_some_and(|language| !language.to_ascii_lowercase().replace('-', "").contains("utf8"))
}

/// Text for a terminal: control characters, such as the beginning of a terminal command, become visible
/// escapes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || is_invisible_format(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

/// Characters that reorder or hide the text around them without being control characters.
fn is_invisible_format(character: char) -> bool {
    matches!(character,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        | '\u{e0000}'..='\u{e007f}')
}

/// JSON for people and programs, with a newline at the end. Terminal control characters are escaped as in JSON,
/// so a program reads exactly `value`.
pub fn json_text(value: &serde_json::Value) -> String {
    let mut text = String::new();
    // Below U+0020 the writer escapes; from U+007F on it does not. Such characters are inside strings only.
    for character in format!("{value:#}\n").chars() {
        if character != '\n' && (character.is_control() || is_invisible_format(character)) {
            character
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        } else {
            text.push(character);
        }
    }
    text
}

/// Bytes for a terminal: as [`escape`], and what is not UTF-8 becomes `\xNN`.
pub fn escape_bytes(bytes: &[u8]) -> String {
    let mut escaped = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        escaped.push_str(&escape(chunk.valid()));
        for byte in chunk.invalid() {
            escaped.push_str(&format!("\\x{byte:02x}"));
        }
    }
    escaped
}

/// A number of bytes for people: `98.4 MB`, in powers of 1000.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escape_sequences_are_escaped() {
        assert_eq!(escape("a\u{1b}[31mb\tc\n"), "a\\u{1b}[31mb\\tc\\n");
        assert_eq!(escape("left\u{202e}right"), "left\\u{202e}right");
        assert_eq!(escape("Größe 漢字 🙂"), "Größe 漢字 🙂");
        assert_eq!(escape_bytes(b"ok \xff\xc3\x28"), "ok \\xff\\xc3(");
    }

    #[test]
    fn json_stays_the_same_value_when_escaped() {
        let value = serde_json::json!({"a\u{9b}31m": ["\u{7f}", "\u{202e}", "\u{e0041}", "ä\n\"", 1.5]});
        let text = json_text(&value);
        assert!(!text.chars().any(|character| character != '\n' && character.is_control()), "{text}");
        assert!(text.contains("\\udb40\\udc41") && text.contains("ä\\n"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(human_bytes(98_362_432), "98.36 MB");
        assert_eq!(human_bytes(17), "17 B");
    }
}
