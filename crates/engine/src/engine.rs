//! The engine: a handle that takes requests and returns events, and the thread that owns the model.
//!
//! No lock is held during a step. Clients send commands through one channel; the thread processes them in order between steps.
//! Each request has its own channel for events. The thread never blocks on a slow client: if an event channel is full, the
//! request pauses until the client reads, which sends [`Command::Wake`].

use crate::Stepper;
use crate::chat::ChatFormat;
use crate::error::EngineError;
use crate::generate::{Generation, Task};
use crate::request::{Event, FinishReason, GenerationStats, Request, RequestError};
use crate::session::{OpenedSession, Session, SessionError, SessionId, SessionOptions};
use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The model name that clients use.
    pub model_name: String,
    /// Capacity of a request's event channel. A request pauses while it is full.
    pub event_buffer: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { model_name: "model".to_owned(), event_buffer: 256 }
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

/// Sends commands to the engine thread.
#[derive(Clone, Debug)]
struct CommandSender {
    sender: Sender<Command>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    /// The reason, set when the thread has ended.
    ended: OnceLock<String>,
}

#[derive(Debug)]
enum Command {
    Submit(Box<Job>),
    Open(SessionOptions, Reply<OpenedSession>),
    Save(SessionId, PathBuf, Sections, Reply<()>),
    Close(SessionId, Reply<()>),
    /// A client has made room in the event channel of a paused request, or has cancelled a request.
    Wake,
    Stop,
}

/// Sections that clients save with a session: names and contents.
type Sections = Vec<(String, Vec<u8>)>;

type Reply<T> = SyncSender<Result<T, SessionError>>;

impl CommandSender {
    /// Sends a command. If the thread has ended, the command is dropped and the caller's recv fails.
    fn send(&self, command: Command) {
        let _ = self.sender.send(command);
    }

    /// Why the engine has stopped. Blocks until the thread has ended: only call this if it is ending.
    fn stopped(&self) -> EngineError {
        EngineError::Stopped { cause: self.shared.ended.wait().clone() }
    }
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
        let work = |commands: &Receiver<Command>, shared: &Shared| {
            Worker::new(stepper, tokenizer, shared).serve(commands);
        };
        Engine::spawn(work, format, options, context)
    }

    /// Starts a thread that runs `work` and records why it has ended.
    fn spawn(
        work: impl FnOnce(&Receiver<Command>, &Shared) + Send + 'static,
        format: ChatFormat,
        options: EngineOptions,
        context: usize,
    ) -> Result<Engine, EngineError> {
        let (sender, to_do) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let commands = CommandSender { sender, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(move || {
            let worked = catch_unwind(AssertUnwindSafe(|| work(&to_do, &shared)));
            let cause = worked
                .err()
                .map_or_else(|| "its last handle was dropped".to_owned(), |panic| panic_message(&*panic));
            let _ = shared.ended.set(cause);
        })?;
        Ok(Engine(Arc::new(Handle { commands, thread: Some(thread), format, options, context })))
    }

    /// Submits a request. Requests are computed first come, first served.
    ///
    /// The prompt is tokenized on the caller's thread. Errors arrive as [`Event::Failed`].
    pub fn submit(&self, request: Request) -> EventStream {
        let (sender, events) = mpsc::sync_channel(self.0.options.event_buffer.max(1));
        let commands = self.0.commands.clone();
        let signals = Arc::new(Signals::default());
        let mut outbox = Outbox { events: sender, pending: VecDeque::new(), signals: Arc::clone(&signals) };
        match Task::from_request(request, &self.0.format) {
            Ok(task) => commands.send(Command::Submit(Box::new(Job { task, outbox }))),
            Err(error) => outbox.put(Event::Failed(error)),
        }
        EventStream { events, guard: CancelOnDrop(Canceller { signals, commands }), is_over: false }
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
        self.commands.shared.stopping.store(true, Ordering::Relaxed);
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

/// The stream of one request's events. Dropping it cancels the request.
#[derive(Debug)]
pub struct EventStream {
    // Dropped before the guard, so that the cancelled request finds the receiver dropped.
    events: Receiver<Event>,
    guard: CancelOnDrop,
    is_over: bool,
}

#[derive(Debug)]
struct CancelOnDrop(Canceller);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Cancels one request, from any thread.
#[derive(Clone, Debug)]
pub struct Canceller {
    signals: Arc<Signals>,
    commands: CommandSender,
}

/// Flags shared by the client's and the engine's end of a request.
#[derive(Debug, Default)]
struct Signals {
    cancelled: AtomicBool,
    /// The request is paused until its client reads.
    waiting: AtomicBool,
}

impl Canceller {
    /// Ends the request after the current step. Its events end with [`FinishReason::Cancelled`], unless it was already over.
    pub fn cancel(&self) {
        self.signals.cancelled.store(true, Ordering::Relaxed);
        self.commands.send(Command::Wake);
    }
}

impl EventStream {
    /// Ends the request after the current step. The text so far still arrives, then [`FinishReason::Cancelled`].
    pub fn cancel(&self) {
        self.guard.0.cancel();
    }

    /// A handle that cancels the request from any thread.
    pub fn canceller(&self) -> Canceller {
        self.guard.0.clone()
    }
}

impl Iterator for EventStream {
    type Item = Event;

    /// Waits for the next event; `None` after the request has finished or failed.
    fn next(&mut self) -> Option<Event> {
        if self.is_over {
            return None;
        }
        let event = match self.events.recv() {
            Ok(event) => event,
            Err(_) => Event::Failed(self.guard.0.commands.stopped().into()),
        };
        if self.guard.0.signals.waiting.swap(false, Ordering::SeqCst) {
            self.guard.0.commands.send(Command::Wake);
        }
        self.is_over = matches!(event, Event::Finished { .. } | Event::Failed(_));
        Some(event)
    }
}

/// The engine's end of a request's events.
#[derive(Debug)]
struct Outbox {
    events: SyncSender<Event>,
    /// Events that did not fit into the channel.
    pending: VecDeque<Event>,
    signals: Arc<Signals>,
}

impl Outbox {
    fn is_cancelled(&self) -> bool {
        self.signals.cancelled.load(Ordering::Relaxed)
    }

    fn put(&mut self, event: Event) {
        self.pending.push_back(event);
        self.flush();
    }

    /// Sends the pending events that fit. Returns whether all did; if not, the client's next read sends [`Command::Wake`].
    fn flush(&mut self) -> bool {
        while let Some(event) = self.pending.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => {}
                // The client may have read before it could see the flag: try once more.
                Err(TrySendError::Full(event)) if !self.signals.waiting.swap(true, Ordering::SeqCst) => {
                    self.pending.push_front(event);
                }
                Err(TrySendError::Full(event)) => {
                    self.pending.push_front(event);
                    return false;
                }
                // The receiver was dropped.
                Err(TrySendError::Disconnected(_)) => self.pending.clear(),
            }
        }
        true
    }
}

