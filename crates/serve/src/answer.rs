//! An answer while it is generated: the engine's events, with the room in the queue, the slot and the metrics that go with them.

use crate::app::Ticket;
use crate::error::ApiError;
use crate::slots::SlotGuard;
use crate::tools::format::ToolFormat;
use crate::tools::parser::{Parsed, ToolCall, ToolParser};
use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;
use verbatim_engine::{Event, EventStream, FinishReason, GenerationStats, TokenLogProbs};

/// More of an answer.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) tokens: Vec<u32>,
    /// One entry for each token.
    pub(crate) log_probs: Vec<Option<TokenLogProbs>>,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) reason: FinishReason,
    pub(crate) stats: GenerationStats,
    /// Whether it calls tools.
    pub(crate) calls_tools: bool,
}

/// What becomes of an answer, as [`Event`].
#[derive(Debug)]
pub(crate) enum AnswerEvent {
    Started { prompt_tokens: usize, cached_tokens: usize, seed: u64 },
    Piece(Piece),
    Finished(Ending),
    Failed(ApiError),
}

/// The events of one request. Dropping it cancels the request.
#[derive(Debug)]
pub(crate) struct Answer {
    events: EventStream,
    ticket: Ticket,
    tools: Option<ToolParser>,
    /// The event that comes next, and is known already.
    pending: Option<AnswerEvent>,
    slot: Option<SlotGuard>,
    is_over: bool,
    submitted: Instant,
    last_text: Option<Instant>,
}

impl Answer {
    pub(crate) fn new(events: EventStream, ticket: Ticket, tools: Option<ToolFormat>) -> Answer {
        Answer {
            events,
            ticket,
            tools: tools.map(ToolParser::new),
            pending: None,
            slot: None,
            is_over: false,
            submitted: Instant::now(),
            last_text: None,
        }
    }

    /// Waits until the request has started.
    ///
    /// # Errors
    /// If it fails instead.
    pub(crate) async fn begin(&mut self) -> Result<(), ApiError> {
        match poll_fn(|context| self.poll(context)).await {
            Some(AnswerEvent::Failed(error)) => Err(error),
            event => {
                self.pending = event;
                Ok(())
            }
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<AnswerEvent>> {
        if let Some(event) = self.pending.take() {
            return Poll::Ready(Some(event));
        }
        self.events.poll_next(context).map(|event| {
            let event = event?;
            self.record(&event);
            Some(self.understood(event))
        })
    }

    /// An event with the tool calls found in its text.
    fn understood(&mut self, event: Event) -> AnswerEvent {
        match event {
            Event::Started { prompt_tokens, cached_tokens, seed, .. } => {
                AnswerEvent::Started { prompt_tokens, cached_tokens, seed }
            }
            Event::Text { text, reasoning, tokens, log_probs } => {
                let Parsed { text, calls } = match &mut self.tools {
                    Some(parser) => parser.push(&text),
                    None => Parsed { text, calls: Vec::new() },
                };
                AnswerEvent::Piece(Piece { text, reasoning, calls, tokens, log_probs })
            }
            Event::Finished { reason, stats } => {
                let Parsed { text, calls } = self.tools.as_mut().map(ToolParser::finish).unwrap_or_default();
                let calls_tools = self.tools.as_ref().is_some_and(ToolParser::has_called);
                let ending = AnswerEvent::Finished(Ending { reason, stats, calls_tools });
                if text.is_empty() && calls.is_empty() {
                    return ending;
                }
                self.pending = Some(ending);
                AnswerEvent::Piece(Piece { text, calls, ..Piece::default() })
            }
            Event::Failed(error) => AnswerEvent::Failed(error.into()),
        }
    }

    fn record(&mut self, event: &Event) {
        let app = &self.ticket.0;
        match event {
            Event::Started { prompt_tokens, cached_tokens, .. } => {
                self.slot = Some(app.slots.take(*prompt_tokens, *cached_tokens));
            }
            Event::Text { tokens, .. } => {
                let now = Instant::now();
                match self.last_text.replace(now) {
                    None => app.metrics.first_token(now - self.submitted),
                    Some(last) => app.metrics.next_tokens(now - last, tokens.len()),
                }
                if let Some(slot) = &self.slot {
                    slot.progress.generated_tokens.fetch_add(tokens.len(), Ordering::Relaxed);
                }
            }
            Event::Finished { reason, stats } => {
                self.is_over = true;
                app.metrics.finished(reason, stats, self.submitted.elapsed());
                self.free_slot();
            }
            Event::Failed(_) => {
                self.is_over = true;
                app.metrics.failed();
                self.free_slot();
            }
        }
    }

    fn free_slot(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.ticket.0.slots.free(&slot);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.free_slot();
        if !self.is_over {
            self.ticket.0.metrics.cancelled();
        }
    }
}

/// The next event of any of these answers, with its index; `None` when all are over.
pub(crate) async fn next_of(answers: &mut [Answer]) -> Option<(usize, AnswerEvent)> {
    poll_fn(|context| {
        let mut are_over = true;
        for (index, answer) in answers.iter_mut().enumerate() {
            match answer.poll(context) {
                Poll::Ready(Some(event)) => return Poll::Ready(Some((index, event))),
                Poll::Ready(None) => {}
                Poll::Pending => are_over = false,
            }
        }
        if are_over { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) whole: Piece,
    pub(crate) seed: u64,
    pub(crate) ending: Ending,
}

/// Reads answers to their ends.
///
/// # Errors
/// If one fails; the others are cancelled.
pub(crate) async fn complete(mut answers: Vec<Answer>) -> Result<Vec<Completion>, ApiError> {
    let stats = GenerationStats::default();
    let ending = Ending { reason: FinishReason::Cancelled, stats, calls_tools: false };
    let empty = || Completion { whole: Piece::default(), seed: 0, ending: ending.clone() };
    let mut completions: Vec<Completion> = answers.iter().map(|_| empty()).collect();
    while let Some((index, event)) = next_of(&mut answers).await {
        let completion = &mut completions[index];
        match event {
            AnswerEvent::Started { seed, .. } => completion.seed = seed,
            AnswerEvent::Piece(Piece { text, reasoning, calls, tokens, log_probs }) => {
                completion.whole.text += &text;
                completion.whole.reasoning += &reasoning;
                completion.whole.calls.extend(calls);
                completion.whole.tokens.extend(tokens);
                completion.whole.log_probs.extend(log_probs);
            }
            AnswerEvent::Finished(ending) => completion.ending = ending,
            AnswerEvent::Failed(error) => return Err(error),
        }
    }
    Ok(completions)
}
