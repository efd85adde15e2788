//! Errors of the command line, in a user's words.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use crate::argv;
use crate::origins::Origins;
use crate::standard_io::notify;

/// What Rust's number parsers say, and what a user needs to know.
const NUMBER_ERRORS: &[(&str, &str)] = &[
    ("invalid digit found in string", "this must be a whole number"),
    ("cannot parse integer from empty string", "a number is missing"),
    ("cannot parse float from empty string", "a number is missing"),
    ("invalid float literal", "this must be a number"),
    ("number would be zero for non-zero type", "this must be 1 or more"),
    ("number too large to fit in target type", "this number is too large"),
    ("number too small to fit in target type", "this number is too small"),
];

/// Shows help, or reports an error and which variables have to do with it. Returns the exit status.
pub fn report(error: &Error, program: &Command, origins: &Origins) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(2);
    }
    let text = match error.kind() {
        ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => unknown(error, program),
        _ => error.render().to_string(),
    };
    let text = NUMBER_ERRORS.iter().fold(text, |text, (rust, words)| text.replace(rust, words));
    let mut text = text.trim_end().to_owned();
    let notes: String = origins.notes(&text).iter().map(|note| format!("\n  note: {note}")).collect();
    let end = text.find("\n\nUsage:").or_else(|| text.find("\n\nFor more")).unwrap_or(text.len());
    text.insert_str(end, &notes);
    notify(&text);
    ExitCode::from(2)
}

fn context(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        ContextValue::StyledStr(text) => Some(text.to_string()),
        _ => None,
    }
}

/// An argument or a command that does not exist: what to type instead, by its meaning or else by its spelling.
fn unknown(error: &Error, program: &Command) -> String {
    let is_command = error.kind() == ErrorKind::InvalidSubcommand;
    let kind = if is_command { ContextKind::InvalidSubcommand } else { ContextKind::InvalidArg };
    let found = context(error, kind).unwrap_or_default();
    let mut text = match is_command {
        true => format!("error: there is no command '{found}'"),
        false => format!("error: unexpected argument '{found}' found"),
    };
    let name = found.split('=').next().unwrap_or_default();
    let similar = if is_command { ContextKind::SuggestedSubcommand } else { ContextKind::SuggestedArg };
    let tip = argv::meaning(name.as_ref()).map(str::to_owned);
    let tip = tip.or_else(|| context(error, similar).map(|similar| format!("a similar one is '{similar}'")));
    let tip = tip.or_else(|| tip_by_form(&found, is_command, program));
    tip.iter().for_each(|tip| text.push_str(&format!("\n\n  tip: {tip}")));
    if let Some(usage) = context(error, ContextKind::Usage) {
        text.push_str(&format!("\n\n{}", usage.trim_end()));
    }
    text + "\n\nFor more information, try '--help'."
}

fn tip_by_form(found: &str, is_command: bool, program: &Command) -> Option<String> {
    let is_text = found.contains(char::is_whitespace);
    if is_command && is_text {
        return Some("to ask something, use `verbatim run \"…\"`".to_owned());
    }
    if is_command {
        let names = program.get_subcommands().map(Command::get_name);
        return Some(format!("the commands are {}", names.collect::<Vec<_>>().join(", ")));
    }
    let is_short = found.chars().count() == 2;
    (is_text || is_short).then(|| "write -- before a prompt that begins with a dash".to_owned())
}
