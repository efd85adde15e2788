//! The conversation of `verbatim chat`: reading lines, the commands that begin with `/`, and the messages so
//! far.
//!
//! Answers come from a [`Responder`] and lines from a [`LineSource`], so nothing here needs a model or a
//! terminal.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use verbatim_engine::{Message, Role};

use crate::standard_io;

/// Output of `/help`.
const HELP: &str = "\
/reset       clear the conversation, except for the system message
/save FILE   write the conversation to FILE as a JSON array of messages
/help        show this
/quit        leave, as Ctrl-D does
A line that ends with \\ continues on the next one. To start a message with /, write // instead.
Ctrl-C stops an answer; the text so far stays in the conversation.
";

/// Something that continues a conversation.
pub trait Responder {
    /// Answers the last message. Passes each piece of text to `show` as it arrives, and returns the whole answer, or
    /// the part before an interruption by the user.
    ///
    /// # Errors
    /// When there is no answer: the user message is then removed and the conversation continues.
    fn respond(
        &mut self,
        conversation: &[Message],
        show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<String>;
}

/// One input event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A line without its line ending.
    Text(String),
    /// Ctrl-C: the line is discarded.
    Interrupted,
    /// Ctrl-D, or the end of the input.
    End,
}

/// Where lines come from.
pub trait LineSource {
    /// The next line. `prompt` is shown on a terminal.
    ///
    /// # Errors
    /// When the input cannot be read.
    fn next_line(&mut self, prompt: &str) -> anyhow::Result<Line>;
}

/// Lines from standard input, edited and with a history where it is a terminal.
#[derive(Debug)]
pub struct Terminal {
    editor: DefaultEditor,
    history: PathBuf,
}

impl Terminal {
    /// Opens standard input, with the history of earlier conversations from the file `history`.
    ///
    /// # Errors
    /// When the terminal cannot be set up. An unreadable history is treated as empty.
    pub fn open(history: &Path) -> anyhow::Result<Self> {
        let mut editor = DefaultEditor::new().context("cannot set up the terminal for a conversation")?;
        if let Some(folder) = history.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let _ = editor.load_history(history);
        Ok(Self { editor, history: history.to_path_buf() })
    }
}

