//! Speculative decoding: which requests draft, how many tokens a step verifies, and how many it accepts.

use crate::Sampler;
use std::sync::Arc;
use std::time::Duration;
use verbatim_draft::{Acceptance, Draft, Drafter, MAX_DRAFT, NgramDrafter, StepCosts, draft_lengths};

/// How many draft tokens of a request are verified in one step. It changes how long an answer takes, never its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speculation {
    /// As many as are worth verifying, by measured step times and acceptance; often none.
    Auto {
        /// At most so many.
        max: usize,
    },
    /// None.
    Off,
    /// As many as the drafter proposes, at most so many.
    Fixed(usize),
}

impl Speculation {
    /// As many as are worth verifying.
    pub const AUTO: Speculation = Speculation::Auto { max: MAX_DRAFT };
}

impl Default for Speculation {
    /// None, until the automatic choice has been measured on more machines.
    fn default() -> Speculation {
        Speculation::Off
    }
}

/// Creates the drafter of each request.
#[derive(Clone)]
pub struct DrafterFactory(Option<Arc<dyn Fn() -> Box<dyn Drafter> + Send + Sync>>);

impl DrafterFactory {
    /// A factory that calls this function.
    pub fn new(make: impl Fn() -> Box<dyn Drafter> + Send + Sync + 'static) -> DrafterFactory {
        DrafterFactory(Some(Arc::new(make)))
    }

    /// No drafter: at most a draft model drafts.
    pub fn none() -> DrafterFactory {
        DrafterFactory(None)
    }

    fn make(&self) -> Option<Box<dyn Drafter>> {
        self.0.as_ref().map(|make| make())
    }
}

impl Default for DrafterFactory {
    /// The n-gram drafter.
    fn default() -> DrafterFactory {
        DrafterFactory::new(|| Box::new(NgramDrafter::default()))
    }
}

impl std::fmt::Debug for DrafterFactory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let method = self.make().map(|drafter| drafter.method());
        formatter.debug_tuple("DrafterFactory").field(&method).finish()
    }
}

/// Why a request does not draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDrafted {
    /// It was asked not to.
    Off,
    /// Its sampler has a state that each draw changes, so that only one token can be sampled in a step.
    StatefulSampler,
    /// The draft model was not there, or turned off, when the text before was computed.
    NotFollowed,
    /// The text is as long as the draft model was trained for.
    DraftContext,
}

/// The drafts of one request.
#[derive(Debug)]
pub(crate) struct Drafts {
    speculation: Speculation,
    drafter: Result<Option<Box<dyn Drafter>>, NotDrafted>,
    /// How many tokens may be drafted.
    max: usize,
    /// What the next step verifies.
    pub(crate) tokens: Vec<u32>,
    proposed: usize,
    acceptance: Option<Acceptance>,
    stats: DraftStats,
    /// All tokens so far, for the drafter.
    history: Vec<u32>,
    /// How many of them are not pending.
    computed: usize,
}

/// Speculation statistics of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Why nothing was drafted, if so by choice.
    pub not_drafted: Option<NotDrafted>,
    /// Steps that verified a draft.
    pub rounds: usize,
    /// Draft tokens that were verified.
    pub drafted: usize,
    /// Those that were accepted.
    pub accepted: usize,
    /// How long the draft model took, for this and all requests of the same steps.
    pub draft_time: Duration,
    /// By position in the draft: tokens verified, and accepted.
    pub by_position: [(u32, u32); MAX_DRAFT],
}

impl DraftStats {
    fn add(&mut self, drafted: usize, accepted: usize) {
        self.rounds += 1;
        self.drafted += drafted;
        self.accepted += accepted;
        for (position, (verified, kept)) in self.by_position.iter_mut().enumerate().take(drafted) {
            *verified += 1;
            *kept += u32::from(position < accepted);
        }
    }
}

impl Drafts {
    pub(crate) fn new(speculation: Speculation, sampler: &Sampler, drafters: &DrafterFactory) -> Drafts {
        let drafter: Result<Option<Box<dyn Drafter>>, NotDrafted> = match speculation {
            Speculation::Off | Speculation::Fixed(0) | Speculation::Auto { max: 0 } => Err(NotDrafted::Off),
            _ if sampler.is_stateful() => Err(NotDrafted::StatefulSampler),
            Speculation::Auto { .. } | Speculation::Fixed(_) => Ok(drafters.make()),
        };
        let stats = DraftStats { not_drafted: drafter.as_ref().err().copied(), ..DraftStats::default() };
        let (tokens, history) = (Vec::new(), Vec::new());
        Drafts {
            speculation,
            drafter,
            max: 0,
            tokens,
            proposed: 0,
            acceptance: None,
            stats,
            history,
            computed: 0,
        }
    }

    pub(crate) fn stats(&self) -> DraftStats {
        self.stats
    }

    /// Records how many of the verified tokens were accepted, and forgets them.
    pub(crate) fn record(&mut self, accepted: usize, speculator: &mut Speculator) {
        let verified = self.tokens.len();
        if verified > 0 {
            self.stats.add(verified, accepted);
            speculator.overall.observe(verified, accepted);
        }
        if let Some(acceptance) = &mut self.acceptance
            && self.proposed > 0
        {
            match verified {
                0 => acceptance.skip(),
                _ => acceptance.observe(verified, accepted),
            }
        }
        self.tokens.clear();
        self.proposed = 0;
    }

