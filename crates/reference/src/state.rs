//! The state of sequences: K and V as bytes of their type, recurrent states as f32.
//!
//! A cell is contiguous: the keys of all heads, then the values of all heads, in the format of [`StateStore::read_cells`]. A
//! slot is, layer by layer, the short convolution's history and the delta net's state.

use crate::memory::zeros;
use crate::ops::{hadamard, rope};
use half::{bf16, f16};
use std::ops::Range;
use verbatim_backend::{
    KShift, KvSpec, KvType, PAGE_CELLS, RecurrentSpec, StateLayers, StateMemoryError, StateStore,
};
use verbatim_quant::{dequantize, quantize};

/// The ASCII bytes "RE" in the upper half, the numerics version in the lower.
const NUMERICS: u32 = 0x5245_0001;

/// The KV cache and the recurrent states of sequences.
#[derive(Default)]
pub struct State {
    kv: Vec<KvLayer>,
    recurrent: Vec<RecurrentLayer>,
}

impl State {
    pub(crate) fn kv(&self, layer: usize) -> &KvLayer {
        &self.kv[layer]
    }

    pub(crate) fn kv_mut(&mut self, layer: usize) -> &mut KvLayer {
        &mut self.kv[layer]
    }

    pub(crate) fn recurrent_mut(&mut self, layer: usize) -> &mut RecurrentLayer {
        &mut self.recurrent[layer]
    }
}

impl StateStore for State {
    fn numerics_version(&self) -> u32 {
        NUMERICS
    }

    fn append(&mut self, layers: &StateLayers) -> Result<(), StateMemoryError> {
        let pages = layers.kv.iter().map(|&(_, pages)| pages).max().unwrap_or(0);
        let kv: Option<Vec<_>> = layers.kv.iter().map(|&(spec, pages)| KvLayer::new(spec, pages)).collect();
        let kv = kv.ok_or(StateMemoryError::Kv { pages, layers: layers.kv.len() })?;
        let slots = layers.slots;
        let recurrent: Option<Vec<_>> =
            layers.recurrent.iter().map(|&spec| RecurrentLayer::new(spec, slots)).collect();
        let recurrent =
            recurrent.ok_or(StateMemoryError::Recurrent { slots, layers: layers.recurrent.len() })?;
        self.kv.extend(kv);
        self.recurrent.extend(recurrent);
        Ok(())
    }

    fn copy_page(&mut self, layers: &[usize], from: usize, to: usize) {
        for &layer in layers {
            for cell in 0..PAGE_CELLS {
                self.kv[layer].copy_cell(from * PAGE_CELLS + cell, to * PAGE_CELLS + cell);
            }
        }
    }

    fn move_cells(&mut self, layers: &[usize], moves: &[(usize, usize)], shift: Option<&KShift>) {
        // The attention factor (mscale) is in the keys already.
        let angles = |shift: &KShift| {
            let frequencies = rope::frequencies(&shift.table, shift.freq_factors.as_deref());
            rope::angles(shift.positions, &frequencies, 1.0)
        };
        let shift = shift.map(|shift| (shift, angles(shift)));
        for &layer in layers {
            let layer = &mut self.kv[layer];
            for &(from, to) in moves {
                layer.copy_cell(from, to);
                if let Some((shift, angles)) = &shift {
                    layer.shift_keys(to, shift, angles);
                }
            }
        }
    }

    fn read_cells(&self, layer: usize, cells: &mut dyn Iterator<Item = usize>, out: &mut Vec<u8>) {
        let layer = &self.kv[layer];
        cells.for_each(|cell| out.extend_from_slice(&layer.bytes[layer.cell(cell)]));
    }

    fn write_cells(&mut self, layer: usize, cells: &mut dyn Iterator<Item = usize>, from: &[u8]) {
        let layer = &mut self.kv[layer];
        let mut stored = from.chunks_exact(layer.cell_bytes());
        for cell in cells {
            let range = layer.cell(cell);
            layer.bytes[range].copy_from_slice(stored.next().expect("the bytes of every cell"));
        }
    }

