//! `verbatim run`: one prompt, one answer.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::bail;
use serde_json::{Value, json};
use verbatim_engine::{FinishReason, Message, Prompt, Role};

use crate::commands::chat;
use crate::error::UsageError;
use crate::flags::{ChatArgs, PromptFlags, RunArgs};
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::prompt::RunInput;
use crate::session::{Piece, Session, Summary, notify_no_template};
use crate::standard_io::{self, notify};
use crate::store::Store;
use crate::waiting::Waiting;

/// Streams the answer to standard output and a summary line to standard error; begins a chat when only a model is given.
///
/// # Errors
/// When there is no prompt, no model, or the prompt does not fit.
pub fn run(args: &RunArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let generate = &args.inference.generate;
    if args.no_template && generate.system.is_some() {
        bail!(UsageError("--system needs the chat template that --no-template leaves out".into()));
    }
    if let Some(file) = &args.parallel.file {
        return super::parallel::run(args, file, store);
    }
    let RunInput { model: named, prompt } = RunInput::read(args, store)?;
    let mut model = args.model.clone();
    model.model = named.or(model.model);
    let Some(text) = prompt else {
        let (prompt, inference) = (PromptFlags::default(), args.inference.clone());
        return chat::run(&ChatArgs { name: None, prompt, model, inference }, store);
    };
    let mut session = Session::open(store, &model, &args.inference, false)?;
    // Until here, Ctrl-C ends the program.
    let interrupt = Interrupt::install()?;
    let mut conversation = session.take_conversation();
    let uses_template = !args.no_template && session.has_template();
    if !uses_template && !conversation.is_empty() {
        bail!(
            "--session holds a conversation, which only a chat template can continue: use another file, or leave out --no-template"
        );
    }
    if let Some(system) = generate.system.as_deref().filter(|system| !uses_template && !system.is_empty()) {
        bail!("the model has no chat template, so --system {system:?} cannot be used: use --chat-template");
    }
    let prompt = if uses_template {
        add_question(&mut conversation, &session, generate.system.as_deref(), text)?;
        Prompt::Chat(conversation.clone())
    } else {
        if !args.no_template {
            notify_no_template();
        }
        Prompt::Text(text)
    };
    let busy = interrupt.busy();
    let mut output = Output::new(Format::of(args), generate.quiet);
    let summary = session.answer(prompt, interrupt, &mut |piece| output.show(piece))?;
    output.finish(&summary)?;
    if !generate.quiet {
        notify(&summary.to_string());
    }
    if summary.is_cut {
        notify(
            "warning: the answer was cut before its grammar was satisfied: use a larger --max-tokens or --ctx-size",
        );
    }
    let is_answered = summary.reason != FinishReason::Cancelled || !output.answer.trim().is_empty();
    if !is_answered {
        // An empty answer would puzzle the model for the rest of the conversation.
        conversation.pop();
    } else if uses_template {
        conversation.push(Message::new(Role::Assistant, output.answer));
    }
    session.save(&conversation)?;
    drop(busy);
    match (interrupt.ending(), summary.reason) {
        (Some(status), _) => Ok(ExitCode::from(status)),
        (None, FinishReason::Cancelled) => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        (
            None,
            FinishReason::EndOfText
            | FinishReason::StopString(_)
            | FinishReason::MaxTokens
            | FinishReason::ContextFull,
        ) => Ok(ExitCode::SUCCESS),
    }
}

/// Adds the question to the conversation of the session. A given system message replaces the one there.
fn add_question(
    conversation: &mut Vec<Message>,
    session: &Session,
    system: Option<&str>,
    text: String,
) -> anyhow::Result<()> {
    if let Some(system) = system {
        session.check_system(system)?;
        if conversation.first().is_some_and(|first| first.role == Role::System) {
            conversation.remove(0);
        }
        conversation.insert(0, Message::new(Role::System, system));
    }
    conversation.push(Message::new(Role::User, text));
    Ok(())
}

/// How the answer is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    Json,
    JsonLines,
}

impl Format {
    fn of(args: &RunArgs) -> Self {
        match (args.output.json, args.output.json_lines) {
            (_, true) => Self::JsonLines,
            (true, _) => Self::Json,
            _ => Self::Text,
        }
    }
}

/// The answer so far.
struct Output {
    format: Format,
    answer: String,
    reasoning: String,
    tokens: Vec<u32>,
    /// Whether the user sees nothing of it before it ends.
    is_hidden: bool,
    waiting: Option<Waiting>,
}

impl Output {
    fn new(format: Format, is_quiet: bool) -> Self {
        let is_hidden = !is_quiet && (format == Format::Json || !io::stdout().is_terminal());
        let (answer, reasoning, tokens) = (String::new(), String::new(), Vec::new());
        Self { format, answer, reasoning, tokens, is_hidden, waiting: None }
    }

    fn show(&mut self, piece: &Piece<'_>) -> anyhow::Result<()> {
        self.answer.push_str(piece.text);
        self.reasoning.push_str(piece.reasoning);
        self.tokens.extend(piece.tokens);
        if self.is_hidden {
            self.waiting.get_or_insert_with(|| Waiting::start(false, "answering"));
        }
        match self.format {
            Format::Text if piece.shown.is_empty() => Ok(()),
            Format::Text => standard_io::write(piece.shown.as_bytes()),
            Format::Json => Ok(()),
            Format::JsonLines => {
                let mut line = json!({ "text": piece.text, "tokens": piece.tokens });
                if !piece.reasoning.is_empty() {
                    line["reasoning_content"] = piece.reasoning.into();
                }
                print(&line)
            }
        }
    }

    fn finish(&mut self, summary: &Summary) -> anyhow::Result<()> {
        self.waiting = None;
        let mut object = ending(summary);
        match self.format {
            Format::Text => standard_io::write(b"\n"),
            Format::JsonLines => print(&object),
            Format::Json => {
                let mut whole = json!({ "text": self.answer, "tokens": self.tokens });
                if !self.reasoning.is_empty() {
                    whole["reasoning_content"] = self.reasoning.as_str().into();
                }
                if let (Some(whole), Some(ending)) = (whole.as_object_mut(), object.as_object_mut()) {
                    whole.append(ending);
                }
                standard_io::write(standard_io::json_text(&whole).as_bytes())
            }
        }
    }
}

/// Why an answer ended and what it took, by the names of llama.cpp's server.
fn ending(summary: &Summary) -> Value {
    let Summary { reason, stats, seed, .. } = summary;
    let (finish_reason, stop) = match reason {
        FinishReason::EndOfText => ("stop", None),
        FinishReason::StopString(text) => ("stop", Some(text)),
        FinishReason::MaxTokens | FinishReason::ContextFull => ("length", None),
        FinishReason::Cancelled => ("cancelled", None),
    };
    let millis = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    json!({
        "finish_reason": finish_reason,
        "stop": stop,
        "seed": seed,
        "timings": {
            "prompt_n": stats.prompt_tokens,
            "cache_n": stats.cached_tokens,
            "prompt_ms": millis(stats.time_to_first_token),
            "predicted_n": stats.generated_tokens,
            "predicted_ms": millis(stats.generation_time),
            "predicted_per_second": summary.tokens_per_second(),
        },
    })
}

/// Prints a line of JSON.
fn print(value: &Value) -> anyhow::Result<()> {
    standard_io::write(format!("{value}\n").as_bytes())
}
