//! What a user types in a chat: messages of one or more lines, and the commands that begin with `/`.

use std::path::PathBuf;

use rustyline::completion::unescape;

use crate::wrap::{table, wrapped};

/// The commands, with their arguments and what they do.
pub const COMMANDS: [(&str, &str, &str); 12] = [
    ("/help", "", "show this"),
    ("/set", "[KEY VALUE]", "show the settings, or change one: /set temp 0.5"),
    ("/system", "[TEXT]", "show the system message, or change it"),
    ("/regen", "", "answer the last message again, otherwise"),
    ("/undo", "", "take back the last message and its answer"),
    ("/clear", "", "clear the conversation, except for the system message"),
    (
        "/save",
        "[FILE]",
        "write the conversation to FILE as a JSON array of messages, or to the session's file",
    ),
    ("/load", "FILE", "continue the conversation in FILE"),
    ("/show", "", "show the model and the size of the conversation"),
    ("/reset", "", "as /clear"),
    ("/bye", "", "as /quit"),
    ("/quit", "", "leave, as Ctrl-D does"),
];

/// What else there is to know.
const ADVICE: &str = "A message of several lines is written between \"\"\" and \"\"\", or with \\ at the end of each line but the \
    last. To start a message with /, write // instead. Ctrl-C stops an answer; the text so far stays in the conversation.\n";

/// Output of `/help`, for a terminal of this width.
pub fn help(width: Option<usize>) -> String {
    let rows = COMMANDS.map(|(command, arguments, does)| (format!("{command} {arguments}"), does));
    let rows = rows.iter().map(|(command, does)| (command.trim_end(), *does));
    table(rows, width) + &wrapped(ADVICE, width)
}

/// What is wrong with a command that is [unknown](Input::Unknown).
pub fn problem(typed: &str) -> String {
    const SIMILARITY_MIN: f64 = 0.8;
    let name = typed.split_whitespace().next().unwrap_or(typed);
    match COMMANDS.iter().find(|(command, ..)| *command == name) {
        Some((_, "", _)) => format!("{name} takes nothing behind it; to begin a message with /, write //"),
        Some((_, arguments, _)) => format!("{name} needs {arguments}"),
        None => {
            let similarity = |command: &str| strsim::jaro_winkler(command, name);
            let nearest = COMMANDS
                .iter()
                .map(|(command, ..)| *command)
                .max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
            let nearest = nearest.filter(|nearest| similarity(nearest) >= SIMILARITY_MIN);
            let tip = nearest.map_or(String::new(), |nearest| format!(" (is it {nearest}?)"));
            format!("unknown command {typed}{tip}: /help lists all commands")
        }
    }
}

/// The file that a command names. As in a shell, it may be in quotes, a backslash may stand before a space, and `~` is the user's
/// folder: that is what completion writes, and what a terminal inserts for a file that is dragged into its window.
pub fn path(argument: &str) -> PathBuf {
    let quoted = |quote| argument.strip_prefix(quote)?.strip_suffix(quote);
    if let Some(path) = quoted('"').or_else(|| quoted('\'')) {
        return path.into();
    }
    let escape = if cfg!(windows) { None } else { Some('\\') };
    let path = unescape(argument, escape);
    match (path.strip_prefix("~/"), dirs::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => path.as_ref().into(),
    }
}