    fn slot_bytes(&self, layers: Range<usize>) -> usize {
        let elements = |layer: &RecurrentLayer| layer.history_len() + layer.delta_len();
        self.recurrent[layers].iter().map(elements).sum::<usize>() * size_of::<f32>()
    }

    fn read_slot(&self, layers: Range<usize>, slot: usize, out: &mut Vec<u8>) {
        for layer in &self.recurrent[layers] {
            let elements = layer.history(slot).iter().chain(layer.delta(slot));
            out.extend(elements.flat_map(|x| x.to_le_bytes()));
        }
    }

    fn write_slot(&mut self, layers: Range<usize>, slot: usize, from: &[u8]) {
        let mut elements = from.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        for layer in &mut self.recurrent[layers] {
            let mut next = |_: &f32| elements.next().expect("the bytes of every element");
            let history: Vec<f32> = layer.history(slot).iter().map(&mut next).collect();
            let delta: Vec<f32> = layer.delta(slot).iter().map(&mut next).collect();
            layer.history_mut(slot).copy_from_slice(&history);
            layer.delta_mut(slot).copy_from_slice(&delta);
        }
    }
}

/// K and V of one layer.
pub(crate) struct KvLayer {
    spec: KvSpec,
    /// Cell by cell.
    bytes: Vec<u8>,
}

impl KvLayer {
    /// Zeroed pages; `None` if the allocation fails.
    fn new(spec: KvSpec, pages: usize) -> Option<KvLayer> {
        let bytes = spec.cell_bytes()?.checked_mul(PAGE_CELLS)?.checked_mul(pages)?;
        Some(KvLayer { spec, bytes: zeros(bytes)? })
    }

    /// Stores K and V of one row, each of all heads.
    pub(crate) fn write(&mut self, cell: usize, k: &[f32], v: &[f32]) {
        let KvSpec { kv_heads, head_dim, .. } = self.spec;
        for head in 0..kv_heads {
            let elements = head * head_dim..(head + 1) * head_dim;
            self.put_key(cell, head, &k[elements.clone()]);
            self.put_value(cell, head, &v[elements]);
        }
    }

    /// The key of one head, decoded.
    pub(crate) fn key(&self, cell: usize, head: usize) -> Vec<f32> {
        decode(self.spec.k, self.spec.head_dim, &self.bytes[self.key_range(cell, head)])
    }

    /// The value of one head, decoded.
    pub(crate) fn value(&self, cell: usize, head: usize) -> Vec<f32> {
        decode(self.spec.v, self.spec.head_dim, &self.bytes[self.value_range(cell, head)])
    }

    fn put_key(&mut self, cell: usize, head: usize, key: &[f32]) {
        let range = self.key_range(cell, head);
        self.bytes[range].copy_from_slice(&encode(self.spec.k, key));
    }

    fn put_value(&mut self, cell: usize, head: usize, value: &[f32]) {
        let range = self.value_range(cell, head);
        self.bytes[range].copy_from_slice(&encode(self.spec.v, value));
    }

    fn copy_cell(&mut self, from: usize, to: usize) {
        let (from, to) = (self.cell(from), self.cell(to));
        self.bytes.copy_within(from, to.start);
    }

    /// K-shifts a cell.
    fn shift_keys(&mut self, cell: usize, shift: &KShift, angles: &[f32]) {
        let hadamard = |key: Vec<f32>| if shift.hadamard { hadamard::transform(&key) } else { key };
        for head in 0..self.spec.kv_heads {
            let key = hadamard(self.key(cell, head));
            let key = hadamard(rope::rotate(shift.layout, &key, angles));
            self.put_key(cell, head, &key);
        }
    }

    fn cell_bytes(&self) -> usize {
        self.spec.cell_bytes().expect("checked when the memory was allocated")
    }

    fn cell(&self, cell: usize) -> Range<usize> {
        cell * self.cell_bytes()..(cell + 1) * self.cell_bytes()
    }

