//! The recurrent state, in slots: a slot is the state of all layers after one position.
//!
//! A step reads and writes slots by index; the caller tracks which of them hold committed states and which hold positions in
//! flight. A slot is laid out in the tiles that the kernels work on: a tile of channels or of value columns is contiguous, and
//! is processed by one thread.

use std::ops::Range;
use verbatim_backend::{RecurrentSpec, StateMemoryError};
use verbatim_graph::DeltaHeads;
use verbatim_simd::LANES;
use verbatim_team::AlignedBytes;

/// Channels of a short convolution, or value columns of a delta head, that are advanced together.
pub(crate) const TILE_COLS: usize = 4 * LANES;

/// Elements of the convolution's history; `None` if the sizes overflow.
fn history_len(spec: &RecurrentSpec) -> Option<usize> {
    spec.kernel.checked_sub(1)?.checked_mul(padded(spec.channels)?)
}

/// Elements of the delta net's state.
fn delta_len(spec: &RecurrentSpec) -> Option<usize> {
    let DeltaHeads { value_heads, key_dim, value_dim, .. } = spec.heads;
    value_heads.checked_mul(key_dim)?.checked_mul(padded(value_dim)?)
}

/// Columns rounded up to whole vectors.
fn padded(cols: usize) -> Option<usize> {
    cols.checked_next_multiple_of(LANES)
}

/// The recurrent states of all layers.
#[derive(Default)]
pub struct RecurrentMemory {
    layers: Vec<RecurrentLayer>,
    slots: usize,
}

/// The recurrent states of one layer.
pub(crate) struct RecurrentLayer {
    spec: RecurrentSpec,
    history: AlignedBytes,
    delta: AlignedBytes,
}

impl RecurrentMemory {
    /// Adds layers of `slots` states each. Their memory is zeroed, and becomes resident as it is written.
    ///
    /// # Errors
    /// If the allocation fails.
    pub(crate) fn append(&mut self, specs: &[RecurrentSpec], slots: usize) -> Result<(), StateMemoryError> {
        if specs.is_empty() {
            return Ok(());
        }
        assert!(
            self.layers.is_empty() || slots == self.slots,
            "all recurrent layers have the same slot count"
        );
        let bytes = |len: Option<usize>| {
            AlignedBytes::zeroed(len?.checked_mul(slots)?.checked_mul(size_of::<f32>())?)
        };
        let layer = |&spec: &RecurrentSpec| {
            let (history, delta) = (bytes(history_len(&spec))?, bytes(delta_len(&spec))?);
            Some(RecurrentLayer { spec, history, delta })
        };
        let layers: Option<Vec<RecurrentLayer>> = specs.iter().map(layer).collect();
        let error = StateMemoryError::Recurrent { slots, layers: specs.len() };
        self.layers.extend(layers.ok_or(error)?);
        self.slots = slots;
        Ok(())
    }

    /// Appends a slot of these layers to `out`.
    pub(crate) fn read_slot(&self, layers: Range<usize>, slot: usize, out: &mut Vec<u8>) {
        for bytes in self.layers[layers].iter().flat_map(|layer| [&layer.history, &layer.delta]) {
            let len = bytes.len() / self.slots;
            out.extend_from_slice(bytes.slice_at(slot * len, len));
        }
    }

    /// Bytes of a slot of these layers.
    pub(crate) fn slot_bytes(&self, layers: Range<usize>) -> usize {
        let layers = self.layers[layers].iter();
        let bytes = layers.map(|layer| layer.history.len() + layer.delta.len()).sum::<usize>();
        bytes.checked_div(self.slots).unwrap_or(0)
    }

    /// Stores what [`RecurrentMemory::read_slot`] has read from layers of the same spec.
    pub(crate) fn write_slot(&mut self, layers: Range<usize>, slot: usize, mut from: &[u8]) {
        let slots = self.slots;
        let layers = self.layers[layers].iter_mut();
        for bytes in layers.flat_map(|layer| [&mut layer.history, &mut layer.delta]) {
            let len = bytes.len() / slots;
            let (part, rest) = from.split_at(len);
            bytes.bytes_mut()[slot * len..][..len].copy_from_slice(part);
            from = rest;
        }
    }