/// A queued request.
#[derive(Debug)]
struct Job {
    task: Task,
    outbox: Outbox,
}

/// The running request.
struct Running {
    generation: Generation,
    session: SessionId,
    /// Whether the session was opened for this request and ends with it.
    is_temporary: bool,
    outbox: Outbox,
}

/// The engine thread. It owns the model and all sessions; only [`Worker::work`] decides which request runs next.
struct Worker<'a, B: Backend> {
    stepper: Stepper<B>,
    tokenizer: Arc<Tokenizer>,
    shared: &'a Shared,
    sessions: HashMap<SessionId, Session>,
    /// Number of sessions opened so far.
    opened: u64,
    waiting: VecDeque<Job>,
    running: Option<Running>,
    /// Finished requests whose events do not all fit into their channels.
    draining: Vec<Outbox>,
}

impl<'a, B: Backend> Worker<'a, B> {
    fn new(stepper: Stepper<B>, tokenizer: Arc<Tokenizer>, shared: &'a Shared) -> Self {
        let (sessions, waiting) = (HashMap::new(), VecDeque::new());
        Worker {
            stepper,
            tokenizer,
            shared,
            sessions,
            opened: 0,
            waiting,
            running: None,
            draining: Vec::new(),
        }
    }

    /// Runs until [`Command::Stop`].
    fn serve(mut self, commands: &Receiver<Command>) {
        while self.process_commands(commands) {
            self.work();
        }
    }

    /// Processes pending commands. Blocks for a command if there is nothing to compute. Returns false on [`Command::Stop`].
    fn process_commands(&mut self, commands: &Receiver<Command>) -> bool {
        loop {
            let command = if self.can_work() { commands.try_recv().ok() } else { commands.recv().ok() };
            match command {
                // The handle sends `Stop` before it is dropped, so an error here only means that the channel is empty.
                None => return true,
                Some(Command::Stop) => return false,
                Some(Command::Wake) => {}
                Some(Command::Submit(job)) => self.waiting.push_back(*job),
                Some(Command::Open(options, reply)) => drop(reply.send(self.open(&options))),
                Some(Command::Save(id, path, sections, reply)) => {
                    drop(reply.send(self.save(id, &path, sections)));
                }
                Some(Command::Close(id, reply)) => drop(reply.send(self.close(id))),
            }
        }
    }

    /// Whether there is something to compute. Also flushes pending events.
    fn can_work(&mut self) -> bool {
        self.draining.retain_mut(|outbox| !outbox.flush());
        self.drop_cancelled();
        match &mut self.running {
            Some(running) => running.outbox.flush() || running.outbox.is_cancelled(),
            None => !self.waiting.is_empty(),
        }
    }

    /// Ends queued requests that were cancelled.
    fn drop_cancelled(&mut self) {
        if !self.waiting.iter().any(|job| job.outbox.is_cancelled()) {
            return;
        }
        let (cancelled, waiting) = self.waiting.drain(..).partition(|job: &Job| job.outbox.is_cancelled());
        self.waiting = waiting;
        for Job { outbox, .. } in cancelled {
            let (reason, stats) = (FinishReason::Cancelled, GenerationStats::default());
            self.send_last(outbox, Event::Finished { reason, stats });
        }
    }

