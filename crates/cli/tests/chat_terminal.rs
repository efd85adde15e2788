//! `verbatim chat` in a real terminal: commands, keys, pasted and typed-ahead lines, Ctrl-C, windows that change their size or are
//! closed. Needs tmux.
#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::data;
use support::tmux::{self, Terminal};

/// What the model says to everything, unless another grammar is set.
const ANSWER: &str =
    "Mars is the fourth planet from the Sun and the only one known to be inhabited by robots alone.";

/// `verbatim chat` with a small model that gives `ANSWER`, and more flags.
fn chat(more: &str) -> String {
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}bot:";
    let (program, model) = (env!("CARGO_BIN_EXE_verbatim"), data("models/qwen3/model.gguf"));
    format!("{program} chat -m {} --chat-template '{template}' --temp 0 -t 2 {more}", model.display())
}

/// A chat whose answers are all `ANSWER`.
fn answering(more: &str) -> String {
    chat(&format!("--grammar 'root ::= \"{ANSWER}\"' {more}"))
}

/// A chat whose answers have no end.
fn endless(more: &str) -> String {
    chat(&format!("--ignore-eos --context-shift -c 300 {more}"))
}

fn messages(path: &Path) -> Vec<(String, String)> {
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    saved
        .as_array()
        .unwrap()
        .iter()
        .map(|message| (text(&message["role"]), text(&message["content"])))
        .collect()
}

/// What follows the last line with this text.
fn after<'a>(screen: &'a str, text: &str) -> &'a str {
    screen.rsplit_once(text).unwrap_or_else(|| panic!("{text:?} is not there:\n{screen}")).1
}

/// Whether that much of an answer has come to the last line with this text.
fn is_answered(screen: &str, text: &str, characters: usize) -> bool {
    screen.rsplit_once(text).is_some_and(|(_, rest)| rest.trim().chars().count() > characters)
}

fn user(content: &str) -> (String, String) {
    ("user".to_owned(), content.to_owned())
}

#[test]
fn every_command_works_and_says_what_it_did() {
    if !tmux::is_there() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let terminal = Terminal::start(home.path(), (80, 50), &[], &answering(""));
    let banner = terminal.wait_end("\n>");
    assert!(banner.starts_with("model, ") && banner.contains("context of "), "{banner}");
    assert!(banner.contains("\n/help lists the commands, Ctrl-D leaves\n>"), "{banner}");
    terminal.line("/help");
    let help = terminal.wait_for("/quit ");
    let help = after(&help, "> /help\n");
    // Words stay whole, and what does not fit stands below the column of the explanations.
    assert!(help.contains("array of messages, or\n                  to the session's file\n"), "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    for (line, said) in [
        ("/set temp", "temp  0\n>"),
        ("/set tmp 3", "error: there is no setting tmp: /set shows all\n>"),
        ("/set temp 0.5", "temp  0.5\n>"),
        ("/undo", "error: there is no message to take back\n>"),
        ("/regen", "error: there is no answer yet\n>"),
        ("/system", "there is no system message\n>"),
        ("/system Be brief.", "the system message is set\n>"),
        ("/system", "Be brief.\n>"),
        ("/save", "error: /save needs a file name: there is no --session\n>"),
        ("/load", "error: /load needs FILE\n>"),
        ("/undo it", "error: /undo takes nothing behind it; to begin a message with /, write //\n>"),
        ("/sing", "error: unknown command /sing: /help lists all commands\n>"),
        ("/regenerate", "error: unknown command /regenerate (is it /regen?): /help lists all commands\n>"),
    ] {
        terminal.line(line);
        terminal.wait_end(&format!("\n> {line}\n{said}"));
    }
    terminal.line("Tell me about Mars.");
    let screen = terminal.wait(|screen| screen.contains(", seed ") && screen.ends_with("\n>"));
    let answer = after(&screen, "> Tell me about Mars.\n");
    assert!(
        answer.starts_with("Mars is the fourth planet from the Sun and the only one known to be inhabited by\nrobots alone.\n"),
        "{answer}"
    );
    terminal.line("/regen");
    terminal.wait(|screen| screen.ends_with("\n>") && screen.matches("robots alone.\n").count() == 2);
    let saved = home.path().join("my talk.json");
    terminal.line(&format!("/save {}", saved.display()));
    terminal.wait_for("saved 3 messages in");
    let expected = [
        ("system".to_owned(), "Be brief.".to_owned()),
        user("Tell me about Mars."),
        ("assistant".to_owned(), ANSWER.to_owned()),
    ];
    assert_eq!(messages(&saved), expected);
    terminal.line("/undo");
    terminal.wait_end("taken back: Tell me about Mars.\n>");
    terminal.line("/clear");
    terminal.wait_end("the conversation is cleared\n>");
    terminal.line(&format!("/load \"{}\"", saved.display()));
    terminal.wait_for("loaded 3 messages from");
    terminal.line("/show");
    terminal.wait_end("3 messages in this conversation\n>");
    terminal.line("/quit");
    terminal.wait_end("status 0");
}