    /// Drafts at most `max` tokens, of a vocabulary of this size, that may follow the history and the pending tokens.
    pub(crate) fn propose(
        &mut self,
        history: &[u32],
        pending: &[u32],
        (max, vocabulary): (usize, usize),
        speculator: &Speculator,
    ) {
        self.tokens.clear();
        self.max = 0;
        if self.drafter.is_err() {
            return;
        }
        self.acceptance.get_or_insert_with(|| Acceptance::from_prior(&speculator.overall));
        let max = match self.speculation {
            Speculation::Fixed(limit) | Speculation::Auto { max: limit } => max.min(limit),
            Speculation::Off => 0,
        };
        self.max = max;
        self.extend_history(history, pending);
        if let Ok(Some(drafter)) = &mut self.drafter {
            drafter.propose(&self.history, max, &mut self.tokens);
        }
        // Whatever a drafter does, it cannot make a request fail.
        let valid = self.tokens.iter().take_while(|&&token| (token as usize) < vocabulary).count();
        self.tokens.truncate(valid.min(max));
        self.proposed = self.tokens.len();
    }

    /// All tokens so far, the pending ones included.
    fn extend_history(&mut self, history: &[u32], pending: &[u32]) {
        // The history only grows within a request, but for context shifts, which the text does not show.
        self.history.truncate(self.computed.min(history.len()));
        self.history.extend_from_slice(&history[self.history.len()..]);
        self.computed = history.len();
        self.history.extend_from_slice(pending);
    }

    /// Whether the request drafts at all.
    pub(crate) fn is_on(&self) -> bool {
        self.drafter.is_ok()
    }

    /// How many tokens a draft model may draft, at most `most`: none where there is a draft already.
    pub(crate) fn wanted_of_model(&self, most: usize) -> usize {
        if self.tokens.is_empty() { self.max.min(most) } else { 0 }
    }

    /// All tokens so far, to which a draft model appends.
    pub(crate) fn begin_model(&mut self, history: &[u32], pending: &[u32]) -> &mut Vec<u32> {
        self.extend_history(history, pending);
        &mut self.history
    }

    /// Takes what a draft model has appended to the first `known` tokens; nothing if that is less than `n_min`.
    pub(crate) fn end_model(&mut self, known: usize, n_min: usize, taken: Duration) {
        self.tokens.clear();
        self.tokens.extend(self.history.drain(known..));
        if self.tokens.len() < n_min {
            self.tokens.clear();
        }
        self.proposed = self.tokens.len();
        self.stats.draft_time += taken;
    }

    /// Records that nothing was drafted by choice: after a while, it is tried again.
    pub(crate) fn skip_model(&mut self) {
        self.proposed = self.max;
    }

    /// Records why the draft model does not draft, or that it does.
    pub(crate) fn set_not_drafted(&mut self, why: Option<NotDrafted>) {
        self.stats.not_drafted = why;
    }

    fn is_auto(&self) -> bool {
        matches!(self.speculation, Speculation::Auto { .. })
    }
}

/// Acceptance over all requests.
#[derive(Debug, Default)]
pub(crate) struct Speculator {
    /// The prior of new requests.
    overall: Acceptance,
}

impl Speculator {
    /// How many tokens a draft model should draft for each request: as many as are worth verifying, if the request leaves the choice. Given are the
    /// rows of all requests of the step, how many tokens each may draft, and what drafting takes by the longest draft.
    pub(crate) fn model_lengths(
        &self,
        costs: &StepCosts,
        rows: usize,
        wanted: &[(usize, &Drafts)],
        draft_seconds: &dyn Fn(usize) -> f64,
    ) -> Vec<usize> {
        let drafts: Vec<Draft<'_>> = wanted
            .iter()
            .map(|&(max, drafts)| Draft {
                len: if drafts.is_auto() { max } else { 0 },
                acceptance: drafts.acceptance.as_ref().unwrap_or(&self.overall),
            })
            .collect();
        let chosen = draft_lengths(costs, rows, wanted.len(), &drafts, draft_seconds);
        let lengths = wanted.iter().zip(chosen);
        lengths.map(|(&(max, drafts), chosen)| if drafts.is_auto() { chosen } else { max }).collect()
    }

    /// Shortens the drafts of the next step to what is worth verifying, given how many rows each request has without its draft.
    pub(crate) fn limit(&self, costs: &StepCosts, decoding: &mut [(usize, &mut Drafts)]) {
        let rows = decoding.iter().map(|(rows, _)| rows).sum();
        let drafts: Vec<Draft<'_>> = decoding
            .iter()
            .map(|(_, request)| Draft {
                len: if request.is_auto() { request.tokens.len() } else { 0 },
                acceptance: request.acceptance.as_ref().unwrap_or(&self.overall),
            })
            .collect();
        let lengths = draft_lengths(costs, rows, decoding.len(), &drafts, &|_| 0.0);
        for ((_, drafts), length) in decoding.iter_mut().zip(lengths) {
            if drafts.is_auto() {
                drafts.tokens.truncate(length);
            }
        }
    }
}
