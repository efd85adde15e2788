//! A running request: step by step from its prompt to its finish reason.

use crate::chat::ChatFormat;
use crate::drafting::DraftRequest;
use crate::reasoning::Reasoning;
use crate::request::{Event, FinishReason, GenerationStats, Prompt, Request, RequestError};
use crate::row::{Draw, Row, RowError, RowInput, RowOutputs, Sample, StepOutputs};
use crate::scheduler::Demand;
use crate::session::{Session, SessionId};
use crate::speculation::{DrafterFactory, Drafts, Speculator};
use crate::{MAX_STATE_CHECKPOINTS, Sampler, SamplerState, StepError, Stepper};
use std::ops::Range;
use std::time::{Duration, Instant};
use verbatim_backend::{Backend, Outputs};
use verbatim_draft::MAX_DRAFT;
use verbatim_grammar::Constraint;
use verbatim_sample::{LogProbs, TokenLogProbs};
use verbatim_text::{
    Detokenizer, PromptWarning, ReasoningSplitter, SpecialTokens, SplitText, StopMatcher, Tokenizer,
};

/// A validated request, with its prompt as tokens.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) session: Option<SessionId>,
    pub(crate) priority: i32,
    cache_prompt: bool,
    prompt: Vec<u32>,
    sampler: Sampler,
    drafts: Drafts,
    max_tokens: usize,
    stop: Vec<String>,
    stops: StopMatcher,
    splitter: Option<ReasoningSplitter>,
    constraint: Option<Constraint>,
    reasoning: Option<Reasoning>,
    warning: Option<PromptWarning>,
}

impl Task {
    /// Validates a request and tokenizes its prompt.
    pub(crate) fn from_request(
        request: Request,
        format: &ChatFormat,
        drafters: &DrafterFactory,
    ) -> Result<Task, RequestError> {
        let Request { prompt, sampling, log_probs, grammar, reasoning_budget, max_tokens, stop, .. } =
            request;
        let Request { session, cache_prompt, priority, speculation, .. } = request;
        let breakers = format.breakers(&sampling);
        let sampler = Sampler::new(sampling, u64::from(fastrand::u32(..)))?
            .with_breakers(breakers)
            .with_log_probs(log_probs);
        let stops = StopMatcher::new(stop.iter().cloned())?;
        let mut warning = None;
        let is_chat = matches!(prompt, Prompt::Chat(_) | Prompt::Conversation(_));
        let prompt = match prompt {
            Prompt::Tokens(tokens) => tokens,
            Prompt::Text(text) => {
                let encoded = format.text_tokens(&text, SpecialTokens::Parse);
                warning = encoded.warning;
                encoded.ids
            }
            Prompt::Chat(messages) => format.chat_tokens(&messages)?,
            Prompt::Conversation(conversation) => format.conversation_tokens(&conversation)?,
        };
        if prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        let constraint = grammar.map(|grammar| format.constraint(grammar)).transpose()?;
        // A grammar is for the answer, which comes after the reasoning.
        let reasoning = (reasoning_budget.is_some() || constraint.is_some())
            .then(|| Reasoning::new(reasoning_budget.unwrap_or(usize::MAX), format.tokenizer(), &prompt));
        let max_tokens = max_tokens.unwrap_or(usize::MAX);
        let splitter = is_chat.then(|| {
            let end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
            ReasoningSplitter::new(&String::from_utf8_lossy(&format.tokenizer().decode(end, true)))
        });
        let drafts = Drafts::new(speculation, &sampler, drafters);
        Ok(Task {
            session,
            priority,
            cache_prompt: cache_prompt || session.is_some(),
            prompt,
            sampler,
            drafts,
            max_tokens,
            stop,
            stops,
            splitter,
            constraint,
            reasoning,
            warning,
        })
    }
}

/// Tokens at the end of a prompt that may open the reasoning.
const PROMPT_END: usize = 16;
/// Maximum number of forced tokens queued at once, so that other requests, cancellation and events are handled in between.
const MAX_FORCED: usize = 64;

/// A request's rows of the step that is being computed: tokens to add, then its draft.
#[derive(Debug, Default)]
struct StepRows {
    /// KV index of the first row.
    start: usize,
    /// Rows before the draft.
    chunk: usize,
    /// Whether the chunk's last row and the draft rows sample a token: false while more of the prompt follows.
    samples: bool,
    /// The mask of each row that samples, `mask_words` words each; none without a grammar.
    masks: Vec<u32>,
    mask_words: usize,
}

/// What the rows of a request have sampled, or why they were not computed.
pub(crate) type Samples = Vec<Result<Sample, RowError>>;

