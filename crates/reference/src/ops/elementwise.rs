//! Elementwise ops, and ops that only move elements.

use verbatim_graph::Activation;

/// x · factor.
pub fn scale(x: &[f32], factor: f32) -> Vec<f32> {
    x.iter().map(|x| x * factor).collect()
}

/// a + b.
pub fn add(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// a · b.
pub fn mul(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

/// cap · tanh(x / cap).
pub fn softcap(x: f32, cap: f32) -> f32 {
    cap * (x / cap).tanh()
}

/// 1 / (1 + e⁻ˣ).
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// x · sigmoid(x) (arXiv 1702.03118).
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// The tanh form of GELU (arXiv 1606.08415): x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))).
pub fn gelu_tanh(x: f32) -> f32 {
    let y = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + y.tanh())
}

/// The gated units (arXiv 2002.05202): activation(gate) · up.
pub fn glu(activation: Activation, gate: &[f32], up: &[f32]) -> Vec<f32> {
    let unit = |(&gate, &up): (&f32, &f32)| match activation {
        Activation::Silu => silu(gate) * up,
        Activation::GeluTanh => gelu_tanh(gate) * up,
        Activation::Sigmoid => sigmoid(gate) * up,
        Activation::ClampedSwiglu { alpha, limit } => {
            let (gate, up) = (at_most(gate, limit.0), -at_most(-at_most(up, limit.0), limit.0));
            gate * sigmoid(alpha.0 * gate) * (up + 1.0)
        }
    };
    gate.iter().zip(up).map(unit).collect()
}

/// x, but no more than `limit`. Unlike [`f32::min`] it keeps a NaN.
fn at_most(x: f32, limit: f32) -> f32 {
    if x > limit { limit } else { x }
}

/// The columns `start..start + cols` of each of the `heads` equal parts of a row.
pub fn head_columns(x: &[f32], heads: usize, start: usize, cols: usize) -> Vec<f32> {
    x.chunks_exact(x.len() / heads).flat_map(|head| &head[start..start + cols]).copied().collect()
}

/// The logits in the columns of their tokens, and -∞ in all others.
pub fn scatter(logits: &[f32], ids: &[i32], vocabulary: usize) -> Vec<f32> {
    let mut all = vec![f32::NEG_INFINITY; vocabulary];
    for (logit, id) in logits.iter().zip(ids) {
        all[usize::try_from(*id).expect("a token of the vocabulary")] = *logit;
    }
    all
}
