//! The client's end of a request: its events, and cancellation.

use crate::commands::{Command, CommandSender};
use crate::outbox::{Outbox, Signals};
use crate::request::Event;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::task::{Context, Poll};

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

/// How much of a request's prompt was computed, for any thread to ask.
#[derive(Clone, Debug)]
pub struct PromptProgress(Arc<Signals>);

impl PromptProgress {
    /// Tokens of the prompt that were computed so far, prefix-cache hits not counted. They grow step by step.
    pub fn computed_tokens(&self) -> usize {
        self.0.computed_tokens.load(Ordering::Relaxed)
    }
}

impl Canceller {
    /// Ends the request after the current step. Its events end with [`FinishReason::Cancelled`](crate::FinishReason::Cancelled), unless it was already over.
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

    /// Ends the request after the current step. The text so far still arrives, then [`FinishReason::Cancelled`](crate::FinishReason::Cancelled).
    pub fn cancel(&self) {
        self.guard.0.cancel();
    }

    /// How much of the prompt was computed, to show while the first token is awaited.
    pub fn progress(&self) -> PromptProgress {
        PromptProgress(Arc::clone(&self.guard.0.signals))
    }

    /// A handle that cancels the request from any thread.
    pub fn canceller(&self) -> Canceller {
        self.guard.0.clone()
    }

    /// The next event, as [`Iterator::next`] has it, without blocking: where there is none yet, `context`'s task is woken when there
    /// is. For asynchronous clients of any runtime.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let mut received = self.events.try_recv();
        if matches!(received, Err(TryRecvError::Empty)) {
            self.guard.0.signals.register(context.waker());
            // An event that came before the task was registered wakes nobody.
            received = self.events.try_recv();
        }
        match received {
            Err(TryRecvError::Empty) => Poll::Pending,
            received => Poll::Ready(Some(self.take(received.ok()))),
        }
    }

    /// Records an event of the channel; `None`: it is closed.
    fn take(&mut self, received: Option<Event>) -> Event {
        let commands = &self.guard.0.commands;
        let event = received.unwrap_or_else(|| Event::Failed(commands.stopped().into()));
        if self.guard.0.signals.waiting.swap(false, Ordering::SeqCst) {
            commands.send(Command::Wake);
        }
        self.is_over = matches!(event, Event::Finished { .. } | Event::Failed(_));
        event
    }
}

impl Iterator for EventStream {
    type Item = Event;

    /// Waits for the next event; `None` after the request has finished or failed.
    fn next(&mut self) -> Option<Event> {
        if self.is_over {
            return None;
        }
        let received = self.events.recv().ok();
        Some(self.take(received))
    }
}
