//! Matmuls of weight matrices with a batch of activations.
//!
//! **Batch invariance (and thread-count invariance).** The order of operations of an output element depends only on the weights'
//! format and the number of columns: not on the number of tokens in the batch, the token's index in it, the threads, or the
//! instruction set. The `kernel` module documents the order. [`matmul`] therefore returns the same bits at batch size 1 and at
//! batch size 512, and on every machine with the same build (sign and payload of a NaN are unspecified).
//!
//! How: sixteen weight rows (a *row group*; llama.cpp: repacked x16) are interleaved (`layout`), each SIMD lane accumulates one
//! output element, and the kernels, written once over [`verbatim_simd::Simd`], never add across lanes. Within a block of 32 columns
//! the sums are sums of integers, and exact.
#![allow(unsafe_code)] // SIMD, and outputs whose columns are shared by threads, need unsafe Rust.

mod activations;
mod experts;
mod formats;
mod kernel;
mod layout;
mod matmul;
mod packed;
mod packed_format;
mod peak;

pub use activations::{activation_row_bytes, quantize_row, quantize_terms};
pub use experts::PackedExperts;
pub use layout::BLOCK_COLS;
pub use matmul::{
    Epilogue, ExpertPairs, Input, Residual, SharedOutput, chunk_groups, matmul, matmul_expert_groups,
    matmul_groups,
};
pub use packed::PackedMatrix;
pub use peak::run_peak_throughput_kernel;
