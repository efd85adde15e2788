//! Allocating KV cells for positions in flight.

use crate::prefix::Pools;
use crate::sequence::InFlight;
use crate::{MAX_STATE_CHECKPOINTS, ModelSet, SequenceId, State, StateError, pages_for};
use std::ops::Range;
use verbatim_backend::{PAGE_CELLS, StateStore};

impl<S: StateStore> State<S> {
    /// Allocates a chain of `count` more positions in flight and returns their KV indices.
    ///
    /// # Errors
    /// As for [`State::append_tree`].
    pub fn append(&mut self, id: SequenceId, count: usize) -> Result<Range<usize>, StateError> {
        let sequence = self.sequence(id)?;
        let (kv_indices, in_flight) = (sequence.kv_len(), sequence.in_flight.len());
        self.check_growth(id, count, true)?;
        self.grow(id, count, &|index| (in_flight + index).checked_sub(1))?;
        Ok(kv_indices..kv_indices + count)
    }

    /// Allocates more positions in flight that form a tree, and returns their KV indices, which follow those of all positions
    /// committed and in flight. `parents` are indices among the positions in flight, those of earlier calls included; `None` is
    /// the last committed position.
    ///
    /// # Errors
    /// If the context or the pages do not suffice, if too many positions would be in flight (with recurrent layers, more than
    /// [`MAX_STATE_CHECKPOINTS`] are only allowed as one chain, with nothing else in flight), or if a parent comes after its
    /// child. On error, nothing is modified.
    pub fn append_tree(
        &mut self,
        id: SequenceId,
        parents: &[Option<usize>],
    ) -> Result<Range<usize>, StateError> {
        let kv_indices = self.sequence(id)?.kv_len();
        let in_flight = self.sequence(id)?.in_flight.len();
        for (index, parent) in parents.iter().enumerate() {
            if let Some(parent) = *parent
                && parent >= in_flight + index
            {
                return Err(StateError::Parent { index: in_flight + index, parent });
            }
        }
        let chain = parents.iter().enumerate().all(|(i, parent)| *parent == (in_flight + i).checked_sub(1));
        self.check_growth(id, parents.len(), chain)?;
        self.grow(id, parents.len(), &|index| parents[index])?;
        Ok(kv_indices..kv_indices + parents.len())
    }

    /// Bytes of memory that were never written before and that `count` more positions in flight would take; 0 if they cannot be
    /// allocated. Memory is taken from the system as pages are first used; pages that are freed are used again first.
    pub fn bytes_to_grow(&self, id: SequenceId, count: usize) -> u64 {
        let Ok(sequence) = self.sequence(id) else { return 0 };
        let start = sequence.kv_len();
        if start.saturating_add(count) > self.context {
            return 0;
        }
        let bytes = self.groups.iter().enumerate().map(|(index, group)| {
            let pages = self.pools[index].fresh_of(self.pages_to_grow(id, index, start..start + count));
            let cell_bytes = group.layers.iter().filter_map(|&layer| self.layers[layer].kv.cell_bytes());
            (pages * PAGE_CELLS) as u64 * cell_bytes.sum::<usize>() as u64
        });
        bytes.sum()
    }

    fn check_growth(&self, id: SequenceId, count: usize, is_chain: bool) -> Result<(), StateError> {
        let sequence = self.sequence(id)?;
        let wanted = sequence.kv_len().saturating_add(count);
        if wanted > self.context {
            return Err(StateError::ContextFull { wanted, context: self.context });
        }
        let wanted = sequence.in_flight.len() + count;
        if wanted > self.max_in_flight {
            return Err(StateError::TooManyInFlight { wanted, max: self.max_in_flight });
        }
        // With more, positions share slots, which only works if the whole chain is known.
        let is_fresh_chain = is_chain && wanted == count;
        if self.has_slots() && !is_fresh_chain && count > 0 && wanted > MAX_STATE_CHECKPOINTS {
            return Err(StateError::TooManyInFlight { wanted, max: MAX_STATE_CHECKPOINTS });
        }
        Ok(())
    }

