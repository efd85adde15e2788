//! The errors of reading and writing GGUF files; messages name the place and the remedy.

use std::io;
use std::path::PathBuf;

/// Why a file could not be opened, read or written.
///
/// Keys and names inside messages come from the file: they are escaped and shortened, so a message is one
/// printable line whatever the file holds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// An error in one file of possibly several; [`GgufError::root`] gives the error itself.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<GgufError>,
    },
    /// The operating system reported an error.
    #[error("cannot {action}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// Another program wrote to the file, or shortened it, since it was opened.
    #[error(
        "the file changed while it was being loaded: another program is writing to it, perhaps a download; try again when \
         that is done"
    )]
    Changed,
    /// A directory, a pipe, a device.
    #[error("not a regular file; give the path of a .gguf file")]
    NotAFile,
    /// The first four bytes are not `GGUF`.
    #[error("not a GGUF file: it starts with \"{found}\" instead of \"GGUF\"")]
    NotGguf {
        /// The first four bytes, escaped.
        found: String,
    },
    /// A version other than 2 and 3.
    #[error("GGUF version {found} is not supported (2 and 3 are): {advice}")]
    UnsupportedVersion {
        /// The version, as a little-endian number.
        found: u32,
        /// What to do about it.
        advice: &'static str,
    },
    /// The file ends too early.
    #[error(
        "the file ends inside {place}: {wanted} bytes are needed at offset {offset}, {left} are left; it is \
         incomplete (at least {missing} bytes are missing) or damaged: download it again"
    )]
    Truncated {
        /// What is truncated.
        place: String,
        /// Where the missing piece starts, from the start of the file.
        offset: u64,
        /// Bytes that the piece needs.
        wanted: u64,
        /// Bytes from `offset` to the end of the file.
        left: u64,
        /// Bytes that are missing at the end of the file: exactly, if its tensor table is complete, else at least.
        missing: u64,
    },
    /// The bytes are there, but they break the format.
    #[error("{place}: {problem}")]
    Malformed {
        /// What is wrong: the header, a metadata key, a tensor.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A metadata key or a tensor name is given twice.
    #[error("{what} `{name}` is given twice")]
    Duplicate {
        /// `metadata key` or `tensor`.
        what: &'static str,
        /// The key or name, escaped.
        name: String,
    },
    /// Two tensors share bytes.
    #[error("tensors `{first}` and `{second}` share bytes of the file")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
    /// The parts of a split model do not fit together.
    #[error("split model: {problem}")]
    Split {
        /// What does not fit.
        problem: String,
    },
    /// A required metadata key is missing.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key, escaped.
        key: String,
    },
    /// A metadata value has a different type or does not fit the requested type.
    #[error("metadata key `{key}`: wanted {wanted}, found {found}")]
    WrongType {
        /// The key, escaped.
        key: String,
        /// The type that the caller asked for.
        wanted: &'static str,
        /// The type and, where short, the value in the file.
        found: String,
    },
    /// A required tensor is missing.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// The name, escaped.
        name: String,
    },
    /// The data given to the writer does not match what was declared.
    #[error("writing tensor data: {problem}")]
    WrongData {
        /// Which tensor, and what does not match.
        problem: String,
    },
}

impl GgufError {
    /// The error itself, without the file that it was found in.
    pub fn root(&self) -> &GgufError {
        match self {
            GgufError::InFile { error, .. } => error.root(),
            other => other,
        }
    }

    pub(crate) fn malformed(place: impl Into<String>, problem: impl Into<String>) -> GgufError {
        GgufError::Malformed { place: place.into(), problem: problem.into() }
    }

    /// The same error, found in this file; one that names its file already stays as it is.
    pub(crate) fn in_file(self, path: impl Into<PathBuf>) -> GgufError {
        match self {
            GgufError::InFile { .. } => self,
            error => GgufError::InFile { path: path.into(), error: Box::new(error) },
        }
    }
}

/// The most bytes of a file that a message quotes.
const QUOTED_BYTES: usize = 96;

/// Bytes from a file as one short printable line: control characters and invalid UTF-8 escaped, the end truncated.
pub(crate) fn quoted(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let shown = &bytes[..bytes.len().min(QUOTED_BYTES)];
    let mut text = String::with_capacity(shown.len());
    for chunk in shown.utf8_chunks() {
        chunk.valid().chars().for_each(|char| push_escaped(&mut text, char));
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    if shown.len() < bytes.len() {
        text.push_str(&format!("… ({} bytes)", bytes.len()));
    }
    text
}

/// Quotes stay as they are; what a terminal could act on (controls, direction marks, …) does not.
fn push_escaped(text: &mut String, char: char) {
    match char {
        '"' | '\'' => text.push(char),
        _ => text.extend(char.escape_debug()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_one_short_printable_line() {
        assert_eq!(quoted("general.name"), "general.name");
        assert_eq!(quoted("it's \"x\""), "it's \"x\"");
        assert_eq!(quoted("a\n\u{1b}[2J\u{202e}"), "a\\n\\u{1b}[2J\\u{202e}");
        assert_eq!(quoted([b'a', 0xff, b'b', 0xc3]), "a\\xffb\\xc3");
        let long = quoted(vec![b'x'; 1 << 20]);
        assert!(long.len() < 130 && long.ends_with("… (1048576 bytes)"), "{long}");
    }
}
