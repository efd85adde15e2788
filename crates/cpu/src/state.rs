//! The state of sequences between steps, behind the [`StateStore`] trait.

use crate::kv::{KeyShifter, KvMemory};
use crate::recurrent::RecurrentMemory;
use std::ops::Range;
use verbatim_backend::{KShift, StateLayers, StateMemoryError, StateStore};

/// The numerics version of the kernels; see [`StateStore::numerics_version`].
const NUMERICS: u32 = 3;

/// K, V and recurrent states of all layers.
#[derive(Default)]
pub struct CpuState {
    pub(crate) kv: KvMemory,
    pub(crate) recurrent: RecurrentMemory,
}

impl CpuState {
    /// Memory for these layers.
    ///
    /// # Errors
    /// If the allocation fails.
    pub fn new(layers: &StateLayers) -> Result<CpuState, StateMemoryError> {
        let mut state = CpuState::default();
        state.append(layers)?;
        Ok(state)
    }

    /// K and V.
    pub fn kv(&self) -> &KvMemory {
        &self.kv
    }

    /// K and V, to be changed between runs.
    pub fn kv_mut(&mut self) -> &mut KvMemory {
        &mut self.kv
    }
}

impl StateStore for CpuState {
    fn numerics_version(&self) -> u32 {
        NUMERICS
    }

    fn append(&mut self, layers: &StateLayers) -> Result<(), StateMemoryError> {
        let kv_layers = self.kv.layers().len();
        self.kv.append(&layers.kv)?;
        let appended = self.recurrent.append(&layers.recurrent, layers.slots);
        if appended.is_err() {
            self.kv.truncate(kv_layers);
        }
        appended
    }

    fn copy_page(&mut self, layers: &[usize], from: usize, to: usize) {
        for &layer in layers {
            self.kv.layers_mut()[layer].copy_page(from, to);
        }
    }

    fn move_cells(&mut self, layers: &[usize], moves: &[(usize, usize)], shift: Option<&KShift>) {
        let shift = shift.map(KeyShifter::new);
        for &layer in layers {
            for &(from, to) in moves {
                self.kv.layers_mut()[layer].move_cell(from, to, shift.as_ref());
            }
        }
    }

    fn read_cells(&self, layer: usize, cells: &mut dyn Iterator<Item = usize>, out: &mut Vec<u8>) {
        cells.for_each(|cell| self.kv.layers()[layer].read_cell(cell, out));
    }

    fn write_cells(&mut self, layer: usize, cells: &mut dyn Iterator<Item = usize>, from: &[u8]) {
        let layer = &mut self.kv.layers_mut()[layer];
        let bytes = layer.spec().cell_bytes().expect("checked when the memory was allocated");
        // A cell may have no bytes at all.
        let mut from = from.chunks_exact(bytes.max(1));
        for cell in cells {
            layer.write_cell(cell, from.next().unwrap_or_default());
        }
    }

    fn slot_bytes(&self, layers: Range<usize>) -> usize {
        self.recurrent.slot_bytes(layers)
    }

    fn read_slot(&self, layers: Range<usize>, slot: usize, out: &mut Vec<u8>) {
        self.recurrent.read_slot(layers, slot, out);
    }

    fn write_slot(&mut self, layers: Range<usize>, slot: usize, from: &[u8]) {
        self.recurrent.write_slot(layers, slot, from);
    }
}
