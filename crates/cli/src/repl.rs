//! The conversation of `verbatim chat`: inputs, commands, and the messages so far.
//!
//! Answers come from a [`Responder`] and lines from a [`LineSource`], so nothing here needs a model or a
//! terminal.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use verbatim_engine::{Message, Role};

use crate::chat_input::{Input, help, is_complete, path, problem};
use crate::session::counted;
use crate::standard_io;
use crate::wrap::{Wrapper, table, wrapped};

/// An answer, and what to say about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// Statistics and warnings, each on a line of its own after the text.
    pub notes: Vec<String>,
    /// Whether the user has stopped it.
    pub is_stopped: bool,
}

/// Something that continues a conversation.
pub trait Responder {
    /// Answers the last message. Passes each piece of text to `show` as it arrives, and returns the whole answer, or
    /// the part before an interruption by the user. `regenerate`: replaces the last answer.
    ///
    /// # Errors
    /// When there is no answer: the user message is then removed and the conversation continues.
    fn respond(
        &mut self,
        conversation: &[Message],
        regenerate: bool,
        show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Answer>;

    /// Saves the conversation. Called whenever it has changed.
    ///
    /// # Errors
    /// When it cannot be saved.
    fn save(&mut self, conversation: &[Message]) -> anyhow::Result<()>;

    /// Where [`save`](Self::save) saves, if anywhere.
    fn file(&self) -> Option<&Path>;

    /// Whether the program has to end.
    fn must_end(&self) -> bool;

    /// Rejects a system message that would have no effect.
    ///
    /// # Errors
    /// When the model cannot take it.
    fn check_system(&self, system: &str) -> anyhow::Result<()>;

    /// Shows the settings, or changes one: `temp 0.5`. Returns names and values.
    ///
    /// # Errors
    /// When there is no such setting, or the value does not suit it.
    fn set(&mut self, words: &str) -> anyhow::Result<Vec<(String, String)>>;

    /// The model, for people.
    fn description(&self) -> &str;
}

/// One input event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A line without its line ending, or all lines of a message.
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

/// Where answers and the output of commands go, and errors.
pub struct Screen<'a> {
    /// Answers and the output of commands.
    pub output: &'a mut dyn Write,
    /// Errors and hints.
    pub errors: &'a mut dyn Write,
    /// Columns of the terminal that shows `output`, if one does. It is asked before every text, since windows change their size.
    pub output_width: fn() -> Option<usize>,
    /// The same of `errors`.
    pub error_width: fn() -> Option<usize>,
    /// Whether commands that have changed something say so.
    pub confirms: bool,
}

/// Holds a conversation until `/quit`, the end of the input, or a signal to end. It continues `conversation`, after the message
/// `first`, if any. Returns whether all went well: no answer and no command failed.
///
/// # Errors
/// When the input cannot be read or the output not written. A failed answer or command is reported in `errors`.
pub fn converse(
    responder: &mut dyn Responder,
    lines: &mut dyn LineSource,
    screen: &mut Screen<'_>,
    first: Option<String>,
    conversation: &mut Vec<Message>,
) -> anyhow::Result<bool> {
    let mut talk = Talk { responder, screen, conversation, is_well: true };
    if let Some(text) = first {
        talk.answer(text)?;
    }
    while !talk.responder.must_end()
        && let Some(input) = read_input(lines, talk.screen.errors)?
    {
        let input = Input::parse(&input);
        if input == Input::Quit {
            break;
        }
        talk.take(input)?;
        talk.screen.output.flush()?;
    }
    Ok(talk.is_well)
}

struct Talk<'a, 'b> {
    responder: &'a mut dyn Responder,
    screen: &'a mut Screen<'b>,
    conversation: &'a mut Vec<Message>,
    is_well: bool,
}