/// One input.
#[derive(Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// An empty line.
    Nothing,
    /// `/quit`.
    Quit,
    /// `/help`.
    Help,
    /// `/show`.
    Show,
    /// `/clear`.
    Clear,
    /// `/undo`.
    Undo,
    /// `/regen`.
    Regenerate,
    /// `/set`, with what follows.
    Set(&'a str),
    /// `/system`, with the new message, if any.
    System(&'a str),
    /// `/save`, with the file, if any.
    Save(&'a str),
    /// `/load`.
    Load(&'a str),
    /// A command that does not exist or lacks its argument.
    Unknown(&'a str),
    /// A message.
    Say(String),
}

impl<'a> Input<'a> {
    /// Parses an input that [is complete](is_complete), or all there is.
    pub fn parse(text: &'a str) -> Self {
        if text.trim().is_empty() {
            return Self::Nothing;
        }
        if let Some(block) = text.trim_start().strip_prefix(QUOTES) {
            let block = block.trim_end();
            let block = block.strip_suffix(QUOTES).unwrap_or(block);
            let block = block.strip_prefix('\n').unwrap_or(block);
            let block = block.strip_suffix('\n').unwrap_or(block);
            return if block.trim().is_empty() { Self::Nothing } else { Self::Say(block.to_owned()) };
        }
        if !text.starts_with('/') {
            return Self::Say(text.replace("\\\n", "\n"));
        }
        if text.starts_with("//") {
            return Self::Say(text[1..].replace("\\\n", "\n"));
        }
        let (command, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match (command, argument.trim()) {
            ("/quit" | "/bye" | "/exit", "") => Self::Quit,
            ("/help" | "/?", "") => Self::Help,
            ("/show", "" | "info") => Self::Show,
            // As in Ollama.
            ("/show", "parameters") => Self::Set(""),
            ("/show", "system") => Self::System(""),
            ("/clear" | "/reset", "") => Self::Clear,
            ("/undo", "") => Self::Undo,
            ("/regen", "") => Self::Regenerate,
            ("/set", words) => match words.split_once(char::is_whitespace) {
                // Ollama's `/set parameter KEY VALUE` and `/set system TEXT`.
                Some(("parameter", words)) => Self::Set(words.trim()),
                Some(("system", text)) => Self::System(text.trim()),
                Some(("format", "json")) => Self::Set("json-schema {}"),
                _ => Self::Set(words),
            },
            ("/system", text) => Self::System(text),
            ("/save", path) => Self::Save(path),
            ("/load", path) if !path.is_empty() => Self::Load(path),
            _ => Self::Unknown(text.trim_end()),
        }
    }
}

const QUOTES: &str = "\"\"\"";

/// Whether the lines so far are a whole input, or another line belongs to it.
pub fn is_complete(text: &str) -> bool {
    match text.trim_start().strip_prefix(QUOTES) {
        Some(block) => block.trim_end().ends_with(QUOTES),
        None => !text.ends_with('\\'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_backslashes_make_messages_of_several_lines() {
        let say = |text: &str| Input::Say(text.to_owned());
        assert_eq!(Input::parse("a\\\nb"), say("a\nb"));
        assert_eq!(Input::parse("\"\"\"a\nb\"\"\""), say("a\nb"));
        assert_eq!(Input::parse("\"\"\"\n /a\n\"\"\" "), say(" /a"));
        assert_eq!(Input::parse("\"\"\"\"\"\""), Input::Nothing);
        assert_eq!(Input::parse("//a"), say("/a"));
        for (text, complete) in [
            ("a", true),
            ("a\\", false),
            ("a\\\nb", true),
            ("\"\"\"", false),
            ("\"\"\"a\nb", false),
            ("\"\"\"a\nb\"\"\"", true),
            ("\"\"\"\"\"\"", true),
        ] {
            assert_eq!(is_complete(text), complete, "{text}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn files_are_named_as_in_a_shell() {
        for (argument, expected) in [
            ("a b.json", "a b.json"),
            ("a\\ b.json", "a b.json"),
            ("\"a b.json\"", "a b.json"),
            ("'a\\b'", "a\\b"),
            ("it's", "it's"),
        ] {
            assert_eq!(path(argument), PathBuf::from(expected), "{argument}");
        }
        assert_eq!(path("~/x"), dirs::home_dir().unwrap().join("x"));
    }

    #[test]
    fn every_command_is_known() {
        for (command, arguments, _) in COMMANDS {
            let text = if arguments.starts_with(char::is_alphabetic) {
                format!("{command} x")
            } else {
                command.into()
            };
            assert!(!matches!(Input::parse(&text), Input::Unknown(_) | Input::Say(_)), "{text}");
            assert!(help(None).contains(command));
        }
        assert_eq!(Input::parse("/load"), Input::Unknown("/load"));
        assert_eq!(Input::parse("/sing loud "), Input::Unknown("/sing loud"));
        assert_eq!(Input::parse("/set parameter top_k 3"), Input::Set("top_k 3"));
        assert_eq!(Input::parse("/set system Be brief."), Input::System("Be brief."));
        assert_eq!(Input::parse("/set format json"), Input::Set("json-schema {}"));
        assert_eq!(Input::parse("/show parameters"), Input::Set(""));
    }
}
