//! Positions that lie in cells of a row's own path: one of the ways down a tree of rows in flight.

use super::{MAX_HEAD_DIM, Span};
use crate::kv::{Block, PAGE_CELLS};
use crate::memory::AlignedBytes;

/// Where the positions from `base` on lie.
#[derive(Clone, Copy)]
pub(crate) struct Path<'a> {
    /// The first position of the path.
    pub(crate) base: usize,
    /// Cells of the positions from `base` on.
    pub(crate) cells: &'a [i32],
    /// The thread's own.
    pub(crate) scratch: &'a Scratch,
}

/// One thread's room for one head's K and V of a block of positions.
pub(crate) struct Scratch(AlignedBytes);

/// Room for K; V has as much. No type needs more than an f32 for an element and a block's filling.
const K_BYTES: usize = MAX_HEAD_DIM * PAGE_CELLS * size_of::<f32>();

impl Scratch {
    /// Untouched, and so not resident, until a path is gathered; `None` if there is no memory.
    pub(crate) fn new() -> Option<Scratch> {
        Some(Scratch(AlignedBytes::zeroed(2 * K_BYTES)?))
    }
}

impl<'a> Path<'a> {
    /// K and V of the block of positions that begins at `start`, brought together as a page would hold them.
    pub(super) fn gather(&self, span: &Span<'_>, start: usize) -> (Block<'a>, Block<'a>) {
        let Scratch(scratch) = self.scratch;
        let seen = span.first.max(start)..(span.position + 1).min(start + PAGE_CELLS);
        let sides = [(span.layer.k(), 0), (span.layer.v(), K_BYTES)];
        for (side, at) in sides {
            if seen.start < self.base {
                side.copy_block(span.page(start), span.kv_head, scratch, at);
            }
            for position in seen.start.max(self.base)..seen.end {
                let cell = usize::try_from(self.cells[position - self.base]).expect("a cell of the path");
                side.copy_head(cell, span.kv_head, scratch, at, position - start);
            }
        }
        let [k, v] = sides.map(|(side, at)| side.layout().view(scratch, at));
        (k, v)
    }
}
