//! What a state is made for: its layers, and how much it has room for.

use verbatim_backend::{KvSpec, PAGE_CELLS};
use verbatim_graph::{RopeLayout, RopeTable};

/// Positions in flight of one sequence whose recurrent states are kept apart.
pub const CHECKPOINTS: usize = 16;
/// Slots that a sequence may need: for the committed state, for the checkpoints, and for one at the end of a page.
pub(crate) const SLOTS_PER_SEQUENCE: usize = CHECKPOINTS + 2;

/// How the keys of a layer depend on their positions.
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
        /// What the frequencies are divided by.
        freq_factors: Option<Vec<f32>>,
    },
}

/// A layer that attends.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The form of its K and V.
    pub kv: KvSpec,
    /// How many positions a row sees, its own included; all if `None`.
    pub window: Option<usize>,
    /// What a key's position does to it.
    pub rope: RopeKind,
    /// Keys are stored transformed by [`verbatim_graph::Op::Hadamard`].
    pub hadamard: bool,
}

impl LayerSpec {
    /// The first position that a row at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        first_seen(self.window, position)
    }
}

/// The first position that the one at `position` sees through a window.
pub(crate) fn first_seen(window: Option<usize>, position: usize) -> usize {
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
    /// Pages, shared by all sequences, of the layers that see all positions. See [`pages_for`].
    pub pages: usize,
    /// Memory, in bytes, for what no sequence holds but others may begin with.
    pub cache_bytes: usize,
}

/// Pages that hold one sequence of `context` positions.
pub fn pages_for(context: usize) -> usize {
    context.div_ceil(PAGE_CELLS)
}
