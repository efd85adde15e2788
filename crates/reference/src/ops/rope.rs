//! Rotary position embeddings (arXiv 2104.09864).

use std::f64::consts::TAU;
use verbatim_graph::{RopeLayout, RopeScaling, RopeTable};

/// The angle per position of each pair: base^(-2i / rotary_dim), scaled, over the pair's frequency factor. Rounded to f32 at the end.
pub fn frequencies(table: &RopeTable, freq_factors: Option<&[f32]>) -> Vec<f32> {
    let frequency = |i: usize| {
        let trained = f64::from(table.base.0).powf(-2.0 * i as f64 / table.rotary_dim as f64);
        let factor = freq_factors.map_or(1.0, |freq_factors| f64::from(freq_factors[i]));
        (scaled(table, i, trained) / factor) as f32
    };
    (0..table.rotary_dim / 2).map(frequency).collect()
}

/// The frequency of pair `i` after scaling.
fn scaled(table: &RopeTable, i: usize, trained: f64) -> f64 {
    match table.scaling {
        RopeScaling::Linear { factor } => trained / f64::from(factor.0),
        // The frequency factors are an operand.
        RopeScaling::Long { .. } => trained,
        RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, truncate, .. } => {
            // Section 3.2 of arXiv 2309.00071: fast pairs are unchanged, slow ones are interpolated, with a ramp between.
            let first = pair_of(table, original_context, beta_fast.0);
            let last = pair_of(table, original_context, beta_slow.0);
            let (first, last) = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
            let (first, last) = (first.max(0.0), last.min(table.rotary_dim as f64 - 1.0));
            // The ramp is a step where it would begin at its end or beyond.
            let ramp = ((i as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
            trained * (1.0 - ramp) + trained / f64::from(factor.0) * ramp
        }
    }
}

/// The pair, as a real number, that makes this many rotations over the training context: i for which
/// context · base^(-2i / rotary_dim) = 2π · rotations.
fn pair_of(table: &RopeTable, context: usize, rotations: f32) -> f64 {
    let angle = TAU * f64::from(rotations);
    table.rotary_dim as f64 * (context as f64 / angle).ln() / (2.0 * f64::from(table.base.0).ln())
}

/// The attention factor: cosines and sines are multiplied by it.
pub fn mscale(scaling: RopeScaling) -> f32 {
    match scaling {
        RopeScaling::Linear { .. } => 1.0,
        RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor } => {
            attention_factor.0
        }
    }
}

/// The cosines of all angles of a position, then the sines.
pub fn angles(position: i32, frequencies: &[f32], mscale: f32) -> Vec<f32> {
    // An angle is rounded to f32, as in other implementations; at large positions sine and cosine depend on that.
    let angles = frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
    let cosines = angles.clone().map(|angle| angle.cos() as f32 * mscale);
    let sines = angles.map(|angle| angle.sin() as f32 * mscale);
    cosines.chain(sines).collect()
}

/// RoPE on the first elements of a head; the others stay.
pub fn rotate(layout: RopeLayout, head: &[f32], angles: &[f32]) -> Vec<f32> {
    let pairs = angles.len() / 2;
    let (cosines, sines) = angles.split_at(pairs);
    let mut rotated = head.to_vec();
    for i in 0..pairs {
        let (a, b) = match layout {
            RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            RopeLayout::NeoX => (i, i + pairs),
        };
        rotated[a] = head[a] * cosines[i] - head[b] * sines[i];
        rotated[b] = head[a] * sines[i] + head[b] * cosines[i];
    }
    rotated
}
