//! Context shift: removes positions from the middle of a sequence and moves those after them down with a K-shift (llama.cpp's
//! `seq_rm` and `seq_add`). The moved K and V still depend on the removed tokens, so the result differs from computing only the
//! remaining tokens.

use crate::{LayerSpec, ModelId, RopeKind, SequenceId, State, StateError, pages_for};
use std::ops::Range;
use verbatim_backend::{KShift, PAGE_CELLS, StateStore};

impl<S: StateStore> State<S> {
    /// Whether the model supports a context shift.
    ///
    /// # Errors
    /// Why not.
    pub fn can_shift(&self) -> Result<(), StateError> {
        match self.is_recurrent() {
            true => Err(StateError::CannotShift("a recurrent state cannot drop positions")),
            false => Ok(()),
        }
    }

    /// Removes these positions; those after them move down by a K-shift. Returns the number of remaining positions.
    ///
    /// # Errors
    /// If the model does not support it, positions are in flight or out of range, the window would need positions that have slid
    /// out of it, or there are no pages to copy shared ones to. On error, nothing is modified.
    pub fn remove_and_shift(&mut self, id: SequenceId, positions: Range<usize>) -> Result<usize, StateError> {
        self.can_shift()?;
        let sequence = self.sequence(id)?;
        let (committed, in_flight) = (sequence.committed(), sequence.in_flight.len());
        let Range { start, end } = positions;
        if in_flight > 0 {
            return Err(StateError::InFlight(in_flight));
        }
        if start > end || end > committed {
            return Err(StateError::NoSuchPositions { start, end, committed });
        }
        if start == end {
            return Ok(committed);
        }
        if end == committed {
            self.truncate(id, start)?;
            return Ok(start);
        }
        let left = committed - (end - start);
        for (group, span) in self.groups.iter().zip(&sequence.spans) {
            let first_visible = group.first_visible(left);
            if group.models.contains(ModelId::TARGET)
                && first_visible < start
                && first_visible < span.valid_from
            {
                return Err(StateError::CannotShift(
                    "the sliding window would need positions that have slid out of it",
                ));
            }
        }
        for group in 0..self.groups.len() {
            self.make_room(group, |state| state.pages_to_move(id, group, start..end, left))?;
        }
        for group in 0..self.groups.len() {
            self.move_down(id, group, start..end, left);
        }
        let Some(sequence) = &mut self.sequences[id.index] else { return Ok(left) };
        sequence.tokens.drain(start..end);
        sequence.cacheable_len = sequence.cacheable_len.min(start);
        sequence.page_digests.truncate(start / PAGE_CELLS);
        sequence.removed += end - start;
        let moved = |at: usize| if at <= start { at } else { at.max(end) - (end - start) };
        for computed in &mut sequence.computed_ranges {
            *computed = moved(computed.start)..moved(computed.end);
        }
        for extension in &mut sequence.extensions {
            extension.reset(&sequence.tokens);
        }
        self.invalidate_states(id);
        self.clip_computed(id);
        self.shrink_cache();
        Ok(left)
    }

    /// The positions that cells are moved to when some are removed and `left` remain: those inside the window whose cells exist.
    fn positions_to_move(
        &self,
        id: SequenceId,
        group: usize,
        removed: &Range<usize>,
        left: usize,
    ) -> Range<usize> {
        let valid_from = self.sequence(id).map_or(0, |sequence| sequence.spans[group].valid_from);
        let first = removed.start.max(self.groups[group].first_visible(left));
        first.max(valid_from.saturating_sub(removed.len()))..left
    }

    /// Whether the sequence's page with this index is unshared.
    fn owns(&self, id: SequenceId, group: usize, page_index: usize) -> bool {
        let page = self.groups[group].table[id.index * self.pages_per_sequence() + page_index];
        page >= 0 && self.pools[group].ref_count(page) == 1
    }

    fn pages_to_move(&self, id: SequenceId, group: usize, removed: Range<usize>, left: usize) -> usize {
        let written = page_indices(&self.positions_to_move(id, group, &removed, left));
        written.filter(|&page_index| !self.owns(id, group, page_index)).count()
    }

    fn move_down(&mut self, id: SequenceId, group: usize, removed: Range<usize>, left: usize) {
        let (start, by) = (removed.start, removed.len());
        let table_start = id.index * self.pages_per_sequence();
        let before: Vec<i32> = self.groups[group].table[table_start..][..self.pages_per_sequence()].to_vec();
        let positions = self.positions_to_move(id, group, &removed, left);
        let (first, written) = (positions.start, page_indices(&positions));
        for page_index in
            written.clone().filter(|&page_index| !self.owns(id, group, page_index)).collect::<Vec<_>>()
        {
            let own = self.pools[group].take().expect("room was made");
            // The page in which the removed positions begin keeps those before them.
            if before[page_index] >= 0 && page_index == start / PAGE_CELLS {
                self.copy_page(group, before[page_index], own);
            }
            self.groups[group].table[table_start + page_index] = own;
        }
        // In ascending order, so that no cell is overwritten before it is read.
        let table = &self.groups[group].table[table_start..];
        let cell = |table: &[i32], position: usize| {
            table[position / PAGE_CELLS] as usize * PAGE_CELLS + position % PAGE_CELLS
        };
        let moves: Vec<_> =
            positions.map(|position| (cell(&before, position + by), cell(table, position))).collect();
        for (shift, layers) in by_shift(&self.layers, &self.groups[group].layers, by) {
            self.store.move_cells(&layers, &moves, shift.as_ref());
        }
        // Pages that were copied, are after the end, or have slid out of the window.
        let first_visible_page = self.groups[group].first_visible(left) / PAGE_CELLS;
        for (page_index, &page) in before.iter().enumerate().filter(|&(_, &page)| page >= 0) {
            let now = self.groups[group].table[table_start + page_index];
            if now != page {
                self.pools[group].release(page);
            } else if page_index < first_visible_page || page_index >= written.end {
                self.pools[group].release(page);
                self.groups[group].table[table_start + page_index] = -1;
            }
        }
        if let Some(sequence) = &mut self.sequences[id.index] {
            let span = &mut sequence.spans[group];
            span.first = span.first.min(written.start).max(first_visible_page);
            span.end = written.end;
            // After the removed positions, only those inside the window were moved.
            span.valid_from = if first > start { first } else { span.valid_from.min(first) };
        }
    }
}

/// The indices of the pages that contain these positions.
fn page_indices(positions: &Range<usize>) -> Range<usize> {
    positions.start / PAGE_CELLS..pages_for(positions.end)
}

/// Groups layers by the K-shift of their keys.
fn by_shift(specs: &[LayerSpec], layers: &[usize], by: usize) -> Vec<(Option<KShift>, Vec<usize>)> {
    let mut shifts: Vec<(Option<KShift>, Vec<usize>)> = Vec::new();
    for &layer in layers {
        let shift = k_shift(&specs[layer], by);
        match shifts.iter_mut().find(|(other, _)| *other == shift) {
            Some((_, layers)) => layers.push(layer),
            None => shifts.push((shift, vec![layer])),
        }
    }
    shifts
}

fn k_shift(layer: &LayerSpec, by: usize) -> Option<KShift> {
    let RopeKind::Rope { table, layout, freq_factors } = &layer.rope else { return None };
    let positions = -i32::try_from(by).expect("positions are i32");
    let freq_factors = freq_factors.clone();
    Some(KShift { table: *table, layout: *layout, freq_factors, positions, hadamard: layer.hadamard })
}
