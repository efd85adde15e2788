//! The engine: a handle that takes requests and returns events, and the thread that owns the model.
//!
//! No lock is held during a step. Clients send commands through one channel; the thread processes them in order between steps.
//! Each request has its own channel for events. The thread never blocks on a slow client: if an event channel is full, the
//! request pauses until the client reads, which sends [`Command::Wake`].

use crate::Stepper;
use crate::chat::ChatFormat;
use crate::commands::{Command, CommandSender, Job, Reply, Shared};
use crate::error::EngineError;
use crate::events::EventStream;
use crate::generate::Task;
use crate::model_drafts::DraftModel;
use crate::outbox::Outbox;
use crate::request::{Event, Request};
use crate::session::{OpenedSession, SessionError, SessionId, SessionOptions};
use crate::speculation::DrafterFactory;
use crate::status::EngineStatus;
use crate::worker::Worker;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;
use verbatim_backend::Backend;
use verbatim_text::Tokenizer;

/// The text side of a model: its tokenizer and chat template.
#[derive(Clone, Debug)]
pub struct TextProcessor {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Source of the chat template, if the model has one. An invalid one only affects conversations.
    pub template: Option<String>,
}

/// Options of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The model name that clients use.
    pub model_name: String,
    /// Capacity of a request's event channel. A request pauses while it is full.
    pub event_buffer: usize,
    /// Time budget of a step that mixes prefill with decoding (chunked prefill).
    pub step_budget: Duration,
    /// The drafters of requests.
    pub drafters: DrafterFactory,
    /// A draft model, for the steps in which `drafters` draft nothing.
    pub draft_model: Option<DraftModel>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            model_name: "model".to_owned(),
            event_buffer: 256,
            step_budget: Duration::from_millis(100),
            drafters: DrafterFactory::default(),
            draft_model: None,
        }
    }
}

/// Serves requests to a model. Clones share the same engine, from any thread. When the last one is dropped, the engine stops after
/// the current step; unfinished requests then fail with [`EngineError::Stopped`].
#[derive(Clone, Debug)]
pub struct Engine(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    commands: CommandSender,
    thread: Option<JoinHandle<()>>,
    format: ChatFormat,
    options: EngineOptions,
    context: usize,
}

