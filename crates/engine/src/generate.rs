//! A running request: step by step from its prompt to its finish reason.

use crate::chat::ChatFormat;
use crate::reasoning::ReasoningBudget;
use crate::request::{Event, FinishReason, GenerationStats, Prompt, Request, RequestError};
use crate::row::Sample;
use crate::session::{Session, SessionId};
use crate::{Sampler, SamplerState, Stepper};
use std::time::{Duration, Instant};
use verbatim_backend::Backend;
use verbatim_grammar::{Constraint, TokenMask};
use verbatim_sample::TokenLogProbs;
use verbatim_text::{Detokenizer, SpecialTokens, StopMatcher, Tokenizer};

/// A validated request, with its prompt as tokens.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) session: Option<SessionId>,
    prompt: Vec<u32>,
    sampler: Sampler,
    max_tokens: usize,
    stop: Vec<String>,
    stops: StopMatcher,
    constraint: Option<Constraint>,
    reasoning: Option<ReasoningBudget>,
}

impl Task {
    /// Validates a request and tokenizes its prompt.
    pub(crate) fn from_request(request: Request, format: &ChatFormat) -> Result<Task, RequestError> {
        let Request { prompt, sampling, log_probs, grammar, reasoning_budget, max_tokens, stop, session } =
            request;
        let breakers = format.breakers(&sampling);
        let sampler = Sampler::new(sampling, u64::from(fastrand::u32(..)))?
            .with_breakers(breakers)
            .with_log_probs(log_probs);
        let stops = StopMatcher::new(stop.iter().cloned())?;
        let prompt = match prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => format.text_tokens(&text, SpecialTokens::Parse).ids,
            Prompt::Chat(messages) => format.chat_tokens(&messages)?,
        };
        if prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        let constraint = grammar.map(|grammar| format.constraint(grammar)).transpose()?;
        let reasoning =
            reasoning_budget.map(|tokens| ReasoningBudget::new(tokens, format.tokenizer(), &prompt));
        let max_tokens = max_tokens.unwrap_or(usize::MAX);
        Ok(Task { session, prompt, sampler, max_tokens, stop, stops, constraint, reasoning })
    }
}

/// A running request. Its session is passed to every call: sessions are owned by the engine thread (`Worker`).
#[derive(Debug)]
pub(crate) struct Generation {
    sampler: Sampler,
    sampler_state: SamplerState,
    constraint: Option<Constraint>,
    reasoning: Option<ReasoningBudget>,
    max_tokens: usize,
    /// The tokens to compute next: the rest of the prompt, or the last generated token and those that it forces.
    pending_tokens: Vec<u32>,
    stop: Vec<String>,
    text: Text,
    stats: GenerationStats,
    started: Instant,
    first_token: Option<Instant>,
}

impl Generation {
    /// Starts a request: looks its prompt up in the prefix cache.
    pub(crate) fn start<B: Backend>(
        task: Task,
        stepper: &mut Stepper<B>,
        session: &mut Session,
    ) -> Result<Generation, RequestError> {
        let Task { session: _, mut prompt, sampler, max_tokens, stop, stops, constraint, reasoning } = task;
        let (tokens, context) = (prompt.len(), stepper.context());
        if tokens > context && !session.shifts() {
            return Err(RequestError::PromptTooLong { tokens, context });
        }
        let started = Instant::now();
        let cached_tokens = session.resume_prefix(stepper, &prompt)?;
        prompt.drain(..cached_tokens);
        let stats = GenerationStats { prompt_tokens: tokens, cached_tokens, ..GenerationStats::default() };
        let text = Text {
            detokenizer: Detokenizer::new(),
            stops,
            text: String::new(),
            tokens: Vec::new(),
            log_probs: Vec::new(),
        };
        let sampler_state = sampler.start();
        Ok(Generation {
            sampler,
            sampler_state,
            constraint,
            reasoning,
            max_tokens,
            pending_tokens: prompt,
            stop,
            text,
            stats,
            started,
            first_token: None,
        })
    }

    /// The event that reports the start.
    pub(crate) fn started(&self) -> Event {
        let GenerationStats { prompt_tokens, cached_tokens, .. } = self.stats;
        Event::Started { prompt_tokens, cached_tokens, seed: self.sampler.seed() }
    }

