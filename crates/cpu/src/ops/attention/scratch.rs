//! What a thread needs to attend beside K and V themselves.

use super::{KvView, MAX_HEAD_DIM, MAX_QUERIES, PARTIAL_EXTRA};
use crate::kv::Block;
use std::ops::Range;
use verbatim_backend::PAGE_CELLS;
use verbatim_team::AlignedBytes;

/// Elements of one head of a block of positions.
const ELEMENTS: usize = MAX_HEAD_DIM * PAGE_CELLS;
/// Bytes of one head of a block of positions, K or V, as they are stored. No type needs more than f32.
const STORED_BYTES: usize = ELEMENTS * size_of::<f32>();

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

/// Where the positions from `base` on lie: the cells of one of the ways down a tree of rows in flight.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    /// The first position of the path.
    pub(crate) base: usize,
    /// Cells of the positions from `base` on.
    pub(crate) cells: &'a [i32],
}

impl Path<'_> {
    /// K and V of the keys `seen` of the block of positions that begins at `start`, brought together as a page would hold
    /// them.
    pub(super) fn gather<'g>(
        &self,
        keys: &KvView<'_>,
        start: usize,
        seen: &Range<usize>,
        gathered: &'g mut AlignedBytes,
    ) -> (Block<'g>, Block<'g>) {
        let seen = start + seen.start..start + seen.end;
        let sides = [(keys.layer.k(), 0), (keys.layer.v(), STORED_BYTES)];
        for (side, at) in sides {
            let page = &mut gathered.bytes_mut()[at..];
            if seen.start < self.base {
                side.copy_block(keys.page(start), keys.kv_head, page);
            }
            for position in seen.start.max(self.base)..seen.end {
                let cell = usize::try_from(self.cells[position - self.base]).expect("a cell of the path");
                side.copy_head(cell, keys.kv_head, page, position - start);
            }
        }
        let [k, v] = sides.map(|(side, at)| side.layout().view(gathered, at));
        (k, v)
    }
}