    pub(crate) fn layers(&self) -> &[RecurrentLayer] {
        &self.layers
    }
}

impl RecurrentLayer {
    /// A tile of the convolution's history: for each of the last `kernel - 1` inputs, the channels starting at `channel`.
    pub(crate) fn history(&self, slot: usize, channel: usize) -> Tile<'_> {
        let rows = self.spec.kernel - 1;
        let len = history_len(&self.spec).expect("checked when the memory was allocated");
        tile(&self.history, slot * len + channel * rows, rows, self.spec.channels - channel)
    }

    /// A tile of a head's state: for each element of a key, the value columns starting at `column`.
    pub(crate) fn delta(&self, slot: usize, head: usize, column: usize) -> Tile<'_> {
        let DeltaHeads { key_dim, value_dim, .. } = self.spec.heads;
        let len = delta_len(&self.spec).expect("checked when the memory was allocated");
        let head_len = padded(value_dim).expect("checked when the memory was allocated") * key_dim;
        tile(&self.delta, slot * len + head * head_len + column * key_dim, key_dim, value_dim - column)
    }
}

fn tile(bytes: &AlignedBytes, start: usize, rows: usize, cols_left: usize) -> Tile<'_> {
    let cols = cols_left.min(TILE_COLS).next_multiple_of(LANES);
    Tile { bytes, start, len: rows * cols }
}

/// A part of a state that one thread processes: consecutive rows of whole vectors.
pub(crate) struct Tile<'a> {
    bytes: &'a AlignedBytes,
    start: usize,
    len: usize,
}

impl<'a> Tile<'a> {
    /// The tile, for reading. No other thread may write it while the slice lives.
    pub(crate) fn as_slice(&self) -> &'a [f32] {
        self.bytes.slice(self.start, self.len)
    }

    /// The tile, for writing.
    ///
    /// # Safety
    /// While the slice lives, no other thread may read or write the tile.
    #[allow(unsafe_code)] // Each tile is advanced by one thread.
    #[allow(clippy::mut_from_ref)] // See `AlignedBytes`.
    pub(crate) unsafe fn as_mut_slice(&self) -> &'a mut [f32] {
        // SAFETY: the contract of this function.
        unsafe { self.bytes.slice_at_mut(self.start * size_of::<f32>(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> RecurrentSpec {
        let heads = DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 24, value_dim: 72 };
        RecurrentSpec { kernel: 4, channels: 200, heads }
    }

    #[test]
    fn tiles_cover_a_slot_without_overlap() {
        let mut memory = RecurrentMemory::default();
        memory.append(&[spec()], 3).expect("small");
        let layer = &memory.layers()[0];
        let mut ranges = Vec::new();
        for slot in 0..3 {
            ranges.extend((0..200).step_by(TILE_COLS).map(|channel| layer.history(slot, channel)));
        }
        let covered = |ranges: Vec<Tile<'_>>| {
            let mut spans: Vec<_> = ranges.iter().map(|tile| (tile.start, tile.start + tile.len)).collect();
            spans.sort_unstable();
            assert!(spans.windows(2).all(|pair| pair[0].1 == pair[1].0), "{spans:?}");
            (spans[0].0, spans[spans.len() - 1].1 * size_of::<f32>())
        };
        assert_eq!(covered(ranges), (0, layer.history.len()));
        let mut ranges = Vec::new();
        for slot in 0..3 {
            for head in 0..4 {
                ranges.extend([0, 64].map(|column| layer.delta(slot, head, column)));
            }
        }
        assert_eq!(covered(ranges), (0, layer.delta.len()));
    }

    #[test]
    fn too_large_allocations_are_rejected() {
        let mut memory = RecurrentMemory::default();
        let slots = usize::MAX / 8;
        assert_eq!(memory.append(&[spec()], slots), Err(StateMemoryError::Recurrent { slots, layers: 1 }));
        let huge = RecurrentSpec { channels: usize::MAX, ..spec() };
        assert!(huge.slot_bytes().is_none() && memory.append(&[huge], 1).is_err());
    }
}