#[test]
fn keys_complete_recall_and_discard() {
    if !tmux::is_there() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("other talk.json"), r#"[{"role": "system", "content": "Hm."}]"#).unwrap();
    let terminal = Terminal::start(home.path(), (100, 40), &[], &answering(""));
    terminal.wait_end("\n>");
    terminal.keys(&["/sy", "Tab"]);
    terminal.wait_end("\n> /system");
    terminal.keys(&["C-c"]);
    terminal.wait_end("\nCtrl-D or /quit leaves\n>");
    terminal.keys(&["/set repeat-pen", "Tab", "1.5", "Enter"]);
    terminal.wait_end("\n> /set repeat-penalty 1.5\nrepeat-penalty  1.5\n>");
    // What may be meant is listed.
    terminal.keys(&["/s", "Tab", "Tab"]);
    terminal.wait(|screen| {
        let listed = screen.rsplit_once("1.5\n>").map_or("", |(_, rest)| rest);
        let names = ["/set", "/system", "/save", "/show"];
        names.iter().all(|name| listed.contains(name))
    });
    terminal.keys(&["C-c"]);
    // What comes in the same moment as Ctrl-C is discarded with the line.
    terminal.wait_end("leaves\n>");
    terminal.line(&format!("/load {}/oth", home.path().display()));
    terminal.wait_for("error: cannot read");
    terminal.keys(&[&format!("/load {}/oth", home.path().display()), "Tab", "Enter"]);
    terminal.wait_for("loaded 1 message from");
    // A message of several lines is recalled as a whole, and can be changed.
    terminal.line("\"\"\"one");
    terminal.line("two\"\"\"");
    terminal.wait(|screen| screen.ends_with("\n>") && screen.contains("robots alone."));
    terminal.keys(&["Up"]);
    terminal.wait_end("\n> \"\"\"one\ntwo\"\"\"");
    terminal.keys(&["Enter"]);
    terminal.wait(|screen| screen.ends_with("\n>") && screen.matches("robots alone.").count() == 2);
    // The history is there for the next chat.
    terminal.keys(&["C-d"]);
    terminal.wait_end("status 0");
    let next = Terminal::start(home.path(), (100, 40), &[], &answering(""));
    next.wait_end("\n>");
    // The first goes to the first line.
    next.keys(&["Up", "Up", "Up"]);
    next.wait_end("talk.json");
    next.keys(&["Down"]);
    next.wait_end("\n> \"\"\"one\ntwo\"\"\"");
}

#[test]
fn what_is_pasted_or_typed_ahead_is_answered() {
    if !tmux::is_there() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let saved = home.path().join("saved.json");
    let save = |terminal: &Terminal, count: usize| {
        terminal.line(&format!("/save {}", saved.display()));
        terminal.wait_for(&format!("saved {count} messages in"));
        let users = messages(&saved).into_iter().filter(|(role, _)| role == "user");
        users.map(|(_, content)| content).collect::<Vec<_>>()
    };
    let terminal = Terminal::start(home.path(), (100, 60), &[], &answering(""));
    // Typed while the model is being loaded.
    terminal.line("first");
    terminal.wait(|screen| screen.ends_with("\n>") && screen.contains("robots alone."));
    // Marked, it is one message, which waits for Enter.
    terminal.paste("fn main() {\n\tprintln!(\"hi\");\n}", true);
    terminal.wait_end("\n}");
    terminal.keys(&["Enter"]);
    terminal.wait(|screen| screen.ends_with("\n>") && screen.matches("robots alone.").count() == 2);
    // Otherwise each line is a message, as if it was typed.
    terminal.paste("one\ntwo\nthree\n", false);
    terminal.wait(|screen| screen.ends_with("\n>") && screen.matches("robots alone.").count() == 5);
    let expected = ["first", "fn main() {\n\tprintln!(\"hi\");\n}", "one", "two", "three"];
    assert_eq!(save(&terminal, 10), expected);
}

