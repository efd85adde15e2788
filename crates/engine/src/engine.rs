//! The engine: a handle that takes requests and gives events, and the one thread behind it that owns the model.
//!
//! Nothing is locked while a step is computed. Clients send commands through one channel, in the order of which the thread does
//! them between steps; each request has its own channel for events. The thread never waits for a client alone: where
//! a client has not read its events, its request pauses and the thread waits for the next command, such as the one that the
//! client's next read sends.

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

/// What a model has besides its weights: the way from text to tokens and back.
#[derive(Clone, Debug)]
pub struct TextProcessor {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Source of the chat template, if the model has one. A broken one does harm to conversations alone.
    pub template: Option<String>,
}

/// How an engine works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// What clients call the model.
    pub model_name: String,
    /// Capacity of a request's event channel. A request pauses while it is full.
    pub event_buffer: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions { model_name: "model".to_owned(), event_buffer: 256 }
    }
}

/// A model that answers requests. Clones are the same engine, for any thread. It stops with the last of them, after the step
/// under way; requests that are not over then fail with [`EngineError::Stopped`].
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

/// How clients reach the thread.
#[derive(Clone, Debug)]
struct CommandSender {
    sender: Sender<Command>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    /// Set when the thread has ended: why.
    ended: OnceLock<String>,
}

#[derive(Debug)]
enum Command {
    Submit(Job),
    Open(SessionOptions, Reply<OpenedSession>),
    Save(SessionId, PathBuf, Sections, Reply<()>),
    Close(SessionId, Reply<()>),
    /// A client has read events that a request waited for, or has cancelled.
    Wake,
    Stop,
}

/// Sections that clients save with a session: names and contents.
type Sections = Vec<(String, Vec<u8>)>;

type Reply<T> = SyncSender<Result<T, SessionError>>;

impl CommandSender {
    /// Sends a command. One that comes too late is dropped, which its client sees from its reply.
    fn send(&self, command: Command) {
        let _ = self.sender.send(command);
    }

    /// Why the engine has stopped. Waits for the thread's last few instructions: only for whoever knows that it is ending.
    fn stopped(&self) -> EngineError {
        EngineError::Stopped { cause: self.shared.ended.wait().clone() }
    }
}

impl Engine {
    /// Starts the thread that owns the model from now on.
    ///
    /// # Errors
    /// If the system gives no thread.
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

    /// Starts a thread that does `work`, and tells why it has ended.
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
    /// The prompt becomes tokens here, on the caller's thread. What is wrong with the request is told by the answer.
    pub fn submit(&self, request: Request) -> EventStream {
        let (sender, events) = mpsc::sync_channel(self.0.options.event_buffer.max(1));
        let commands = self.0.commands.clone();
        let signals = Arc::new(Signals::default());
        let mut outbox = Outbox { events: sender, pending: VecDeque::new(), signals: Arc::clone(&signals) };
        match Task::of(request, &self.0.format) {
            Ok(task) => commands.send(Command::Submit(Job { task, outbox })),
            Err(error) => outbox.put(Event::Failed(error)),
        }
        EventStream { events, guard: CancelOnDrop(Canceller { signals, commands }), is_over: false }
    }

    /// Opens a session. It occupies one of the engine's sequences until it is closed.
    ///
    /// # Errors
    /// If the options do not fit the model, the file cannot be restored from, or no sequence is free.
    pub fn open_session(&self, options: SessionOptions) -> Result<OpenedSession, SessionError> {
        self.call(|reply| Command::Open(options, reply))
    }

    /// Writes a session to a file, with sections of the client's: all of it or, if that fails, nothing.
    ///
    /// # Errors
    /// If a request has not finished with the session, or the file cannot be written.
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
    /// If a request has not finished with the session.
    pub fn close_session(&self, id: SessionId) -> Result<(), SessionError> {
        self.call(|reply| Command::Close(id, reply))
    }

    fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, SessionError> {
        let (reply, replied) = mpsc::sync_channel(1);
        self.0.commands.send(command(reply));
        replied.recv().unwrap_or_else(|_| Err(self.0.commands.stopped().into()))
    }

    /// The most positions of a sequence.
    pub fn context(&self) -> usize {
        self.0.context
    }

    /// What clients call the model.
    pub fn model_name(&self) -> &str {
        &self.0.options.model_name
    }

    /// How texts and conversations become tokens of the model.
    pub fn chat_format(&self) -> &ChatFormat {
        &self.0.format
    }

    /// Whether the model says how to write a conversation.
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
        // A panic was caught and reported before.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What a panic says, for those who wait.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
    format!("this is a bug, please report it: {text}")
}

/// The events of one request, as they come. Dropping it cancels the request.
#[derive(Debug)]
pub struct EventStream {
    // Dropped before the guard, whose cancelling then finds that nobody reads.
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

/// What the two ends of a request tell each other besides events.
#[derive(Debug, Default)]
struct Signals {
    cancelled: AtomicBool,
    /// The request waits for its client to read.
    waiting: AtomicBool,
}

impl Canceller {
    /// Ends the request after the step under way. Its answer finishes with [`FinishReason::Cancelled`], unless it is over.
    pub fn cancel(&self) {
        self.signals.cancelled.store(true, Ordering::Relaxed);
        self.commands.send(Command::Wake);
    }
}

impl EventStream {
    /// Ends the request after the step under way. What was computed until then comes, then [`FinishReason::Cancelled`].
    pub fn cancel(&self) {
        self.guard.0.cancel();
    }

