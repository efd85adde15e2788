//! The batch of a step: where each row reads and writes, looked up for all rows in one pass.

use crate::sequence::Sequence;
use crate::{ModelId, SequenceId, State};
use verbatim_backend::{PAGE_CELLS, StateStore};

/// Why a row cannot be computed in this step.
#[derive(Debug, Clone, Copy, thiserror::Error, PartialEq, Eq)]
pub enum BatchError {
    /// The sequence has ended or never existed.
    #[error("the sequence does not exist")]
    NoSuchSequence,
    /// The row's KV index is not in flight.
    #[error("KV index {kv_index} is not in flight")]
    NotInFlight {
        /// The KV index.
        kv_index: usize,
    },
    /// The row is out of order or duplicated.
    #[error(
        "KV index {kv_index} is out of order: rows of a sequence must be in ascending order, and a row's parent must precede \
         it in the step or be computed already"
    )]
    Order {
        /// The KV index.
        kv_index: usize,
    },
    /// The draft model is recurrent and has not computed the previous position.
    #[error(
        "the draft model has no state to compute KV index {kv_index} from: it has not computed the previous position"
    )]
    NoDraftState {
        /// The KV index.
        kv_index: usize,
    },
}

/// Where the rows of a step read and write; reused from step to step.
#[derive(Debug, Default)]
pub struct Batch {
    /// Indices of the rows that can be computed, in order.
    pub accepted_rows: Vec<usize>,
    /// For each sequence that cannot be computed: the failing row and the error. All rows of that sequence are skipped.
    pub rejected: Vec<(usize, BatchError)>,
    /// The position of each accepted row. This and the following have one entry per accepted row.
    pub positions: Vec<i32>,
    /// The sequence's index in the page tables.
    pub sequences: Vec<i32>,
    /// The state slot before the row; -1 if there is none or the model has no recurrent layers.
    pub read_slots: Vec<i32>,
    /// The state slot after the row; -1 if the model has no recurrent layers.
    pub write_slots: Vec<i32>,
    /// The first position on the row's tree path; earlier positions are read through the page table. The row's position + 1 for a
    /// chain, which has no tree path.
    pub tree_starts: Vec<i32>,
    /// The start of the contiguous range that the model has computed up to the row; the row must not attend to earlier positions.
    /// 0 for the target.
    pub computed_from: Vec<i32>,
    /// The cell that the row writes, by KV cache group.
    pub cells: Vec<Vec<i32>>,
    /// The cell of the position before the row, by KV cache group; -1 if there is none, or if it has slid out of the window.
    pub parent_cells: Vec<Vec<i32>>,
    /// Cells of the longest tree path, rounded up to a power of two; 0 if all rows are in chains.
    pub path_len: usize,
    /// The cells of each row's tree path, padded with 0 to [`Batch::path_len`], by KV cache group.
    pub paths: Vec<Vec<i32>>,
    /// Rows of a sequence were accepted before the sequence was rejected.
    accepted_some_of_rejected: bool,
    scratch: Scratch,
}

/// The rows that a pass has visited so far. Entries are valid only if their `pass` is current, so nothing needs to be cleared.
#[derive(Debug, Default)]
struct Scratch {
    pass: u64,
    /// By the sequence's index.
    sequences: Vec<Visited>,
    /// By slot: the pass, and the last position in flight that writes it.
    writers: Vec<(u64, usize)>,
}

#[derive(Debug, Default)]
struct Visited {
    pass: u64,
    is_rejected: bool,
    /// The last row's index among the positions in flight, and the start of the range that the model has computed up to it.
    last: (usize, usize),
    /// For a tree, all visited rows: the pass, and the same start. For a chain, the last row is enough.
    rows: Vec<(u64, usize)>,
}

impl Scratch {
    #[inline]
    fn visited(&self, id: SequenceId) -> Option<&Visited> {
        self.sequences.get(id.index).filter(|visited| visited.pass == self.pass)
    }

    /// The start of the computed range up to this position in flight, if the pass has visited it.
    #[inline]
    fn row(&self, id: SequenceId, index: usize) -> Option<usize> {
        let visited = self.visited(id)?;
        if visited.last.0 == index {
            return Some(visited.last.1);
        }
        let &(pass, start) = visited.rows.get(index)?;
        (pass == self.pass).then_some(start)
    }

    /// The last position in flight that writes a slot in this step.
    #[inline]
    fn writer(&self, slot: Option<i32>) -> Option<usize> {
        let &(pass, index) = self.writers.get(usize::try_from(slot?).ok()?)?;
        (pass == self.pass).then_some(index)
    }

