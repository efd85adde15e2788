//! Consistency checks of the cache metadata.

use crate::prefix::{Node, digest_after};
use crate::sequence::{Sequence, Span};
use crate::{ModelId, NOT_A_TOKEN, State, pages_for};
use verbatim_backend::{PAGE_CELLS, StateStore};

impl<S: StateStore> State<S> {
    /// Checks that every reference count is right, every sequence has the pages of the positions inside the window, and the prefix
    /// tree matches its digests. Tests call it after every operation, and [`State::end`] when no sequence is left.
    ///
    /// # Errors
    /// A description of the inconsistency.
    pub fn integrity(&self) -> Result<(), String> {
        let per_sequence = self.pages_per_sequence();
        for (index, (group, pool)) in self.groups.iter().zip(&self.pools).enumerate() {
            let held = group.table.iter().copied().filter(|&page| page >= 0);
            let in_tree = self.tree.nodes().filter_map(|node: &Node| node.pages[index].map(|page| page.id));
            pool.check("page", held, in_tree)?;
            if pool.cached() > group.cache_pages {
                return Err(format!("{} pages are cached, not {}", pool.cached(), group.cache_pages));
            }
            for (sequence_index, table) in group.table.chunks(per_sequence.max(1)).enumerate() {
                let span = match self.sequences.get(sequence_index).and_then(Option::as_ref) {
                    None => Span::default(),
                    Some(sequence) => {
                        self.check_span(index, sequence)
                            .map_err(|what| format!("sequence {sequence_index} {what}"))?;
                        sequence.spans[index]
                    }
                };
                let has = |page_index: usize| table[page_index] >= 0;
                if (0..per_sequence)
                    .any(|page_index| has(page_index) != (span.first..span.end).contains(&page_index))
                {
                    return Err(format!(
                        "sequence {sequence_index}: {span:?} does not match its page table {table:?}"
                    ));
                }
            }
        }
        let live = || self.sequences.iter().flatten();
        let slots = live().flat_map(|sequence| {
            sequence.in_flight.iter().map(|row| row.slot).chain([sequence.slot]).flatten()
        });
        self.slots.check(
            "slot",
            slots,
            self.tree.nodes().filter_map(|node| node.slot.map(|slot| slot.id)),
        )?;
        self.tree.check()?;
        for sequence in live() {
            let full = sequence.committed().min(sequence.cacheable_len) / PAGE_CELLS;
            if sequence.page_digests.len() != full {
                return Err(format!("{} page digests for {full} full pages", sequence.page_digests.len()));
            }
            let mut digest = *self.tree.model_digest();
            for (page_tokens, stored) in sequence.tokens.chunks_exact(PAGE_CELLS).zip(&sequence.page_digests)
            {
                digest = digest_after(&digest, page_tokens);
                if digest != *stored {
                    return Err("a page digest does not match the sequence's tokens".into());
                }
            }
            if self.is_recurrent() && sequence.slot.is_some() != (sequence.committed() > 0) {
                return Err(format!(
                    "recurrent state {:?} after {} positions",
                    sequence.slot,
                    sequence.committed()
                ));
            }
            let exact = &sequence.tokens[..sequence.committed().min(sequence.cacheable_len)];
            if exact.contains(&NOT_A_TOKEN) {
                return Err("the cacheable prefix contains an embedding".into());
            }
            self.drafts().try_for_each(|draft| self.check_computed(sequence, draft))?;
        }
        Ok(())
    }

    /// Whether a sequence has the pages that it needs in a KV cache group.
    fn check_span(&self, group: usize, sequence: &Sequence) -> Result<(), String> {
        let (span, group) = (sequence.spans[group], &self.groups[group]);
        let committed = sequence.committed();
        let (first_visible, end) = (group.first_visible(committed), pages_for(sequence.kv_len()));
        let is_targets = group.models.contains(ModelId::TARGET);
        let valid = span.first * PAGE_CELLS..=if is_targets { first_visible } else { committed };
        if !valid.contains(&span.valid_from) {
            return Err(format!("has valid_from {}, which is not in {valid:?}", span.valid_from));
        }
        // In groups without the target, pages that no draft model has computed may be missing.
        let is_missing = !is_targets && sequence.in_flight.is_empty() && span.first == committed / PAGE_CELLS;
        if span.end != end && !(is_missing && span.end == span.first) {
            return Err(format!("needs pages from position {first_visible} to page {end}, but has {span:?}"));
        }
        Ok(())
    }

    /// Whether the cells and the state of a draft model's computed range exist.
    fn check_computed(&self, sequence: &Sequence, draft: ModelId) -> Result<(), String> {
        let (computed, committed) = (sequence.computed_range(draft), sequence.committed());
        if computed.is_empty() && computed != (0..0) || computed.end > committed {
            return Err(format!("a draft model has computed {computed:?} of {committed} positions"));
        }
        for (group, span) in self.groups.iter().zip(&sequence.spans) {
            let first = computed.start.max(group.first_visible(committed));
            if group.models.contains(draft) && first < computed.end && first < span.valid_from {
                return Err(format!(
                    "a draft model has computed {computed:?}, but valid cells begin at {}",
                    span.valid_from
                ));
            }
        }
        let has_state = self.models[draft.0].is_recurrent() && sequence.computed_start(draft).is_some();
        if has_state && sequence.slot.is_none() {
            return Err(format!(
                "a draft model has computed {computed:?}, but its recurrent state is missing"
            ));
        }
        Ok(())
    }
}
