//! The end of a transaction: positions in flight are kept along one path, or dropped. And going back.

use crate::prefix::{Pools, digest_after};
use crate::sequence::Span;
use crate::{Group, NOT_A_TOKEN, OwnerId, SequenceId, State, StateError, pages_for};
use verbatim_backend::{PAGE_CELLS, StateStore};

impl<S: StateStore> State<S> {
    /// Keeps the first `count` places in flight, which follow each other, and drops the others.
    ///
    /// # Errors
    /// As for [`State::commit_path`].
    pub fn commit(&mut self, id: SequenceId, count: usize) -> Result<(), StateError> {
        let in_flight = self.sequence(id)?.flight.len();
        if count > in_flight {
            return Err(StateError::NotInFlight { wanted: count, in_flight });
        }
        self.commit_along(id, count, &|index| index)
    }

    /// Keeps positions in flight that follow each other, given by their numbers among those in flight, and drops the others.
    ///
    /// # Errors
    /// If they do not follow each other or were not computed; for a recurrent model, also if the state after the last of them
    /// is not there any more. Nothing has changed then.
    pub fn commit_path(&mut self, id: SequenceId, path: &[usize]) -> Result<(), StateError> {
        self.commit_along(id, path.len(), &|index| path[index])
    }

    fn commit_along(
        &mut self,
        id: SequenceId,
        len: usize,
        path: &dyn Fn(usize) -> usize,
    ) -> Result<(), StateError> {
        let sequence = self.sequence(id)?;
        let (committed, in_flight) = (sequence.committed(), sequence.flight.len());
        let mut before = None;
        for place in (0..len).map(path) {
            let row = sequence.flight.get(place);
            let row = row.ok_or(StateError::NotInFlight { wanted: place + 1, in_flight })?;
            if row.parent != before {
                return Err(StateError::NotAPath { place });
            }
            if !row.computed.contains(OwnerId::TARGET) {
                return Err(StateError::NotComputed { place });
            }
            before = Some(place);
        }
        let mut slot = sequence.slot;
        if let Some(last) = before.filter(|_| self.has_slots()) {
            if self.recurs() && !sequence.flight[last].kept.contains(OwnerId::TARGET) {
                return Err(StateError::NoCheckpoint { wanted: len, in_flight });
            }
            slot = sequence.flight[last].slot;
        }
        self.bring_together(id, len, path);

        let sequence = self.sequence_mut(id)?;
        let mut flight = std::mem::take(&mut sequence.flight);
        let token = |index| flight[path(index)].token.expect("the target has computed it");
        sequence.tokens.extend((0..len).map(token));
        if len > 0 {
            let tokens = &sequence.tokens[committed..];
            if let Some(index) = tokens.iter().position(|&token| token == NOT_A_TOKEN) {
                sequence.exact_prefix_len = sequence.exact_prefix_len.min(committed + index);
            }
            sequence.extensions.iter_mut().for_each(|extension| extension.commit(tokens));
        }
        let before = std::mem::replace(&mut sequence.slot, slot);
        if before != slot {
            slot.into_iter().for_each(|slot| self.slots.acquire(slot));
            before.into_iter().for_each(|slot| self.slots.release(slot));
        }
        // States at the ends of pages, for others to go on from.
        self.keep_full_pages(id, &|block| {
            let row = &flight[path(((block + 1) * PAGE_CELLS).checked_sub(committed + 1)?)];
            row.slot.filter(|_| row.kept.contains(OwnerId::TARGET))
        });
        flight.iter().filter_map(|row| row.slot).for_each(|slot| self.slots.release(slot));
        flight.clear();
        self.sequence_mut(id)?.flight = flight;
        self.release_from(id, committed + len);
        self.release_unseen(id);
        self.shrink_cache();
        Ok(())
    }