/// The samples of these rows of a step.
pub(crate) fn samples_of<O: Outputs>(outputs: &StepOutputs<'_, O>, rows: Range<usize>) -> Samples {
    rows.filter_map(|row| outputs.sample(row).map(Option::<&Sample>::cloned).transpose()).collect()
}

/// A running request. Its session is passed to every call: sessions are owned by the engine thread (`Worker`).
#[derive(Debug)]
pub(crate) struct Generation {
    sampler: Sampler,
    /// Draws draft tokens.
    draft_sampler: Sampler,
    sampler_state: SamplerState,
    constraint: Option<Constraint>,
    reasoning: Option<Reasoning>,
    max_tokens: usize,
    /// The tokens to compute next: the rest of the prompt, or the last generated token and those that it forces.
    pending_tokens: Vec<u32>,
    /// How many tokens the context has room for.
    room: usize,
    pub(crate) drafts: Drafts,
    step: StepRows,
    stop: Vec<String>,
    text: Text,
    stats: GenerationStats,
    warning: Option<PromptWarning>,
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
        let Task {
            cache_prompt,
            mut prompt,
            sampler,
            drafts,
            max_tokens,
            stop,
            stops,
            splitter,
            constraint,
            reasoning,
            warning,
            ..
        } = task;
        let (tokens, context) = (prompt.len(), stepper.context());
        if tokens > context && !session.shifts() {
            return Err(RequestError::PromptTooLong { tokens, context });
        }
        let started = Instant::now();
        let cached_tokens = if cache_prompt { session.resume_prefix(stepper, &prompt)? } else { 0 };
        prompt.drain(..cached_tokens);
        let stats = GenerationStats { prompt_tokens: tokens, cached_tokens, ..GenerationStats::default() };
        let text = Text {
            detokenizer: Detokenizer::new(),
            splitter,
            stops,
            text: String::new(),
            reasoning: String::new(),
            tokens: Vec::new(),
            log_probs: Vec::new(),
        };
        let sampler_state = sampler.start();
        Ok(Generation {
            draft_sampler: sampler.clone().with_log_probs(None),
            sampler,
            sampler_state,
            constraint,
            reasoning,
            max_tokens,
            pending_tokens: prompt,
            room: 0,
            drafts,
            step: StepRows::default(),
            stop,
            text,
            stats,
            warning,
            started,
            first_token: None,
        })
    }

    /// The event that reports the start.
    pub(crate) fn started(&self) -> Event {
        let GenerationStats { prompt_tokens, cached_tokens, .. } = self.stats;
        Event::Started { prompt_tokens, cached_tokens, seed: self.sampler.seed(), warning: self.warning }
    }

    /// Gets ready for the next step, and drafts. Returns the reason if the answer has ended.
    pub(crate) fn prepare<B: Backend>(
        &mut self,
        stepper: &mut Stepper<B>,
        session: &mut Session,
        tokenizer: &Tokenizer,
        speculator: &Speculator,
    ) -> Result<Option<FinishReason>, RequestError> {
        // Tokens that are forced at the start of the answer need no draw: they are prefilled with the prompt.
        if self.first_token.is_none() {
            let room = if session.shifts() { usize::MAX } else { session.room(stepper)? };
            if let Some(reason) = self.accept_forced(room, tokenizer)? {
                return Ok(Some(reason));
            }
        }
        if self.stats.generated_tokens >= self.max_tokens {
            return Ok(Some(FinishReason::MaxTokens));
        }
        if session.room(stepper)? == 0 && !session.shift(stepper)? {
            return Ok(Some(FinishReason::ContextFull));
        }
        // With context shift, a prompt may be longer than the context: the shift happens at the same tokens as if they were computed
        // one by one, so the result does not depend on the chunking.
        self.room = session.room(stepper)?;
        if self.first_token.is_some() {
            let pending = self.pending_tokens.len();
            // Recurrent states are kept for only [`MAX_STATE_CHECKPOINTS`] positions in flight.
            let in_flight = if stepper.is_recurrent() { MAX_STATE_CHECKPOINTS } else { usize::MAX };
            let room = self.room.min(in_flight).saturating_sub(pending);
            // The last token needs no row.
            let left = self.max_tokens - self.stats.generated_tokens - 1;
            let max = room.min(left).min(MAX_DRAFT);
            let vocabulary = stepper.hyperparameters().vocabulary;
            self.drafts.propose(session.history(), &self.pending_tokens, (max, vocabulary), speculator);
        }
        Ok(None)
    }

    /// A request of at most `max` tokens to a draft model.
    pub(crate) fn draft_request<'a>(
        &'a mut self,
        session: &Session,
        max: usize,
        p_min: f32,
    ) -> DraftRequest<'a> {
        // The likelihood of a token is known only if the sampler returns it.
        let wants_log_probs = (p_min > 0.0).then_some(LogProbs { top: 0, after_chain: false });
        if self.draft_sampler.log_probs() != wants_log_probs {
            self.draft_sampler = self.draft_sampler.clone().with_log_probs(wants_log_probs);
        }
        DraftRequest {
            sequence: session.sequence(),
            tokens: self.drafts.begin_model(session.history(), &self.pending_tokens),
            pending: self.pending_tokens.len(),
            sampler: &self.draft_sampler,
            state: self.sampler_state,
            max,
            p_min,
        }
    }

    /// Tokens of the prompt that were computed so far, prefix-cache hits not counted.
    pub(crate) fn computed_prompt_tokens(&self) -> usize {
        let uncached = self.stats.prompt_tokens - self.stats.cached_tokens;
        let pending = if self.first_token.is_some() { 0 } else { self.pending_tokens.len() };
        uncached.saturating_sub(pending)
    }

    /// The rows without a draft that the next step could compute.
    pub(crate) fn pending_rows(&self) -> usize {
        self.pending_tokens.len().min(self.room)
    }

    /// What this request could use of the next step.
    pub(crate) fn demand(&self) -> Demand {
        match self.first_token {
            Some(_) => Demand::Decode { rows: self.pending_rows() + self.drafts.tokens.len() },
            None => Demand::Prefill { rows: self.pending_rows() },
        }
    }

    /// Allocates the request's rows of the next step, at most `rows`.
    pub(crate) fn begin_step<B: Backend>(
        &mut self,
        rows: usize,
        stepper: &mut Stepper<B>,
        session: &mut Session,
        tokenizer: &Tokenizer,
    ) -> Result<(), RequestError> {
        let chunk = self.pending_rows().min(rows);
        self.step.samples = chunk == self.pending_tokens.len();
        self.drafts.tokens.truncate(if self.step.samples { rows - chunk } else { 0 });
        self.mask_rows(tokenizer)?;
        let tokens = self.pending_tokens[..chunk].iter().chain(&self.drafts.tokens).copied();
        let tokens: Vec<u32> = tokens.collect();
        self.step.chunk = chunk;
        self.step.start = session.begin_step(stepper, tokens.into_iter())?;
        Ok(())
    }

    /// Computes the masks of the rows that sample; cuts the draft where the grammar does not allow it.
    fn mask_rows(&mut self, tokenizer: &Tokenizer) -> Result<(), RequestError> {
        let StepRows { masks, mask_words, samples, .. } = &mut self.step;
        masks.clear();
        *mask_words = 0;
        let Some(constraint) = self.constraint.as_mut().filter(|_| *samples) else { return Ok(()) };
        *mask_words = tokenizer.vocab_len().div_ceil(32);
        let mut reasoning = self.reasoning.clone();
        let draft = &mut self.drafts.tokens;
        let (mut allowed, mut accepted) = (0, 0);
        loop {
            let next = draft.get(allowed).copied();
            if reasoning.as_ref().is_some_and(Reasoning::is_thinking) {
                masks.extend(std::iter::repeat_n(u32::MAX, *mask_words));
            } else {
                let mask = constraint.mask()?;
                let may_follow = next.is_some_and(|token| mask.allows(token));
                masks.extend_from_slice(mask.as_words());
                if !may_follow || next.is_some_and(|token| constraint.accept(token).is_err()) {
                    break;
                }
                accepted += 1;
            }
            let Some(token) = next else { break };
            if let Some(reasoning) = &mut reasoning {
                reasoning.accept(token, tokenizer);
            }
            allowed += 1;
        }
        draft.truncate(allowed);
        Ok(constraint.rollback(accepted)?)
    }

    /// The rows of the step that was begun.
    pub(crate) fn rows<'a>(&'a self, session: &'a Session) -> impl Iterator<Item = Row<'a>> {
        let StepRows { start, chunk, samples, ref masks, mask_words } = self.step;
        let drafted = self.drafts.tokens.len();
        let history = session.history();
        let tokens = &history[history.len() - chunk - drafted..];
        tokens.iter().enumerate().map(move |(i, &token)| {
            let output = (i + 1).checked_sub(chunk).filter(|_| samples);
            let want = output.map_or(RowOutputs::NONE, |output| {
                let history = &history[..history.len() - drafted + output];
                let mask = masks.get(output * mask_words..(output + 1) * mask_words);
                let mask = mask.filter(|_| mask_words > 0);
                RowOutputs::token(Draw { sampler: &self.sampler, state: self.sampler_state, history, mask })
            });
            Row { sequence: session.sequence(), kv_index: start + i, input: RowInput::Token(token), want }
        })
    }

    /// Adds the sampled tokens to the answer, up to the first that differs from the draft, and commits their rows. Returns the
    /// reason if the answer has ended.
    pub(crate) fn finish_step<B: Backend>(
        &mut self,
        samples: Samples,
        stepper: &mut Stepper<B>,
        session: &mut Session,
        tokenizer: &Tokenizer,
        speculator: &mut Speculator,
    ) -> Result<Option<FinishReason>, RequestError> {
        let verified = self.verify(samples, tokenizer);
        let accepted = verified.as_ref().map_or(0, |(accepted, _)| *accepted);
        self.drafts.record(accepted, speculator);
        session.commit(stepper, if verified.is_ok() { self.step.chunk + accepted } else { 0 })?;
        verified.map(|(_, finished)| finished)
    }

    /// Accepts the draft tokens up to the first that differs from the sampled one. Returns how many it accepted, and the reason if
    /// the answer has ended.
    fn verify(
        &mut self,
        samples: Samples,
        tokenizer: &Tokenizer,
    ) -> Result<(usize, Option<FinishReason>), RequestError> {
        if !self.step.samples {
            samples.into_iter().try_for_each(|sample| sample.map(drop)).map_err(StepError::from)?;
            self.pending_tokens.drain(..self.step.chunk);
            return Ok((0, None));
        }
        self.pending_tokens.clear();
        self.first_token.get_or_insert_with(Instant::now);
        let draft = std::mem::take(&mut self.drafts.tokens);
        let mut samples = samples.into_iter();
        let mut accepted = 0;
        let mut finished = None;
        // A token that is forced was not sampled: the sample of its row is passed over.
        while let Some(sample) = samples.nth(self.pending_tokens.len().saturating_sub(1)) {
            self.pending_tokens.clear();
            let Sample { token, state, log_probs, outside_graph } = sample.map_err(StepError::from)?;
            self.sampler_state = state;
            self.stats.sampled_outside_graph += usize::from(outside_graph);
            finished = self.accept(token, log_probs, tokenizer)?;
            if finished.is_none() {
                finished = self.accept_forced(self.room - self.step.chunk - accepted, tokenizer)?;
            }
            if finished.is_none() && self.stats.generated_tokens >= self.max_tokens {
                finished = Some(FinishReason::MaxTokens);
            }
            if finished.is_some() {
                break;
            }
            let matching =
                draft[accepted..].iter().zip(&self.pending_tokens).take_while(|(a, b)| a == b).count();
            accepted += matching;
            if matching < self.pending_tokens.len() {
                self.pending_tokens.drain(..matching);
                break;
            }
        }
        self.drafts.tokens = draft;
        Ok((accepted, finished))
    }

    /// Adds the forced tokens: those that the grammar or the reasoning budget leaves no choice about, which need no step of their
    /// own. `room` is how many tokens the context has room for. Returns the reason if the answer has ended.
    fn accept_forced(
        &mut self,
        room: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, RequestError> {
        let mut grammar_tokens = None;
        while self.stats.generated_tokens < self.max_tokens
            && self.pending_tokens.len() < room.min(MAX_FORCED)
        {
            let reasoning = self.reasoning.as_ref();
            let token = match reasoning.and_then(Reasoning::forced) {
                Some(token) => token,
                None if reasoning.is_some_and(Reasoning::is_thinking) => break,
                None => {
                    let next =
                        grammar_tokens.get_or_insert_with(|| self.forced_by_grammar().into_iter()).next();
                    let Some(token) = next else { break };
                    token
                }
            };
            let finished = self.accept(token, None, tokenizer)?;
            if finished.is_some() {
                return Ok(finished);
            }
        }
        Ok(None)
    }

    fn forced_by_grammar(&mut self) -> Vec<u32> {
        // A draw of each token is needed for its log-probability, and where draws change the sampler's state.
        if self.sampler.needs_every_draw() {
            return Vec::new();
        }
        self.constraint.as_mut().map(Constraint::forced_tokens).unwrap_or_default()
    }

    /// Adds a token to the answer. Returns the reason if the answer has ended.
    fn accept(
        &mut self,
        token: u32,
        log_probs: Option<TokenLogProbs>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<FinishReason>, RequestError> {
        let is_thinking = self.reasoning.as_ref().is_some_and(Reasoning::is_thinking);
        let mut constraint = self.constraint.as_mut().filter(|_| !is_thinking);
        if let Some(constraint) = &mut constraint {
            constraint.accept(token)?;
        }
        // Nothing but an end token can follow.
        let is_complete = constraint.is_some_and(|constraint| constraint.is_stopped());
        if tokenizer.is_eog(token) {
            return Ok(Some(FinishReason::EndOfText));
        }
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.accept(token, tokenizer);
        }
        self.stats.generated_tokens += 1;
        self.pending_tokens.push(token);
        let stopped_by = self.text.push(token, log_probs, tokenizer);
        if let Some(index) = stopped_by {
            return Ok(Some(FinishReason::StopString(self.stop[index].clone())));
        }
        Ok(is_complete.then_some(FinishReason::EndOfText))
    }

    /// The new text since the last call, if any.
    pub(crate) fn take_text(&mut self) -> Option<Event> {
        self.text.has_text().then(|| self.text.take())
    }

    /// Ends the answer: returns the rest of its text, if any, and the final event.
    pub(crate) fn finish(mut self, reason: FinishReason) -> (Option<Event>, Event) {
        let stopped_by = self.text.finish();
        let reason = stopped_by.map_or(reason, |index| FinishReason::StopString(self.stop[index].clone()));
        let rest = self.text.has_text() || !self.text.tokens.is_empty();
        let rest = rest.then(|| self.text.take());
        self.stats.drafts = self.drafts.stats();
        self.stats.time_to_first_token = self.first_token.unwrap_or_else(Instant::now) - self.started;
        self.stats.generation_time = self.first_token.map_or(Duration::ZERO, |first| first.elapsed());
        (rest, Event::Finished { reason, stats: self.stats })
    }
}

