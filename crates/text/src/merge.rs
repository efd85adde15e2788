//! The merge loop that byte-level BPE and SentencePiece share: again and again merge the adjacent pair with the
//! best priority, the leftmost of equals, until no pair can be merged.
//!
//! A queue of candidate pairs makes this `n log n` in the number of symbols, so that a megabyte of one letter is
//! as unremarkable as any other megabyte.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The id of a symbol that is not in the vocabulary.
pub(crate) const NO_TOKEN: u32 = u32::MAX;
const NO_SYMBOL: usize = usize::MAX;

/// A stretch of the text being encoded, and the token it is so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    /// Where it starts in the text, in bytes.
    pub start: usize,
    /// Its length in bytes; 0 once it has been merged into the symbol on its left.
    pub len: usize,
    /// Its token, or [`NO_TOKEN`].
    pub id: u32,
    previous: usize,
    next: usize,
}

/// The result of merging an adjacent pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Merge {
    /// Lower is sooner.
    pub priority: u32,
    /// The resulting token.
    pub id: u32,
}

/// An adjacent pair that can be merged. The order of the fields is the order in which pairs are merged.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: usize,
    right: usize,
    /// The length of the result in bytes. It changes whenever either side does, which unmasks outdated candidates.
    len: usize,
    id: u32,
}

/// The state of the loop; reused from one piece of text to the next to save allocations.
#[derive(Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets the last piece of text.
    pub fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends the next `len` bytes of the text as one symbol.
    pub fn push(&mut self, len: usize, id: u32) {
        let index = self.symbols.len();
        let (start, previous) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = index;
                (last.start + last.len, index - 1)
            }
            None => (0, NO_SYMBOL),
        };
        self.symbols.push(Symbol { start, len, id, previous, next: NO_SYMBOL });
    }

    /// Joins pairs until `rule` allows no more.
    pub fn run(&mut self, rule: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        for left in 1..self.symbols.len() {
            self.consider(left - 1, left, &rule);
        }
        while let Some(Reverse(candidate)) = self.queue.pop() {
            let (left, right) = (self.symbols[candidate.left], self.symbols[candidate.right]);
            let outdated = left.len == 0 || right.len == 0 || left.len + right.len != candidate.len;
            if outdated {
                continue;
            }
            self.symbols[candidate.left].len = candidate.len;
            self.symbols[candidate.left].id = candidate.id;
            self.symbols[candidate.left].next = right.next;
            self.symbols[candidate.right].len = 0;
            if right.next != NO_SYMBOL {
                self.symbols[right.next].previous = candidate.left;
                self.consider(candidate.left, right.next, &rule);
            }
            if left.previous != NO_SYMBOL {
                self.consider(left.previous, candidate.left, &rule);
            }
        }
    }

    /// The symbols that are left, in text order.
    pub fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }

    fn consider(&mut self, left: usize, right: usize, rule: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let (l, r) = (&self.symbols[left], &self.symbols[right]);
        if let Some(Merge { priority, id }) = rule(l, r) {
            self.queue.push(Reverse(Candidate { priority, left, right, len: l.len + r.len, id }));
        }
    }
}
