//! One sequence's cache metadata.

use crate::model::{Digest, ModelSet};
use crate::{MAX_STATE_CHECKPOINTS, ModelId, SequenceExtension, StateError};
use std::ops::Range;
use verbatim_backend::PAGE_CELLS;

/// The token of a position whose input was an embedding. From there on the sequence is neither added to nor found in the prefix
/// tree.
pub const NOT_A_TOKEN: u32 = u32::MAX;

/// A position in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    /// Its parent among the positions in flight; `None` for the last committed position.
    pub(crate) parent: Option<usize>,
    /// Positions in flight before it on its path.
    pub(crate) depth: usize,
    /// The token with which the target last computed it.
    pub(crate) token: Option<u32>,
    /// The models that have computed it.
    pub(crate) computed_by: ModelSet,
    /// The slot for the recurrent state after it.
    pub(crate) slot: Option<i32>,
    /// The models for which the slot holds the state after this position, not after a later one that shares the slot.
    pub(crate) state_valid_for: ModelSet,
    /// It will be recomputed; only set during [`crate::State::begin_compute`].
    pub(crate) is_stale: bool,
}

/// The pages that a sequence has in one KV cache group, as indices into its part of the page table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// The first position whose cell is valid: the first page may begin with positions that have slid out of the window.
    pub(crate) valid_from: usize,
}

pub(crate) struct Sequence {
    pub(crate) generation: u64,
    /// The committed tokens.
    pub(crate) tokens: Vec<u32>,
    /// The digest of the prefix up to the end of each full page of the cacheable prefix.
    pub(crate) page_digests: Vec<Digest>,
    /// Length of the prefix that may enter the prefix tree because its K and V depend on its tokens only: it ends at the first
    /// removed position or embedding input. `usize::MAX` if there is none.
    pub(crate) cacheable_len: usize,
    /// Number of positions removed by [`State::remove_and_shift`].
    pub(crate) removed: usize,
    /// For each draft model, the last contiguous range of committed positions that it has computed: their cells are valid, and so
    /// is the recurrent state after the last of them.
    pub(crate) computed_ranges: Vec<Range<usize>>,
    /// By KV cache group.
    pub(crate) spans: Vec<Span>,
    /// The recurrent state after the last committed position.
    pub(crate) slot: Option<i32>,
    /// Positions allocated and not yet committed.
    pub(crate) in_flight: Vec<InFlight>,
    pub(crate) extensions: Vec<Box<dyn SequenceExtension>>,
}

