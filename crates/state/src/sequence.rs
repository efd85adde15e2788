//! One sequence's cache metadata.

use crate::owner::{Digest, OwnerSet};
use crate::{CHECKPOINTS, Extension, OwnerId, StateError};
use std::ops::Range;
use verbatim_backend::PAGE_CELLS;

/// Stands in a sequence's tokens for a position whose input was an embedding. The sequence from there on is not added to the
/// prefix tree and is not found there.
pub const NOT_A_TOKEN: u32 = u32::MAX;

/// A position in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    /// Its parent among the positions in flight; `None` for the last committed position.
    pub(crate) parent: Option<usize>,
    /// Positions in flight before it on its path.
    pub(crate) depth: usize,
    /// The token that the target was given last.
    pub(crate) token: Option<u32>,
    /// Who has computed it.
    pub(crate) computed: OwnerSet,
    /// Where its recurrent state goes.
    pub(crate) slot: Option<i32>,
    /// The owners whose state in the slot is this position's, not that of a later one that shares it.
    pub(crate) kept: OwnerSet,
    /// It is to be recomputed; only within [`crate::State::begin_compute`].
    pub(crate) is_stale: bool,
}

/// Blocks of positions that a sequence has pages for, in one KV cache group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// The first position whose cell is valid: the first page may begin with positions that a sliding window has left.
    pub(crate) whole_from: usize,
}

pub(crate) struct Sequence {
    pub(crate) generation: u64,
    /// What is committed.
    pub(crate) tokens: Vec<u32>,
    /// The prefix digest after each full page of the exact prefix.
    pub(crate) chain: Vec<Digest>,
    /// Length of the prefix whose K and V depend on its tokens alone: it ends at the first removed position or embedding input.
    /// `usize::MAX` for all.
    pub(crate) exact_prefix_len: usize,
    /// Positions removed by [`State::remove_and_shift`].
    pub(crate) removed: usize,
    /// For each draft, the last contiguous range of committed positions whose cells, and the recurrent state after the last of them,
    /// it has computed.
    pub(crate) filled: Vec<Range<usize>>,
    /// By KV cache group.
    pub(crate) spans: Vec<Span>,
    /// The recurrent state after the last committed position.
    pub(crate) slot: Option<i32>,
    pub(crate) flight: Vec<InFlight>,
    pub(crate) extensions: Vec<Box<dyn Extension>>,
}