impl Engine {
    /// Starts the thread that owns the model.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start<B>(
        stepper: Stepper<B>,
        text: TextProcessor,
        options: EngineOptions,
    ) -> Result<Engine, EngineError>
    where
        B: Backend + 'static,
        Stepper<B>: Send,
    {
        let context = stepper.context();
        let tokenizer = Arc::clone(&text.tokenizer);
        let format = ChatFormat::new(text.tokenizer, text.template);
        let (step_budget, draft_model) = (options.step_budget, options.draft_model);
        let work = move |commands: &Receiver<Command>| {
            Worker::new(stepper, tokenizer, step_budget, draft_model).serve(commands);
        };
        Engine::spawn(work, format, options, context)
    }

    /// Starts a thread that runs `work` and records why it has ended.
    fn spawn(
        work: impl FnOnce(&Receiver<Command>) + Send + 'static,
        format: ChatFormat,
        options: EngineOptions,
        context: usize,
    ) -> Result<Engine, EngineError> {
        let (sender, to_do) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let commands = CommandSender { sender, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let worked = catch_unwind(AssertUnwindSafe(|| work(&to_do)));
            let cause = worked
                .err()
                .map_or_else(|| "its last handle was dropped".to_owned(), |panic| panic_message(&*panic));
            let _ = shared.ended.set(cause);
        })?;
        Ok(Engine(Arc::new(Handle { commands, thread: Some(thread), format, options, context })))
    }

    /// Submits a request. Requests run together, as many as the model has sequences; others wait, and start by priority, then first
    /// come, first served.
    ///
    /// The prompt is tokenized on the caller's thread. Errors arrive as [`Event::Failed`].
    pub fn submit(&self, request: Request) -> EventStream {
        let (sender, events) = mpsc::sync_channel(self.0.options.event_buffer.max(1));
        let commands = self.0.commands.clone();
        let mut outbox = Outbox::new(sender);
        let stream = EventStream::new(events, &outbox, commands.clone());
        match Task::from_request(request, &self.0.format, &self.0.options.drafters) {
            Ok(task) => commands.send(Command::Submit(Box::new(Job { task, outbox }))),
            Err(error) => outbox.put(Event::Failed(error)),
        }
        stream
    }

    /// Opens a session. It occupies one of the engine's sequences until it is closed.
    ///
    /// # Errors
    /// If the model does not support the options, the file cannot be restored, or no sequence is free.
    pub fn open_session(&self, options: SessionOptions) -> Result<OpenedSession, SessionError> {
        self.call(|reply| Command::Open(options, reply))
    }

    /// Atomically writes a session to a file, with the client's own sections.
    ///
    /// # Errors
    /// If a request still uses the session, or the file cannot be written.
    pub fn save_session(
        &self,
        id: SessionId,
        path: impl Into<PathBuf>,
        sections: Vec<(String, Vec<u8>)>,
    ) -> Result<(), SessionError> {
        self.call(|reply| Command::Save(id, path.into(), sections, reply))
    }

    /// Closes a session. Its KV cache stays in the prefix cache as long as there is room.
    ///
    /// # Errors
    /// If a request still uses the session.
    pub fn close_session(&self, id: SessionId) -> Result<(), SessionError> {
        self.call(|reply| Command::Close(id, reply))
    }

    /// What the engine is doing. Waits for the current step.
    ///
    /// # Errors
    /// If the engine has stopped.
    pub fn status(&self) -> Result<EngineStatus, EngineError> {
        let (reply, replied) = mpsc::sync_channel(1);
        self.0.commands.send(Command::Inspect(reply));
        replied.recv().map_err(|_| self.0.commands.stopped())
    }

    /// Why the engine has stopped, if it has: a panic, as long as there is a handle.
    pub fn stopped(&self) -> Option<EngineError> {
        let cause = self.0.commands.shared.ended.get()?;
        Some(EngineError::Stopped { cause: cause.clone() })
    }

    fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, SessionError> {
        let (reply, replied) = mpsc::sync_channel(1);
        self.0.commands.send(command(reply));
        replied.recv().unwrap_or_else(|_| Err(self.0.commands.stopped().into()))
    }

    /// Maximum number of positions of a sequence.
    pub fn context(&self) -> usize {
        self.0.context
    }

    /// The model name that clients use.
    pub fn model_name(&self) -> &str {
        &self.0.options.model_name
    }

    /// Converts texts and conversations to tokens of the model.
    pub fn chat_format(&self) -> &ChatFormat {
        &self.0.format
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.0.format.has_template()
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.0.format.tokenizer()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.commands.send(Command::Stop);
        // A panic was caught and recorded by the thread.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The message of a panic, for pending requests and calls.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    format!("this is a bug, please report it: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Prompt;
    use verbatim_gguf::GgufFile;

    fn format() -> ChatFormat {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models/qwen3/model.gguf");
        let file = GgufFile::open(path).unwrap();
        ChatFormat::new(Arc::new(Tokenizer::from_gguf(file.metadata()).unwrap()), None)
    }

    #[test]
    fn a_panic_is_reported_to_all_waiting_clients() {
        let work = |commands: &Receiver<Command>| {
            let _received = (commands.recv(), commands.recv());
            panic!("the cache metadata is inconsistent");
        };
        let engine = Engine::spawn(work, format(), EngineOptions::default(), 1).unwrap();
        let submit = || engine.submit(Request::new(Prompt::Text("hello".to_owned())));
        let (first, second, queued) = (submit(), submit(), submit());
        for answer in [first, second, queued, submit()] {
            let events: Vec<String> = answer.map(|event| format!("{event:?}")).collect();
            assert_eq!(events.len(), 1);
            assert!(events[0].contains("Failed") && events[0].contains("inconsistent"), "{events:?}");
        }
        assert!(engine.stopped().is_some_and(|error| error.to_string().contains("inconsistent")));
        let error = engine.open_session(SessionOptions::default()).unwrap_err();
        assert!(
            error.to_string().contains("please report it: the cache metadata is inconsistent"),
            "{error}"
        );
    }
}