    /// What cancels the request from another thread.
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
    /// What the client has left no room for.
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

    /// Sends what there is room for. Whether that was all; else the client's next read sends [`Command::Wake`].
    fn flush(&mut self) -> bool {
        while let Some(event) = self.pending.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => {}
                // The client may have read, and not seen that it is waited for: then there is room now.
                Err(TrySendError::Full(event)) if !self.signals.waiting.swap(true, Ordering::SeqCst) => {
                    self.pending.push_front(event);
                }
                Err(TrySendError::Full(event)) => {
                    self.pending.push_front(event);
                    return false;
                }
                // The client has left, and wants nothing.
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
    /// Whether the session ends with the request.
    is_own: bool,
    outbox: Outbox,
}

/// What runs on the engine's thread. It owns the model and all sessions; who is computed next is decided in [`Worker::work`]
/// alone.
struct Worker<'a, B: Backend> {
    stepper: Stepper<B>,
    tokenizer: Arc<Tokenizer>,
    shared: &'a Shared,
    sessions: HashMap<SessionId, Session>,
    /// Sessions opened so far.
    opened: u64,
    waiting: VecDeque<Job>,
    running: Option<Running>,
    /// Requests that are over, of which the clients have not read all.
    leaving: Vec<Outbox>,
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
            leaving: Vec::new(),
        }
    }

    /// Works until it is told to stop.
    fn serve(mut self, commands: &Receiver<Command>) {
        while self.process_commands(commands) {
            self.work();
        }
    }

    /// Does what it was told. Waits for a command where there is nothing to compute. `false` when it is told to stop.
    fn process_commands(&mut self, commands: &Receiver<Command>) -> bool {
        loop {
            let command = if self.can_work() { commands.try_recv().ok() } else { commands.recv().ok() };
            match command {
                // The handle sends a command before it goes, so no command means that there is none yet.
                None => return true,
                Some(Command::Stop) => return false,
                Some(Command::Wake) => {}
                Some(Command::Submit(job)) => self.waiting.push_back(job),
                Some(Command::Open(options, reply)) => drop(reply.send(self.open(&options))),
                Some(Command::Save(id, path, sections, reply)) => {
                    drop(reply.send(self.save(id, &path, sections)));
                }
                Some(Command::Close(id, reply)) => drop(reply.send(self.close(id))),
            }
        }
    }

    /// Whether there is something to compute; sends what clients have not yet been sent.
    fn can_work(&mut self) -> bool {
        self.leaving.retain_mut(|outbox| !outbox.flush());
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
            self.leave(outbox, Event::Finished { reason, stats });
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
            // It was cut short because the engine stops. That is no end: the client is told so when the thread has ended.
            Ok(Some(FinishReason::Cancelled)) if !running.outbox.is_cancelled() => {
                self.running = Some(running)
            }
            Ok(Some(reason)) => self.end(running, |generation| generation.finish(reason)),
            Err(error) => self.end(running, |_| (None, Event::Failed(error))),
        }
    }

    fn start(&mut self, Job { task, mut outbox }: Job) -> Option<Running> {
        let is_own = task.session.is_none();
        match self.begin(task) {
            Ok((session, generation)) => {
                outbox.put(generation.started());
                Some(Running { generation, session, is_own, outbox })
            }
            Err(error) => {
                self.leave(outbox, Event::Failed(error));
                None
            }
        }
    }

    fn begin(&mut self, task: Task) -> Result<(SessionId, Generation), RequestError> {
        let is_own = task.session.is_none();
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
            self.leave_session(id, is_own);
        }
        Ok((id, generation?))
    }

    /// Ends the running request.
    fn end(&mut self, running: Running, last: impl FnOnce(Generation) -> (Option<Event>, Event)) {
        let Running { generation, session, is_own, mut outbox } = running;
        let (rest, last) = last(generation);
        self.leave_session(session, is_own);
        rest.into_iter().for_each(|text| outbox.put(text));
        self.leave(outbox, last);
    }

    fn leave_session(&mut self, id: SessionId, is_own: bool) {
        if is_own && let Some(session) = self.sessions.remove(&id) {
            session.end(&mut self.stepper).expect("the sequence exists and its cache metadata is consistent");
        }
    }

    fn leave(&mut self, mut outbox: Outbox, last: Event) {
        outbox.put(last);
        if !outbox.pending.is_empty() {
            self.leaving.push(outbox);
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

    /// Whether no request uses a session or waits for it.
    fn check_idle(&mut self, id: SessionId) -> Result<(), SessionError> {
        // A client that has cancelled its request is done with it.
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
    fn a_panic_of_the_thread_is_told_to_all_who_wait() {
        let work = |commands: &Receiver<Command>, _: &Shared| {
            let _in_hand = (commands.recv(), commands.recv());
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
