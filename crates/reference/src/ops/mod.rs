//! One file per family of ops. A function computes one row, or one head of it, as the op's definition in
//! [`verbatim_graph::Op`] says; only products look at all rows of a step, to decode a weight row once.

pub mod attention;
pub mod elementwise;
pub mod experts;
pub mod hadamard;
pub mod norm;
pub mod products;
pub mod recurrence;
pub mod rope;

/// Σ aᵢ bᵢ, in ascending order.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
