//! `verbatim run`: one prompt, one answer.

use std::process::ExitCode;

use crate::error::UsageError;
use crate::flags::RunArgs;
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::repl::{Message, Role};
use crate::session::{Ending, Session, notify_no_template};
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
    let prompt = standard_io::prompt(args.prompt.as_deref())?;
    let interrupt = Interrupt::install()?;
    let mut session =
        Session::open(store, &args.model, &args.threads, &args.cache, &args.sequence, &args.generate)?;
    let tokens = if args.no_template {
        session.text_tokens(&prompt)
    } else if session.has_template() {
        let message = |role, content: &str| Message { role, content: content.to_owned() };
        let system = args.generate.system.as_deref().map(|system| message(Role::System, system));
        let messages: Vec<Message> = system.into_iter().chain([message(Role::User, &prompt)]).collect();
        session.conversation_tokens(&messages)?
    } else {
        notify_no_template();
        session.text_tokens(&prompt)
    };
    let mut show = |text: &str| standard_io::write(text.as_bytes());
    let summary = session.answer(&tokens, &args.generate, interrupt, &mut show)?;
    show("\n")?;
    notify(&summary.to_string());
    session.keep(&[])?;
    match summary.ending {
        Ending::Interrupted => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        Ending::Model | Ending::Limit | Ending::ContextFull => Ok(ExitCode::SUCCESS),
    }
}
