//! What a thread needs to attend beside K and V themselves.

use super::shape::{ELEMENTS, MAX_HEAD_DIM, MAX_QUERIES, PARTIAL_EXTRA, STORED_BYTES};
use verbatim_backend::PAGE_CELLS;
use verbatim_team::AlignedBytes;

/// One thread's room. It is resident as far as it has been used.
pub(crate) struct Scratch {
    pub(crate) pass: PassScratch,
    /// Parts of the query heads that share a pass.
    pub(super) partials: Vec<f32>,
}

/// Room for a pass over a split.
pub(crate) struct PassScratch {
    /// K, then V, of a block that a path leads through.
    pub(super) gathered: AlignedBytes,
    /// K, and after it V, as numbers.
    pub(super) numbers: Vec<f32>,
    /// Weights of a block's keys, by query head.
    pub(super) weights: Vec<[f32; PAGE_CELLS]>,
}

impl Scratch {
    /// `None` if there is no memory.
    pub(crate) fn new() -> Option<Scratch> {
        let pass = PassScratch {
            gathered: AlignedBytes::zeroed(2 * STORED_BYTES)?,
            numbers: filled(ELEMENTS, 0.0)?,
            weights: filled(MAX_QUERIES, [0.0; PAGE_CELLS])?,
        };
        Some(Scratch { pass, partials: filled(MAX_QUERIES * (MAX_HEAD_DIM + PARTIAL_EXTRA), 0.0)? })
    }
}

/// A vector of so many equal elements; `None` if there is no memory.
fn filled<T: Clone>(len: usize, with: T) -> Option<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(len).ok()?;
    vector.resize(len, with);
    Some(vector)
}
