//! Beginning with what was computed before: the longest beginning of a text that the prefix tree holds.

use crate::prefix::{NodeId, digest_after};
use crate::sequence::Span;
use crate::{NOT_A_TOKEN, SequenceId, State, StateError};
use verbatim_backend::{PAGE_CELLS, StateStore};

impl<S: StateStore> State<S> {
    /// Lets an empty sequence begin with as much of `tokens` as was computed before and is still there; returns how many.
    /// Whatever it is, what follows has the same bits as if nothing had been there.
    ///
    /// # Errors
    /// If there is no such sequence or it is not empty.
    pub fn reuse(&mut self, id: SequenceId, tokens: &[u32]) -> Result<usize, StateError> {
        let places = self.sequence(id)?.places();
        if places > 0 {
            return Err(StateError::NotEmpty(places));
        }
        let known = tokens.iter().position(|&token| token == NOT_A_TOKEN).unwrap_or(tokens.len());
        let tokens = &tokens[..known.min(self.context)];
        let (mut path, partial) = self.tree.walk(tokens);
        let base = path.len() * PAGE_CELLS;
        let fits = |&&(node, agree): &&(NodeId, usize)| {
            let all = self.tree.node(node).tokens.len() == agree;
            self.can_begin(&path, Some(node), base + agree, all)
        };
        let mut len = base;
        if let Some(&(node, agree)) = partial.iter().find(fits) {
            path.push(node);
            len += agree;
        } else {
            while !path.is_empty() && !self.can_begin(&path, None, len, true) {
                path.pop();
                len -= PAGE_CELLS;
            }
        }
        self.begin_with(id, &path, &tokens[..len]);
        Ok(len)
    }

    /// Whether the pages that the position `len` sees, and the state before it, are there. `is_end`: the last node ends there.
    fn can_begin(&self, path: &[NodeId], last: Option<NodeId>, len: usize, is_end: bool) -> bool {
        let nodes: Vec<NodeId> = path.iter().copied().chain(last).collect();
        let pages = self.groups.iter().enumerate().all(|(index, group)| {
            let first = group.first_seen(len) / PAGE_CELLS;
            nodes.iter().skip(first).all(|&node| self.tree.node(node).pages[index].is_some())
        });
        let state = nodes.last().is_none_or(|&node| self.tree.node(node).slot.is_some() && is_end);
        pages && (!self.recurs() || state)
    }

    fn begin_with(&mut self, id: SequenceId, path: &[NodeId], tokens: &[u32]) {
        let (row, blocks) = (id.index * self.blocks(), path.len());
        let mut spans = Vec::new();
        for (index, group) in self.groups.iter_mut().enumerate() {
            let first = (group.first_seen(tokens.len()) / PAGE_CELLS).min(blocks);
            for (block, &node) in path.iter().enumerate().skip(first) {
                let page = self.tree.node(node).pages[index].expect("asked for before");
                self.pools[index].acquire(page);
                group.table[row + block] = page;
                self.tree.touch(node, index);
            }
            spans.push(Span { first, end: blocks, whole_from: first * PAGE_CELLS });
        }
        let slot = path.last().and_then(|&node| self.tree.node(node).slot).filter(|_| self.has_slots());
        if let (Some(slot), Some(&node)) = (slot, path.last()) {
            self.slots.acquire(slot);
            self.tree.touch(node, self.groups.len());
        }
        let mut chain = Vec::new();
        for block in tokens.chunks_exact(PAGE_CELLS) {
            chain.push(digest_after(chain.last().unwrap_or(self.tree.root()), block));
        }
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        (sequence.tokens, sequence.chain, sequence.spans) = (tokens.to_vec(), chain, spans);
        sequence.slot = slot;
        for extension in &mut sequence.extensions {
            extension.reset(&sequence.tokens);
        }
    }
}