impl LineSource for Terminal {
    fn next_line(&mut self, prompt: &str) -> anyhow::Result<Line> {
        match self.editor.readline(prompt) {
            Ok(line) => {
                // The history is optional: failing to write it must not end the conversation.
                if self.editor.add_history_entry(&line).unwrap_or(false) {
                    let _ = self.editor.append_history(&self.history);
                }
                Ok(Line::Text(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                standard_io::notify("that line is not UTF-8 and was ignored");
                Ok(Line::Text(String::new()))
            }
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(error).context("cannot read standard input"),
        }
    }
}

/// Holds a conversation until `/quit` or the end of the input. It continues `conversation` and appends to it. A given
/// system message replaces the one there. Answers and the output of commands go to `output`.
///
/// # Errors
/// When the input cannot be read or the output not written. A failed answer or command is reported in
/// `output`.
pub fn converse(
    responder: &mut dyn Responder,
    lines: &mut dyn LineSource,
    output: &mut dyn Write,
    system: Option<&str>,
    conversation: &mut Vec<Message>,
) -> anyhow::Result<()> {
    let is_system =
        |conversation: &[Message]| conversation.first().is_some_and(|first| first.role == Role::System);
    if let Some(text) = system {
        if is_system(conversation) {
            conversation.remove(0);
        }
        conversation.insert(0, Message { role: Role::System, content: text.to_owned() });
    }
    let system_messages = usize::from(is_system(conversation));
    while let Some(input) = read_input(lines)? {
        match Input::parse(&input) {
            Input::Nothing => {}
            Input::Quit => break,
            Input::Help => output.write_all(HELP.as_bytes())?,
            Input::Reset => conversation.truncate(system_messages),
            Input::Save(path) => match save(conversation, Path::new(path)) {
                Ok(()) => writeln!(output, "saved {} messages in {path}", conversation.len())?,
                Err(error) => writeln!(output, "error: {error:#}")?,
            },
            Input::Unknown(command) => {
                writeln!(output, "unknown command {command}: /help lists all commands")?
            }
            Input::Say(text) => answer(responder, conversation, text, output)?,
        }
        output.flush()?;
    }
    Ok(())
}

fn answer(
    responder: &mut dyn Responder,
    conversation: &mut Vec<Message>,
    text: String,
    output: &mut dyn Write,
) -> anyhow::Result<()> {
    conversation.push(Message { role: Role::User, content: text });
    let mut written = Ok(());
    let answered = responder.respond(conversation, &mut |piece| {
        written = output.write_all(piece.as_bytes()).and_then(|()| output.flush());
        if written.is_err() { anyhow::bail!("cannot write the answer") } else { Ok(()) }
    });
    if written.is_err() {
        // There was no visible answer: the message is removed, so that no two user messages follow each other.
        conversation.pop();
    }
    written.context("cannot write the answer")?;
    match answered {
        Ok(content) => {
            conversation.push(Message { role: Role::Assistant, content });
            writeln!(output)?;
        }
        Err(error) => {
            conversation.pop();
            writeln!(output, "error: {error:#}")?;
        }
    }
    Ok(())
}

/// Reads one input, which may be several lines; `None` at the end.
fn read_input(lines: &mut dyn LineSource) -> anyhow::Result<Option<String>> {
    let mut input = String::new();
    loop {
        let prompt = if input.is_empty() { "> " } else { "… " };
        match lines.next_line(prompt)? {
            Line::Text(line) => match line.strip_suffix('\\') {
                Some(begun) => {
                    input.push_str(begun);
                    input.push('\n');
                }
                None => {
                    input.push_str(&line);
                    return Ok(Some(input));
                }
            },
            Line::Interrupted => input.clear(),
            Line::End => return Ok((!input.is_empty()).then_some(input)),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Input<'a> {
    Nothing,
    Quit,
    Help,
    Reset,
    Save(&'a str),
    Unknown(&'a str),
    Say(String),
}

impl<'a> Input<'a> {
    fn parse(text: &'a str) -> Self {
        if text.trim().is_empty() {
            return Self::Nothing;
        }
        if !text.starts_with('/') {
            return Self::Say(text.to_owned());
        }
        if text.starts_with("//") {
            return Self::Say(text[1..].to_owned());
        }
        let (command, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match (command, argument.trim()) {
            ("/quit", "") => Self::Quit,
            ("/help", "") => Self::Help,
            ("/reset", "") => Self::Reset,
            ("/save", path) if !path.is_empty() => Self::Save(path),
            _ => Self::Unknown(text.trim_end()),
        }
    }
}

fn save(conversation: &[Message], path: &Path) -> anyhow::Result<()> {
    standard_io::reject_model_output(path)?;
    let mut json = serde_json::to_string_pretty(conversation)?;
    json.push('\n');
    fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with the number of messages and the last one.
    struct Echo;

    impl Responder for Echo {
        fn respond(
            &mut self,
            conversation: &[Message],
            show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
        ) -> anyhow::Result<String> {
            let last = &conversation.last().unwrap().content;
            anyhow::ensure!(last != "fail", "the context is full");
            let text = format!("{}: {last}", conversation.len());
            let (first, rest) = text.split_at(1);
            show(first)?;
            show(rest)?;
            Ok(text)
        }
    }

    struct Script(std::vec::IntoIter<Line>);

    impl LineSource for Script {
        fn next_line(&mut self, _prompt: &str) -> anyhow::Result<Line> {
            Ok(self.0.next().unwrap_or(Line::End))
        }
    }

    fn transcript(lines: &[&str], system: Option<&str>) -> String {
        let lines: Vec<Line> = lines
            .iter()
            .map(|line| if *line == "^C" { Line::Interrupted } else { Line::Text((*line).into()) })
            .collect();
        let mut output = Vec::new();
        let mut conversation = Vec::new();
        converse(&mut Echo, &mut Script(lines.into_iter()), &mut output, system, &mut conversation).unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn a_conversation_grows_and_is_reset() {
        assert_eq!(transcript(&["a", "", "b", "/reset", "c"], None), "1: a\n3: b\n1: c\n");
        assert_eq!(transcript(&["a", "/reset", "c"], Some("Be brief.")), "2: a\n2: c\n");
    }

    #[test]
    fn nothing_is_read_after_quit() {
        assert_eq!(transcript(&["/quit", "a"], None), "");
    }

    #[test]
    fn a_failed_answer_takes_the_message_back() {
        assert_eq!(transcript(&["a", "fail", "b"], None), "1: a\nerror: the context is full\n3: b\n");
    }

    /// Takes nothing.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_message_without_a_visible_answer_is_removed() {
        let mut lines = Script(vec![Line::Text("a".into())].into_iter());
        let mut conversation = Vec::new();
        let ended = converse(&mut Echo, &mut lines, &mut Full, None, &mut conversation);
        assert!(ended.is_err());
        assert_eq!(conversation, []);
    }

    #[test]
    fn lines_are_joined_and_an_interrupt_discards_them() {
        assert_eq!(transcript(&["a\\", "b"], None), "1: a\nb\n");
        assert_eq!(transcript(&["a\\", "^C", "b"], None), "1: b\n");
    }

    #[test]
    fn slashes_begin_commands() {
        assert_eq!(transcript(&["//a"], None), "1: /a\n");
        assert_eq!(
            transcript(&["/sing loud"], None),
            "unknown command /sing loud: /help lists all commands\n"
        );
        assert_eq!(transcript(&["/save"], None), "unknown command /save: /help lists all commands\n");
        assert_eq!(transcript(&["/help"], None), HELP);
    }

    #[test]
    fn a_saved_conversation_is_an_array_of_messages() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk 1.json");
        let command = format!("/save {}", path.display());
        let said = transcript(&["a", &command, "/save /no/such/folder/x"], Some("s"));
        assert!(said.contains("saved 3 messages in"), "{said}");
        assert!(said.contains("error: cannot write /no/such/folder/x"), "{said}");
        let saved: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let expected = serde_json::json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "2: a"},
        ]);
        assert_eq!(saved, expected);
    }
}
