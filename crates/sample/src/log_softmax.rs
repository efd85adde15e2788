//! The log-softmax of a row of logits, in f64.

/// The logarithm of the softmax of a row of logits. Every sum over the vocabulary goes from the first token to the last.
pub struct LogSoftmax<'a> {
    logits: &'a [f32],
    max: f64,
    /// log(sum(exp(logit - max))).
    log_sum: f64,
}

impl<'a> LogSoftmax<'a> {
    /// Normalizes a row. `None` if the logits are not a valid distribution: one is NaN or +inf, or all are -inf.
    pub fn new(logits: &'a [f32]) -> Option<LogSoftmax<'a>> {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
        let log_sum = sum.ln();
        (max.is_finite() && log_sum.is_finite()).then_some(LogSoftmax { logits, max, log_sum })
    }

    /// The logarithm of the probability of a token with this logit.
    pub fn log_probability(&self, logit: f32) -> f64 {
        f64::from(logit) - self.max - self.log_sum
    }

    /// The negative log-likelihood of a token, in nats; `None` if it is infinite.
    pub fn nll(&self, token: usize) -> Option<f64> {
        let nll = -self.log_probability(*self.logits.get(token)?);
        nll.is_finite().then_some(nll)
    }

    /// KL(self ‖ other) in nats; `None` if it is infinite. Both have the same vocabulary.
    pub fn divergence(&self, other: &LogSoftmax<'_>) -> Option<f64> {
        let terms = self.logits.iter().zip(other.logits).map(|(&logit, &other_logit)| {
            let log_p = self.log_probability(logit);
            let p = log_p.exp();
            if p == 0.0 { 0.0 } else { p * (log_p - other.log_probability(other_logit)) }
        });
        let divergence: f64 = terms.sum();
        divergence.is_finite().then_some(divergence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Option<f64>, wanted: f64) {
        assert!(found.is_some_and(|found| (found - wanted).abs() < 1e-12), "{found:?}, not {wanted}");
    }

    #[test]
    fn probabilities_that_are_known_come_out() {
        let logits = [0.0f32, 1.0, f32::NEG_INFINITY];
        let distribution = LogSoftmax::new(&logits).unwrap();
        close(distribution.nll(0), 1f64.exp().ln_1p());
        close(distribution.nll(1), 1f64.exp().ln_1p() - 1.0);
        assert_eq!(distribution.nll(2), None, "impossible");
        // Far from 0, exp(logit) itself would be 0 or infinite.
        for shift in [-3000.0, 3000.0] {
            close(LogSoftmax::new(&[shift, shift]).unwrap().nll(1), 2f64.ln());
        }
    }

    #[test]
    fn a_divergence_is_zero_from_itself_and_not_symmetric() {
        let (uniform, skewed) = ([0.0f32; 2], [0.0f32, -1.0]);
        let (p, q) = (LogSoftmax::new(&uniform).unwrap(), LogSoftmax::new(&skewed).unwrap());
        close(p.divergence(&p), 0.0);
        let z = 1.0 + (-1f64).exp();
        close(p.divergence(&q), z.ln() + 0.5 - 2f64.ln());
        close(q.divergence(&p), 2f64.ln() - z.ln() - (1.0 - 1.0 / z));
        let impossible = [0.0f32, f32::NEG_INFINITY];
        let r = LogSoftmax::new(&impossible).unwrap();
        assert_eq!(p.divergence(&r), None);
        close(r.divergence(&p), 2f64.ln());
    }

    #[test]
    fn invalid_distributions_are_rejected() {
        for logits in [&[][..], &[f32::NAN, 1.0], &[f32::INFINITY, 1.0], &[f32::NEG_INFINITY; 2]] {
            assert!(LogSoftmax::new(logits).is_none(), "{logits:?}");
        }
    }
}