    /// Computes one step of the running request.
    fn work(&mut self) {
        if self.running.is_none() {
            self.running = self.waiting.pop_front().and_then(|job| self.start(job));
        }
        let Some(mut running) = self.running.take() else { return };
        let signals = Arc::clone(&running.outbox.signals);
        let should_continue =
            || !signals.cancelled.load(Ordering::Relaxed) && !self.shared.stopping.load(Ordering::Relaxed);
        let session = self.sessions.get_mut(&running.session).expect("not closed while a request uses it");
        let stepped = running.generation.step(&mut self.stepper, session, &self.tokenizer, should_continue);
        running.generation.take_text().into_iter().for_each(|text| running.outbox.put(text));
        match stepped {
            Ok(None) => self.running = Some(running),
            // Interrupted because the engine stops. Not finished: the client gets the error when the thread has ended.
            Ok(Some(FinishReason::Cancelled)) if !running.outbox.is_cancelled() => {
                self.running = Some(running)
            }
            Ok(Some(reason)) => self.end(running, |generation| generation.finish(reason)),
            Err(error) => self.end(running, |_| (None, Event::Failed(error))),
        }
    }

    fn start(&mut self, Job { task, mut outbox }: Job) -> Option<Running> {
        let is_temporary = task.session.is_none();
        match self.begin(task) {
            Ok((session, generation)) => {
                outbox.put(generation.started());
                Some(Running { generation, session, is_temporary, outbox })
            }
            Err(error) => {
                self.send_last(outbox, Event::Failed(error));
                None
            }
        }
    }

    fn begin(&mut self, task: Task) -> Result<(SessionId, Generation), RequestError> {
        let is_temporary = task.session.is_none();
        let id = match task.session {
            Some(id) => id,
            None => {
                let session = Session::begin(&mut self.stepper)?;
                self.add(session)
            }
        };
        let session = self.sessions.get_mut(&id).ok_or(RequestError::NoSuchSession)?;
        let generation = Generation::start(task, &mut self.stepper, session);
        if generation.is_err() {
            self.end_temporary_session(id, is_temporary);
        }
        Ok((id, generation?))
    }

    /// Ends the running request.
    fn end(&mut self, running: Running, last: impl FnOnce(Generation) -> (Option<Event>, Event)) {
        let Running { generation, session, is_temporary, mut outbox } = running;
        let (rest, last) = last(generation);
        self.end_temporary_session(session, is_temporary);
        rest.into_iter().for_each(|text| outbox.put(text));
        self.send_last(outbox, last);
    }

    fn end_temporary_session(&mut self, id: SessionId, is_temporary: bool) {
        if is_temporary && let Some(session) = self.sessions.remove(&id) {
            session.end(&mut self.stepper).expect("the sequence exists and its cache metadata is consistent");
        }
    }

    fn send_last(&mut self, mut outbox: Outbox, last: Event) {
        outbox.put(last);
        if !outbox.pending.is_empty() {
            self.draining.push(outbox);
        }
    }

    fn add(&mut self, session: Session) -> SessionId {
        let id = SessionId(self.opened);
        self.opened += 1;
        self.sessions.insert(id, session);
        id
    }

    fn open(&mut self, options: &SessionOptions) -> Result<OpenedSession, SessionError> {
        let (session, restored) = Session::open(&mut self.stepper, options)?;
        Ok(OpenedSession { id: self.add(session), restored })
    }

    fn save(&mut self, id: SessionId, path: &Path, sections: Sections) -> Result<(), SessionError> {
        self.check_idle(id)?;
        let session = self.sessions.get(&id).ok_or(SessionError::NotOpen)?;
        session.save(&self.stepper, path, sections)
    }

    fn close(&mut self, id: SessionId) -> Result<(), SessionError> {
        self.check_idle(id)?;
        let session = self.sessions.remove(&id).ok_or(SessionError::NotOpen)?;
        Ok(session.end(&mut self.stepper)?)
    }

    /// Fails if a running or queued request uses a session.
    fn check_idle(&mut self, id: SessionId) -> Result<(), SessionError> {
        // Finish cancelled requests first: they no longer need the session.
        self.drop_cancelled();
        if self.running.as_ref().is_some_and(|running| running.outbox.is_cancelled()) {
            self.work();
        }
        let is_running = self.running.as_ref().is_some_and(|running| running.session == id);
        if is_running || self.waiting.iter().any(|job| job.task.session == Some(id)) {
            return Err(SessionError::Busy);
        }
        Ok(())
    }
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
        let work = |commands: &Receiver<Command>, _: &Shared| {
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
        let error = engine.open_session(SessionOptions::default()).unwrap_err();
        assert!(
            error.to_string().contains("please report it: the cache metadata is inconsistent"),
            "{error}"
        );
    }
}
