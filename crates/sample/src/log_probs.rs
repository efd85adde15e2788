//! Log-probabilities of sampled tokens, in f32. Every sum has one order, so their bits depend on nothing but the logits.

use crate::candidates::{Candidate, TopK, softmax_sum};
use crate::math::{exp, ln};

/// Which log-probabilities are wanted for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogProbs {
    /// How many of the most likely tokens, besides the token itself.
    pub top: usize,
    /// Of the distribution that the chain leaves, rather than of the model's own.
    pub after_chain: bool,
}

/// The log-probabilities at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogProbs {
    /// The token's.
    pub log_prob: f32,
    /// Those of the most likely tokens, best first, with their ids.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogProbs {
    /// Of a row of logits; NaNs are impossible tokens. `None` if the token is one, or the logits have no distribution.
    pub(crate) fn of_row(logits: &[f32], token: u32, top: usize) -> Option<TokenLogProbs> {
        let (max, sum) = softmax_sum(logits);
        let mut best = TopK::default();
        best.begin(top.min(logits.len()));
        best.add(0, logits);
        TokenLogProbs::new(*logits.get(token as usize)?, best.finish(), max, sum)
    }

    /// Of a sorted list.
    pub(crate) fn of_list(list: &[Candidate], token: u32, top: usize) -> Option<TokenLogProbs> {
        let max = list.first()?.logit;
        let sum = list.iter().map(|candidate| exp(candidate.logit - max)).sum();
        let own = list.iter().find(|candidate| candidate.token == token)?;
        TokenLogProbs::new(own.logit, &list[..top.min(list.len())], max, sum)
    }

    fn new(logit: f32, best: &[Candidate], max: f32, sum: f32) -> Option<TokenLogProbs> {
        let log_sum = ln(sum);
        let log_prob = |logit: f32| logit - max - log_sum;
        let top = best.iter().map(|candidate| (candidate.token, log_prob(candidate.logit))).collect();
        log_prob(logit).is_finite().then(|| TokenLogProbs { log_prob: log_prob(logit), top })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probs_are_those_of_the_softmax() {
        let logits = [1.0, f32::NAN, 3.0, -2.0, f32::NEG_INFINITY];
        let total: f64 = [1.0f64, 3.0, -2.0].iter().map(|&x| libm::exp(x)).sum();
        let wanted = |x: f64| (x - libm::log(total)) as f32;
        let close = |found: f32, wanted: f32| assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
        let found = TokenLogProbs::of_row(&logits, 0, 2).unwrap();
        close(found.log_prob, wanted(1.0));
        assert_eq!(found.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [2, 0]);
        close(found.top[0].1, wanted(3.0));
        assert_eq!(TokenLogProbs::of_row(&logits, 0, 0).unwrap().top, []);
        assert_eq!(TokenLogProbs::of_row(&logits, 1, 2), None);
        assert_eq!(TokenLogProbs::of_row(&logits, 9, 2), None);
        let list = [Candidate { token: 2, logit: 3.0 }, Candidate { token: 0, logit: 1.0 }];
        let found = TokenLogProbs::of_list(&list, 0, 9).unwrap();
        close(found.log_prob, (-2.0 - libm::log1p(libm::exp(-2.0))) as f32);
        assert_eq!(found.top.len(), 2);
    }
}