/// The text of an answer: tokens to characters, up to a stop string.
#[derive(Debug)]
struct Text {
    detokenizer: Detokenizer,
    /// For conversations.
    splitter: Option<ReasoningSplitter>,
    stops: StopMatcher,
    /// Text that can be shown and was not taken yet.
    text: String,
    reasoning: String,
    /// The tokens since the text was last taken.
    tokens: Vec<u32>,
    /// The log-probabilities of `tokens`, one entry each.
    log_probs: Vec<Option<TokenLogProbs>>,
}

impl Text {
    /// Adds the next token; returns the index of the stop string that is now complete, if any.
    fn push(&mut self, token: u32, log_probs: Option<TokenLogProbs>, tokenizer: &Tokenizer) -> Option<usize> {
        self.tokens.push(token);
        self.log_probs.push(log_probs);
        let text = self.detokenizer.push(tokenizer.visible_piece(token));
        let Some(splitter) = &mut self.splitter else {
            return push_answer(&mut self.stops, text, &mut self.text);
        };
        let split = splitter.text(text);
        if tokenizer.visible_piece(token).is_empty() {
            splitter.control(&String::from_utf8_lossy(tokenizer.piece(token)));
        }
        self.push_split(split)
    }

    fn push_split(&mut self, split: SplitText) -> Option<usize> {
        self.reasoning.push_str(&split.reasoning);
        push_answer(&mut self.stops, &split.answer, &mut self.text)
    }

