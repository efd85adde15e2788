//! The state of sequences between steps: K and V in pages of cells, recurrent states in slots.
//!
//! A backend owns bytes and their layout; the crate `state` above it owns meaning: which position is in which cell.

use crate::KvType;
use verbatim_graph::{DeltaHeads, RopeLayout, RopeTable};

/// Cells of a page, and keys of a block of attention's fixed order. A multiple of the lanes of a vector.
pub const PAGE_CELLS: usize = 64;

/// The shape and types of one layer's K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Storage of K.
    pub k: KvType,
    /// Storage of V.
    pub v: KvType,
}

impl KvSpec {
    /// Bytes of K and V of one cell; `None` if the sizes overflow.
    pub fn cell_bytes(&self) -> Option<usize> {
        let head_bytes = self.k.head_bytes(self.head_dim)?.checked_add(self.v.head_bytes(self.head_dim)?)?;
        self.kv_heads.checked_mul(head_bytes)
    }
}

/// The form of one recurrent layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentSpec {
    /// Inputs that an output of the short convolution is computed from.
    pub kernel: usize,
    /// Channels of the short convolution.
    pub channels: usize,
    /// The delta net.
    pub heads: DeltaHeads,
}

impl RecurrentSpec {
    /// Bytes of one slot's values, which a backend may lay out with gaps; `None` if the sizes overflow.
    pub fn slot_bytes(&self) -> Option<usize> {
        let DeltaHeads { value_heads, key_dim, value_dim, .. } = self.heads;
        let history = self.kernel.checked_sub(1)?.checked_mul(self.channels)?;
        let delta = value_heads.checked_mul(key_dim)?.checked_mul(value_dim)?;
        history.checked_add(delta)?.checked_mul(size_of::<f32>())
    }
}

/// Layers to be added to a [`StateStore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateForm {
    /// Attention layers: the form of their K and V, and the pages of each. A graph's state leaf `kv[i]` is the i-th of all.
    pub kv: Vec<(KvSpec, usize)>,
    /// Recurrent layers. A graph's state leaves `conv[i]` and `delta[i]` are those of the i-th of all.
    pub recurrent: Vec<RecurrentSpec>,
    /// Slots of every recurrent layer.
    pub slots: usize,
}

/// A K-shift: RoPE by the difference of two positions.
#[derive(Clone, Debug, PartialEq)]
pub struct KShift {
    /// The angles.
    pub table: RopeTable,
    /// The pairs.
    pub layout: RopeLayout,
    /// The RoPE frequency factors, as the operand of [`verbatim_graph::Op::RopeTable`].
    pub freq_factors: Option<Vec<f32>>,
    /// Positions that the keys move by; may be negative.
    pub positions: i32,
    /// The keys are stored Hadamard-transformed ([`verbatim_graph::Op::Hadamard`]).
    pub hadamard: bool,
}

/// The cache of all sequences in backend memory. Each attention layer has its own pages, numbered from 0, of [`PAGE_CELLS`] cells;
/// each recurrent layer has as many slots as the others. Everything is called between runs.
pub trait StateStore {
    /// The version of the numbers that the backend computes. It is raised with every change that may change the bits of a
    /// result, and no two backends share one; saved sequences carry it, because a state that other kernels continue would not
    /// be what a fresh run gives.
    fn numerics(&self) -> u32;

    /// Adds layers after those that are there, with zeroed memory. Where there are recurrent layers already, `slots` is as
    /// many as they have.
    ///
    /// # Errors
    /// If there is no memory for them. Nothing has changed then.
    fn append(&mut self, form: &StateForm) -> Result<(), StateMemoryError>;

    /// Copies a page of these layers as it is stored.
    fn copy_page(&mut self, layers: &[usize], from: usize, to: usize);

    /// Copies cells `(from, to)` of these layers, in the order given, as they are stored. With a K-shift, RoPE moves keys to their
    /// new positions; quantised K is requantised then.
    fn move_cells(&mut self, layers: &[usize], moves: &[(usize, usize)], shift: Option<&KShift>);

    /// Appends the K and V of cells of one layer to `out`, as they are stored: [`KvSpec::cell_bytes`] bytes each, which do not
    /// depend on how a page is laid out.
    fn read_cells(&self, layer: usize, cells: &mut dyn Iterator<Item = usize>, out: &mut Vec<u8>);

    /// Stores what [`StateStore::read_cells`] gave of cells of a layer of the same form.
    fn write_cells(&mut self, layer: usize, cells: &mut dyn Iterator<Item = usize>, from: &[u8]);

    /// Bytes of a slot of these recurrent layers, as [`StateStore::read_slot`] gives them.
    fn slot_bytes(&self, layers: std::ops::Range<usize>) -> usize;

    /// Appends a slot of these recurrent layers to `out`.
    fn read_slot(&self, layers: std::ops::Range<usize>, slot: usize, out: &mut Vec<u8>);

    /// Stores what [`StateStore::read_slot`] gave of layers of the same form.
    fn write_slot(&mut self, layers: std::ops::Range<usize>, slot: usize, from: &[u8]);
}

/// Why there is no memory for sequences.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateMemoryError {
    /// Not for K and V.
    #[error(
        "no memory for {pages} pages of {PAGE_CELLS} positions of K and V ({layers} layers); use a smaller context, smaller \
         types of K and V, or a smaller prefix cache"
    )]
    Kv {
        /// Pages asked for.
        pages: usize,
        /// Layers.
        layers: usize,
    },
    /// Not for recurrent states.
    #[error("no memory for {slots} recurrent states of {layers} layers; use fewer sequences")]
    Recurrent {
        /// Slots asked for.
        slots: usize,
        /// Layers.
        layers: usize,
    },
}
