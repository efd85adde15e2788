//! What a thread needs to attend beside K and V themselves.

use super::{MAX_HEAD_DIM, Span};
use crate::kv::{Block, PAGE_CELLS};
use crate::memory::AlignedBytes;

/// Elements of one head of a block of positions.
const ELEMENTS: usize = MAX_HEAD_DIM * PAGE_CELLS;
/// Bytes of one head of a block of positions, K or V, as they are stored. No type needs more than f32.
const STORED_BYTES: usize = ELEMENTS * size_of::<f32>();

/// One thread's room for one head of a block of positions. It is resident as far as it has been used.
pub(crate) struct Scratch {
    /// K, then V, of a block that a path leads through.
    pub(super) gathered: AlignedBytes,
    /// K, and after it V, as numbers.
    pub(super) numbers: Vec<f32>,
}

impl Scratch {
    /// `None` if there is no memory.
    pub(crate) fn new() -> Option<Scratch> {
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(ELEMENTS).ok()?;
        numbers.resize(ELEMENTS, 0.0);
        Some(Scratch { gathered: AlignedBytes::zeroed(2 * STORED_BYTES)?, numbers })
    }
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
    /// K and V of the block of positions that begins at `start`, brought together as a page would hold them.
    pub(super) fn gather<'g>(
        &self,
        span: &Span<'_>,
        start: usize,
        gathered: &'g AlignedBytes,
    ) -> (Block<'g>, Block<'g>) {
        let seen = span.first.max(start)..(span.position + 1).min(start + PAGE_CELLS);
        let sides = [(span.layer.k(), 0), (span.layer.v(), STORED_BYTES)];
        for (side, at) in sides {
            if seen.start < self.base {
                side.copy_block(span.page(start), span.kv_head, gathered, at);
            }
            for position in seen.start.max(self.base)..seen.end {
                let cell = usize::try_from(self.cells[position - self.base]).expect("a cell of the path");
                side.copy_head(cell, span.kv_head, gathered, at, position - start);
            }
        }
        let [k, v] = sides.map(|(side, at)| side.layout().view(gathered, at));
        (k, v)
    }
}
