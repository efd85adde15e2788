//! The choice of draft lengths: the tokens that all requests of a step can expect, against the step time.

use crate::{Acceptance, StepCosts};

/// The draft of one request of the next step.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// The number of its draft tokens.
    pub len: usize,
    /// How likely they are accepted.
    pub acceptance: &'a Acceptance,
}

/// How many draft tokens of each request a step should verify, for the most tokens per second.
///
/// `draft_seconds` is what drafting takes, by the length of the longest draft; 0 for drafts that are there already.
///
/// A step generates one token for each request, and a draft token adds the probability that it and all before it are accepted.
/// This probability falls along each draft, so the best n draft tokens are the n most probable ones, and only n has to be chosen.
/// `other_rows` are the step's rows beside the draft tokens, and `tokens` those that it generates without them.
pub fn draft_lengths(
    costs: &StepCosts,
    other_rows: usize,
    tokens: usize,
    drafts: &[Draft<'_>],
    draft_seconds: &dyn Fn(usize) -> f64,
) -> Vec<usize> {
    let mut lengths = vec![0; drafts.len()];
    let Some(undrafted_seconds) = costs.estimate(other_rows) else { return lengths };
    let mut gains: Vec<(f64, usize)> = Vec::new();
    for (request, draft) in drafts.iter().enumerate() {
        let mut reached = 1.0;
        gains.extend((0..draft.len).map(|position| {
            reached *= draft.acceptance.probability(position);
            (reached, request)
        }));
    }
    // Stable: of equal gains, each draft keeps its order.
    gains.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let (mut expected, mut best) = (tokens as f64, (tokens as f64 / undrafted_seconds, 0));
    let mut longest = 0;
    for (count, (gain, request)) in (1..).zip(&gains) {
        expected += gain;
        lengths[*request] += 1;
        longest = longest.max(lengths[*request]);
        let seconds =
            costs.estimate(other_rows + count).unwrap_or(undrafted_seconds) + draft_seconds(longest);
        if expected / seconds > best.0 {
            best = (expected / seconds, count);
        }
    }
    lengths.fill(0);
    for (_, request) in &gains[..best.1] {
        lengths[*request] += 1;
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn costs(of_rows: impl Fn(usize) -> f64) -> StepCosts {
        let mut costs = StepCosts::default();
        (1..=64).for_each(|rows| costs.observe(rows, Duration::from_secs_f64(of_rows(rows))));
        costs
    }

    fn acceptance(accepted: usize) -> Acceptance {
        let mut acceptance = Acceptance::default();
        (0..200).for_each(|_| acceptance.observe(accepted + 1, accepted));
        acceptance
    }

    fn lengths(costs: &StepCosts, of: &[(usize, &Acceptance)]) -> Vec<usize> {
        let drafts: Vec<_> = of.iter().map(|&(len, acceptance)| Draft { len, acceptance }).collect();
        draft_lengths(costs, of.len(), of.len(), &drafts, &|_| 0.0)
    }

    #[test]
    fn nothing_is_drafted_where_rows_cost_as_much_as_steps() {
        let good = acceptance(8);
        assert_eq!(lengths(&costs(|rows| rows as f64), &[(8, &good)]), [0]);
        assert_eq!(lengths(&StepCosts::default(), &[(8, &good)]), [0]);
    }

    #[test]
    fn all_that_is_likely_is_drafted_where_rows_are_free() {
        let (good, bad) = (acceptance(8), acceptance(0));
        let free = costs(|rows| 1.0 + rows as f64 * 0.01);
        assert_eq!(lengths(&free, &[(8, &good), (8, &bad), (3, &good)]), [8, 0, 3]);
    }

    #[test]
    fn a_bad_draft_is_left_out_where_it_costs() {
        let (good, bad) = (acceptance(8), acceptance(0));
        let dear = costs(|rows| 1.0 + rows as f64 * 0.2);
        let chosen = lengths(&dear, &[(8, &bad), (8, &good)]);
        assert_eq!(chosen[0], 0);
        assert!(chosen[1] >= 4, "{chosen:?}");
    }

    #[test]
    fn a_draft_that_takes_longer_than_it_saves_is_not_drafted() {
        let good = acceptance(8);
        let free = costs(|rows| 1.0 + rows as f64 * 0.01);
        let drafts = [Draft { len: 8, acceptance: &good }];
        let with = |of_token: f64| {
            let seconds = |longest: usize| longest as f64 * of_token;
            draft_lengths(&free, 1, 1, &drafts, &seconds)
        };
        assert_eq!((with(0.0), with(0.02), with(2.0)), (vec![8], vec![8], vec![0]));
    }

    #[test]
    fn a_step_of_rows_beyond_a_jump_in_cost_is_avoided() {
        let good = acceptance(8);
        let jump = costs(|rows| if rows <= 4 { 1.0 } else { 4.0 });
        assert_eq!(lengths(&jump, &[(8, &good)]), [3]);
    }
}