    /// Computes the next token, or a part of a prompt. Returns the reason if the answer has ended.
    pub(crate) fn step<B: Backend>(
        &mut self,
        stepper: &mut Stepper<B>,
        session: &mut Session,
        tokenizer: &Tokenizer,
        should_continue: impl FnMut() -> bool,
    ) -> Result<Option<FinishReason>, RequestError> {
        // What must come first needs no draw: it is computed with the prompt.
        if self.first_token.is_none()
            && let Some(reason) = self.accept_forced(tokenizer)?
        {
            return Ok(Some(reason));
        }
        if self.stats.generated_tokens == self.max_tokens {
            return Ok(Some(FinishReason::MaxTokens));
        }
        if session.room(stepper)? == 0 && !session.shift(stepper)? {
            return Ok(Some(FinishReason::ContextFull));
        }
        // With context shift, a prompt may be longer than the context: the shift happens at the same tokens as if they were computed
        // one by one, so the result does not depend on the chunking.
        let later = self.pending_tokens.split_off(self.pending_tokens.len().min(session.room(stepper)?));
        let (sampler, state) = (&self.sampler, self.sampler_state);
        let mask = self.constraint.as_mut().map(Constraint::mask).transpose()?.map(TokenMask::as_words);
        let advanced =
            session.advance(stepper, &self.pending_tokens, sampler, state, mask, should_continue)?;
        let Some(Sample { token, state, log_probs, outside_graph }) = advanced else {
            return Ok(Some(FinishReason::Cancelled));
        };
        if !later.is_empty() {
            self.pending_tokens = later;
            return Ok(None);
        }
        self.sampler_state = state;
        self.stats.sampled_outside_graph += usize::from(outside_graph);
        self.first_token.get_or_insert_with(Instant::now);
        self.pending_tokens.clear();
        match self.accept(token, log_probs, tokenizer)? {
            None => self.accept_forced(tokenizer),
            finished => Ok(finished),
        }
    }

    /// Adds the forced tokens: those that the grammar or the reasoning budget leaves no choice about. Returns the reason if the
    /// answer has ended.
    fn accept_forced(&mut self, tokenizer: &Tokenizer) -> Result<Option<FinishReason>, RequestError> {
        let mut finished = None;
        while finished.is_none() && self.stats.generated_tokens < self.max_tokens {
            let Some(token) = self.forced_token() else { break };
            finished = self.accept(token, None, tokenizer)?;
        }
        Ok(finished)
    }

    /// Adds a token to the answer. Returns the reason if the answer has ended.
    fn accept(
        &mut self,
        token: u32,
        log_probs: Option<TokenLogProbs>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, RequestError> {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        if tokenizer.is_eog(token) {
            return Ok(Some(FinishReason::EndOfText));
        }
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.accept(token);
        }
        self.stats.generated_tokens += 1;
        self.pending_tokens.push(token);
        let stopped_by = self.text.push(token, log_probs, tokenizer.visible_piece(token));
        if let Some(index) = stopped_by {
            return Ok(Some(FinishReason::StopString(self.stop[index].clone())));
        }
        // Nothing but an end token can follow.
        let is_complete = self.constraint.as_ref().is_some_and(Constraint::is_stopped);
        Ok(is_complete.then_some(FinishReason::EndOfText))
    }

    /// The next token if it is forced: it then needs no step of its own.
    fn forced_token(&mut self) -> Option<u32> {
        if let Some(token) = self.reasoning.as_ref().and_then(ReasoningBudget::forced) {
            return Some(token);
        }
        // A draw of each token is needed for its log-probability, and where draws change the sampler's state.
        if self.sampler.needs_every_draw() {
            return None;
        }
        self.constraint.as_mut().and_then(|constraint| constraint.forced_tokens().first().copied())
    }

    /// The new text since the last call, if any.
    pub(crate) fn take_text(&mut self) -> Option<Event> {
        (!self.text.text.is_empty()).then(|| self.text.take())
    }

    /// Ends the answer: returns the rest of its text, if any, and the final event.
    pub(crate) fn finish(mut self, reason: FinishReason) -> (Option<Event>, Event) {
        let stopped_by = self.text.finish();
        let reason = stopped_by.map_or(reason, |index| FinishReason::StopString(self.stop[index].clone()));
        let rest = !self.text.text.is_empty() || !self.text.tokens.is_empty();
        let rest = rest.then(|| self.text.take());
        let since = |first: Instant| first.elapsed();
        self.stats.time_to_first_token = self.first_token.unwrap_or_else(Instant::now) - self.started;
        self.stats.generation_time = self.first_token.map_or(Duration::ZERO, since);
        (rest, Event::Finished { reason, stats: self.stats })
    }
}

/// The text of an answer: tokens to characters, up to a stop string.
#[derive(Debug)]
struct Text {
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Text that can be shown and was not taken yet.
    text: String,
    /// The tokens since the text was last taken.
    tokens: Vec<u32>,
    /// The log-probabilities of `tokens`, one entry each.
    log_probs: Vec<Option<TokenLogProbs>>,
}

impl Text {
    /// Adds the next token; returns the index of the stop string that is now complete, if any.
    fn push(&mut self, token: u32, log_probs: Option<TokenLogProbs>, piece: &[u8]) -> Option<usize> {
        self.tokens.push(token);
        self.log_probs.push(log_probs);
        let output = self.stops.push(self.detokenizer.push(piece));
        self.text.push_str(output.text);
        output.stopped_by
    }

    /// Ends the text and adds the text held back. Returns the index of the stop string that ended it, if any.
    fn finish(&mut self) -> Option<usize> {
        let output = self.stops.push(self.detokenizer.finish());
        self.text.push_str(output.text);
        let output = self.stops.finish();
        self.text.push_str(output.text);
        output.stopped_by
    }

    fn take(&mut self) -> Event {
        Event::Text {
            text: std::mem::take(&mut self.text),
            tokens: std::mem::take(&mut self.tokens),
            log_probs: std::mem::take(&mut self.log_probs),
        }
    }
}
