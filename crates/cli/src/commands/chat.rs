//! `verbatim chat`: a conversation in the terminal.

use std::process::ExitCode;

use verbatim_engine::{Message, Prompt};

use crate::flags::{ChatArgs, GenerateFlags};
use crate::interrupt::Interrupt;
use crate::repl::{self, Responder, Terminal};
use crate::session::Session;
use crate::standard_io::notify;
use crate::store::Store;

/// Converses until `/quit` or the end of the input.
///
/// # Errors
/// When there is no model or it has no chat template, or the terminal fails.
pub fn run(args: &ChatArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let mut session =
        Session::open(store, &args.model, &args.device, &args.cache, &args.sequence, &args.generate)?;
    anyhow::ensure!(
        session.has_template(),
        "the model has no chat template and cannot hold a conversation; use `verbatim run --no-template`"
    );
    let mut lines = Terminal::open(&store.home().join("chat-history.txt"))?;
    let mut conversation = session.take_conversation();
    if !conversation.is_empty() {
        notify(&format!("the conversation of {} messages continues", conversation.len()));
    }
    let mut model = Model { session, generate: args.generate.clone(), interrupt };
    let system = args.generate.system.as_deref();
    let ended = repl::converse(&mut model, &mut lines, &mut std::io::stdout(), system, &mut conversation);
    model.session.save(&conversation)?;
    ended?;
    Ok(ExitCode::SUCCESS)
}

struct Model {
    session: Session,
    generate: GenerateFlags,
    interrupt: Interrupt,
}

impl Responder for Model {
    fn respond(
        &mut self,
        conversation: &[Message],
        show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<String> {
        let prompt = Prompt::Chat(conversation.to_vec());
        let mut answer = String::new();
        let mut keep_and_show = |text: &str| {
            answer.push_str(text);
            show(text)
        };
        let summary = self.session.answer(prompt, &self.generate, self.interrupt, &mut keep_and_show)?;
        notify(&format!("\n{summary}"));
        Ok(answer)
    }
}
