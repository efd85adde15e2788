//! The engine's end of a request's events.

use crate::request::Event;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

/// What is shared by the client's and the engine's end of a request.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    pub(crate) cancelled: AtomicBool,
    /// The request is paused until its client reads.
    pub(crate) waiting: AtomicBool,
    /// Tokens of the prompt that were computed so far.
    pub(crate) computed_tokens: AtomicUsize,
    /// The task that waits for the next event, if the client is asynchronous.
    waker: Mutex<Option<Waker>>,
}

impl Signals {
    /// From now on, the next event wakes this task.
    pub(crate) fn register(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Wakes the client when the outbox is gone, so that it finds its channel closed.
#[derive(Debug)]
struct WakeOnDrop(Arc<Signals>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// The engine's end of a request's events.
#[derive(Debug)]
pub(crate) struct Outbox {
    // Dropped before the guard, so that the client that it wakes finds the sender dropped.
    events: SyncSender<Event>,
    /// Events that did not fit into the channel.
    pending: VecDeque<Event>,
    pub(crate) signals: Arc<Signals>,
    _guard: WakeOnDrop,
}

impl Outbox {
    pub(crate) fn new(events: SyncSender<Event>) -> Outbox {
        let signals: Arc<Signals> = Arc::default();
        Outbox { events, pending: VecDeque::new(), _guard: WakeOnDrop(Arc::clone(&signals)), signals }
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
                Ok(()) => self.signals.wake(),
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