impl Sequence {
    /// An empty sequence with capacity for `context` positions: growing allocates nothing.
    pub(crate) fn new(generation: u64, groups: usize, drafts: usize, context: usize) -> Sequence {
        Sequence {
            generation,
            tokens: Vec::with_capacity(context),
            page_digests: Vec::with_capacity(context / PAGE_CELLS),
            cacheable_len: usize::MAX,
            removed: 0,
            computed_ranges: vec![0..0; drafts],
            spans: vec![Span::default(); groups],
            slot: None,
            in_flight: Vec::with_capacity(MAX_STATE_CHECKPOINTS),
            extensions: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn committed(&self) -> usize {
        self.tokens.len()
    }

    /// KV cells in use: committed positions and positions in flight; siblings count separately.
    #[inline]
    pub(crate) fn kv_len(&self) -> usize {
        self.tokens.len() + self.in_flight.len()
    }

    /// The index among the positions in flight of a KV index.
    #[inline]
    pub(crate) fn in_flight_index(&self, kv_index: usize) -> Result<usize, StateError> {
        let index = kv_index.checked_sub(self.committed()).filter(|&index| index < self.in_flight.len());
        index.ok_or(StateError::NotInFlight { wanted: kv_index, in_flight: self.in_flight.len() })
    }

    /// Whether the positions in flight are a chain.
    #[inline]
    pub(crate) fn is_chain(&self) -> bool {
        // This holds if and only if all others are ancestors of the last.
        self.in_flight.last().is_none_or(|last| last.depth + 1 == self.in_flight.len())
    }

    /// A position in flight and its ancestors, itself first.
    #[inline]
    pub(crate) fn path_up(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(index), |&index| self.in_flight[index].parent)
    }

    /// The committed positions that a model has computed.
    pub(crate) fn computed_range(&self, model: ModelId) -> Range<usize> {
        match model.0.checked_sub(1) {
            None => 0..self.committed(),
            Some(draft) => self.computed_ranges[draft].clone(),
        }
    }

    /// The start of the range that a model has computed up to the last committed position; `None` if it has not computed that one.
    #[inline]
    pub(crate) fn computed_start(&self, model: ModelId) -> Option<usize> {
        let computed = self.computed_range(model);
        (computed.start < computed.end && computed.end == self.committed()).then_some(computed.start)
    }

    /// The start of the contiguous range that a model has computed up to a position in flight that it has computed.
    #[inline]
    pub(crate) fn start(&self, model: ModelId, index: usize) -> usize {
        let path = self.path_up(index).take_while(|&index| self.in_flight[index].computed_by.contains(model));
        let first = path.last().expect("the model has computed it");
        match self.in_flight[first].parent {
            None => self.computed_start(model).unwrap_or(self.committed()),
            Some(_) => self.committed() + self.in_flight[first].depth,
        }
    }

    /// The draft models that have computed all of these positions, and those that have computed at least one.
    pub(crate) fn drafts_that_computed(&self, positions: Range<usize>) -> [ModelSet; 2] {
        let these = |is: &dyn Fn(&Range<usize>) -> bool| {
            let computed = self.computed_ranges.iter().enumerate().filter(|(_, computed)| is(computed));
            computed.map(|(draft, _)| ModelId(draft + 1)).collect()
        };
        let all =
            |computed: &Range<usize>| computed.start <= positions.start && positions.end <= computed.end;
        let some = |computed: &Range<usize>| computed.start < positions.end && positions.start < computed.end;
        [these(&all), these(&some)]
    }

    /// Commits `len` rows, which were in flight and computed by the target, in this order.
    pub(crate) fn commit<'a>(&mut self, len: usize, row: &dyn Fn(usize) -> &'a InFlight) {
        let committed = self.committed();
        for row in (0..len).map(row) {
            // A row extends a draft model's computed range or starts a new one.
            for (draft, computed) in self.computed_ranges.iter_mut().enumerate() {
                if row.computed_by.contains(ModelId(draft + 1)) {
                    let at = self.tokens.len();
                    let start = if computed.end == at { computed.start } else { at };
                    *computed = start..at + 1;
                }
            }
            self.tokens.push(row.token.expect("computed by the target"));
        }
        let tokens = &self.tokens[committed..];
        if let Some(index) = tokens.iter().position(|&token| token == NOT_A_TOKEN) {
            self.cacheable_len = self.cacheable_len.min(committed + index);
        }
        if len > 0 {
            self.extensions.iter_mut().for_each(|extension| extension.commit(tokens));
        }
    }

    /// Invalidates what these models have computed at stale positions in flight and their descendants; with recurrent layers, also
    /// the states of rows that share a slot with these. `first` is the first stale one.
    #[inline]
    pub(crate) fn invalidate_stale(&mut self, first: usize, models: ModelSet, is_recurrent: bool) {
        let mut written = None;
        for index in first..self.in_flight.len() {
            // Parents come before their children.
            let follows = self.in_flight[index].parent.is_some_and(|parent| self.in_flight[parent].is_stale);
            if !(self.in_flight[index].is_stale || follows) {
                continue;
            }
            let row = &mut self.in_flight[index];
            let slot = row.slot.filter(|_| row.is_stale && is_recurrent);
            row.is_stale = true;
            row.computed_by = row.computed_by.without(models);
            row.state_valid_for = row.state_valid_for.without(models);
            if let Some(slot) = slot
                && written != Some(slot)
            {
                written = Some(slot);
                let sharing = self.in_flight.iter_mut().filter(|row| row.slot == Some(slot));
                sharing.for_each(|row| row.state_valid_for = row.state_valid_for.without(models));
            }
        }
        self.in_flight[first..].iter_mut().for_each(|row| row.is_stale = false);
    }

    /// The target computes this token at a position in flight.
    #[inline]
    pub(crate) fn set_token(&mut self, index: usize, token: u32) {
        let before = self.in_flight[index].token.replace(token);
        // Two embeddings may differ.
        if before.is_some_and(|before| before != token || token == NOT_A_TOKEN) {
            self.in_flight[index].is_stale = true;
            self.invalidate_stale(index, ModelSet::DRAFTS, false);
        }
    }

    /// A model has computed a position in flight.
    #[inline]
    pub(crate) fn set_computed(&mut self, index: usize, model: ModelId, is_recurrent: bool) {
        let slot = self.in_flight[index].slot.filter(|_| is_recurrent);
        if slot.is_some() {
            for row in self.in_flight.iter_mut().filter(|row| row.slot == slot) {
                row.state_valid_for.remove(model);
            }
            self.in_flight[index].state_valid_for.insert(model);
        }
        self.in_flight[index].computed_by.insert(model);
    }
}