    #[inline]
    fn add(&mut self, id: SequenceId, is_chain: bool, index: usize, start: usize, slot: Option<i32>) {
        let pass = self.pass;
        let visited = self.begin(id);
        visited.last = (index, start);
        if !is_chain {
            *entry(&mut visited.rows, index) = (pass, start);
        }
        if let Some(slot) = slot.and_then(|slot| usize::try_from(slot).ok()) {
            *entry(&mut self.writers, slot) = (pass, index);
        }
    }

    #[inline]
    fn reject(&mut self, id: SequenceId) {
        self.begin(id).is_rejected = true;
    }

    #[inline]
    fn begin(&mut self, id: SequenceId) -> &mut Visited {
        let visited = entry(&mut self.sequences, id.index);
        if visited.pass != self.pass {
            (visited.pass, visited.is_rejected, visited.last) = (self.pass, false, (0, 0));
        }
        visited
    }
}

/// The entry at this index; grows the vector if needed.
#[inline]
fn entry<T: Default>(entries: &mut Vec<T>, index: usize) -> &mut T {
    if entries.len() <= index {
        entries.resize_with(index + 1, T::default);
    }
    &mut entries[index]
}

impl Batch {
    #[inline]
    fn clear(&mut self, groups: usize) {
        self.accepted_rows.clear();
        self.rejected.clear();
        for values in [
            &mut self.positions,
            &mut self.sequences,
            &mut self.read_slots,
            &mut self.write_slots,
            &mut self.tree_starts,
            &mut self.computed_from,
        ] {
            values.clear();
        }
        for values in [&mut self.cells, &mut self.parent_cells, &mut self.paths] {
            values.resize_with(groups, Vec::new);
            values.iter_mut().for_each(Vec::clear);
        }
        self.path_len = 0;
        self.accepted_some_of_rejected = false;
    }
}

impl<S: StateStore> State<S> {
    /// Looks up where the rows `(sequence, kv_index)` of a step of this model read and write. If a row cannot be computed, all rows
    /// of its sequence are skipped; other sequences are unaffected. Once the buffers have grown, nothing is allocated.
    pub fn batch(&self, model: ModelId, rows: &[(SequenceId, usize)], batch: &mut Batch) {
        batch.clear(self.groups.len());
        self.accept_rows(model, rows, batch);
        if batch.accepted_some_of_rejected {
            // Again, without the sequences that are rejected now.
            let rejected = std::mem::take(&mut batch.rejected);
            batch.clear(self.groups.len());
            batch.rejected = rejected;
            self.accept_rows(model, rows, batch);
        }
        // Values that are the same for all rows.
        let accepted = batch.accepted_rows.len();
        batch.computed_from.resize(accepted, 0);
        batch.read_slots.resize(accepted, -1);
        batch.write_slots.resize(accepted, -1);
        if batch.path_len > 0 {
            batch.path_len = batch.path_len.next_power_of_two();
            self.look_up_paths(rows, batch);
        }
    }

    /// Accepts every row that can be computed and whose sequence is not rejected.
    fn accept_rows(&self, model: ModelId, rows: &[(SequenceId, usize)], batch: &mut Batch) {
        batch.scratch.pass += 1;
        for &(row, error) in &batch.rejected {
            if error != BatchError::NoSuchSequence {
                batch.scratch.reject(rows[row].0);
            }
        }
        let is_recurrent = self.models[model.0].is_recurrent();
        for (row, &(id, kv_index)) in rows.iter().enumerate() {
            // The index of an ended sequence may be reused by now, so only this id is rejected.
            let Ok(sequence) = self.sequence(id) else {
                if !batch.rejected.iter().any(|&(rejected, _)| rows[rejected].0 == id) {
                    batch.rejected.push((row, BatchError::NoSuchSequence));
                }
                continue;
            };
            if batch.scratch.visited(id).is_some_and(|visited| visited.is_rejected) {
                continue;
            }
            match self.check_row(model, id, sequence, kv_index, &batch.scratch) {
                Ok((index, start)) => {
                    let slot = sequence.in_flight[index].slot.filter(|_| is_recurrent);
                    let is_chain = sequence.is_chain();
                    batch.scratch.add(id, is_chain, index, start, slot);
                    if model != ModelId::TARGET {
                        batch.computed_from.push(start as i32);
                    }
                    self.accept_row(row, id, sequence, index, is_chain, is_recurrent, batch);
                }
                Err(error) => {
                    batch.accepted_some_of_rejected |= batch.scratch.visited(id).is_some();
                    batch.scratch.reject(id);
                    batch.rejected.push((row, error));
                }
            }
        }
    }