    /// Drops all positions in flight.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn rollback(&mut self, id: SequenceId) -> Result<(), StateError> {
        let sequence = self.sequence_mut(id)?;
        let mut flight = std::mem::take(&mut sequence.flight);
        let committed = sequence.committed();
        flight.drain(..).filter_map(|row| row.slot).for_each(|slot| self.slots.release(slot));
        self.sequence_mut(id)?.flight = flight;
        self.release_from(id, committed);
        Ok(())
    }

    /// Forgets all positions from `len` on, and those in flight.
    ///
    /// # Errors
    /// If some positions stay whose successors need what is gone: recurrent states, and what windows have left, cannot be
    /// had back but from the start. Nothing has changed then.
    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), StateError> {
        let sequence = self.sequence(id)?;
        let committed = sequence.committed();
        if len > 0 && len < committed {
            let refuse = |why| Err(StateError::CannotGoBack { wanted: len, committed, why });
            if self.recurs() {
                return refuse("recurrent model keeps no state of earlier positions");
            }
            let unseen = |(group, span): (&Group, &Span)| group.first_seen(len) < span.whole_from;
            if self.groups.iter().zip(&sequence.spans).any(unseen) {
                return refuse("window has left the positions before it");
            }
        }
        self.rollback(id)?;
        if len >= committed {
            return Ok(());
        }
        let sequence = self.sequence_mut(id)?;
        sequence.tokens.truncate(len);
        sequence.chain.truncate(len / PAGE_CELLS);
        if len <= sequence.exact_prefix_len {
            sequence.exact_prefix_len = usize::MAX;
        }
        if len == 0 {
            sequence.removed = 0;
        }
        let before = if len == 0 { sequence.slot.take() } else { None };
        for extension in &mut sequence.extensions {
            extension.reset(&sequence.tokens);
        }
        before.into_iter().for_each(|slot| self.slots.release(slot));
        self.release_from(id, len);
        self.shrink_cache();
        Ok(())
    }

    /// A second sequence with the same beginning, all of it. It shares pages and states until one of the two writes.
    ///
    /// # Errors
    /// If no sequence is free, or positions are in flight.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, StateError> {
        let in_flight = self.sequence(id)?.flight.len();
        if in_flight > 0 {
            return Err(StateError::InFlight(in_flight));
        }
        let fork = self.begin()?;
        let sequence = self.sequence(id)?;
        let (tokens, chain) = (sequence.tokens.clone(), sequence.chain.clone());
        let (exact_prefix_len, removed, spans, slot) =
            (sequence.exact_prefix_len, sequence.removed, sequence.spans.clone(), sequence.slot);
        let extensions = sequence.extensions.iter().map(|extension| extension.fork()).collect();
        let blocks = self.blocks();
        for ((group, pool), span) in self.groups.iter_mut().zip(&mut self.pools).zip(&spans) {
            for block in span.first..span.end {
                let page = group.table[id.index * blocks + block];
                pool.acquire(page);
                group.table[fork.index * blocks + block] = page;
            }
        }
        slot.into_iter().for_each(|slot| self.slots.acquire(slot));
        let sequence = self.sequence_mut(fork)?;
        (sequence.tokens, sequence.chain, sequence.exact_prefix_len) = (tokens, chain, exact_prefix_len);
        (sequence.removed, sequence.spans, sequence.slot, sequence.extensions) =
            (removed, spans, slot, extensions);
        Ok(fork)
    }

    /// Copies the cells of a path in flight to where its positions are once they are committed.
    fn bring_together(&mut self, id: SequenceId, len: usize, path: &dyn Fn(usize) -> usize) {
        if (0..len).all(|index| index == path(index)) {
            return;
        }
        for group in 0..self.groups.len() {
            let Ok(sequence) = self.sequence(id) else { return };
            let committed = sequence.committed();
            let cell =
                |index| self.cell(id, group, committed + index).expect("positions in flight have cells");
            // In ascending order, so that nothing is written before it was read.
            let moved = (0..len).filter(|&index| index != path(index));
            let moves: Vec<_> = moved.map(|index| (cell(path(index)), cell(index))).collect();
            self.store.move_cells(&self.groups[group].layers, &moves, None);
        }
    }

    /// Puts the pages that have become full into the prefix tree, with the states after those blocks of which `slot_after`
    /// has one. Where the tree has an equal page, the sequence goes on with that one.
    fn keep_full_pages(&mut self, id: SequenceId, slot_after: &dyn Fn(usize) -> Option<i32>) {
        let row = id.index * self.blocks();
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        let end = sequence.tokens.len().min(sequence.exact_prefix_len) / PAGE_CELLS;
        for block in sequence.chain.len()..end {
            let tokens = &sequence.tokens[block * PAGE_CELLS..][..PAGE_CELLS];
            let before = sequence.chain.last().copied();
            sequence.chain.push(digest_after(before.as_ref().unwrap_or(self.tree.root()), tokens));
            let parent = match before {
                None => None,
                Some(digest) => {
                    let last = &sequence.tokens[(block - 1) * PAGE_CELLS..][..PAGE_CELLS];
                    match self.tree.look_up(&digest, last) {
                        // What came before was forgotten, so nobody could find this.
                        None => continue,
                        found => found,
                    }
                }
            };
            let own = whole_pages(&self.groups, &sequence.spans, row, block);
            let mut pools = Pools { pages: &mut self.pools, slots: &mut self.slots };
            let node = self.tree.add(parent, tokens, &own, slot_after(block), &mut pools);
            let pages = &self.tree.node(node).pages;
            for (group, (own, kept)) in own.iter().zip(pages).enumerate() {
                if let (Some(own), Some(kept)) = (*own, *kept)
                    && own != kept
                {
                    self.pools[group].acquire(kept);
                    self.pools[group].release(own);
                    self.groups[group].table[row + block] = kept;
                }
            }
        }
    }

    /// Puts the last page of a sequence that ends, if it is not full, and the state after its last position into the
    /// prefix tree.
    pub(crate) fn keep_tail(&mut self, id: SequenceId) {
        let row = id.index * self.blocks();
        let Some(sequence) = &self.sequences[id.index] else { return };
        let (len, full) = (sequence.tokens.len(), sequence.chain.len());
        if len == 0 || sequence.exact_prefix_len < len {
            return;
        }
        let rest = &sequence.tokens[full * PAGE_CELLS..];
        let parent = match sequence.chain.last() {
            None => None,
            Some(digest) => {
                match self.tree.look_up(digest, &sequence.tokens[(full - 1) * PAGE_CELLS..][..PAGE_CELLS]) {
                    None => return,
                    found => found,
                }
            }
        };
        let mut pools = Pools { pages: &mut self.pools, slots: &mut self.slots };
        if rest.is_empty() {
            // Only the state may be new; the page is there.
            if let (Some(node), Some(slot)) = (parent, sequence.slot) {
                let (before, tokens) = (self.tree.node(node).parent, self.tree.node(node).tokens.clone());
                let none = vec![None; self.groups.len()];
                self.tree.add(before, &tokens, &none, Some(slot), &mut pools);
            }
            return;
        }
        let own = whole_pages(&self.groups, &sequence.spans, row, full);
        // A page that is in the tree already is there for a text that goes on otherwise, or longer.
        let is_there =
            |(pool, page): (&crate::Pool, &Option<i32>)| page.is_some_and(|page| pool.in_tree(page));
        if !pools.pages.iter().zip(&own).any(is_there) {
            self.tree.add(parent, rest, &own, sequence.slot, &mut pools);
        }
    }

    /// Gives back the pages that `positions` positions do not need.
    pub(crate) fn release_from(&mut self, id: SequenceId, positions: usize) {
        let (row, end) = (id.index * self.blocks(), pages_for(positions));
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        for ((group, pool), span) in self.groups.iter_mut().zip(&mut self.pools).zip(&mut sequence.spans) {
            while span.end > end.max(span.first) {
                span.end -= 1;
                pool.release(std::mem::replace(&mut group.table[row + span.end], -1));
            }
            if positions == 0 {
                *span = Default::default();
            }
        }
    }

    /// Gives back the pages that no position to come sees.
    pub(crate) fn release_unseen(&mut self, id: SequenceId) {
        let row = id.index * self.blocks();
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        let len = sequence.tokens.len();
        for ((group, pool), span) in self.groups.iter_mut().zip(&mut self.pools).zip(&mut sequence.spans) {
            let first = (group.first_seen(len) / PAGE_CELLS).min(span.end);
            while span.first < first {
                pool.release(std::mem::replace(&mut group.table[row + span.first], -1));
                span.first += 1;
            }
            span.whole_from = span.whole_from.max(span.first * PAGE_CELLS);
        }
    }

    /// Forgets what the tree holds beyond its share of memory.
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

/// For each kind of layer the page of a block, if the sequence has it and all its cells hold what they ought to.
fn whole_pages(groups: &[Group], spans: &[Span], row: usize, block: usize) -> Vec<Option<i32>> {
    let pages = groups.iter().zip(spans).map(|(group, span)| {
        let page = group.table[row + block];
        (page >= 0 && span.whole_from <= block * PAGE_CELLS).then_some(page)
    });
    pages.collect()
}

impl Group {
    /// The first position that the one at `position` sees.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}
