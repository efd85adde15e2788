//! Lines from standard input: edited, completed and remembered on a terminal, plain from a file or a pipe.

use std::fs;
use std::io::{self, ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper};

use crate::chat_input::{COMMANDS, is_complete};
use crate::repl::{Line, LineSource};
use crate::standard_io;

/// The most messages that are remembered.
const HISTORY_MAX: usize = 1000;

/// Lines from standard input.
pub struct Terminal {
    editor: Editor<ChatHelper, DefaultHistory>,
    history: PathBuf,
    is_terminal: bool,
}

impl Terminal {
    /// Opens standard input, with the history of earlier conversations from the file `history`. `keys` completes `/set`.
    ///
    /// # Errors
    /// When the terminal cannot be set up. An unreadable history is treated as empty.
    pub fn open(history: &Path, keys: Vec<String>) -> anyhow::Result<Self> {
        let config = Config::builder().completion_type(CompletionType::List).max_history_size(HISTORY_MAX);
        let config = config.context("cannot set up the history")?.build();
        let mut editor =
            Editor::with_config(config).context("cannot set up the terminal for a conversation")?;
        let is_terminal = io::stdin().is_terminal();
        if is_terminal {
            editor.set_helper(Some(ChatHelper { files: FilenameCompleter::new(), keys }));
            if let Some(folder) = history.parent() {
                let _ = fs::create_dir_all(folder);
            }
            let _ = editor.load_history(history);
        }
        Ok(Self { editor, history: history.to_path_buf(), is_terminal })
    }
}

impl LineSource for Terminal {
    fn next_line(&mut self, prompt: &str) -> anyhow::Result<Line> {
        match self.editor.readline(prompt) {
            Ok(line) => {
                // The history is optional: failing to write it must not end the conversation.
                if self.is_terminal && self.editor.add_history_entry(&line).unwrap_or(false) {
                    let _ = self.editor.append_history(&self.history);
                }
                Ok(Line::Text(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                standard_io::notify("that line is not UTF-8 and was ignored");
                Ok(Line::Text(String::new()))
            }
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error).context("cannot read standard input"),
        }
    }
}

/// Completes commands, file names and settings, and asks for the other lines of a message.
struct ChatHelper {
    files: FilenameCompleter,
    keys: Vec<String>,
}

impl Helper for ChatHelper {}
impl Highlighter for ChatHelper {}
impl Hinter for ChatHelper {
    type Hint = String;
}

impl Validator for ChatHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let complete = is_complete(context.input());
        Ok(if complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Completer for ChatHelper {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..position];
        if typed.starts_with("/save ") || typed.starts_with("/load ") {
            return self.files.complete(line, position, context);
        }
        Ok(completions(typed, &self.keys))
    }
}

/// Where the word to complete starts, and the words that it may become.
fn completions(typed: &str, keys: &[String]) -> (usize, Vec<Pair>) {
    let pairs = |words: Vec<&str>, begun: &str| {
        let words = words.into_iter().filter(|word| word.starts_with(begun));
        words.map(|word| Pair { display: word.to_owned(), replacement: format!("{word} ") }).collect()
    };
    match typed.strip_prefix("/set ") {
        Some(begun) if !begun.contains(' ') => {
            (typed.len() - begun.len(), pairs(keys.iter().map(String::as_str).collect(), begun))
        }
        None if typed.starts_with('/') && !typed.contains(char::is_whitespace) => {
            (0, pairs(COMMANDS.iter().map(|(command, ..)| *command).collect(), typed))
        }
        _ => (typed.len(), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_settings_are_completed() {
        let keys = ["temp".to_owned(), "top-k".to_owned()];
        let found = |typed: &str| {
            let (start, pairs) = completions(typed, &keys);
            (start, pairs.into_iter().map(|pair| pair.replacement).collect::<Vec<_>>().join("|"))
        };
        assert_eq!(found("/re"), (0, "/regen |/reset ".into()));
        assert_eq!(found("/set to"), (5, "top-k ".into()));
        assert_eq!(found("/set "), (5, "temp |top-k ".into()));
        assert_eq!(found("/set temp 0"), (11, String::new()));
        assert_eq!(found("re"), (2, String::new()));
    }
}
