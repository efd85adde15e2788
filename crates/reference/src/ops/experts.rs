//! MoE: routing, weights and combine.

use super::elementwise::sigmoid;
use verbatim_graph::{Gating, Router};

/// exp(xᵢ) / Σ exp(xⱼ).
pub fn softmax(x: &[f32]) -> Vec<f32> {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = x.iter().map(|x| (x - most).exp()).sum();
    x.iter().map(|x| (x - most).exp() / total).collect()
}

/// The scores of a router's logits.
fn scores(gating: Gating, logits: &[f32]) -> Vec<f32> {
    match gating {
        Gating::Softmax => softmax(logits),
        Gating::Sigmoid => logits.iter().copied().map(sigmoid).collect(),
    }
}

/// The `used` experts with the largest logits, or scores plus bias, largest first; of equals the lower id first.
pub fn top_k(used: usize, gating: Gating, logits: &[f32], bias: Option<&[f32]>) -> Vec<i32> {
    let mut score = match bias {
        // Scores are monotonic in the logit, so they are not needed.
        None => logits.to_vec(),
        Some(bias) => scores(gating, logits).iter().zip(bias).map(|(score, bias)| score + bias).collect(),
    };
    // NaN counts as -∞.
    score.iter_mut().filter(|score| score.is_nan()).for_each(|score| *score = f32::NEG_INFINITY);
    let mut experts: Vec<usize> = (0..logits.len()).collect();
    // The sort is stable: equals stay in the order of their ids.
    experts.sort_by(|&a, &b| score[b].partial_cmp(&score[a]).expect("no score is NaN"));
    experts[..used].iter().map(|&expert| expert as i32).collect()
}

/// The weight of each selected expert: its score, divided by the sum of the selected scores if normalised, times the scale.
pub fn router_weights(router: &Router, logits: &[f32], chosen: &[i32]) -> Vec<f32> {
    let of_chosen = |all: &[f32]| chosen.iter().map(|&expert| all[expert as usize]).collect::<Vec<f32>>();
    let weights = match (router.gating, router.normalize) {
        (gating, false) => of_chosen(&scores(gating, logits)),
        // The other experts' part of the denominator cancels out, and this way the sum cannot be 0.
        (Gating::Softmax, true) => softmax(&of_chosen(logits)),
        (Gating::Sigmoid, true) => {
            let scores = of_chosen(&scores(Gating::Sigmoid, logits));
            // All scores can underflow to 0.
            let total = scores.iter().sum::<f32>().max(f32::MIN_POSITIVE);
            scores.iter().map(|score| score / total).collect()
        }
    };
    weights.iter().map(|weight| weight * router.scale.0).collect()
}

/// Σ weightᵢ · partᵢ, over the equal parts of a row, in their order.
pub fn combine(x: &[f32], weights: &[f32]) -> Vec<f32> {
    let cols = x.len() / weights.len();
    let element = |col: usize| weights.iter().enumerate().map(|(i, weight)| weight * x[i * cols + col]).sum();
    (0..cols).map(element).collect()
}