impl Talk<'_, '_> {
    fn take(&mut self, input: Input<'_>) -> anyhow::Result<()> {
        let done = match input {
            Input::Nothing | Input::Quit => return Ok(()),
            Input::Say(text) => return self.answer(text),
            Input::Regenerate => return self.answer_again(),
            Input::Help => Ok(help(self.width())),
            Input::Show => {
                let messages = counted(self.conversation.len(), "message");
                let shown = format!("{}\n{messages} in this conversation\n", self.responder.description());
                Ok(wrapped(&shown, self.width()))
            }
            Input::Clear => self.clear(),
            Input::Undo => self.undo(),
            Input::Set(words) => self.set(words),
            Input::System(text) => self.system(text),
            Input::Save("") => self.save(None),
            Input::Save(file) => self.save(Some(path(file))),
            Input::Load(file) => self.load(&path(file)),
            Input::Unknown(typed) => Err(anyhow::anyhow!(problem(typed))),
        };
        match done {
            Ok(text) => Ok(self.screen.output.write_all(text.as_bytes())?),
            Err(error) => self.report(&error),
        }
    }

    fn width(&self) -> Option<usize> {
        (self.screen.output_width)()
    }

    /// Prints a message beside the conversation.
    fn note(&mut self, text: &str) -> std::io::Result<()> {
        writeln!(self.screen.errors, "{}", wrapped(&standard_io::escape(text), (self.screen.error_width)()))
    }

    /// Says what a command has changed.
    fn confirm(&mut self, text: &str) -> anyhow::Result<String> {
        if self.screen.confirms {
            self.note(text)?;
        }
        Ok(String::new())
    }

    /// Answers a message.
    fn answer(&mut self, text: String) -> anyhow::Result<()> {
        self.conversation.push(Message::new(Role::User, text));
        if !self.respond(false)? {
            self.conversation.pop();
        }
        self.autosave()
    }

    fn answer_again(&mut self) -> anyhow::Result<()> {
        if self.conversation.last().is_none_or(|last| last.role != Role::Assistant) {
            return self.report(&anyhow::anyhow!("there is no answer yet"));
        }
        let unwanted = self.conversation.pop();
        if !self.respond(true)? {
            self.conversation.extend(unwanted);
        }
        self.autosave()
    }

    /// Appends an answer to the conversation; returns whether there was one.
    fn respond(&mut self, regenerate: bool) -> anyhow::Result<bool> {
        let (mut written, mut is_shown) = (Ok(()), false);
        let mut wrapper = Wrapper::new(self.width());
        let output = &mut *self.screen.output;
        let answered = self.responder.respond(self.conversation, regenerate, &mut |piece| {
            is_shown |= !piece.is_empty();
            written = output.write_all(wrapper.push(piece).as_bytes()).and_then(|()| output.flush());
            if written.is_err() { anyhow::bail!("cannot write the answer") } else { Ok(()) }
        });
        let rest = wrapper.finish();
        let written = written.and_then(|()| output.write_all(rest.as_bytes()));
        if let Err(error) = written {
            // The window may have been closed: what there is of the answer is kept. Without one, the message is removed, so
            // that no two user messages follow each other.
            match answered {
                Ok(answer) => self.conversation.push(Message::new(Role::Assistant, answer.text)),
                Err(_) => drop(self.conversation.pop()),
            }
            return Err(error).context("cannot write the answer");
        }
        match answered {
            // Nothing was said yet: an empty answer would puzzle the model for the rest of the conversation.
            Ok(Answer { text, is_stopped: true, .. }) if text.trim().is_empty() => {
                if is_shown {
                    writeln!(output)?;
                }
                let _ = self.note("stopped before the answer began: the message is taken back");
                Ok(false)
            }
            Ok(Answer { text, notes, .. }) => {
                self.conversation.push(Message::new(Role::Assistant, text));
                writeln!(output)?;
                output.flush()?;
                notes.iter().for_each(|note| drop(self.note(note)));
                Ok(true)
            }
            Err(error) => self.report(&error).map(|()| false),
        }
    }

    /// Saves the conversation in the session file, if there is one; reports an error.
    fn autosave(&mut self) -> anyhow::Result<()> {
        match self.responder.save(self.conversation) {
            Ok(()) => Ok(()),
            Err(error) => self.report(&error),
        }
    }

