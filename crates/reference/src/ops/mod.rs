//! One file per family of ops. A function computes one row, or one head of it, by the op's definition in
//! [`verbatim_graph::Op`]; only matmuls process all rows of a step together, to decode a weight row once.

pub mod attention;
pub mod elementwise;
pub mod experts;
pub mod hadamard;
pub mod matmul;
pub mod norm;
pub mod recurrence;
pub mod rope;
pub mod sampling;

/// Σ aᵢ bᵢ, in ascending order.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
