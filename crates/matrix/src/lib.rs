//! Products of weight matrices with a batch of activations.
//!
//! **The row contract.** An output element goes through one order of operations, which the weights' format
//! and the number of columns fix and nothing else does: not the number of tokens in the batch, the token's
//! index in it, the threads, or the instruction set. The `kernel` module states the order. [`matmul`]
//! therefore gives the same bits at width 1 and at width 512, and on every machine with the same build (a NaN
//! is only promised to be a NaN).
//!
//! How it is kept: sixteen weight rows are interleaved (`layout`), a vector lane is an output row, and the
//! kernels, written once over [`verbatim_simd::Simd`], never add across lanes. Within a block of 32 columns the sums are of
//! integers, and exact.
#![allow(unsafe_code)] // Vector instructions, and outputs that threads share by columns, are beyond safe Rust.

mod activations;
mod experts;
mod formats;
mod kernel;
mod kinds;
mod layout;
mod packed;
mod peak;
mod product;

pub use activations::{activation_row_bytes, quantize_row, quantize_terms};
pub use experts::PackedExperts;
pub use layout::BLOCK_COLS;
pub use packed::PackedMatrix;
pub use peak::multiply_adds;
pub use product::{
    Epilogue, ExpertPairs, Input, Residual, SharedOutput, chunk_groups, matmul, matmul_expert_groups,
    matmul_groups,
};
