//! Parameters of a state: its layers and its capacity.

use verbatim_backend::{KvSpec, PAGE_CELLS};
use verbatim_graph::{RopeLayout, RopeTable};

/// The last `MAX_STATE_CHECKPOINTS` positions in flight of a sequence each have their own recurrent state slot.
pub const MAX_STATE_CHECKPOINTS: usize = 16;
/// Slots that a sequence may need: the committed state, the checkpoints, and one at a page boundary.
pub const SLOTS_PER_SEQUENCE: usize = MAX_STATE_CHECKPOINTS + 2;

/// RoPE of a layer's keys.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeKind {
    /// No RoPE.
    None,
    /// RoPE.
    Rope {
        /// RoPE parameters, from which the angles are computed.
        table: RopeTable,
        /// Which elements of a head RoPE pairs.
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
    /// The sliding window, including the row's own position; `None` for full attention.
    pub window: Option<usize>,
    /// RoPE of its keys.
    pub rope: RopeKind,
    /// Keys are stored Hadamard-transformed ([`verbatim_graph::Op::Hadamard`]).
    pub hadamard: bool,
}

impl LayerSpec {
    /// The first position that a row at `position` attends to.
    pub fn first_visible(&self, position: usize) -> usize {
        first_visible(self.window, position)
    }
}

/// The first position that a row at `position` attends to, given a window.
pub(crate) fn first_visible(window: Option<usize>, position: usize) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// The capacity of a [`State`](crate::State).
#[derive(Clone, Copy, Debug)]
pub struct StateSpec {
    /// Maximum number of concurrent sequences.
    pub sequences: usize,
    /// Maximum number of positions per sequence.
    pub context: usize,
    /// Maximum number of positions in flight per sequence.
    pub in_flight: usize,
    /// Pages of the full-attention layers, shared by all sequences. See [`pages_for`].
    pub pages: usize,
    /// Size of the prefix cache in bytes, in addition to the memory of running sequences.
    pub cache_bytes: usize,
}

/// Number of pages for one sequence of `context` positions.
pub fn pages_for(context: usize) -> usize {
    context.div_ceil(PAGE_CELLS)
}
