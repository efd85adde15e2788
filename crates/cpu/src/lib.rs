//! The CPU backend: packed weights, kernels, the thread team and the executor.

pub mod isa;
pub mod matrix;
pub mod team;
