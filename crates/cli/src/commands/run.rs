//! `verbatim run`: one prompt, one answer.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use verbatim_engine::{FinishReason, Message, Prompt, Role};

use crate::error::UsageError;
use crate::flags::RunArgs;
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::session::{Session, notify_no_template};
use crate::standard_io::{self, notify};
use crate::store::Store;

/// Streams the answer to standard output and a summary line to standard error.
///
/// # Errors
/// When there is no prompt, no model, or the prompt does not fit.
pub fn run(args: &RunArgs, store: &Store) -> anyhow::Result<ExitCode> {
    if args.no_template && args.generate.system.is_some() {
        return Err(
            UsageError("--system needs the chat template that --no-template leaves out".into()).into()
        );
    }
    if let Some(file) = &args.parallel.file {
        return super::parallel::run(args, file, store);
    }
    let text = prompt(args.prompt.as_deref())?;
    let interrupt = Interrupt::install()?;
    let session =
        Session::open(store, &args.model, &args.device, &args.cache, &args.sequence, &args.generate)?;
    let prompt = if args.no_template {
        Prompt::Text(text)
    } else if session.has_template() {
        let system = args.generate.system.clone().map(|content| Message { role: Role::System, content });
        Prompt::Chat(system.into_iter().chain([Message { role: Role::User, content: text }]).collect())
    } else {
        notify_no_template();
        Prompt::Text(text)
    };
    let mut show = |text: &str| standard_io::write(text.as_bytes());
    let summary = session.answer(prompt, &args.generate, interrupt, &mut show)?;
    show("\n")?;
    notify(&summary.to_string());
    session.save(&[])?;
    match summary.reason {
        FinishReason::Cancelled => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        FinishReason::EndOfText
        | FinishReason::StopString(_)
        | FinishReason::MaxTokens
        | FinishReason::ContextFull => Ok(ExitCode::SUCCESS),
    }
}

/// The prompt of `verbatim run`: the argument, or standard input when the argument is `-` or absent.
///
/// # Errors
/// [`UsageError`] when there is no argument and standard input is a terminal, where waiting would look like a
/// hang.
fn prompt(argument: Option<&str>) -> anyhow::Result<String> {
    match argument {
        Some("-") => standard_io::read_text(),
        Some(text) => Ok(text.to_owned()),
        None if io::stdin().is_terminal() => {
            Err(UsageError("there is no prompt: give it as an argument or on standard input".into()).into())
        }
        None => standard_io::read_text(),
    }
}
