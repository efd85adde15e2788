//! The events of a request on their way from the engine thread to the client, and cancellation the other way.

use crate::engine::{Command, CommandSender};
use crate::request::Event;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError};

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
    pub(crate) fn new(events: Receiver<Event>, outbox: &Outbox, commands: CommandSender) -> EventStream {
        let signals = Arc::clone(&outbox.signals);
        EventStream { events, guard: CancelOnDrop(Canceller { signals, commands }), is_over: false }
    }

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
pub(crate) struct Outbox {
    events: SyncSender<Event>,
    /// Events that did not fit into the channel.
    pending: VecDeque<Event>,
    signals: Arc<Signals>,
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
