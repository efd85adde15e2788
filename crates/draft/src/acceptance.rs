//! How likely draft tokens are accepted.

use crate::MAX_DRAFT;

/// Decay per step: the weight halves after 24 steps. This is 0.5^(1/24).
const DECAY: f64 = 0.971_531_941_153_605_9;
/// The weight of the prior, in steps.
const PRIOR_WEIGHT: f64 = 2.0;
/// After this many drafts in a row without verification, one token is verified again: a text may have become predictable.
const RETRY_AFTER: u32 = 50;
/// The prior without any data.
const PRIOR: f64 = 0.6;

/// Estimates, by position in the draft, the probability that a draft token is accepted if those before it are.
#[derive(Clone, Debug)]
pub struct Acceptance {
    /// By position: weighted counts of draft tokens that were reached, and of those accepted.
    counts: [(f64, f64); MAX_DRAFT],
    prior: [f64; MAX_DRAFT],
    /// Drafts in a row of which nothing was verified.
    skipped: u32,
}

impl Default for Acceptance {
    fn default() -> Self {
        Acceptance { counts: [(0.0, 0.0); MAX_DRAFT], prior: [PRIOR; MAX_DRAFT], skipped: 0 }
    }
}

impl Acceptance {
    /// An estimate whose prior is another estimate.
    pub fn from_prior(other: &Acceptance) -> Acceptance {
        let other = Acceptance { skipped: 0, ..other.clone() };
        let mut acceptance = Acceptance::default();
        for (position, prior) in acceptance.prior.iter_mut().enumerate() {
            *prior = other.probability(position);
        }
        acceptance
    }

    /// Records that the first `accepted` of `drafted` tokens were accepted.
    pub fn observe(&mut self, drafted: usize, accepted: usize) {
        self.skipped = 0;
        // The first token that was not accepted was reached as well.
        for (position, (reached, kept)) in self.counts.iter_mut().enumerate().take(drafted.min(accepted + 1))
        {
            *reached = *reached * DECAY + 1.0;
            *kept = *kept * DECAY + if position < accepted { 1.0 } else { 0.0 };
        }
    }

    /// Records that there was a draft, of which nothing was verified.
    pub fn skip(&mut self) {
        self.skipped = self.skipped.saturating_add(1);
    }

    /// The probability that the draft token at a position, from 0, is accepted if those before it are.
    pub fn probability(&self, position: usize) -> f64 {
        let position = position.min(MAX_DRAFT - 1);
        if position == 0 && self.skipped >= RETRY_AFTER { 1.0 } else { self.estimate(position) }
    }

    fn estimate(&self, position: usize) -> f64 {
        let (reached, kept) = self.counts[position];
        // Where a position was hardly reached, the one before it says more than the prior.
        let prior = match position.checked_sub(1) {
            Some(before) if self.counts[before].0 > PRIOR_WEIGHT => {
                let before = self.estimate(before);
                before.min(self.prior[position].max(before * 0.9))
            }
            _ => self.prior[position],
        };
        (kept + PRIOR_WEIGHT * prior) / (reached + PRIOR_WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_approach_the_frequencies() {
        let mut acceptance = Acceptance::default();
        // The first token is accepted three times in four, the second never.
        for step in 0..400 {
            acceptance.observe(3, usize::from(step % 4 != 0));
        }
        assert!((acceptance.probability(0) - 0.75).abs() < 0.08, "{}", acceptance.probability(0));
        assert!(acceptance.probability(1) < 0.08, "{}", acceptance.probability(1));
    }

    #[test]
    fn a_new_request_begins_where_others_have_ended() {
        let mut known = Acceptance::default();
        (0..100).for_each(|_| known.observe(4, 0));
        let new = Acceptance::from_prior(&known);
        assert!((new.probability(0) - known.probability(0)).abs() < 1e-12);
        assert!(new.probability(0) < 0.05);
    }

    #[test]
    fn a_draft_that_was_given_up_is_tried_again() {
        let mut acceptance = Acceptance::default();
        (0..100).for_each(|_| acceptance.observe(4, 0));
        (1..RETRY_AFTER).for_each(|_| acceptance.skip());
        assert!(acceptance.probability(0) < 0.1);
        acceptance.skip();
        assert_eq!(acceptance.probability(0), 1.0);
        assert!(acceptance.probability(1) < 0.1);
        acceptance.observe(1, 0);
        assert!(acceptance.probability(0) < 0.1);
    }

    #[test]
    fn estimates_follow_a_change() {
        let mut acceptance = Acceptance::default();
        (0..200).for_each(|_| acceptance.observe(5, 5));
        assert!((0..5).all(|position| acceptance.probability(position) > 0.95));
        (0..100).for_each(|_| acceptance.observe(5, 0));
        assert!(acceptance.probability(0) < 0.1);
    }
}
