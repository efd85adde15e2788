//! What a user types in a chat: messages of one or more lines, and the commands that begin with `/`.

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

/// Output of `/help`.
pub fn help() -> String {
    let mut text = String::new();
    for (command, arguments, does) in COMMANDS {
        text.push_str(&format!("{:<22} {does}\n", format!("{command} {arguments}")));
    }
    text.push_str(
        "A message of several lines is written between \"\"\" and \"\"\", or with \\ at the end of each line but the last.\n\
         To start a message with /, write // instead. Ctrl-C stops an answer; the text so far stays in the conversation.\n",
    );
    text
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
            ("/clear" | "/reset", "") => Self::Clear,
            ("/undo", "") => Self::Undo,
            ("/regen", "") => Self::Regenerate,
            ("/set", words) => match words.split_once(char::is_whitespace) {
                // Ollama's `/set parameter KEY VALUE` and `/set system TEXT`.
                Some(("parameter", words)) => Self::Set(words.trim()),
                Some(("system", text)) => Self::System(text.trim()),
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
    fn every_command_is_known() {
        for (command, arguments, _) in COMMANDS {
            let text = if arguments.starts_with(char::is_alphabetic) {
                format!("{command} x")
            } else {
                command.into()
            };
            assert!(!matches!(Input::parse(&text), Input::Unknown(_) | Input::Say(_)), "{text}");
            assert!(help().contains(command));
        }
        assert_eq!(Input::parse("/load"), Input::Unknown("/load"));
        assert_eq!(Input::parse("/sing loud "), Input::Unknown("/sing loud"));
        assert_eq!(Input::parse("/set parameter top_k 3"), Input::Set("top_k 3"));
        assert_eq!(Input::parse("/set system Be brief."), Input::System("Be brief."));
    }
}
