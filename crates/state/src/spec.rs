//! What a state is made for: its layers, and how much it has room for.

use verbatim_backend::{KvSpec, PAGE_CELLS};
use verbatim_graph::{RopeLayout, RopeTable};

/// Positions in flight of one sequence that have a recurrent state slot of their own.
pub const CHECKPOINTS: usize = 16;
/// Slots that a sequence may need: the committed state, the checkpoints, and one at a page boundary.
pub(crate) const SLOTS_PER_SEQUENCE: usize = CHECKPOINTS + 2;

/// RoPE of a layer's keys.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeKind {
    /// Not at all.
    None,
    /// They are rotated.
    Rope {
        /// The angles.
        table: RopeTable,
        /// The pairs.
        layout: RopeLayout,
        /// The frequency factors.
        freq_factors: Option<Vec<f32>>,
    },
}

/// An attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The shape and types of its K and V.
    pub kv: KvSpec,
    /// The sliding window, the row's own position included; `None` for full attention.
    pub window: Option<usize>,
    /// RoPE of its keys.
    pub rope: RopeKind,
    /// Keys are stored Hadamard-transformed ([`verbatim_graph::Op::Hadamard`]).
    pub hadamard: bool,
}

impl LayerSpec {
    /// The first position that a row at `position` sees.
    pub fn first_visible(&self, position: usize) -> usize {
        first_visible(self.window, position)
    }
}

/// The first position that the one at `position` sees through a window.
pub(crate) fn first_visible(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// What a [`State`](crate::State) has room for.
#[derive(Clone, Copy, Debug)]
pub struct StateSpec {
    /// Sequences at a time.
    pub sequences: usize,
    /// The most positions of each.
    pub context: usize,
    /// The most positions in flight of each.
    pub in_flight: usize,
    /// Pages of the full-attention layers, shared by all sequences. See [`pages_for`].
    pub pages: usize,
    /// Size of the prefix cache in bytes: memory that no running sequence uses.
    pub cache_bytes: usize,
}

/// Pages for one sequence of `context` positions.
pub fn pages_for(context: usize) -> usize {
    context.div_ceil(PAGE_CELLS)
}