    /// Ends the text and adds the text held back. Returns the index of the stop string that ended it, if any.
    fn finish(&mut self) -> Option<usize> {
        let rest = self.detokenizer.finish().to_owned();
        match &mut self.splitter {
            None => {
                push_answer(&mut self.stops, &rest, &mut self.text);
            }
            Some(splitter) => {
                let (split, held) = (splitter.text(&rest), splitter.finish());
                self.push_split(split);
                self.push_split(held);
            }
        }
        let output = self.stops.finish();
        self.text.push_str(output.text);
        output.stopped_by
    }

    fn has_text(&self) -> bool {
        !self.text.is_empty() || !self.reasoning.is_empty()
    }

    fn take(&mut self) -> Event {
        Event::Text {
            text: std::mem::take(&mut self.text),
            reasoning: std::mem::take(&mut self.reasoning),
            tokens: std::mem::take(&mut self.tokens),
            log_probs: std::mem::take(&mut self.log_probs),
        }
    }
}

/// Adds text of the answer that cannot become part of a stop string; returns the index of the stop string that is now complete,
/// if any.
fn push_answer(stops: &mut StopMatcher, text: &str, shown: &mut String) -> Option<usize> {
    let output = stops.push(text);
    shown.push_str(output.text);
    output.stopped_by
}