    fn grow(
        &mut self,
        id: SequenceId,
        count: usize,
        parent: &dyn Fn(usize) -> Option<usize>,
    ) -> Result<(), StateError> {
        let start = self.sequence(id)?.kv_len();
        for group in 0..self.groups.len() {
            self.make_room(group, |state| state.pages_to_grow(id, group, start..start + count))?;
        }
        for group in 0..self.groups.len() {
            self.take_pages(id, group, start..start + count);
        }
        // In a long chain, positions before the last checkpoints reuse one slot, except the last one at a page boundary:
        // prefix-cache hits may resume from there.
        let shared = count.saturating_sub(MAX_STATE_CHECKPOINTS);
        let ends_page = |index: &usize| (start + index + 1).is_multiple_of(PAGE_CELLS);
        let page_end = if self.cache_slots > 0 { (0..shared).rfind(ends_page) } else { None };
        let mut common = None;
        for index in 0..count {
            let slot = match common {
                _ if !self.has_slots() => None,
                _ if index > shared || Some(index) == page_end => Some(self.take_slot()),
                None => Some(self.take_slot()),
                Some(slot) => {
                    self.slots.acquire(slot);
                    Some(slot)
                }
            };
            if index <= shared && Some(index) != page_end {
                common = slot;
            }
            let sequence = self.sequence_mut(id)?;
            let parent = parent(index);
            let depth = parent.map_or(0, |parent| sequence.in_flight[parent].depth + 1);
            let (computed_by, state_valid_for) = (ModelSet::default(), ModelSet::default());
            let row =
                InFlight { parent, depth, token: None, computed_by, slot, state_valid_for, is_stale: false };
            sequence.in_flight.push(row);
        }
        self.shrink_cache();
        Ok(())
    }

    /// Evicts from the prefix tree until enough pages are free; evicting may also reduce how many are needed.
    pub(crate) fn make_room(
        &mut self,
        group: usize,
        wanted: impl Fn(&State<S>) -> usize,
    ) -> Result<(), StateError> {
        let windowed = self.groups[group].window.is_some();
        loop {
            let (count, free) = (wanted(self), self.pools[group].free());
            if count <= free {
                return Ok(());
            }
            let mut pools = Pools { pages: &mut self.pools, slots: &mut self.slots };
            if self.tree.evict_page(group, windowed, &mut pools) {
                continue;
            }
            // Sequences use everything left in the tree. Without the tree's references, their pages need no copy-on-write.
            if self.tree.is_empty() {
                return Err(StateError::NoPages { wanted: count, free });
            }
            self.tree.clear(&mut pools);
        }
    }

    /// Number of pages needed for these KV indices: new ones, and a copy of the first one's page if that is shared.
    fn pages_to_grow(&self, id: SequenceId, group: usize, kv_indices: Range<usize>) -> usize {
        let Ok(sequence) = self.sequence(id) else { return 0 };
        let fresh = pages_for(kv_indices.end).saturating_sub(sequence.spans[group].end);
        fresh + usize::from(!kv_indices.is_empty() && self.shared_page(id, group, kv_indices.start).is_some())
    }

    /// The page of a KV index, if it is shared.
    fn shared_page(&self, id: SequenceId, group: usize, kv_index: usize) -> Option<i32> {
        let page = self.groups[group].table[id.index * self.pages_per_sequence() + kv_index / PAGE_CELLS];
        (!kv_index.is_multiple_of(PAGE_CELLS) && page >= 0 && self.pools[group].ref_count(page) > 1)
            .then_some(page)
    }

    fn take_pages(&mut self, id: SequenceId, group: usize, kv_indices: Range<usize>) {
        if kv_indices.is_empty() {
            return;
        }
        let table_start = id.index * self.pages_per_sequence();
        if let Some(shared) = self.shared_page(id, group, kv_indices.start) {
            let own = self.pools[group].take().expect("`make_room` has freed it");
            self.copy_page(group, shared, own);
            self.pools[group].release(shared);
            self.groups[group].table[table_start + kv_indices.start / PAGE_CELLS] = own;
        }
        let end = pages_for(kv_indices.end);
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        let span = &mut sequence.spans[group];
        while span.end < end {
            self.groups[group].table[table_start + span.end] =
                self.pools[group].take().expect("`make_room` has freed it");
            span.end += 1;
        }
    }

    pub(crate) fn copy_page(&mut self, group: usize, from: i32, to: i32) {
        self.store.copy_page(&self.groups[group].layers, from as usize, to as usize);
    }

    pub(crate) fn take_slot(&mut self) -> i32 {
        if self.slots.free() == 0 {
            self.tree.evict_slot(&mut Pools { pages: &mut self.pools, slots: &mut self.slots });
        }
        self.slots
            .take()
            .expect("there are enough slots for all sequences, and those of the tree can be evicted")
    }

    /// The cell of a KV index in a KV cache group; `None` also if it has slid out of the window.
    pub(crate) fn cell(&self, id: SequenceId, group: usize, kv_index: usize) -> Option<usize> {
        let sequence = self.sequence(id).ok()?;
        if kv_index >= sequence.kv_len() {
            return None;
        }
        let page = self.groups[group].table[id.index * self.pages_per_sequence() + kv_index / PAGE_CELLS];
        usize::try_from(page).ok().map(|page| page * PAGE_CELLS + kv_index % PAGE_CELLS)
    }
}