#[test]
fn ctrl_c_stops_an_answer_and_takes_a_message_back_that_has_none() {
    if !tmux::is_there() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let long = serde_json::json!([
        {"role": "user", "content": "word ".repeat(60_000)}, {"role": "assistant", "content": "Yes."},
    ]);
    let path = home.path().join("long.json");
    std::fs::write(&path, long.to_string()).unwrap();
    let terminal = Terminal::start(home.path(), (80, 40), &[], &chat("--ignore-eos -c 200000 -t 1"));
    terminal.wait_end("\n>");
    terminal.line(&format!("/load {}", path.display()));
    terminal.wait_for("loaded 2 messages from");
    terminal.line("and now?");
    // The line says how far it is.
    let reading = terminal.wait(|screen| {
        let line = screen.lines().last().unwrap_or_default();
        line.contains("reading the prompt, ") && line.contains(" % … ")
    });
    assert!(reading.contains("░"), "{reading}");
    terminal.keys(&["C-c"]);
    terminal.wait_end("\n> and now?\nstopped before the answer began: the message is taken back\n>");
    terminal.line("/show");
    terminal.wait_end("2 messages in this conversation\n>");
    terminal.line("/clear");
    terminal.wait_end("cleared\n>");
    terminal.line("go on for ever");
    terminal.wait(|screen| is_answered(screen, "> go on for ever", 50));
    terminal.keys(&["C-c"]);
    terminal.line("/show");
    let screen = terminal.wait_end("2 messages in this conversation\n>");
    assert!(screen.contains("; interrupted\n"), "{screen}");
    terminal.keys(&["C-d"]);
    terminal.wait_end("status 0");
}

#[test]
fn answers_are_wrapped_to_the_size_that_the_window_has_now() {
    if !tmux::is_there() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let terminal = Terminal::start(home.path(), (100, 40), &[], &answering(""));
    terminal.wait_end("\n>");
    for (asked, columns) in [100, 34, 20].into_iter().enumerate() {
        terminal.resize(columns, 40);
        terminal.line("hi");
        let screen = terminal.wait(|screen| {
            screen.ends_with("\n>")
                && screen.matches("> hi\n").count() == asked + 1
                && screen.rsplit_once("> hi\n").is_some_and(|(_, rest)| rest.contains("alone."))
        });
        let answer = after(&screen, "> hi\n").split_once("alone.").unwrap().0.to_owned() + "alone.";
        let words: Vec<&str> = answer.split_whitespace().collect();
        assert_eq!(words.join(" "), ANSWER, "{screen}");
        assert!(answer.lines().all(|line| line.chars().count() <= columns), "{screen}");
    }
    terminal.line("/help");
    let screen = terminal.wait_for("stays in the");
    let help = after(&screen, "> /help\n");
    assert!(help.contains("\n/undo\n    take back the\n    last message and\n    its answer\n"), "{help}");
}

#[test]
fn a_chat_goes_on_after_its_window_was_closed_or_it_was_ended() {
    if !tmux::is_there() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let session = home.path().join("talk.session");
    let line = endless(&format!("--session {}", session.display()));
    let terminal = Terminal::start(home.path(), (80, 40), &[], &line);
    terminal.wait_end("\n>");
    terminal.line("tell me everything");
    terminal.wait(|screen| is_answered(screen, "> tell me everything", 50));
    terminal.close();
    let terminal = Terminal::start(home.path(), (80, 40), &[], &line);
    let screen = terminal.wait_end("\n>");
    assert!(screen.contains("the conversation of 2 messages continues\n> tell me everything\n"), "{screen}");
    terminal.line("and what else?");
    terminal.wait(|screen| is_answered(screen, "> and what else?", 50));
    assert!(Command::new("kill").args(["-TERM", &terminal.program()]).status().unwrap().success());
    terminal.wait_end("\nstatus 143");
    // At its prompt it ends at once, and leaves the terminal as it was.
    let line = format!("{line}; stty -a | grep -c -- ' icanon.* echo '");
    let terminal = Terminal::start(home.path(), (80, 40), &[], &line);
    assert!(terminal.wait_end("\n>").contains("the conversation of 4 messages continues\n"));
    assert!(Command::new("kill").args(["-TERM", &terminal.program()]).status().unwrap().success());
    terminal.wait_end("\nstatus 0");
}

#[test]
fn a_plain_terminal_gets_plain_text() {
    if !tmux::is_there() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    for variables in [&[("TERM", "dumb")][..], &[("TERM", "")], &[("LC_ALL", "C"), ("NO_COLOR", "1")]] {
        let terminal = Terminal::start(home.path(), (80, 40), variables, &answering(""));
        terminal.wait_end("\n>");
        terminal.line("hi");
        let screen = terminal.wait(|screen| screen.contains("robots alone.") && screen.ends_with("\n>"));
        // Ctrl-C at the prompt is not meant for the next answer.
        terminal.keys(&["no", "C-c"]);
        terminal.wait(|screen| screen.ends_with("^C") || screen.ends_with("leaves\n>"));
        std::thread::sleep(Duration::from_millis(500));
        terminal.line("hello");
        terminal.wait(|screen| screen.matches("robots alone.").count() == 2 && screen.ends_with("\n>"));
        terminal.keys(&["C-d"]);
        terminal.wait_end("status 0");
        assert!(screen.is_ascii(), "{screen}");
    }
}
