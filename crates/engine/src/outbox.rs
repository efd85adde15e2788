//! The engine's end of a request's events.

use crate::request::Event;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};

/// Flags shared by the client's and the engine's end of a request.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) cancelled: AtomicBool,
    /// The request is paused until its client reads.
    pub(crate) waiting: AtomicBool,
}

/// The engine's end of a request's events.
#[derive(Debug)]
pub(crate) struct Outbox {
    events: SyncSender<Event>,
    /// Events that did not fit into the channel.
    pending: VecDeque<Event>,
    pub(crate) signals: Arc<Signals>,
}

impl Outbox {
    pub(crate) fn new(events: SyncSender<Event>) -> Outbox {
        Outbox { events, pending: VecDeque::new(), signals: Arc::default() }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.signals.cancelled.load(Ordering::Relaxed)
    }

    pub(crate) fn put(&mut self, event: Event) {
        self.pending.push_back(event);
        self.flush();
    }

    /// Sends the pending events that fit. Returns whether all did; if not, the client's next read sends [`Command::Wake`].
    pub(crate) fn flush(&mut self) -> bool {
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
