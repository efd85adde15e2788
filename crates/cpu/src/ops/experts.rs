//! MoE: routing (top-k and weights), and combining the outputs of the experts.

use crate::ops::recurrence::sigmoid;
use verbatim_graph::{Gating, Router};
use verbatim_simd::{Isa, Kernel, LANES, Lanes, Simd, dispatch};

/// The expert ids of the `chosen.len()` largest logits (or scores plus bias), largest first; of equals the lower id first.
/// NaN counts as -∞, so that there are always `chosen.len()` different experts.
pub(crate) fn top_k(gating: Gating, logits: &[f32], bias: Option<&[f32]>, chosen: &mut [i32]) {
    let Some(bias) = bias else {
        // Both kinds of score are monotonic in the logit, and distinct logits may round to equal scores.
        return largest(|expert| logits[expert], logits.len(), chosen);
    };
    let denominator = softmax_denominator(logits);
    let score = |expert: usize| match gating {
        Gating::Softmax => (libm::exp(f64::from(logits[expert]) - denominator.0) / denominator.1) as f32,
        Gating::Sigmoid => sigmoid(logits[expert]),
    };
    largest(|expert| score(expert) + bias[expert], logits.len(), chosen);
}

/// Insertion into the sorted list of the largest so far. Experts are visited in ascending order, so ties keep the lower id.
fn largest(score: impl Fn(usize) -> f32, experts: usize, chosen: &mut [i32]) {
    let mut scores = [0f32; verbatim_graph::MAX_EXPERTS_USED];
    let mut count = 0;
    for expert in 0..experts {
        let new = Some(score(expert)).filter(|score| !score.is_nan()).unwrap_or(f32::NEG_INFINITY);
        if count == chosen.len() && scores[count - 1] >= new {
            continue;
        }
        count = (count + 1).min(chosen.len());
        let mut rank = count - 1;
        while rank > 0 && scores[rank - 1] < new {
            scores[rank] = scores[rank - 1];
            chosen[rank] = chosen[rank - 1];
            rank -= 1;
        }
        scores[rank] = new;
        chosen[rank] = expert as i32;
    }
}

/// The largest logit, and the sum of the exponentials relative to it, in ascending order.
fn softmax_denominator(logits: &[f32]) -> (f64, f64) {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let most = f64::from(most);
    (most, logits.iter().map(|&logit| libm::exp(f64::from(logit) - most)).sum())
}

/// The weight of each chosen expert.
pub(crate) fn router_weights(router: &Router, logits: &[f32], chosen: &[i32], weights: &mut [f32]) {
    let logit = |&expert: &i32| f64::from(logits[expert as usize]);
    match router.gating {
        Gating::Softmax => {
            // With normalisation over the chosen experts, the denominator over all experts cancels out.
            let (most, total) = if router.normalize {
                let most = chosen.iter().map(logit).fold(f64::NEG_INFINITY, f64::max);
                (most, chosen.iter().map(|expert| libm::exp(logit(expert) - most)).sum())
            } else {
                softmax_denominator(logits)
            };
            for (weight, expert) in weights.iter_mut().zip(chosen) {
                *weight = (libm::exp(logit(expert) - most) / total) as f32;
            }
        }
        Gating::Sigmoid => {
            for (weight, &expert) in weights.iter_mut().zip(chosen) {
                *weight = sigmoid(logits[expert as usize]);
            }
            if router.normalize {
                let total: f32 = weights.iter().sum();
                // All scores can underflow to 0.
                weights.iter_mut().for_each(|weight| *weight /= total.max(f32::MIN_POSITIVE));
            }
        }
    }
    if router.scale.0 != 1.0 {
        weights.iter_mut().for_each(|weight| *weight *= router.scale.0);
    }
}

/// Columns of Σ weight · part, starting at `start`; the sum is in the order of the parts.
pub(crate) fn combine(isa: Isa, x: &[f32], weights: &[f32], start: usize, out: &mut [f32]) {
    dispatch(isa, MoeCombine { x, weights, start, out });
}

struct MoeCombine<'a> {
    x: &'a [f32],
    weights: &'a [f32],
    start: usize,
    out: &'a mut [f32],
}

impl Kernel for MoeCombine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let cols = self.x.len() / self.weights.len();
        for (index, out) in self.out.chunks_mut(LANES).enumerate() {
            let at = self.start + index * LANES;
            let mut sum = l.splat(0.0);
            for (part, weight) in self.weights.iter().enumerate() {
                let x = l.load_part(&self.x[part * cols + at..][..out.len()]);
                sum = l.mul_add(x, l.splat(*weight), sum);
            }
            l.store_part(sum, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_graph::F32Bits;

    #[test]
    fn ties_go_to_the_lower_id() {
        let mut chosen = [0; 4];
        top_k(Gating::Softmax, &[1.0, 3.0, 3.0, -2.0, 3.0, 1.0], None, &mut chosen);
        assert_eq!(chosen, [1, 2, 4, 0]);
        top_k(Gating::Sigmoid, &[0.0; 6], Some(&[0.0, 0.0, 0.5, 0.0, 0.5, -1.0]), &mut chosen);
        assert_eq!(chosen, [2, 4, 0, 1]);
    }

    #[test]
    fn nan_and_infinity_still_select_distinct_experts() {
        let mut chosen = [9; 3];
        for logits in [[f32::NAN; 4], [f32::NEG_INFINITY; 4], [f32::INFINITY, f32::NAN, f32::NAN, f32::NAN]] {
            top_k(Gating::Softmax, &logits, None, &mut chosen);
            assert_eq!(chosen, [0, 1, 2], "{logits:?}");
        }
    }

    #[test]
    fn weights_match_the_definitions() {
        let logits = [0.5, 2.0, -1.0, 1.0];
        let all: f64 = logits.iter().map(|&x: &f32| f64::from(x).exp()).sum();
        let weights = |gating, normalize, scale| {
            let mut weights = [0.0; 2];
            router_weights(
                &Router { gating, normalize, scale: F32Bits(scale) },
                &logits,
                &[1, 3],
                &mut weights,
            );
            weights
        };
        let near = |given: [f32; 2], wanted: [f64; 2]| {
            assert!(given.iter().zip(wanted).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-6), "{given:?}");
        };
        let (a, b) = (2f64.exp(), 1f64.exp());
        near(weights(Gating::Softmax, false, 1.0), [a / all, b / all]);
        near(weights(Gating::Softmax, true, 2.5), [2.5 * a / (a + b), 2.5 * b / (a + b)]);
        let (a, b) = (a / (1.0 + a), b / (1.0 + b));
        near(weights(Gating::Sigmoid, false, 1.0), [a, b]);
        near(weights(Gating::Sigmoid, true, 1.0), [a / (a + b), b / (a + b)]);
    }

    #[test]
    fn parts_are_summed_in_order_on_every_instruction_set() {
        let x: Vec<f32> = (0..3 * 37).map(|i| ((i * 71 % 53) as f32 - 26.0) / 9.0).collect();
        let weights = [0.7, -0.2, 1.1];
        for isa in Isa::supported() {
            let mut out = [0.0; 37];
            combine(isa, &x, &weights, 0, &mut out[..23]);
            combine(isa, &x, &weights, 23, &mut out[23..]);
            for (i, out) in out.into_iter().enumerate() {
                let wanted = (0..3).fold(0f32, |sum, part| x[part * 37 + i].mul_add(weights[part], sum));
                assert_eq!(out, wanted, "{} {i}", isa.name());
            }
        }
    }
}
