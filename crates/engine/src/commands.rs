//! What clients tell the engine thread.

use crate::error::EngineError;
use crate::generate::Task;
use crate::outbox::Outbox;
use crate::session::{OpenedSession, SessionError, SessionId, SessionOptions};
use crate::status::EngineStatus;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, OnceLock};

/// Sends commands to the engine thread.
#[derive(Clone, Debug)]
pub(crate) struct CommandSender {
    pub(crate) sender: Sender<Command>,
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The reason, set when the thread has ended.
    pub(crate) ended: OnceLock<String>,
}

#[derive(Debug)]
pub(crate) enum Command {
    Submit(Box<Job>),
    Open(SessionOptions, Reply<OpenedSession>),
    Save(SessionId, PathBuf, Sections, Reply<()>),
    Close(SessionId, Reply<()>),
    Inspect(SyncSender<EngineStatus>),
    /// A client has made room in the event channel of a paused request, or has cancelled a request.
    Wake,
    Stop,
}

/// Sections that clients save with a session: names and contents.
pub(crate) type Sections = Vec<(String, Vec<u8>)>;

pub(crate) type Reply<T> = SyncSender<Result<T, SessionError>>;

impl CommandSender {
    /// Sends a command. If the thread has ended, the command is dropped and the caller's recv fails.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.sender.send(command);
    }

    /// Why the engine has stopped. Blocks until the thread has ended: only call this if it is ending.
    pub(crate) fn stopped(&self) -> EngineError {
        EngineError::Stopped { cause: self.shared.ended.wait().clone() }
    }
}

/// A queued request.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) task: Task,
    pub(crate) outbox: Outbox,
}
