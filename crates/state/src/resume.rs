//! Prefix-cache hits: a sequence resumes from the longest prefix in the prefix tree.

use crate::prefix::{CachedEntry, Node, NodeId, digest_after};
use crate::sequence::Span;
use crate::{ModelId, NOT_A_TOKEN, SequenceId, State, StateError};
use std::ops::Range;
use verbatim_backend::{PAGE_CELLS, StateStore};

impl<S: StateStore> State<S> {
    /// Resumes an empty sequence from the longest prefix of `tokens` in the prefix cache; returns its length. Later results are
    /// bit-identical to those without the cache.
    ///
    /// # Errors
    /// If there is no such sequence or it is not empty.
    pub fn resume_prefix(&mut self, id: SequenceId, tokens: &[u32]) -> Result<usize, StateError> {
        let kv_indices = self.sequence(id)?.kv_len();
        if kv_indices > 0 {
            return Err(StateError::NotEmpty(kv_indices));
        }
        let known = tokens.iter().position(|&token| token == NOT_A_TOKEN).unwrap_or(tokens.len());
        let tokens = &tokens[..known.min(self.context)];
        let (mut path, partial) = self.tree.walk(tokens);
        let base = path.len() * PAGE_CELLS;
        let fits = |&&(node, matching): &&(NodeId, usize)| {
            let all = self.tree.node(node).tokens.len() == matching;
            self.can_resume(&path, Some(node), base + matching, all)
        };
        let mut len = base;
        if let Some(&(node, matching)) = partial.iter().find(fits) {
            path.push(node);
            len += matching;
        } else {
            while !path.is_empty() && !self.can_resume(&path, None, len, true) {
                path.pop();
                len -= PAGE_CELLS;
            }
        }
        self.resume_from(id, &path, &tokens[..len]);
        Ok(len)
    }

    /// Whether the pages that the target attends to at position `len`, and its recurrent state before that, are in the tree.
    /// `is_end`: the last node ends at `len`.
    fn can_resume(&self, path: &[NodeId], last: Option<NodeId>, len: usize, is_end: bool) -> bool {
        let nodes = || path.iter().copied().chain(last);
        let mut needed =
            self.groups.iter().enumerate().filter(|(_, group)| group.models.contains(ModelId::TARGET));
        let pages = needed.all(|(index, group)| {
            let first = group.first_visible(len) / PAGE_CELLS;
            nodes().skip(first).all(|node| self.tree.node(node).pages[index].is_some())
        });
        let has_state = |node: NodeId| is_end && self.tree.node(node).slot.is_some();
        pages && (!self.is_recurrent() || nodes().last().is_none_or(has_state))
    }

    fn resume_from(&mut self, id: SequenceId, path: &[NodeId], tokens: &[u32]) {
        let table_start = id.index * self.pages_per_sequence();
        let spans: Vec<Span> =
            (0..self.groups.len()).map(|group| self.resumed_span(group, path, tokens.len())).collect();
        for (index, span) in spans.iter().enumerate() {
            for (page_index, &node) in path.iter().enumerate().take(span.end).skip(span.first) {
                let page = self.tree.node(node).pages[index].expect("`resumed_span` has found it").id;
                self.pools[index].acquire(page);
                self.groups[index].table[table_start + page_index] = page;
                self.tree.touch(node, index);
            }
        }
        let last = path.last().map(|&node| (node, self.tree.node(node)));
        // A node's state is the one after its last token.
        let is_end = |node: &Node| (path.len() - 1) * PAGE_CELLS + node.tokens.len() == tokens.len();
        let state = last.filter(|(_, node)| is_end(node)).and_then(|(id, node)| Some((id, node.slot?)));
        if let Some((node, state)) = state {
            self.slots.acquire(state.id);
            self.tree.touch(node, self.groups.len());
        }
        let state = state.map(|(_, state)| state);
        let computed = self.drafts().map(|draft| self.resumed_range(draft, path, tokens.len(), state));
        let computed = computed.collect();
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        for page_tokens in tokens.chunks_exact(PAGE_CELLS) {
            let before = sequence.page_digests.last().unwrap_or(self.tree.model_digest());
            sequence.page_digests.push(digest_after(before, page_tokens));
        }
        sequence.tokens.extend(tokens);
        (sequence.spans, sequence.computed_ranges) = (spans, computed);
        sequence.slot = state.map(|state| state.id);
        for extension in &mut sequence.extensions {
            extension.reset(&sequence.tokens);
        }
        self.clip_computed(id);
    }

    /// The pages of a KV cache group that a sequence of this length takes from these nodes.
    fn resumed_span(&self, group: usize, path: &[NodeId], len: usize) -> Span {
        let first = (self.groups[group].first_visible(len) / PAGE_CELLS).min(path.len());
        let there =
            path[first..].iter().rev().take_while(|&&node| self.tree.node(node).pages[group].is_some());
        let first = path.len() - there.count();
        match first == path.len() {
            // A missing last page is allocated when positions are appended.
            true => Span { first: len / PAGE_CELLS, end: len / PAGE_CELLS, valid_from: len },
            false => Span { first, end: path.len(), valid_from: first * PAGE_CELLS },
        }
    }

    /// The last contiguous range that a draft model has computed, of the positions that a sequence takes from these nodes.
    fn resumed_range(
        &self,
        draft: ModelId,
        path: &[NodeId],
        len: usize,
        state: Option<CachedEntry>,
    ) -> Range<usize> {
        if self.models[draft.0].is_recurrent()
            && !state.is_some_and(|state| state.computed_by.contains(draft))
        {
            return 0..0;
        }
        let is_computed = |&page_index: &usize| {
            let own = self.groups.iter().zip(&self.tree.node(path[page_index]).pages);
            let mut own = own.filter(|(group, _)| group.models.contains(draft));
            own.all(|(group, page)| {
                let is_visible = page_index >= group.first_visible(len) / PAGE_CELLS;
                !is_visible || page.is_some_and(|page| page.computed_by.contains(draft))
            })
        };
        let computed_pages = (0..path.len()).rev().take_while(is_computed).count();
        (path.len() - computed_pages) * PAGE_CELLS..len
    }
}
