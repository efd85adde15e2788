//! The input of `verbatim run`: the model and the prompt, from arguments, flags, files and standard input.

use std::io::{self, IsTerminal};

use anyhow::bail;

use crate::error::UsageError;
use crate::flags::{PromptFlags, RunArgs};
use crate::standard_io::{self, is_model};
use crate::store::{Store, StoreError, is_path};
use crate::waiting::Waiting;

/// The model and the prompt of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInput {
    /// The model, if an argument names it.
    pub model: Option<String>,
    /// The prompt; `None`: a model alone, to chat with.
    pub prompt: Option<String>,
}

impl RunInput {
    /// Reads the command line, and standard input, if the prompt is read from it or continued there.
    ///
    /// # Errors
    /// [`UsageError`] when there is no prompt, or the arguments have several meanings.
    pub fn read(args: &RunArgs, store: &Store) -> anyhow::Result<Self> {
        let is_typed = args.prompt.prompt.is_some() || args.prompt.file.is_some();
        let (model, words) = split_model(&args.words, args.model.model.is_some(), is_typed, store)?;
        let said = match words.as_slice() {
            [] => given(&args.prompt)?,
            ["-"] if !is_typed => Some(standard_io::read_text()?),
            words => Some(words.join(" ")),
        };
        let is_terminal = io::stdin().is_terminal();
        let reads_all = words == ["-"];
        let prompt = match said {
            Some(text) if reads_all => Some(text),
            Some(text) => Some(joined(unescaped(text, &args.prompt)?, is_terminal, args)?),
            None if !is_terminal => Some(read_input(args)?),
            None if model.is_some() => None,
            None => bail!(UsageError(
                "there is no prompt: give it as an argument or on standard input, or use `verbatim chat`"
                    .into()
            )),
        };
        match prompt {
            Some(text) if text.is_empty() || !args.no_template && text.trim().is_empty() => {
                bail!(UsageError("the prompt is empty".into()))
            }
            prompt => Ok(Self { model, prompt }),
        }
    }
}

/// The prompt of `--prompt` and `--file`: the file's text follows the other.
///
/// # Errors
/// When the file cannot be read.
pub fn given(flags: &PromptFlags) -> anyhow::Result<Option<String>> {
    let file = flags.file.as_deref().map(standard_io::read_text_file).transpose()?;
    // As in llama.cpp, the newline that ends a text file is not part of the prompt.
    let file = file.map(|text| text.strip_suffix('\n').map(str::to_owned).unwrap_or(text));
    Ok(match (flags.prompt.clone(), file) {
        (Some(prompt), Some(file)) => Some(format!("{prompt}\n\n{file}")),
        (prompt, file) => prompt.or(file),
    })
}

/// The text with its escapes replaced, if `--escape` is given.
///
/// # Errors
/// When there is an unknown escape.
pub fn unescaped(text: String, flags: &PromptFlags) -> anyhow::Result<String> {
    if flags.escape { unescape(&text) } else { Ok(text) }
}

/// The model among the arguments, if there is one, and the words of the prompt.
fn split_model<'a>(
    words: &'a [String],
    has_model: bool,
    is_typed: bool,
    store: &Store,
) -> anyhow::Result<(Option<String>, Vec<&'a str>)> {
    let all: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((first, rest)) = all.split_first() else { return Ok((None, all)) };
    let mut similar = String::new();
    if !has_model && (!rest.is_empty() || is_typed || !first.contains(char::is_whitespace)) {
        match store.resolve(first) {
            Ok(path) if is_model(&path) => return Ok((Some((*first).to_owned()), rest.to_vec())),
            Err(StoreError::NotPulled { .. }) => return Ok((Some((*first).to_owned()), rest.to_vec())),
            Err(error) if !rest.is_empty() && (is_path(first) || first.contains(':')) => {
                return Err(error.into());
            }
            Err(error @ StoreError::Unsupported { .. }) if !rest.is_empty() => return Err(error.into()),
            Err(StoreError::Unknown { suggestions, .. }) if !suggestions.is_empty() => {
                similar = format!(", is it {}?", suggestions.join(" or "));
            }
            _ => {}
        }
    }
    if is_typed {
        bail!(UsageError(format!("there are two prompts: the argument {first:?} and --prompt or --file")));
    }
    if !rest.is_empty() && !has_model {
        bail!(UsageError(format!(
            "{first:?} is not a model here (see `verbatim list`){similar}; to ask in several words, put them in quotes"
        )));
    }
    Ok((None, all))
}

