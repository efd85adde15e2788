//! A store that keeps bytes and nothing else.

use std::ops::Range;
use verbatim_backend::{
    KShift, KvSpec, PAGE_CELLS, RecurrentSpec, StateLayers, StateMemoryError, StateStore,
};

/// The most bytes that there is memory for.
const MEMORY: usize = 1 << 30;

/// Cells and slots in vectors. A K-shift adds to the eight bytes of a cell after the first eight.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PlainStore {
    kv: Vec<(KvSpec, Vec<u8>)>,
    recurrent: Vec<(RecurrentSpec, Vec<u8>)>,
    slots: usize,
    /// Layers and shifts of the calls of `move_cells`.
    pub(crate) shifts: Vec<(Vec<usize>, Option<KShift>)>,
}

impl PlainStore {
    fn bytes(&self) -> usize {
        self.kv.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
            + self.recurrent.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }

    pub(crate) fn cell_bytes(&self, layer: usize, cell: usize) -> &[u8] {
        &self.kv[layer].1[self.cell(layer, cell)]
    }

    fn cell(&self, layer: usize, cell: usize) -> Range<usize> {
        let len = self.kv[layer].0.cell_bytes().unwrap();
        cell * len..(cell + 1) * len
    }
}

impl StateStore for PlainStore {
    fn numerics_version(&self) -> u32 {
        7
    }

    fn append(&mut self, layers: &StateLayers) -> Result<(), StateMemoryError> {
        if !layers.recurrent.is_empty() && !self.recurrent.is_empty() {
            assert_eq!(layers.slots, self.slots, "as many slots as there are");
        }
        let mut added = PlainStore::default();
        for (spec, pages) in &layers.kv {
            let bytes = spec.cell_bytes().unwrap() * pages * PAGE_CELLS;
            if self.bytes() + added.bytes() + bytes > MEMORY {
                return Err(StateMemoryError::Kv { pages: *pages, layers: layers.kv.len() });
            }
            added.kv.push((*spec, vec![0; bytes]));
        }
        for spec in &layers.recurrent {
            added.recurrent.push((*spec, vec![0; spec.slot_bytes().unwrap() * layers.slots]));
        }
        self.kv.extend(added.kv);
        self.recurrent.extend(added.recurrent);
        if !layers.recurrent.is_empty() {
            self.slots = layers.slots;
        }
        Ok(())
    }

    fn copy_page(&mut self, layers: &[usize], from: usize, to: usize) {
        for &layer in layers {
            let bytes = self.cell(layer, PAGE_CELLS).start;
            self.kv[layer].1.copy_within(from * bytes..(from + 1) * bytes, to * bytes);
        }
    }

    fn move_cells(&mut self, layers: &[usize], moves: &[(usize, usize)], shift: Option<&KShift>) {
        self.shifts.push((layers.to_vec(), shift.cloned()));
        for &layer in layers {
            for &(from, to) in moves {
                let (from, to) = (self.cell(layer, from), self.cell(layer, to));
                let bytes = &mut self.kv[layer].1;
                bytes.copy_within(from, to.start);
                if let Some(shift) = shift {
                    let position = bytes[to][8..].first_chunk_mut().unwrap();
                    *position = (i64::from_le_bytes(*position) + i64::from(shift.positions)).to_le_bytes();
                }
            }
        }
    }

    fn read_cells(&self, layer: usize, cells: &mut dyn Iterator<Item = usize>, out: &mut Vec<u8>) {
        cells.for_each(|cell| out.extend(&self.kv[layer].1[self.cell(layer, cell)]));
    }

    fn write_cells(&mut self, layer: usize, cells: &mut dyn Iterator<Item = usize>, mut from: &[u8]) {
        for cell in cells {
            let range = self.cell(layer, cell);
            let (bytes, rest) = from.split_at(range.len());
            self.kv[layer].1[range].copy_from_slice(bytes);
            from = rest;
        }
        assert!(from.is_empty(), "as many bytes as cells");
    }

    fn slot_bytes(&self, layers: Range<usize>) -> usize {
        self.recurrent[layers].iter().map(|(spec, _)| spec.slot_bytes().unwrap()).sum()
    }

    fn read_slot(&self, layers: Range<usize>, slot: usize, out: &mut Vec<u8>) {
        for (spec, bytes) in &self.recurrent[layers] {
            let len = spec.slot_bytes().unwrap();
            out.extend(&bytes[slot * len..(slot + 1) * len]);
        }
    }

    fn write_slot(&mut self, layers: Range<usize>, slot: usize, mut from: &[u8]) {
        for (spec, bytes) in &mut self.recurrent[layers] {
            let (own, rest) = from.split_at(spec.slot_bytes().unwrap());
            bytes[slot * own.len()..(slot + 1) * own.len()].copy_from_slice(own);
            from = rest;
        }
        assert!(from.is_empty(), "as many bytes as the layers have");
    }
}
