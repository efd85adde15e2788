//! Drafting with a draft model for all requests of a step: who drafts, how many tokens, and what that takes.

use crate::drafting::DraftRequest;
use crate::generate::Generation;
use crate::session::Session;
use crate::speculation::{NotDrafted, Speculator};
use crate::{ModelId, StateError, Stepper};
use std::time::Instant;
use verbatim_backend::Backend;
use verbatim_draft::StepCosts;
use verbatim_models::Drafting;

/// A draft model of an engine, and how it drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftModel {
    /// The model, which [`Stepper::append_draft`] has loaded.
    pub model: ModelId,
    /// Shorter drafts are not verified.
    pub n_min: usize,
    /// A draft ends before a token that the draft model holds to be less likely.
    pub p_min: f32,
}

impl DraftModel {
    /// All that the model drafts.
    pub fn new(model: ModelId) -> DraftModel {
        DraftModel { model, n_min: 0, p_min: 0.0 }
    }
}

/// The draft model of an engine, and what a step of it takes by its rows.
pub(crate) struct ModelDrafter {
    options: DraftModel,
    costs: StepCosts,
    is_following: Option<bool>,
}

impl ModelDrafter {
    pub(crate) fn new(options: DraftModel) -> ModelDrafter {
        ModelDrafter { options, costs: StepCosts::default(), is_following: None }
    }

    /// Turns the follow pass on or off, as far as that is a change.
    pub(crate) fn follow<B: Backend>(&mut self, stepper: &mut Stepper<B>, is_on: bool) {
        if self.is_following.replace(is_on) != Some(is_on) {
            stepper.set_following(self.options.model, is_on);
        }
    }

    /// Drafts for the decoding requests of a step that have no draft yet. If that fails, they have none.
    pub(crate) fn draft<B: Backend>(
        &mut self,
        stepper: &mut Stepper<B>,
        decoding: &mut [(&mut Generation, &Session)],
        speculator: &Speculator,
        costs: &StepCosts,
    ) {
        let DraftModel { model, n_min, p_min } = self.options;
        let Some(drafting) = stepper.feature_draft(model).map(|draft| draft.drafting()) else { return };
        let wanted: Vec<usize> = decoding
            .iter_mut()
            .map(|(generation, session)| self.wanted(stepper, generation, session).unwrap_or(0))
            .collect();
        let requests = wanted.iter().filter(|max| **max > 0).count();
        if requests == 0 {
            return;
        }
        let rows = decoding.iter().map(|(generation, _)| generation.pending_rows()).sum();
        let seconds = |longest: usize| match drafting {
            Drafting::Chain => self.costs.estimate(requests).unwrap_or(0.0) * longest as f64,
            Drafting::Block { .. } => self.costs.estimate(requests * (longest + 1)).unwrap_or(0.0),
        };
        let drafts = decoding.iter().zip(&wanted).map(|((generation, _), max)| (*max, &generation.drafts));
        let lengths = speculator.model_lengths(costs, rows, &drafts.collect::<Vec<_>>(), &seconds);
        for (((generation, _), &max), &length) in decoding.iter_mut().zip(&wanted).zip(&lengths) {
            if max > 0 && length == 0 {
                generation.drafts.skip_model();
            }
        }
        let drafting_now = decoding.iter_mut().zip(&lengths).filter(|(_, length)| **length > 0);
        let mut now: Vec<DraftRequest<'_>> = drafting_now
            .map(|((generation, session), length)| generation.draft_request(session, *length, p_min))
            .collect();
        if now.is_empty() {
            return;
        }
        let known: Vec<usize> = now.iter().map(|request| request.tokens.len()).collect();
        let (built, started) = (stepper.statistics().built, Instant::now());
        let drafted = stepper.draft(model, &mut now);
        let taken = started.elapsed();
        let steps = lengths.iter().copied().max().unwrap_or(0).max(1) as u32;
        if drafted.is_ok() && stepper.statistics().built == built {
            match drafting {
                Drafting::Chain => self.costs.observe(now.len(), taken / steps),
                Drafting::Block { .. } => self.costs.observe(lengths.iter().map(|n| n + 1).sum(), taken),
            }
        }
        let mut known = known.into_iter();
        for ((generation, _), _) in decoding.iter_mut().zip(&lengths).filter(|(_, length)| **length > 0) {
            let known = known.next().unwrap_or(usize::MAX);
            generation.drafts.end_model(known, n_min, taken);
        }
    }

    /// How many tokens a request may draft.
    fn wanted<B: Backend>(
        &self,
        stepper: &Stepper<B>,
        generation: &mut Generation,
        session: &Session,
    ) -> Result<usize, StateError> {
        let sequence = session.sequence();
        let trained = stepper.feature_draft(self.options.model).map_or(0, |draft| draft.trained_context());
        let known = stepper.len(sequence)? + generation.pending_rows();
        let max = generation.drafts.wanted_of_model(trained.saturating_sub(known));
        if !generation.drafts.is_on() {
            return Ok(0);
        }
        let why = match stepper.can_draft(self.options.model, sequence)? {
            false => Some(NotDrafted::NotFollowed),
            true => (known >= trained).then_some(NotDrafted::DraftContext),
        };
        generation.drafts.set_not_drafted(why);
        Ok(if why.is_none() { max } else { 0 })
    }
}
