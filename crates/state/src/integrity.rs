//! Whether the bookkeeping balances.

use crate::prefix::{Node, digest_after};
use crate::{State, pages_for};
use verbatim_backend::{PAGE_CELLS, StateStore};

impl<S: StateStore> State<S> {
    /// Whether every page and slot is held by those that say so and is free otherwise, every sequence has the pages of the
    /// positions that are still seen, and the prefix tree is what its digests say. Tests call it after every operation, and
    /// [`State::end`] when no sequence is left.
    ///
    /// # Errors
    /// What does not agree, in words.
    pub fn integrity(&self) -> Result<(), String> {
        let blocks = self.blocks();
        for (index, (group, pool)) in self.groups.iter().zip(&self.pools).enumerate() {
            let held = group.table.iter().copied().filter(|&page| page >= 0);
            let kept = self.tree.nodes().filter_map(|node: &Node| node.pages[index]);
            pool.check("page", held, kept)?;
            if pool.cached() > group.cache_pages {
                return Err(format!("{} pages are cached, not {}", pool.cached(), group.cache_pages));
            }
            for (row, table) in group.table.chunks(blocks.max(1)).enumerate() {
                let sequence = self.sequences.get(row).and_then(Option::as_ref);
                let (span, needed) = match sequence {
                    None => ((0, 0), (0, 0)),
                    Some(sequence) => {
                        let first = group.first_seen(sequence.committed()) / PAGE_CELLS;
                        let end = pages_for(sequence.places());
                        let span = sequence.spans[index];
                        ((span.first, span.end), (first.min(end), end))
                    }
                };
                if let Some(sequence) = sequence {
                    let (whole, seen) =
                        (sequence.spans[index].whole_from, group.first_seen(sequence.committed()));
                    if whole > seen || whole < span.0 * PAGE_CELLS {
                        return Err(format!("sequence {row} has positions from {whole} on and sees {seen}"));
                    }
                }
                let has = |block: usize| table[block] >= 0;
                if (0..blocks).any(|block| has(block) != (span.0..span.1).contains(&block)) {
                    return Err(format!("sequence {row} says to have pages {span:?} and has {table:?}"));
                }
                if needed.0 < span.0 || needed.1 != span.1 {
                    return Err(format!("sequence {row} needs pages {needed:?} and has {span:?}"));
                }
            }
        }
        let live = || self.sequences.iter().flatten();
        let slots = live()
            .flat_map(|sequence| sequence.flight.iter().map(|row| row.slot).chain([sequence.slot]).flatten());
        self.slots.check("slot", slots, self.tree.nodes().filter_map(|node| node.slot))?;
        self.tree.check()?;
        for sequence in live() {
            let full = sequence.committed().min(sequence.exact_prefix_len) / PAGE_CELLS;
            if sequence.chain.len() != full {
                return Err(format!("{} digests of {full} full pages", sequence.chain.len()));
            }
            let mut digest = *self.tree.root();
            for (block, kept) in sequence.tokens.chunks_exact(PAGE_CELLS).zip(&sequence.chain) {
                digest = digest_after(&digest, block);
                if digest != *kept {
                    return Err("a digest is not that of the sequence's tokens".into());
                }
            }
            if self.recurs() && sequence.slot.is_some() != (sequence.committed() > 0) {
                return Err(format!("state {:?} after {} positions", sequence.slot, sequence.committed()));
            }
        }
        Ok(())
    }
}
