//! The end of a transaction: commits one path of the positions in flight, or rolls back. Also truncation and forks.

use crate::prefix::{CachedEntry, Pools, digest_after};
use crate::sequence::{InFlight, Sequence, Span};
use crate::spec::first_visible;
use crate::{Group, ModelId, ModelSet, SequenceId, State, StateError, pages_for};
use std::ops::Range;
use verbatim_backend::{PAGE_CELLS, StateStore};

impl<S: StateStore> State<S> {
    /// Commits the first `count` positions in flight, which must form a chain, and drops the others.
    ///
    /// # Errors
    /// As for [`State::commit_path`].
    pub fn commit(&mut self, id: SequenceId, count: usize) -> Result<(), StateError> {
        let in_flight = self.sequence(id)?.in_flight.len();
        if count > in_flight {
            return Err(StateError::NotInFlight { wanted: count, in_flight });
        }
        self.commit_along(id, count, &|index| index)
    }

    /// Commits a path of positions in flight, given by their indices among those in flight, and drops the others.
    ///
    /// # Errors
    /// If they are not a path or were not computed; for a recurrent model, also if the state after the last one was overwritten.
    /// On error, nothing is modified.
    pub fn commit_path(&mut self, id: SequenceId, path: &[usize]) -> Result<(), StateError> {
        self.commit_along(id, path.len(), &|index| path[index])
    }

    fn commit_along(
        &mut self,
        id: SequenceId,
        len: usize,
        path: &dyn Fn(usize) -> usize,
    ) -> Result<(), StateError> {
        let slot = self.check_commit(id, len, path)?;
        self.compact_path(id, len, path);
        let sequence = self.sequence_mut(id)?;
        let committed = sequence.committed();
        let in_flight = std::mem::take(&mut sequence.in_flight);
        sequence.commit(len, &|index| &in_flight[path(index)]);
        let before = std::mem::replace(&mut sequence.slot, slot);
        if before != slot {
            slot.into_iter().for_each(|slot| self.slots.acquire(slot));
            before.into_iter().for_each(|slot| self.slots.release(slot));
        }
        if let Some(last) = len.checked_sub(1) {
            self.invalidate_overwritten_states(id, &in_flight[path(last)]);
        }
        // States at page boundaries, for prefix-cache hits.
        self.cache_full_pages(id, &|page_index| {
            let row = &in_flight[path(((page_index + 1) * PAGE_CELLS).checked_sub(committed + 1)?)];
            Some(CachedEntry { id: row.slot?, computed_by: row.state_valid_for })
        });
        self.drop_in_flight(id, in_flight);
        self.release_from(id, committed + len);
        self.release_out_of_window(id);
        self.shrink_cache();
        Ok(())
    }

    /// Checks that the path can be committed; returns the slot with the recurrent state after its last position.
    fn check_commit(
        &self,
        id: SequenceId,
        len: usize,
        path: &dyn Fn(usize) -> usize,
    ) -> Result<Option<i32>, StateError> {
        let sequence = self.sequence(id)?;
        let in_flight = sequence.in_flight.len();
        let mut before = None;
        for index in (0..len).map(path) {
            let row = sequence.in_flight.get(index);
            let row = row.ok_or(StateError::NotInFlight { wanted: index + 1, in_flight })?;
            if row.parent != before {
                return Err(StateError::NotAPath { index });
            }
            if !row.computed_by.contains(ModelId::TARGET) {
                return Err(StateError::NotComputed { index });
            }
            before = Some(index);
        }
        let Some(last) = before.filter(|_| self.has_slots()) else { return Ok(sequence.slot) };
        if self.is_recurrent() && !sequence.in_flight[last].state_valid_for.contains(ModelId::TARGET) {
            return Err(StateError::NoCheckpoint { wanted: len, in_flight });
        }
        Ok(sequence.in_flight[last].slot)
    }

    /// Clears the computed ranges of recurrent draft models that have overwritten the state after the new last position.
    fn invalidate_overwritten_states(&mut self, id: SequenceId, last: &InFlight) {
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        let committed = sequence.committed();
        for (draft, computed) in sequence.computed_ranges.iter_mut().enumerate() {
            let model = ModelId(draft + 1);
            if self.models[model.0].is_recurrent()
                && computed.end == committed
                && !last.state_valid_for.contains(model)
            {
                *computed = 0..0;
            }
        }
    }