    fn report(&mut self, error: &anyhow::Error) -> anyhow::Result<()> {
        self.is_well = false;
        self.screen.output.flush()?;
        self.note(&format!("error: {error:#}")).context("cannot report an error")
    }

    fn has_system(&self) -> bool {
        self.conversation.first().is_some_and(|first| first.role == Role::System)
    }

    fn clear(&mut self) -> anyhow::Result<String> {
        self.conversation.truncate(usize::from(self.has_system()));
        self.responder.save(self.conversation)?;
        self.confirm("the conversation is cleared")
    }

    fn set(&mut self, words: &str) -> anyhow::Result<String> {
        let rows = self.responder.set(words)?;
        let is_changed = words.contains(char::is_whitespace);
        let shown = table(rows.iter().map(|(name, value)| (name.as_str(), value.as_str())), self.width());
        if is_changed { self.confirm(shown.trim_end()) } else { Ok(shown) }
    }

    fn undo(&mut self) -> anyhow::Result<String> {
        let last = self.conversation.iter().rposition(|message| message.role == Role::User);
        let last = last.context("there is no message to take back")?;
        let taken = self.conversation.split_off(last);
        self.responder.save(self.conversation)?;
        let begins: String = taken[0].content.chars().take(60).collect();
        Ok(format!("taken back: {}\n", standard_io::escape(&begins)))
    }

    fn system(&mut self, text: &str) -> anyhow::Result<String> {
        if text.is_empty() {
            let system = self.has_system().then(|| self.conversation[0].content.clone());
            return Ok(system.map_or("there is no system message\n".to_owned(), |text| text + "\n"));
        }
        set_system(self.responder, self.conversation, text)?;
        self.responder.save(self.conversation)?;
        self.confirm("the system message is set")
    }

    fn save(&mut self, path: Option<PathBuf>) -> anyhow::Result<String> {
        let messages = counted(self.conversation.len(), "message");
        let Some(path) = path else {
            let file = self.responder.file().context("/save needs a file name: there is no --session")?;
            let file = file.display().to_string();
            self.responder.save(self.conversation)?;
            return Ok(format!("saved {messages} in {file}\n"));
        };
        save(self.conversation, &path)?;
        Ok(format!("saved {messages} in {}\n", path.display()))
    }

    fn load(&mut self, path: &Path) -> anyhow::Result<String> {
        let text = standard_io::read_text_file(path).map_err(|error| match path.is_file() {
            true => error.context("/load reads what /save wrote; a session is continued with --session"),
            false => error,
        })?;
        let loaded: Vec<Message> = serde_json::from_str(&text).with_context(|| {
            format!("{} is not a JSON array of messages, as /save writes it", path.display())
        })?;
        ensure!(!loaded.is_empty(), "{} has no messages", path.display());
        let ends_well = loaded.last().is_some_and(|last| !matches!(last.role, Role::User | Role::Tool));
        ensure!(ends_well, "{} ends with a message that has no answer", path.display());
        *self.conversation = loaded;
        self.responder.save(self.conversation)?;
        Ok(format!("loaded {} from {}\n", counted(self.conversation.len(), "message"), path.display()))
    }
}

/// Puts a system message in front of a conversation, in place of the one there.
///
/// # Errors
/// When the model cannot take it.
pub fn set_system(
    responder: &dyn Responder,
    conversation: &mut Vec<Message>,
    text: &str,
) -> anyhow::Result<()> {
    responder.check_system(text)?;
    if conversation.first().is_some_and(|first| first.role == Role::System) {
        conversation.remove(0);
    }
    conversation.insert(0, Message::new(Role::System, text));
    Ok(())
}