    /// Checks that a row can be computed after the previous rows of the step. Returns its index among the positions in flight, and
    /// the start of the range that the model will have computed up to it.
    fn check_row(
        &self,
        model: ModelId,
        id: SequenceId,
        sequence: &Sequence,
        kv_index: usize,
        scratch: &Scratch,
    ) -> Result<(usize, usize), BatchError> {
        let index =
            kv_index.checked_sub(sequence.committed()).filter(|&index| index < sequence.in_flight.len());
        let index = index.ok_or(BatchError::NotInFlight { kv_index })?;
        let visited = scratch.visited(id);
        if visited.is_some_and(|visited| visited.last.0 >= index) {
            return Err(BatchError::Order { kv_index });
        }
        let (is_recurrent, is_draft) = (self.models[model.0].is_recurrent(), model != ModelId::TARGET);
        let row = &sequence.in_flight[index];
        let position = sequence.committed() + row.depth;
        let Some(parent) = row.parent else {
            return match sequence.computed_start(model) {
                Some(start) => Ok((index, start)),
                None if is_draft && is_recurrent && position > 0 => {
                    Err(BatchError::NoDraftState { kv_index })
                }
                None => Ok((index, position)),
            };
        };
        // No row that shares the parent's slot may come in between.
        let slot = sequence.in_flight[parent].slot;
        if is_recurrent && scratch.writer(slot).is_some_and(|writer| writer != parent) {
            return Err(BatchError::Order { kv_index });
        }
        if let Some(start) = scratch.row(id, parent) {
            return Ok((index, start));
        }
        // No ancestor of the parent may be recomputed in this step unless the parent is, too: the parent would be stale.
        let is_stale =
            visited.is_some() && sequence.path_up(parent).any(|ancestor| scratch.row(id, ancestor).is_some());
        if sequence.in_flight[parent].computed_by.contains(model) && !is_stale {
            match is_recurrent && !sequence.in_flight[parent].state_valid_for.contains(model) {
                true => Err(BatchError::Order { kv_index }),
                false => Ok((index, sequence.start(model, parent))),
            }
        } else if !is_draft {
            Err(BatchError::Order { kv_index })
        } else if is_recurrent {
            Err(BatchError::NoDraftState { kv_index })
        } else {
            Ok((index, position))
        }
    }

    /// Accepts a row and looks up everything except its tree path.
    #[inline]
    #[allow(clippy::too_many_arguments)] // Values that the caller has already looked up.
    fn accept_row(
        &self,
        row: usize,
        id: SequenceId,
        sequence: &Sequence,
        index: usize,
        is_chain: bool,
        is_recurrent: bool,
        batch: &mut Batch,
    ) {
        batch.accepted_rows.push(row);
        let row = &sequence.in_flight[index];
        let (committed, kv_index) = (sequence.committed(), sequence.committed() + index);
        let path_len = if is_chain { 0 } else { row.depth + 1 };
        batch.path_len = batch.path_len.max(path_len);
        batch.positions.push((committed + row.depth) as i32);
        batch.sequences.push(id.index as i32);
        batch.tree_starts.push((committed + row.depth + 1 - path_len) as i32);
        if is_recurrent {
            let before = row.parent.map_or(sequence.slot, |parent| sequence.in_flight[parent].slot);
            batch.read_slots.push(before.unwrap_or(-1));
            batch.write_slots.extend(row.slot);
        }
        for (group, cells) in batch.cells.iter_mut().enumerate() {
            cells.push(self.in_flight_cell(id, group, kv_index));
        }
        let parent = row.parent.map(|parent| committed + parent).or(committed.checked_sub(1));
        for (group, cells) in batch.parent_cells.iter_mut().enumerate() {
            let cell = parent.and_then(|parent| self.cell(id, group, parent));
            cells.push(cell.map_or(-1, |cell| cell as i32));
        }
    }

    fn look_up_paths(&self, rows: &[(SequenceId, usize)], batch: &mut Batch) {
        for &row in &batch.accepted_rows {
            let (id, kv_index) = rows[row];
            let Ok(sequence) = self.sequence(id) else { continue };
            let committed = sequence.committed();
            let index = kv_index - committed;
            let is_chain = sequence.is_chain();
            for (group, paths) in batch.paths.iter_mut().enumerate() {
                let start = paths.len();
                paths.resize(start + batch.path_len, 0);
                if is_chain {
                    continue;
                }
                let mut at = start + sequence.in_flight[index].depth + 1;
                for kv_index in sequence.path_up(index) {
                    at -= 1;
                    paths[at] = self.in_flight_cell(id, group, committed + kv_index);
                }
            }
        }
    }

    /// The cell of a KV index in flight.
    fn in_flight_cell(&self, id: SequenceId, group: usize, kv_index: usize) -> i32 {
        let page = self.groups[group].table[id.index * self.pages_per_sequence() + kv_index / PAGE_CELLS];
        debug_assert!(page >= 0, "positions in flight have cells");
        page * PAGE_CELLS as i32 + (kv_index % PAGE_CELLS) as i32
    }
}
