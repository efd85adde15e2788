//! `verbatim chat`: a conversation in the terminal.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use verbatim_engine::{FinishReason, Message, Prompt, Role};

use crate::error::UsageError;
use crate::flags::ChatArgs;
use crate::interrupt::{Busy, Interrupt};
use crate::prompt;
use crate::repl::{self, Answer, Responder, Screen};
use crate::session::{Session, counted};
use crate::settings;
use crate::standard_io::{error_columns, escape, notify, output_columns};
use crate::store::Store;
use crate::terminal::Terminal;

/// Converses until `/quit` or the end of the input. Where the input is not a terminal, a failed answer makes the exit status 1.
///
/// # Errors
/// When there is no model or it has no chat template, or the terminal fails.
pub fn run(args: &ChatArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let mut model = args.model.clone();
    if args.name.is_some() && model.model.is_some() {
        return Err(UsageError("there are two models: the argument and --model".into()).into());
    }
    model.model = args.name.clone().or(model.model);
    let first = prompt::given(&args.prompt)?.map(|text| prompt::unescaped(text, &args.prompt)).transpose()?;
    let is_quiet = args.inference.generate.quiet;
    let mut session = Session::open(store, &model, &args.inference, true)?;
    // Until here, Ctrl-C ends the program.
    let interrupt = Interrupt::install()?;
    let is_terminal = io::stdin().is_terminal();
    if is_terminal && !is_quiet {
        notify(&format!("{}\n/help lists the commands, Ctrl-D leaves", escape(session.description())));
    }
    let mut lines = Terminal::open(&store.home().join("chat-history.txt"), settings::keys())?;
    let mut conversation = session.take_conversation();
    if !conversation.is_empty() && !is_quiet {
        notify(&format!("the conversation of {} continues", counted(conversation.len(), "message")));
        if is_terminal {
            remind(&conversation);
        }
    }
    let mut model = Model { session, interrupt, busy: None, repeats: 0, is_quiet };
    if let Some(system) = &args.inference.generate.system {
        repl::set_system(&model, &mut conversation, system)?;
    }
    let (output, errors) = (&mut io::stdout(), &mut io::stderr());
    let confirms = is_terminal && !is_quiet;
    let (output_width, error_width) = (output_columns, error_columns);
    let mut screen = Screen { output, errors, output_width, error_width, confirms };
    let ended = repl::converse(&mut model, &mut lines, &mut screen, first, &mut conversation);
    let busy = interrupt.busy();
    model.session.save(&conversation)?;
    drop(busy);
    if let Some(status) = interrupt.ending() {
        return Ok(ExitCode::from(status));
    }
    Ok(if ended? || is_terminal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows how a conversation that continues has ended.
fn remind(conversation: &[Message]) {
    const CHARACTERS_MAX: usize = 300;
    let begins = |text: &str| match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    };
    let last = |role| conversation.iter().rfind(|message| message.role == role);
    if let (Some(asked), Some(answered)) = (last(Role::User), last(Role::Assistant)) {
        notify(&format!("> {}\n{}", begins(&asked.content), begins(&answered.content)));
    }
}

struct Model {
    session: Session,
    interrupt: Interrupt,
    /// From a question until its answer is saved.
    busy: Option<Busy>,
    /// How many times the last answer was regenerated: a fixed seed would repeat it.
    repeats: u64,
    is_quiet: bool,
}

impl Responder for Model {
    fn respond(
        &mut self,
        conversation: &[Message],
        regenerate: bool,
        show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Answer> {
        self.busy = Some(self.interrupt.busy());
        // A Ctrl-C from before the message was not meant for its answer.
        self.interrupt.take();
        let given = self.session.settings.sampling.seed;
        self.repeats = if regenerate { self.repeats + 1 } else { 0 };
        self.session.settings.sampling.seed = given.map(|seed| seed.wrapping_add(self.repeats));
        let prompt = Prompt::Chat(conversation.to_vec());
        let (mut answer, mut is_unseen) = (String::new(), false);
        let answered = self.session.answer(prompt, self.interrupt, &mut |piece| {
            // What the model thought is not part of the conversation.
            answer.push_str(piece.text);
            show(piece.shown).inspect_err(|_| is_unseen = true)
        });
        self.session.settings.sampling.seed = given;
        let summary = match answered {
            Err(_) if is_unseen && !answer.trim().is_empty() => {
                return Ok(Answer { text: answer, notes: Vec::new(), is_stopped: true });
            }
            answered => answered?,
        };
        let mut notes = Vec::new();
        if !self.is_quiet {
            notes.push(summary.to_string());
        }
        if summary.is_cut {
            notes.push("warning: the answer was cut before its grammar was satisfied".to_owned());
        }
        Ok(Answer { text: answer, notes, is_stopped: summary.reason == FinishReason::Cancelled })
    }

    fn save(&mut self, conversation: &[Message]) -> anyhow::Result<()> {
        let saved = self.session.save(conversation);
        self.busy = None;
        saved
    }

    fn file(&self) -> Option<&Path> {
        self.session.file()
    }

    fn must_end(&self) -> bool {
        self.interrupt.ending().is_some()
    }

    fn check_system(&self, system: &str) -> anyhow::Result<()> {
        self.session.check_system(system)
    }

    fn set(&mut self, words: &str) -> anyhow::Result<Vec<(String, String)>> {
        let mut changed = self.session.settings.clone();
        let shown = settings::set(&mut changed, words, self.session.tokenizer())?;
        self.session.settings = changed;
        Ok(shown)
    }

    fn description(&self) -> &str {
        self.session.description()
    }
}