    fn key_range(&self, cell: usize, head: usize) -> Range<usize> {
        let bytes = head_bytes(self.spec.k, self.spec.head_dim);
        let start = self.cell(cell).start + head * bytes;
        start..start + bytes
    }

    fn value_range(&self, cell: usize, head: usize) -> Range<usize> {
        let bytes = head_bytes(self.spec.v, self.spec.head_dim);
        let start = self.key_range(cell, self.spec.kv_heads).start + head * bytes;
        start..start + bytes
    }
}

fn head_bytes(kind: KvType, head_dim: usize) -> usize {
    kind.head_bytes(head_dim).expect("checked when the memory was allocated")
}

/// One head as it is stored. A quantised block with an element that is not finite, or too large for its scale, becomes NaN.
fn encode(kind: KvType, head: &[f32]) -> Vec<u8> {
    match kind {
        KvType::F32 => head.iter().flat_map(|x| x.to_le_bytes()).collect(),
        KvType::F16 => head.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        KvType::Bf16 => head.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect(),
        KvType::Q8_0 | KvType::Q5_1 | KvType::Q5_0 | KvType::Q4_1 | KvType::Q4_0 | KvType::Iq4Nl => {
            let dtype = kind.dtype();
            let encode_block = |elements: &[f32]| {
                let mut padded = elements.to_vec();
                padded.resize(dtype.block_len(), 0.0);
                let mut block = vec![0; dtype.block_bytes()];
                if quantize(dtype, &padded, &mut block).is_err() {
                    block.fill(0);
                    // Every one of these formats begins with its scale.
                    block[..2].copy_from_slice(&f16::NAN.to_le_bytes());
                }
                block
            };
            head.chunks(dtype.block_len()).flat_map(encode_block).collect()
        }
    }
}

/// The elements of a stored head.
fn decode(kind: KvType, head_dim: usize, bytes: &[u8]) -> Vec<f32> {
    let mut head = vec![0.0; head_dim.next_multiple_of(kind.dtype().block_len())];
    dequantize(kind.dtype(), bytes, &mut head)
        .expect("a multiple of the block size, of a type that can be decoded");
    head.truncate(head_dim);
    head
}

/// The recurrent states of one layer.
pub(crate) struct RecurrentLayer {
    spec: RecurrentSpec,
    /// By slot: the last `kernel - 1` inputs, oldest first, of all channels.
    history: Vec<f32>,
    /// By slot and head: the key_dim by value_dim state.
    delta: Vec<f32>,
}

impl RecurrentLayer {
    /// Zeroed slots; `None` if the allocation fails.
    fn new(spec: RecurrentSpec, slots: usize) -> Option<RecurrentLayer> {
        // The parts cannot overflow if the total does not.
        spec.slot_bytes()?.checked_mul(slots)?;
        let empty = RecurrentLayer { spec, history: Vec::new(), delta: Vec::new() };
        let (history, delta) = (zeros(slots * empty.history_len())?, zeros(slots * empty.delta_len())?);
        Some(RecurrentLayer { spec, history, delta })
    }

    pub(crate) fn history(&self, slot: usize) -> &[f32] {
        &self.history[slot * self.history_len()..][..self.history_len()]
    }

    pub(crate) fn history_mut(&mut self, slot: usize) -> &mut [f32] {
        let len = self.history_len();
        &mut self.history[slot * len..][..len]
    }

    pub(crate) fn delta(&self, slot: usize) -> &[f32] {
        &self.delta[slot * self.delta_len()..][..self.delta_len()]
    }

    pub(crate) fn delta_mut(&mut self, slot: usize) -> &mut [f32] {
        let len = self.delta_len();
        &mut self.delta[slot * len..][..len]
    }

    /// Elements of a slot's history.
    pub(crate) fn history_len(&self) -> usize {
        (self.spec.kernel - 1) * self.spec.channels
    }

    /// Elements of a slot's delta net state.
    pub(crate) fn delta_len(&self) -> usize {
        self.spec.heads.value_heads * self.spec.heads.key_dim * self.spec.heads.value_dim
    }
}