/// Reads one input, which may be several lines; `None` at the end.
fn read_input(lines: &mut dyn LineSource, errors: &mut dyn Write) -> anyhow::Result<Option<String>> {
    let mut input: Option<String> = None;
    loop {
        match lines.next_line(if input.is_none() { "> " } else { "… " })? {
            Line::Text(line) => {
                let whole = input.take().map_or(line.clone(), |begun| format!("{begun}\n{line}"));
                if is_complete(&whole) {
                    return Ok(Some(whole));
                }
                input = Some(whole);
            }
            Line::Interrupted => {
                input = None;
                writeln!(errors, "Ctrl-D or /quit leaves")?;
            }
            // What was typed is not lost.
            Line::End => return Ok(input.map(|begun| begun.trim_end_matches('\\').to_owned())),
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
    #[derive(Default)]
    struct Echo {
        kept: Vec<usize>,
    }

    impl Responder for Echo {
        fn respond(
            &mut self,
            conversation: &[Message],
            regenerate: bool,
            show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
        ) -> anyhow::Result<Answer> {
            let last = &conversation.last().unwrap().content;
            anyhow::ensure!(last != "fail", "the context is full");
            if last == "stop" {
                return Ok(Answer { is_stopped: true, ..Answer::default() });
            }
            let text = format!("{}{}: {last}", conversation.len(), if regenerate { "again" } else { "" });
            let (first, rest) = text.split_at(1);
            show(first)?;
            show(rest)?;
            Ok(Answer { text, ..Answer::default() })
        }

        fn save(&mut self, conversation: &[Message]) -> anyhow::Result<()> {
            self.kept.push(conversation.len());
            Ok(())
        }

        fn file(&self) -> Option<&Path> {
            None
        }

        fn must_end(&self) -> bool {
            self.kept.len() > 20
        }

        fn check_system(&self, system: &str) -> anyhow::Result<()> {
            anyhow::ensure!(system != "no", "the template takes none");
            Ok(())
        }

        fn set(&mut self, words: &str) -> anyhow::Result<Vec<(String, String)>> {
            Ok(vec![("set".to_owned(), words.to_owned())])
        }

        fn description(&self) -> &str {
            "an echo"
        }
    }

    struct Script(std::vec::IntoIter<Line>);

    impl LineSource for Script {
        fn next_line(&mut self, _prompt: &str) -> anyhow::Result<Line> {
            Ok(self.0.next().unwrap_or(Line::End))
        }
    }

    fn script(lines: &[&str]) -> Script {
        let line = |line: &&str| if *line == "^C" { Line::Interrupted } else { Line::Text((*line).into()) };
        Script(lines.iter().map(line).collect::<Vec<_>>().into_iter())
    }

    fn screen<'a>(output: &'a mut dyn Write, errors: &'a mut dyn Write) -> Screen<'a> {
        Screen { output, errors, output_width: || None, error_width: || None, confirms: false }
    }

    /// Output, errors and whether all went well.
    fn talk(lines: &[&str], conversation: &mut Vec<Message>) -> (String, String, bool) {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let mut screen = screen(&mut output, &mut errors);
        let mut echo = Echo::default();
        let is_well = converse(&mut echo, &mut script(lines), &mut screen, None, conversation).unwrap();
        (String::from_utf8(output).unwrap(), String::from_utf8(errors).unwrap(), is_well)
    }

    fn transcript(lines: &[&str]) -> String {
        talk(lines, &mut Vec::new()).0
    }

    #[test]
    fn a_conversation_grows_and_is_cleared() {
        assert_eq!(transcript(&["a", "", "b", "/clear", "c"]), "1: a\n3: b\n1: c\n");
        assert_eq!(
            transcript(&["/system Be brief.", "a", "/reset", "c", "/system"]),
            "2: a\n2: c\nBe brief.\n"
        );
        assert_eq!(talk(&["/system no"], &mut Vec::new()).1, "error: the template takes none\n");
    }

    #[test]
    fn answers_are_taken_back_and_given_again() {
        assert_eq!(transcript(&["a", "b", "/undo", "c"]), "1: a\n3: b\ntaken back: b\n3: c\n");
        assert_eq!(transcript(&["a", "/regen", "b"]), "1: a\n1again: a\n3: b\n");
        let (_, errors, is_well) = talk(&["/undo", "/regen"], &mut Vec::new());
        assert_eq!(errors, "error: there is no message to take back\nerror: there is no answer yet\n");
        assert!(!is_well);
    }

    #[test]
    fn nothing_is_read_after_quit() {
        assert_eq!(transcript(&["/quit", "a"]), "");
        assert_eq!(transcript(&["/bye", "a"]), "");
    }

    #[test]
    fn a_failed_answer_takes_the_message_back() {
        let (output, errors, is_well) = talk(&["a", "fail", "b"], &mut Vec::new());
        assert_eq!((output.as_str(), errors.as_str()), ("1: a\n3: b\n", "error: the context is full\n"));
        assert!(!is_well);
    }

    #[test]
    fn an_answer_that_is_stopped_before_it_begins_takes_the_message_back() {
        let mut conversation = Vec::new();
        let (output, errors, is_well) = talk(&["a", "stop", "b"], &mut conversation);
        assert_eq!((output.as_str(), conversation.len(), is_well), ("1: a\n3: b\n", 4, true));
        assert_eq!(errors, "stopped before the answer began: the message is taken back\n");
    }

    #[test]
    fn commands_say_what_they_have_changed_where_people_read() {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let mut screen = Screen { confirms: true, ..screen(&mut output, &mut errors) };
        let lines = ["/set temp 1", "/system s", "/clear"];
        let ended = converse(&mut Echo::default(), &mut script(&lines), &mut screen, None, &mut Vec::new());
        assert!(ended.unwrap() && output.is_empty());
        let said = String::from_utf8(errors).unwrap();
        assert_eq!(said, "set  temp 1\nthe system message is set\nthe conversation is cleared\n");
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
        let mut conversation = Vec::new();
        let (mut output, mut errors) = (Full, Vec::new());
        let mut screen = screen(&mut output, &mut errors);
        let mut echo = Echo::default();
        let ended = converse(&mut echo, &mut script(&["a"]), &mut screen, None, &mut conversation);
        assert!(ended.is_err());
        assert_eq!(conversation, []);
    }

    #[test]
    fn lines_are_joined_and_an_interrupt_discards_them() {
        assert_eq!(transcript(&["a\\", "b"]), "1: a\nb\n");
        assert_eq!(transcript(&["\"\"\"a", "b", "\"\"\"", "c"]), "1: a\nb\n3: c\n");
        let (output, errors, _) = talk(&["a\\", "^C", "b"], &mut Vec::new());
        assert_eq!((output.as_str(), errors.as_str()), ("1: b\n", "Ctrl-D or /quit leaves\n"));
        assert_eq!(transcript(&["\"\"\"a", "b"]), "1: a\nb\n", "the end of the input ends a message");
    }

    #[test]
    fn slashes_begin_commands() {
        assert_eq!(
            transcript(&["//a", "/set temp", "/show"]),
            "1: /a\nset  temp\nan echo\n2 messages in this conversation\n"
        );
        let (_, errors, _) = talk(&["/sing loud", "/save"], &mut Vec::new());
        assert!(
            errors.starts_with("error: unknown command /sing loud: /help lists all commands\n"),
            "{errors}"
        );
        assert!(errors.contains("/save needs a file name"), "{errors}");
        assert_eq!(transcript(&["/help"]), help(None));
    }

    #[test]
    fn a_saved_conversation_is_an_array_of_messages_and_can_be_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("talk 1.json");
        let command = format!("/save {}", path.display());
        let (said, errors, _) =
            talk(&["/system s", "a", &command, "/save /no/such/folder/x"], &mut Vec::new());
        assert!(said.contains("saved 3 messages in"), "{said}");
        assert!(errors.contains("error: cannot write /no/such/folder/x"), "{errors}");
        let saved: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let expected = serde_json::json!([
            {"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "2: a"},
        ]);
        assert_eq!(saved, expected);
        let load = format!("/load {}", path.display());
        assert!(transcript(&["x", &load, "b"]).ends_with("4: b\n"));
        fs::write(&path, "[]").unwrap();
        assert!(talk(&[&load], &mut Vec::new()).1.contains("has no messages"));
        fs::write(&path, "notes").unwrap();
        assert!(talk(&[&load], &mut Vec::new()).1.contains("is not a JSON array of messages"));
    }
}
