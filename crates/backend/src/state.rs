//! The state of sequences between steps: K and V in pages of cells, recurrent states in slots.
//!
//! A backend owns the bytes and their layout; the crate `state` above it knows which position is in which cell.

use crate::KvType;
use verbatim_graph::{DeltaHeads, RopeLayout, RopeTable};

/// Cells of a page, which is also the number of positions that attention processes at a time. A multiple of the vector width.
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

/// The shape of one recurrent layer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentSpec {
    /// Kernel size of the short convolution.
    pub kernel: usize,
    /// Channels of the short convolution.
    pub channels: usize,
    /// The heads of the gated delta net.
    pub heads: DeltaHeads,
}

impl RecurrentSpec {
    /// Bytes of one slot's values, without the padding that a backend may add; `None` if the sizes overflow.
    pub fn slot_bytes(&self) -> Option<usize> {
        let DeltaHeads { value_heads, key_dim, value_dim, .. } = self.heads;
        let history = self.kernel.checked_sub(1)?.checked_mul(self.channels)?;
        let delta = value_heads.checked_mul(key_dim)?.checked_mul(value_dim)?;
        history.checked_add(delta)?.checked_mul(size_of::<f32>())
    }
}

/// Layers to be added to a [`StateStore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayers {
    /// Attention layers: the spec of their K and V, and the number of pages. A graph's state leaf `kv[i]` is the i-th attention
    /// layer over all models.
    pub kv: Vec<(KvSpec, usize)>,
    /// Recurrent layers. A graph's state leaves `conv[i]` and `delta[i]` are those of the i-th recurrent layer over all models.
    pub recurrent: Vec<RecurrentSpec>,
    /// Slots of each recurrent layer.
    pub slots: usize,
}

/// A K-shift: RoPE of stored keys by a difference of positions.
#[derive(Clone, Debug, PartialEq)]
pub struct KShift {
    /// RoPE parameters, from which the angles are computed.
    pub table: RopeTable,
    /// Which elements of a head RoPE pairs.
    pub layout: RopeLayout,
    /// The RoPE frequency factors, as the operand of [`verbatim_graph::Op::RopeTable`].
    pub freq_factors: Option<Vec<f32>>,
    /// The number of positions to shift by; may be negative.
    pub positions: i32,
    /// Whether the keys are stored Hadamard-transformed ([`verbatim_graph::Op::Hadamard`]).
    pub hadamard: bool,
}

/// The cache of all sequences in backend memory. Each attention layer has its own pages, numbered from 0, of [`PAGE_CELLS`] cells;
/// all recurrent layers have the same slot count. All functions are called between runs only.
pub trait StateStore {
    /// The numerics version: it is bumped with every change that may change the bits of a result, and versions of different
    /// backends never coincide. Saved sequences contain it, because a sequence continued by different kernels would differ
    /// from one computed from the start.
    fn numerics_version(&self) -> u32;

    /// Appends layers with zeroed memory. If there are recurrent layers already, `slots` must be their slot count.
    ///
    /// # Errors
    /// If the allocation fails. On error, nothing is modified.
    fn append(&mut self, layers: &StateLayers) -> Result<(), StateMemoryError>;

    /// Copies a page of these layers as it is stored.
    fn copy_page(&mut self, layers: &[usize], from: usize, to: usize);

    /// Copies cells `(from, to)` of these layers, in the order given, as they are stored. With a K-shift, RoPE moves keys to their
    /// new positions; quantised K is requantised then.
    fn move_cells(&mut self, layers: &[usize], moves: &[(usize, usize)], shift: Option<&KShift>);

    /// Appends the K and V of cells of one layer to `out`, as they are stored: [`KvSpec::cell_bytes`] bytes each, which do not
    /// depend on how a page is laid out.
    fn read_cells(&self, layer: usize, cells: &mut dyn Iterator<Item = usize>, out: &mut Vec<u8>);

    /// Stores what [`StateStore::read_cells`] has read from a layer of the same spec.
    fn write_cells(&mut self, layer: usize, cells: &mut dyn Iterator<Item = usize>, from: &[u8]);

    /// Bytes that [`StateStore::read_slot`] appends for a slot of these recurrent layers.
    fn slot_bytes(&self, layers: std::ops::Range<usize>) -> usize;

    /// Appends a slot of these recurrent layers to `out`.
    fn read_slot(&self, layers: std::ops::Range<usize>, slot: usize, out: &mut Vec<u8>);

    /// Stores what [`StateStore::read_slot`] has read from layers of the same spec.
    fn write_slot(&mut self, layers: std::ops::Range<usize>, slot: usize, from: &[u8]);
}

/// Why sequence state could not be allocated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateMemoryError {
    /// The KV cache.
    #[error(
        "not enough memory for the KV cache ({pages} pages of {PAGE_CELLS} positions, {layers} layers); use a smaller \
         context, smaller KV types, or a smaller prefix cache"
    )]
    Kv {
        /// Pages requested.
        pages: usize,
        /// Layers.
        layers: usize,
    },
    /// Recurrent state.
    #[error("not enough memory for recurrent state ({slots} slots, {layers} layers); use fewer sequences")]
    Recurrent {
        /// Slots requested.
        slots: usize,
        /// Layers.
        layers: usize,
    },
}