    /// Releases the slots of dropped positions in flight; reuses the buffer.
    fn drop_in_flight(&mut self, id: SequenceId, mut in_flight: Vec<InFlight>) {
        in_flight.drain(..).filter_map(|row| row.slot).for_each(|slot| self.slots.release(slot));
        if let Some(sequence) = &mut self.sequences[id.index] {
            sequence.in_flight = in_flight;
        }
    }

    /// Drops all positions in flight.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn rollback(&mut self, id: SequenceId) -> Result<(), StateError> {
        let sequence = self.sequence_mut(id)?;
        let (in_flight, committed) = (std::mem::take(&mut sequence.in_flight), sequence.committed());
        self.drop_in_flight(id, in_flight);
        self.release_from(id, committed);
        Ok(())
    }

    /// Removes all positions from `len` on, and those in flight.
    ///
    /// # Errors
    /// If `len` is not 0 and state needed to continue is gone: a recurrent state, or cells that have slid out of the window.
    /// On error, nothing is modified.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        let sequence = self.sequence(id)?;
        let committed = sequence.committed();
        if len > 0 && len < committed {
            let reject = |why| Err(StateError::CannotTruncate { wanted: len, committed, why });
            if self.is_recurrent() {
                return reject("a recurrent model keeps no state of earlier positions");
            }
            let out_of_window = |(group, span): (&Group, &Span)| {
                group.models.contains(ModelId::TARGET) && group.first_visible(len) < span.valid_from
            };
            if self.groups.iter().zip(&sequence.spans).any(out_of_window) {
                return reject("the positions before it have slid out of the window");
            }
        }
        self.rollback(id)?;
        if len >= committed {
            return Ok(());
        }
        let sequence = self.sequence_mut(id)?;
        sequence.tokens.truncate(len);
        sequence.page_digests.truncate(len / PAGE_CELLS);
        if len <= sequence.cacheable_len {
            sequence.cacheable_len = usize::MAX;
        }
        if len == 0 {
            sequence.removed = 0;
        }
        for extension in &mut sequence.extensions {
            extension.reset(&sequence.tokens);
        }
        self.invalidate_states(id);
        self.release_from(id, len);
        self.clip_computed(id);
        self.shrink_cache();
        Ok(())
    }

    /// A copy of a sequence. Pages and states are shared until one of the two sequences writes to them.
    ///
    /// # Errors
    /// If no sequence is free, or positions are in flight.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, StateError> {
        let in_flight = self.sequence(id)?.in_flight.len();
        if in_flight > 0 {
            return Err(StateError::InFlight(in_flight));
        }
        let fork = self.begin()?;
        let sequence = self.sequence(id)?;
        let (tokens, page_digests, computed_ranges) =
            (sequence.tokens.clone(), sequence.page_digests.clone(), sequence.computed_ranges.clone());
        let (cacheable_len, removed, spans, slot) =
            (sequence.cacheable_len, sequence.removed, sequence.spans.clone(), sequence.slot);
        let extensions = sequence.extensions.iter().map(|extension| extension.fork()).collect();
        let per_sequence = self.pages_per_sequence();
        for ((group, pool), span) in self.groups.iter_mut().zip(&mut self.pools).zip(&spans) {
            for page_index in span.first..span.end {
                let page = group.table[id.index * per_sequence + page_index];
                pool.acquire(page);
                group.table[fork.index * per_sequence + page_index] = page;
            }
        }
        slot.into_iter().for_each(|slot| self.slots.acquire(slot));
        let sequence = self.sequence_mut(fork)?;
        // Extends the reserved buffers, so that the fork does not allocate as it grows.
        sequence.tokens.extend(tokens);
        sequence.page_digests.extend(page_digests);
        (sequence.computed_ranges, sequence.cacheable_len) = (computed_ranges, cacheable_len);
        (sequence.removed, sequence.spans, sequence.slot, sequence.extensions) =
            (removed, spans, slot, extensions);
        Ok(fork)
    }

    /// Moves the cells of a path in flight to the KV indices of its positions once committed.
    fn compact_path(&mut self, id: SequenceId, len: usize, path: &dyn Fn(usize) -> usize) {
        if (0..len).all(|index| index == path(index)) {
            return;
        }
        for group in 0..self.groups.len() {
            let Ok(sequence) = self.sequence(id) else { return };
            let committed = sequence.committed();
            let cell =
                |index| self.cell(id, group, committed + index).expect("positions in flight have cells");
            // In ascending order, so that no cell is overwritten before it is read.
            let moved = (0..len).filter(|&index| index != path(index));
            let moves: Vec<_> = moved.map(|index| (cell(path(index)), cell(index))).collect();
            self.store.move_cells(&self.groups[group].layers, &moves, None);
        }
    }

    /// Adds newly full pages to the prefix tree, with the recurrent states from `state_after`. If the tree already has an equal
    /// page that at least the same draft models have computed, the sequence switches to that page.
    fn cache_full_pages(&mut self, id: SequenceId, state_after: &dyn Fn(usize) -> Option<CachedEntry>) {
        let table_start = id.index * self.pages_per_sequence();
        let is_recurrent = self.is_recurrent();
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        let end = sequence.tokens.len().min(sequence.cacheable_len) / PAGE_CELLS;
        for page_index in sequence.page_digests.len()..end {
            let tokens = &sequence.tokens[page_index * PAGE_CELLS..][..PAGE_CELLS];
            let before = sequence.page_digests.last().copied();
            sequence
                .page_digests
                .push(digest_after(before.as_ref().unwrap_or(self.tree.model_digest()), tokens));
            let parent = match before {
                None => None,
                Some(digest) => {
                    let last = &sequence.tokens[(page_index - 1) * PAGE_CELLS..][..PAGE_CELLS];
                    match self.tree.look_up(&digest, last) {
                        // The prefix was evicted, so this page could not be found.
                        None => continue,
                        found => found,
                    }
                }
            };
            let positions = page_index * PAGE_CELLS..(page_index + 1) * PAGE_CELLS;
            let own = valid_pages(&self.groups, sequence, table_start, positions.clone());
            let state =
                state_after(page_index).filter(|state| can_resume_from(state.computed_by, is_recurrent));
            let mut pools = Pools { pages: &mut self.pools, slots: &mut self.slots };
            let node = self.tree.add(parent, tokens, &own, state, &mut pools);
            let [_, drafts] = sequence.drafts_that_computed(positions);
            let pages = own.iter().zip(&self.tree.node(node).pages);
            for ((group, pool), (own, cached)) in self.groups.iter_mut().zip(&mut self.pools).zip(pages) {
                if let (Some(own), Some(cached)) = (*own, *cached)
                    && own.id != cached.id
                    // Not if the sequence would lose positions that a draft model has computed, even a part of the page.
                    && cached.computed_by.contains_all(drafts.intersection(group.models))
                {
                    pool.acquire(cached.id);
                    pool.release(own.id);
                    group.table[table_start + page_index] = cached.id;
                }
            }
        }
    }

    /// Adds the partial last page of a sequence that ends, and the state after its last position, to the prefix tree.
    pub(crate) fn cache_tail(&mut self, id: SequenceId) {
        let table_start = id.index * self.pages_per_sequence();
        let Some(sequence) = &self.sequences[id.index] else { return };
        let (len, full) = (sequence.tokens.len(), sequence.page_digests.len());
        if len == 0 || sequence.cacheable_len < len {
            return;
        }
        let rest = &sequence.tokens[full * PAGE_CELLS..];
        let parent = match sequence.page_digests.last() {
            None => None,
            Some(digest) => {
                match self.tree.look_up(digest, &sequence.tokens[(full - 1) * PAGE_CELLS..][..PAGE_CELLS]) {
                    None => return,
                    found => found,
                }
            }
        };
        let state = self.last_state(sequence);
        let mut pools = Pools { pages: &mut self.pools, slots: &mut self.slots };
        if rest.is_empty() {
            // The page is in the tree already; only the state may be new.
            if let (Some(node), Some(state)) = (parent, state) {
                let (before, tokens) = (self.tree.node(node).parent, self.tree.node(node).tokens.clone());
                let none = vec![None; self.groups.len()];
                self.tree.add(before, &tokens, &none, Some(state), &mut pools);
            }
            return;
        }
        let own = valid_pages(&self.groups, sequence, table_start, full * PAGE_CELLS..len);
        // A page that is in the tree already belongs to a node with different or more tokens.
        let is_there = |(pool, page): (&crate::Pool, &Option<CachedEntry>)| {
            page.is_some_and(|page| pool.in_tree(page.id))
        };
        if !pools.pages.iter().zip(&own).any(is_there) {
            self.tree.add(parent, rest, &own, state, &mut pools);
        }
    }

    /// The recurrent state after the last committed position, if a prefix-cache hit could resume from it.
    fn last_state(&self, sequence: &Sequence) -> Option<CachedEntry> {
        let has = |model: &ModelId| {
            self.models[model.0].is_recurrent() && sequence.computed_start(*model).is_some()
        };
        let computed_by: ModelSet = self.models().filter(has).collect();
        let state = sequence.slot.map(|id| CachedEntry { id, computed_by });
        state.filter(|state| can_resume_from(state.computed_by, self.is_recurrent()))
    }

    /// Releases the pages beyond the first `positions` positions.
    pub(crate) fn release_from(&mut self, id: SequenceId, positions: usize) {
        let (table_start, end) = (id.index * self.pages_per_sequence(), pages_for(positions));
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        for ((group, pool), span) in self.groups.iter_mut().zip(&mut self.pools).zip(&mut sequence.spans) {
            while span.end > end.max(span.first) {
                span.end -= 1;
                pool.release(std::mem::replace(&mut group.table[table_start + span.end], -1));
            }
            // Positions before `valid_from` can only be missing in groups without the target.
            span.valid_from = span.valid_from.min(positions);
            if span.first == span.end {
                let page_index = positions / PAGE_CELLS;
                *span = Span { first: page_index, end: page_index, valid_from: positions };
            }
        }
    }

    /// Releases the pages that no future position attends to.
    pub(crate) fn release_out_of_window(&mut self, id: SequenceId) {
        let table_start = id.index * self.pages_per_sequence();
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        let len = sequence.tokens.len();
        for ((group, pool), span) in self.groups.iter_mut().zip(&mut self.pools).zip(&mut sequence.spans) {
            let first = (group.first_visible(len) / PAGE_CELLS).min(span.end);
            while span.first < first {
                pool.release(std::mem::replace(&mut group.table[table_start + span.first], -1));
                span.first += 1;
            }
            span.valid_from = span.valid_from.max(span.first * PAGE_CELLS);
        }
    }

    /// Evicts pages and slots until the tree is within its memory limit.
    pub(crate) fn shrink_cache(&mut self) {
        let mut pools = Pools { pages: &mut self.pools, slots: &mut self.slots };
        for (index, group) in self.groups.iter().enumerate() {
            while pools.pages[index].cached() > group.cache_pages {
                if !self.tree.evict_page(index, group.window.is_some(), &mut pools) {
                    break;
                }
            }
        }
        while pools.slots.cached() > self.cache_slots && self.tree.evict_slot(&mut pools) {}
    }
}

