//! Recurrences: one row updates the state that the row before it left.

use super::dot;
use super::elementwise::{sigmoid, silu};
use verbatim_graph::DeltaHeads;

/// Added to the sum of squares when queries and keys are L2-normalised, as in the published models.
const L2_NORM_EPS: f32 = 1e-6;

/// silu of each channel's last `kernel` inputs times its `kernel` weights, oldest first. `history` holds, for each of the
/// `kernel - 1` inputs before the row's own, all channels; it is shifted by one input.
pub fn short_conv(kernel: usize, weight: &[f32], history: &mut Vec<f32>, x: &[f32]) -> Vec<f32> {
    let channels = x.len();
    history.extend_from_slice(x);
    let channel = |channel: usize| {
        let inputs: Vec<f32> = (0..kernel).map(|tap| history[tap * channels + channel]).collect();
        silu(dot(&weight[channel * kernel..][..kernel], &inputs))
    };
    let out = (0..channels).map(channel).collect();
    history.drain(..channels);
    out
}

/// The gates of one row of a gated delta net, `value_heads` elements each.
#[derive(Clone, Copy)]
pub struct DeltaGates<'a> {
    /// With `bias` and `rate`, the decay factor of the state.
    pub alpha: &'a [f32],
    /// The factor of the update, the value minus the state's value for its key.
    pub beta: &'a [f32],
    /// Added to `alpha`; a weight.
    pub bias: &'a [f32],
    /// The factor of the softplus; a weight, negative.
    pub rate: &'a [f32],
}

/// The gated delta rule (arXiv 2412.06464) on one row of queries, keys and values. `states` holds, for each value head, a
/// key_dim by value_dim state, which the row changes.
pub fn gated_delta(heads: DeltaHeads, qkv: &[f32], gates: DeltaGates<'_>, states: &mut [f32]) -> Vec<f32> {
    let DeltaHeads { key_heads, value_heads, key_dim, value_dim } = heads;
    let (queries, keys_and_values) = qkv.split_at(key_heads * key_dim);
    let (keys, values) = keys_and_values.split_at(key_heads * key_dim);
    let mut out = Vec::with_capacity(value_heads * value_dim);
    for (head, state) in states.chunks_exact_mut(key_dim * value_dim).enumerate() {
        let key_head = head % key_heads * key_dim;
        let q = l2_normalized(&queries[key_head..][..key_dim]).map(|q| q / (key_dim as f32).sqrt());
        let k = l2_normalized(&keys[key_head..][..key_dim]);
        let v = &values[head * value_dim..][..value_dim];
        let decay = (gates.rate[head] * softplus(gates.alpha[head] + gates.bias[head])).exp();
        let beta = sigmoid(gates.beta[head]);
        out.extend(delta_rule(&q.collect::<Vec<_>>(), &k.collect::<Vec<_>>(), v, decay, beta, state));
    }
    out
}

/// S ← S · decay; S ← S + k (beta · (v - kᵀS)); qᵀS.
fn delta_rule(q: &[f32], k: &[f32], v: &[f32], decay: f32, beta: f32, state: &mut [f32]) -> Vec<f32> {
    state.iter_mut().for_each(|s| *s *= decay);
    let held = transposed_times(state, k, v.len());
    for (row, k) in state.chunks_exact_mut(v.len()).zip(k) {
        for ((s, v), held) in row.iter_mut().zip(v).zip(&held) {
            *s += k * (beta * (v - held));
        }
    }
    transposed_times(state, q, v.len())
}

/// xᵀS, summed in the order of the rows of S.
fn transposed_times(state: &[f32], x: &[f32], cols: usize) -> Vec<f32> {
    let mut sum = vec![0.0; cols];
    for (row, x) in state.chunks_exact(cols).zip(x) {
        sum.iter_mut().zip(row).for_each(|(sum, s)| *sum += x * s);
    }
    sum
}

fn l2_normalized(x: &[f32]) -> impl Iterator<Item = f32> {
    let length = (dot(x, x) + L2_NORM_EPS).sqrt();
    x.iter().map(move |x| x / length)
}

/// ln(1 + eˣ), in the form that does not overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
