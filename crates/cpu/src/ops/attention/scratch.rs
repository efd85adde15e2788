//! The scratch memory of a thread for attention.

use super::shape::{ELEMENTS, MAX_HEAD_DIM, MAX_QUERIES, PARTIAL_EXTRA, STORED_BYTES};
use verbatim_backend::PAGE_CELLS;
use verbatim_team::AlignedBytes;

/// One thread's scratch memory. It becomes resident as it is used.
pub(crate) struct Scratch {
    pub(crate) pass: PassScratch,
    /// Partials of the query heads that share a pass.
    pub(super) partials: Vec<f32>,
}

/// Scratch memory of a pass over a split.
pub(crate) struct PassScratch {
    /// K, then V, gathered from a block with cells of a tree path.
    pub(super) gathered: AlignedBytes,
    /// K, and later V, decoded to f32.
    pub(super) decoded: Vec<f32>,
    /// Softmax weights of a block's keys, by query head.
    pub(super) weights: Vec<[f32; PAGE_CELLS]>,
}

impl Scratch {
    /// `None` if the allocation fails.
    pub(crate) fn new() -> Option<Scratch> {
        let pass = PassScratch {
            gathered: AlignedBytes::zeroed(2 * STORED_BYTES)?,
            decoded: filled(ELEMENTS, 0.0)?,
            weights: filled(MAX_QUERIES, [0.0; PAGE_CELLS])?,
        };
        Some(Scratch { pass, partials: filled(MAX_QUERIES * (MAX_HEAD_DIM + PARTIAL_EXTRA), 0.0)? })
    }
}

/// A vector of `len` equal elements; `None` if the allocation fails.
fn filled<T: Clone>(len: usize, with: T) -> Option<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(len).ok()?;
    vector.resize(len, with);
    Some(vector)
}