/// Whether a sequence can resume from a slot that holds the states of these models.
fn can_resume_from(state_of: ModelSet, target_is_recurrent: bool) -> bool {
    if target_is_recurrent { state_of.contains(ModelId::TARGET) } else { !state_of.is_empty() }
}

/// For each KV cache group, the page of these positions, which share one, if the sequence has it and its cells are valid.
fn valid_pages(
    groups: &[Group],
    sequence: &Sequence,
    table_start: usize,
    positions: Range<usize>,
) -> Vec<Option<CachedEntry>> {
    let page_index = positions.start / PAGE_CELLS;
    let [drafts, _] = sequence.drafts_that_computed(positions);
    let pages = groups.iter().zip(&sequence.spans).map(|(group, span)| {
        let id = group.table[table_start + page_index];
        let computed_by = drafts.intersection(group.models);
        let is_valid = id >= 0 && span.valid_from <= page_index * PAGE_CELLS;
        let is_computed = group.models.contains(ModelId::TARGET) || !computed_by.is_empty();
        (is_valid && is_computed).then_some(CachedEntry { id, computed_by })
    });
    pages.collect()
}

impl Group {
    /// The first position that a row at `position` attends to.
    pub(crate) fn first_visible(&self, position: usize) -> usize {
        first_visible(self.window, position)
    }
}