/// The prompt with the piped input appended.
fn joined(prompt: String, is_terminal: bool, args: &RunArgs) -> anyhow::Result<String> {
    if is_terminal {
        return Ok(prompt);
    }
    let input = read_input(args)?;
    Ok(if input.trim().is_empty() { prompt } else { format!("{prompt}\n\n{input}") })
}

fn read_input(args: &RunArgs) -> anyhow::Result<String> {
    let _waiting = Waiting::start(args.inference.generate.quiet, "reading standard input");
    standard_io::read_text()
}

/// Replaces llama.cpp's escapes: `\n`, `\r`, `\t`, `\"`, `\'`, `\\` and `\xHH`.
fn unescape(text: &str) -> anyhow::Result<String> {
    let mut result = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            result.push(byte);
            continue;
        }
        result.push(match bytes.next() {
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(same @ (b'"' | b'\'' | b'\\')) => same,
            Some(b'x') => {
                let digits = bytes.by_ref().take(2).map(char::from).collect::<String>();
                match u8::from_str_radix(&digits, 16) {
                    Ok(byte) if digits.len() == 2 => byte,
                    _ => bail!(UsageError(format!("--escape: \\x{digits} needs two hexadecimal digits"))),
                }
            }
            Some(other) => bail!(UsageError(format!("--escape: \\{} is not an escape", char::from(other)))),
            None => bail!(UsageError("--escape: the prompt ends with a single \\".into())),
        });
    }
    String::from_utf8(result)
        .map_err(|_| UsageError("--escape: the bytes of \\x are not UTF-8".into()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_llama_cpp() {
        assert_eq!(unescape(r#"a\nb\t\"\'\\\x41\xc3\xa9"#).unwrap(), "a\nb\t\"'\\A\u{e9}");
        for wrong in [r"\q", r"\x4", r"\xzz", r"\xff", "a\\"] {
            assert!(unescape(wrong).unwrap_err().to_string().starts_with("--escape: "), "{wrong}");
        }
    }

    #[test]
    fn a_model_comes_before_its_prompt() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("models")).unwrap();
        std::fs::write(home.path().join("models/mine.gguf"), "GGUF and more").unwrap();
        let store = Store::new(Some(home.path())).unwrap();
        let split = |words: &[&str], has_model, is_typed| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            split_model(&words, has_model, is_typed, &store)
                .map(|(model, rest)| (model, rest.join(" ")))
                .map_err(|error| error.to_string())
        };
        let mine = || Some("mine".to_owned());
        assert_eq!(split(&["mine", "hi"], false, false), Ok((mine(), "hi".into())));
        assert_eq!(split(&["mine", "hi", "you"], false, false), Ok((mine(), "hi you".into())));
        assert_eq!(split(&["mine"], false, false), Ok((mine(), String::new())));
        assert_eq!(split(&["mine"], false, true), Ok((mine(), String::new())));
        assert_eq!(split(&["mine"], true, false), Ok((None, "mine".into())));
        assert_eq!(split(&["hi"], false, false), Ok((None, "hi".into())));
        assert_eq!(
            split(&["smollm2:135m", "hi"], false, false),
            Ok((Some("smollm2:135m".into()), "hi".into()))
        );
        assert!(split(&["why", "not"], false, false).unwrap_err().contains("put them in quotes"));
        assert!(split(&["no.gguf", "hi"], false, false).unwrap_err().contains("there is no file"));
        assert!(split(&["hi"], false, true).unwrap_err().contains("two prompts"));
    }
}
