//! One sequence's books.

use crate::prefix::Digest;
use crate::{CHECKPOINTS, Part};
use verbatim_cpu::PAGE_CELLS;

/// A position in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    /// The one in flight that it follows; the last committed position if `None`.
    pub(crate) parent: Option<usize>,
    /// Positions in flight before it on its path.
    pub(crate) depth: usize,
    /// The token, once it is computed.
    pub(crate) token: Option<u32>,
    /// Where its recurrent state goes.
    pub(crate) slot: Option<i32>,
    /// The slot holds its state, not that of a later position that shares it.
    pub(crate) is_kept: bool,
}

/// Blocks of positions that a sequence has pages for, in one kind of layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: usize,
    pub(crate) end: usize,
    /// The first position whose cell holds its K and V: the first page may begin with some that a window has left.
    pub(crate) whole_from: usize,
}

pub(crate) struct Sequence {
    pub(crate) generation: u64,
    /// What is committed.
    pub(crate) tokens: Vec<u32>,
    /// The digest of the text after each full page, as far as it is plain.
    pub(crate) chain: Vec<Digest>,
    /// Positions from the start on whose K and V are those of the tokens alone: from where others were removed on, they
    /// are not.
    pub(crate) plain: usize,
    /// Positions that were removed from the middle.
    pub(crate) removed: usize,
    /// For each kind of layer.
    pub(crate) spans: Vec<Span>,
    /// The recurrent state after the last committed position.
    pub(crate) slot: Option<i32>,
    pub(crate) flight: Vec<InFlight>,
    pub(crate) parts: Vec<Box<dyn Part>>,
}

impl Sequence {
    /// An empty one, with room for the books of so many positions: growing allocates nothing.
    pub(crate) fn new(generation: u64, groups: usize, context: usize) -> Sequence {
        Sequence {
            generation,
            tokens: Vec::with_capacity(context),
            chain: Vec::with_capacity(context / PAGE_CELLS),
            plain: usize::MAX,
            removed: 0,
            spans: vec![Span::default(); groups],
            slot: None,
            flight: Vec::with_capacity(CHECKPOINTS),
            parts: Vec::new(),
        }
    }

    pub(crate) fn committed(&self) -> usize {
        self.tokens.len()
    }

    /// Positions committed and in flight, siblings counted one by one.
    pub(crate) fn places(&self) -> usize {
        self.tokens.len() + self.flight.len()
    }

    /// Whether the positions in flight follow each other.
    pub(crate) fn is_chain(&self) -> bool {
        // Then, and only then, all others come before the last on its path.
        self.flight.last().is_none_or(|last| last.depth + 1 == self.flight.len())
    }

    /// Whether the state before a position in flight is there, so that it can be computed.
    pub(crate) fn can_compute(&self, index: usize) -> bool {
        match self.flight.get(index).map(|row| row.parent) {
            None => false,
            Some(None) => true,
            Some(Some(parent)) => self.flight[parent].token.is_some() && self.flight[parent].is_kept,
        }
    }

    /// A position in flight and those after it are to be computed, perhaps again.
    pub(crate) fn forget_from(&mut self, index: usize) {
        for i in index..self.flight.len() {
            // Parents come before their children, so those that are stale have lost their tokens.
            let parent = self.flight[i].parent.filter(|&parent| parent >= index);
            if i == index || parent.is_some_and(|parent| self.flight[parent].token.is_none()) {
                self.flight[i].token = None;
                self.flight[i].is_kept = false;
            }
        }
    }

    /// A position in flight was computed.
    pub(crate) fn set_computed(&mut self, index: usize, token: u32) {
        let slot = self.flight[index].slot;
        if slot.is_some() {
            for row in self.flight.iter_mut().filter(|row| row.slot == slot) {
                row.is_kept = false;
            }
        }
        let row = &mut self.flight[index];
        row.token = Some(token);
        row.is_kept = true;
    }
}