impl Sequence {
    /// An empty one, with capacity for so many positions: growing allocates nothing.
    pub(crate) fn new(generation: u64, groups: usize, drafts: usize, context: usize) -> Sequence {
        Sequence {
            generation,
            tokens: Vec::with_capacity(context),
            chain: Vec::with_capacity(context / PAGE_CELLS),
            exact_prefix_len: usize::MAX,
            removed: 0,
            filled: vec![0..0; drafts],
            spans: vec![Span::default(); groups],
            slot: None,
            flight: Vec::with_capacity(CHECKPOINTS),
            extensions: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn committed(&self) -> usize {
        self.tokens.len()
    }

    /// KV slots in use: positions committed and in flight, siblings counted one by one.
    #[inline]
    pub(crate) fn kv_len(&self) -> usize {
        self.tokens.len() + self.flight.len()
    }

    /// The index of a KV index among those in flight.
    #[inline]
    pub(crate) fn in_flight(&self, kv_index: usize) -> Result<usize, StateError> {
        let index = kv_index.checked_sub(self.committed()).filter(|&index| index < self.flight.len());
        index.ok_or(StateError::NotInFlight { wanted: kv_index, in_flight: self.flight.len() })
    }

    /// Whether the positions in flight are a chain.
    #[inline]
    pub(crate) fn is_chain(&self) -> bool {
        // Then, and only then, all others come before the last on its path.
        self.flight.last().is_none_or(|last| last.depth + 1 == self.flight.len())
    }

    /// A position in flight and its ancestors, itself first.
    #[inline]
    pub(crate) fn path_up(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(index), |&index| self.flight[index].parent)
    }

    /// The committed positions that an owner has filled.
    pub(crate) fn filled(&self, owner: OwnerId) -> Range<usize> {
        match owner.0.checked_sub(1) {
            None => 0..self.committed(),
            Some(draft) => self.filled[draft].clone(),
        }
    }

    /// The start of the range that an owner has filled up to the last committed position; `None` if it has not filled that.
    #[inline]
    pub(crate) fn filled_before_flight(&self, owner: OwnerId) -> Option<usize> {
        let filled = self.filled(owner);
        (filled.start < filled.end && filled.end == self.committed()).then_some(filled.start)
    }

    /// The start of the contiguous range that an owner has filled up to a position in flight that it has computed.
    #[inline]
    pub(crate) fn start(&self, owner: OwnerId, index: usize) -> usize {
        let path = self.path_up(index).take_while(|&index| self.flight[index].computed.contains(owner));
        let first = path.last().expect("the owner has computed it");
        match self.flight[first].parent {
            None => self.filled_before_flight(owner).unwrap_or(self.committed()),
            Some(_) => self.committed() + self.flight[first].depth,
        }
    }

    /// The drafts that have filled all of these positions, and those that have filled some.
    pub(crate) fn drafts_that_filled(&self, positions: Range<usize>) -> [OwnerSet; 2] {
        let these = |is: &dyn Fn(&Range<usize>) -> bool| {
            let filled = self.filled.iter().enumerate().filter(|(_, filled)| is(filled));
            filled.map(|(draft, _)| OwnerId(draft + 1)).collect()
        };
        let all = |filled: &Range<usize>| filled.start <= positions.start && positions.end <= filled.end;
        let some = |filled: &Range<usize>| filled.start < positions.end && positions.start < filled.end;
        [these(&all), these(&some)]
    }

    /// Commits these rows, which were in flight and computed by the target, one after the other.
    pub(crate) fn commit<'a>(&mut self, len: usize, row: &dyn Fn(usize) -> &'a InFlight) {
        let committed = self.committed();
        for row in (0..len).map(row) {
            // They extend the range that a draft has filled, or start a new one.
            for (draft, filled) in self.filled.iter_mut().enumerate() {
                if row.computed.contains(OwnerId(draft + 1)) {
                    let at = self.tokens.len();
                    let start = if filled.end == at { filled.start } else { at };
                    *filled = start..at + 1;
                }
            }
            self.tokens.push(row.token.expect("the target has computed it"));
        }
        let tokens = &self.tokens[committed..];
        if let Some(index) = tokens.iter().position(|&token| token == NOT_A_TOKEN) {
            self.exact_prefix_len = self.exact_prefix_len.min(committed + index);
        }
        if len > 0 {
            self.extensions.iter_mut().for_each(|extension| extension.commit(tokens));
        }
    }

    /// Invalidates what these owners have computed at stale positions in flight and their descendants; with recurrent layers, also
    /// the states that share a slot with these. `first` is the first stale one.
    #[inline]
    pub(crate) fn lose_stale(&mut self, first: usize, owners: OwnerSet, is_recurrent: bool) {
        let mut written = None;
        for index in first..self.flight.len() {
            // Parents come before their children.
            let follows = self.flight[index].parent.is_some_and(|parent| self.flight[parent].is_stale);
            if !(self.flight[index].is_stale || follows) {
                continue;
            }
            let row = &mut self.flight[index];
            let slot = row.slot.filter(|_| row.is_stale && is_recurrent);
            row.is_stale = true;
            row.computed = row.computed.without(owners);
            row.kept = row.kept.without(owners);
            if let Some(slot) = slot
                && written != Some(slot)
            {
                written = Some(slot);
                let sharing = self.flight.iter_mut().filter(|row| row.slot == Some(slot));
                sharing.for_each(|row| row.kept = row.kept.without(owners));
            }
        }
        self.flight[first..].iter_mut().for_each(|row| row.is_stale = false);
    }

    /// The target computes this token at a position in flight.
    #[inline]
    pub(crate) fn set_token(&mut self, index: usize, token: u32) {
        let before = self.flight[index].token.replace(token);
        // One embedding is not like another.
        if before.is_some_and(|before| before != token || token == NOT_A_TOKEN) {
            self.flight[index].is_stale = true;
            self.lose_stale(index, OwnerSet::DRAFTS, false);
        }
    }

    /// An owner has computed a position in flight.
    #[inline]
    pub(crate) fn set_computed(&mut self, index: usize, owner: OwnerId, is_recurrent: bool) {
        let slot = self.flight[index].slot.filter(|_| is_recurrent);
        if slot.is_some() {
            for row in self.flight.iter_mut().filter(|row| row.slot == slot) {
                row.kept.remove(owner);
            }
            self.flight[index].kept.insert(owner);
        }
        self.flight[index].computed.insert(owner);
    }
}
