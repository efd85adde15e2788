//! Allocations in arenas.

use verbatim_graph::{Lifetime, Placement};

/// Every allocation starts at a multiple of this many bytes: a cache line, and the widest vector.
pub const ALIGNMENT: usize = 64;

/// The allocation of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Byte offset in the arena of the value's placement; a multiple of [`ALIGNMENT`].
    pub offset: usize,
    /// Bytes at the graph's bounds.
    pub bytes: usize,
}

/// The arena of one placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSize {
    /// Which memory.
    pub placement: Placement,
    /// Bytes needed.
    pub bytes: usize,
    /// The largest sum of the bytes alive in any phase: no plan can need less.
    pub lower_bound_bytes: usize,
}

/// Whether values of this lifetime live in an arena.
pub(crate) fn in_arena(lifetime: Lifetime) -> bool {
    matches!(lifetime, Lifetime::Input | Lifetime::Temp | Lifetime::Output)
}
