//! The prefix tree (the prefix cache): pages and recurrent states of ended sequences and of prefixes that several sequences may
//! share.
//!
//! A node holds the tokens of one page (fewer at the end of a sequence), the pages of their K and V and, if available, the slot
//! with the recurrent state after the last token. Pages and slots record which draft models have computed them; one that more draft
//! models have computed replaces one with fewer. Nodes are found by the digest of the model and all tokens up to
//! their last; a hit is verified token by token.

use crate::model::{Digest, ModelSet};
use crate::pool::Pool;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use verbatim_backend::PAGE_CELLS;

/// The digest of a prefix extended by `tokens`.
pub(crate) fn digest_after(before: &Digest, tokens: &[u32]) -> Digest {
    let mut hash = Sha256::new_with_prefix(before);
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().into()
}

pub(crate) type NodeId = usize;

/// A page or a slot in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedEntry {
    pub(crate) id: i32,
    /// The draft models that have computed the cells of all the node's tokens; for a slot, the models whose state it holds.
    pub(crate) computed_by: ModelSet,
}

pub(crate) struct Node {
    pub(crate) parent: Option<NodeId>,
    children: Vec<NodeId>,
    digest: Digest,
    /// 1 to [`PAGE_CELLS`] tokens; only full nodes have children.
    pub(crate) tokens: Vec<u32>,
    /// The page of each KV cache group; `None` if it has slid out of the window or was evicted.
    pub(crate) pages: Vec<Option<CachedEntry>>,
    /// The recurrent state after the last token.
    pub(crate) slot: Option<CachedEntry>,
    /// When each page, and last the slot, was added or used, for LRU eviction.
    used: Vec<u64>,
}

impl Node {
    fn is_full(&self) -> bool {
        self.tokens.len() == PAGE_CELLS
    }
}

pub(crate) struct PrefixTree {
    /// The digest of the target, from which the digests of the root nodes are computed.
    model_digest: Digest,
    nodes: Vec<Option<Node>>,
    free_list: Vec<NodeId>,
    index: HashMap<Digest, NodeId>,
    /// Nodes without a parent.
    roots: Vec<NodeId>,
    clock: u64,
}

impl PrefixTree {
    /// An empty tree for the model with this digest.
    pub(crate) fn new(model_digest: Digest) -> PrefixTree {
        let (nodes, free_list, index, roots) = (Vec::new(), Vec::new(), HashMap::new(), Vec::new());
        PrefixTree { model_digest, nodes, free_list, index, roots, clock: 0 }
    }

    pub(crate) fn model_digest(&self) -> &Digest {
        &self.model_digest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The node of a prefix with this digest, if it ends in these tokens.
    pub(crate) fn look_up(&self, digest: &Digest, last: &[u32]) -> Option<NodeId> {
        self.index.get(digest).copied().filter(|&id| self.node(id).tokens == last)
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect("the node exists")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect("the node exists")
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes.iter().enumerate().filter_map(|(id, node)| node.as_ref().map(|_| id))
    }

    pub(crate) fn children(&self, parent: Option<NodeId>) -> &[NodeId] {
        match parent {
            None => &self.roots,
            Some(parent) => &self.node(parent).children,
        }
    }

    /// The node of a prefix with this digest, if it has these tokens and this parent.
    pub(crate) fn find(&self, digest: &Digest, parent: Option<NodeId>, tokens: &[u32]) -> Option<NodeId> {
        let id = *self.index.get(digest)?;
        let node = self.node(id);
        (node.parent == parent && node.tokens == tokens).then_some(id)
    }

    /// The full nodes that match a prefix of `tokens`, then the children that match part of the rest, best first, each with the
    /// number of tokens that match.
    pub(crate) fn walk(&self, tokens: &[u32]) -> (Vec<NodeId>, Vec<(NodeId, usize)>) {
        let mut path = Vec::new();
        let mut digest = self.model_digest;
        for page_tokens in tokens.chunks_exact(PAGE_CELLS) {
            digest = digest_after(&digest, page_tokens);
            let Some(id) = self.find(&digest, path.last().copied(), page_tokens) else { break };
            path.push(id);
        }
        let rest = &tokens[path.len() * PAGE_CELLS..];
        let common_prefix_len = |&id: &NodeId| {
            let matching = self.node(id).tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
            (id, matching)
        };
        let mut partial: Vec<_> = self.children(path.last().copied()).iter().map(common_prefix_len).collect();
        partial.retain(|&(_, matching)| matching > 0);
        partial.sort_by_key(|&(id, matching)| (std::cmp::Reverse(matching), id));
        (path, partial)
    }

    /// Finds or adds a node and returns it. Sets the pages and the slot that it lacks, and replaces those that fewer models have
    /// computed.
    pub(crate) fn add(
        &mut self,
        parent: Option<NodeId>,
        tokens: &[u32],
        pages: &[Option<CachedEntry>],
        slot: Option<CachedEntry>,
        pools: &mut Pools<'_>,
    ) -> NodeId {
        debug_assert!((1..=PAGE_CELLS).contains(&tokens.len()));
        let before = parent.map_or(self.model_digest, |parent| self.node(parent).digest);
        let digest = digest_after(&before, tokens);
        let id = self.find(&digest, parent, tokens).unwrap_or_else(|| {
            let node = Node {
                parent,
                children: Vec::new(),
                digest,
                tokens: tokens.to_vec(),
                pages: vec![None; pages.len()],
                slot: None,
                used: vec![0; pages.len() + 1],
            };
            let id = self.free_list.pop().unwrap_or_else(|| {
                self.nodes.push(None);
                // Evicting allocates nothing.
                self.free_list.reserve(self.nodes.len());
                self.nodes.len() - 1
            });
            self.nodes[id] = Some(node);
            self.index.insert(digest, id);
            match parent {
                None => self.roots.push(id),
                Some(parent) => self.node_mut(parent).children.push(id),
            }
            id
        });
        self.clock += 1;
        let clock = self.clock;
        let node = self.node_mut(id);
        for (group, page) in pages.iter().enumerate() {
            update_entry(&mut node.pages[group], *page, &mut pools.pages[group]);
            node.used[group] = clock;
        }
        update_entry(&mut node.slot, slot, pools.slots);
        *node.used.last_mut().expect("one more than groups") = clock;
        id
    }

    /// Marks a page of a node, or its slot (`group` is then the number of groups), as used now.
    pub(crate) fn touch(&mut self, id: NodeId, group: usize) {
        self.clock += 1;
        let clock = self.clock;
        self.node_mut(id).used[group] = clock;
    }

    /// Evicts the least recently used page of this group that only the tree references. With full attention a page is useless
    /// without those before it, so leaves go first, with their nodes. `false` if there is none.
    pub(crate) fn evict_page(&mut self, group: usize, windowed: bool, pools: &mut Pools<'_>) -> bool {
        let pool = &pools.pages[group];
        let cached = |&id: &NodeId| self.node(id).pages[group].is_some_and(|page| pool.is_cached(page.id));
        // A node with children is evicted only if all of them are in use by sequences that have their own pages for it.
        let order = |&id: &NodeId| {
            let node = self.node(id);
            (!windowed && !node.children.is_empty(), node.used[group])
        };
        let Some(id) = self.ids().filter(cached).min_by_key(order) else { return false };
        // A sequence that continues from a node will need it as a parent.
        let node = self.node(id);
        let in_use =
            |(pool, page): (&Pool, &Option<CachedEntry>)| page.is_some_and(|page| !pool.is_cached(page.id));
        let is_wanted = windowed && pools.pages.iter().zip(&node.pages).any(in_use);
        if is_wanted || !node.children.is_empty() {
            let page = self.node_mut(id).pages[group].take().expect("filtered");
            pools.pages[group].release_from_tree(page.id);
        } else {
            self.remove(id, pools);
        }
        true
    }

    /// Evicts the least recently used recurrent state that only the tree references.
    pub(crate) fn evict_slot(&mut self, pools: &mut Pools<'_>) -> bool {
        let cached = |&id: &NodeId| self.node(id).slot.is_some_and(|slot| pools.slots.is_cached(slot.id));
        let used = |&id: &NodeId| *self.node(id).used.last().expect("one more than groups");
        let Some(id) = self.ids().filter(cached).min_by_key(used) else { return false };
        let slot = self.node_mut(id).slot.take().expect("filtered");
        pools.slots.release_from_tree(slot.id);
        true
    }

    /// Evicts everything that no sequence uses.
    pub(crate) fn clear(&mut self, pools: &mut Pools<'_>) {
        loop {
            let leaf = self.ids().find(|&id| self.node(id).children.is_empty());
            let Some(leaf) = leaf else { return };
            self.remove(leaf, pools);
        }
    }

    fn remove(&mut self, id: NodeId, pools: &mut Pools<'_>) {
        let node = self.nodes[id].take().expect("the node exists");
        debug_assert!(node.children.is_empty());
        for (pool, page) in pools.pages.iter_mut().zip(node.pages) {
            if let Some(page) = page {
                pool.release_from_tree(page.id);
            }
        }
        if let Some(slot) = node.slot {
            pools.slots.release_from_tree(slot.id);
        }
        self.index.remove(&node.digest);
        match node.parent {
            None => self.roots.retain(|&child| child != id),
            Some(parent) => self.node_mut(parent).children.retain(|&child| child != id),
        }
        self.free_list.push(id);
    }

    /// All nodes, for [`crate::State::integrity`].
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().flatten()
    }

    /// Whether the digests, the index and the parent links of all nodes are consistent.
    pub(crate) fn check(&self) -> Result<(), String> {
        for id in self.ids() {
            let node = self.node(id);
            let before = node.parent.map_or(self.model_digest, |parent| self.node(parent).digest);
            if digest_after(&before, &node.tokens) != node.digest || self.index.get(&node.digest) != Some(&id)
            {
                return Err(format!(
                    "node {id} of the prefix tree is not indexed by the digest of its tokens"
                ));
            }
            if self.children(node.parent).iter().filter(|&&child| child == id).count() != 1 {
                return Err(format!("node {id} of the prefix tree is not a child of its parent"));
            }
            if !node.children.is_empty() && !node.is_full() || node.tokens.is_empty() {
                return Err(format!(
                    "node {id} of the prefix tree has {} tokens and children",
                    node.tokens.len()
                ));
            }
        }
        let (live, indexed) = (self.ids().count(), self.index.len());
        if live != indexed {
            return Err(format!("{live} nodes in the prefix tree but {indexed} in its index"));
        }
        Ok(())
    }
}

/// Sets an entry if it is empty or fewer models have computed it.
fn update_entry(entry: &mut Option<CachedEntry>, new: Option<CachedEntry>, pool: &mut Pool) {
    let Some(new) = new else { return };
    match entry {
        Some(cached) if cached.id == new.id => cached.computed_by = cached.computed_by.union(new.computed_by),
        Some(cached)
            if cached.computed_by.contains_all(new.computed_by)
                || !new.computed_by.contains_all(cached.computed_by) => {}
        // It belongs to a different node.
        _ if pool.in_tree(new.id) => {}
        _ => {
            pool.acquire_in_tree(new.id);
            entry.replace(new).into_iter().for_each(|cached| pool.release_from_tree(cached.id));
        }
    }
}

/// The pools of pages and slots.
pub(crate) struct Pools<'a> {
    pub(crate) pages: &'a mut [Pool],
    pub(crate) slots: &'a mut Pool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelId;

    /// Two full nodes, one after the other, and one that is not full after these.
    fn tree() -> (PrefixTree, [NodeId; 3]) {
        let mut tree = PrefixTree::new([9; 32]);
        let (mut slots, mut pages) = (Pool::default(), []);
        let mut pools = Pools { pages: &mut pages, slots: &mut slots };
        let first = tree.add(None, &[1; PAGE_CELLS], &[], None, &mut pools);
        let second = tree.add(Some(first), &[2; PAGE_CELLS], &[], None, &mut pools);
        let last = tree.add(Some(second), &[3; 5], &[], None, &mut pools);
        (tree, [first, second, last])
    }

    /// Changes the tokens of a node, and its digest and index entry.
    fn retoken(tree: &mut PrefixTree, id: NodeId, tokens: &[u32]) {
        let before = tree.node(id).parent.map_or(tree.model_digest, |parent| tree.node(parent).digest);
        let (old, new) = (tree.node(id).digest, digest_after(&before, tokens));
        tree.index.remove(&old);
        tree.index.insert(new, id);
        (tree.node_mut(id).digest, tree.node_mut(id).tokens) = (new, tokens.to_vec());
    }

    #[test]
    fn the_check_detects_every_kind_of_inconsistency() {
        type Damage = fn(&mut PrefixTree, [NodeId; 3]);
        let damages: [(Damage, &str); 11] = [
            (
                |tree, [_, _, last]| tree.node_mut(last).tokens[0] = 4,
                "is not indexed by the digest of its tokens",
            ),
            (
                |tree, [first, ..]| tree.node_mut(first).digest = [0; 32],
                "is not indexed by the digest of its tokens",
            ),
            (
                |tree, [first, _, last]| {
                    let digest = tree.node(last).digest;
                    tree.index.insert(digest, first);
                },
                "is not indexed by the digest of its tokens",
            ),
            (|tree, _| tree.model_digest = [8; 32], "is not indexed by the digest of its tokens"),
            (|tree, _| tree.roots.clear(), "is not a child of its parent"),
            (|tree, [_, second, _]| tree.node_mut(second).children.clear(), "is not a child of its parent"),
            (
                |tree, [_, second, last]| tree.node_mut(second).children.push(last),
                "is not a child of its parent",
            ),
            (
                |tree, [_, second, last]| {
                    tree.node_mut(second).children.clear();
                    tree.roots.push(last);
                },
                "is not a child of its parent",
            ),
            (|tree, [_, _, last]| retoken(tree, last, &[]), "has 0 tokens and children"),
            (
                |tree, [_, second, last]| {
                    retoken(tree, second, &[2; PAGE_CELLS - 1]);
                    retoken(tree, last, &[3; 5]);
                },
                "has 63 tokens and children",
            ),
            (
                |tree, [first, ..]| {
                    tree.index.insert([0; 32], first);
                },
                "3 nodes in the prefix tree but 4 in its index",
            ),
        ];
        assert_eq!(tree().0.check(), Ok(()));
        for (index, (damage, what)) in damages.into_iter().enumerate() {
            let (mut tree, nodes) = tree();
            damage(&mut tree, nodes);
            let error = tree.check().expect_err("it is damaged");
            assert!(error.contains(what), "damage {index}: {error}");
        }
    }

    #[test]
    fn a_node_is_found_by_its_digest_and_used_for_its_own_tokens() {
        let (tree, [_, second, last]) = tree();
        let digest = tree.node(last).digest;
        assert_eq!(tree.find(&digest, Some(second), &[3; 5]), Some(last));
        assert_eq!(tree.find(&digest, None, &[3; 5]), None);
        assert_eq!(tree.find(&digest, Some(second), &[3; 4]), None);
        assert_eq!((tree.look_up(&digest, &[3; 5]), tree.look_up(&digest, &[4; 5])), (Some(last), None));
    }

    #[test]
    fn an_entry_is_replaced_by_one_that_more_models_have_computed() {
        let set = |models: &[usize]| models.iter().map(|&model| ModelId(model)).collect::<ModelSet>();
        let kept = |(id, models): (i32, &[usize])| CachedEntry { id, computed_by: set(models) };
        // An entry, the one offered and the result. 0 is the entry's own id, 1 that of a different node.
        type Offer =
            (Option<(i32, &'static [usize])>, (i32, &'static [usize]), Option<(i32, &'static [usize])>);
        let offers: [Offer; 7] = [
            (Some((0, &[1])), (0, &[2]), Some((0, &[1, 2]))),
            (Some((0, &[1])), (2, &[1]), Some((0, &[1]))),
            (Some((0, &[1])), (2, &[2]), Some((0, &[1]))),
            (Some((0, &[1])), (2, &[1, 2]), Some((2, &[1, 2]))),
            (Some((0, &[1])), (1, &[1, 2]), Some((0, &[1]))),
            (None, (2, &[]), Some((2, &[]))),
            (None, (1, &[]), None),
        ];
        for (before, offered, after) in offers {
            let mut pool = Pool::new(3).unwrap();
            for id in 0..3 {
                assert_eq!(pool.take(), Some(id));
            }
            before.iter().for_each(|&(id, _)| pool.acquire_in_tree(id));
            pool.acquire_in_tree(1);
            let mut entry = before.map(kept);
            update_entry(&mut entry, Some(kept(offered)), &mut pool);
            assert_eq!(entry, after.map(kept), "{before:?} was offered {offered:?}");
            let in_tree = |id: i32| id == 1 || after.is_some_and(|(own, _)| own == id);
            assert!((0..3).all(|id| pool.in_tree(id) == in_tree(id)), "{before:?} was offered {offered:?}");
        }
    }

    #[test]
    fn adding_a_node_again_marks_it_as_used() {
        let mut tree = PrefixTree::new([9; 32]);
        let (mut slots, mut pages) = (Pool::default(), [Pool::new(3).unwrap()]);
        let mut pools = Pools { pages: &mut pages, slots: &mut slots };
        let add = |tree: &mut PrefixTree, pools: &mut Pools<'_>, id: i32| {
            let page = CachedEntry { id, computed_by: ModelSet::default() };
            tree.add(None, &[id as u32; 5], &[Some(page)], None, pools)
        };
        for id in 0..3 {
            assert_eq!(pools.pages[0].take(), Some(id));
            add(&mut tree, &mut pools, id);
        }
        add(&mut tree, &mut pools, 0);
        (0..3).for_each(|id| pools.pages[0].release(id));
        let mut evicted = Vec::new();
        while tree.evict_page(0, false, &mut pools) {
            evicted.extend((0..3).find(|id| !evicted.contains(id) && !pools.pages[0].in_tree(*id)));
        }
        assert_eq!(evicted, [1, 2, 0]);
    }

    #[test]
    fn a_walk_finds_full_nodes_and_then_the_longest_partial_matches() {
        let (mut tree, [first, second, last]) = tree();
        let (mut slots, mut pages) = (Pool::default(), []);
        let mut pools = Pools { pages: &mut pages, slots: &mut slots };
        let longer = tree.add(Some(second), &[3; 9], &[], None, &mut pools);
        let other = tree.add(Some(second), &[3, 3, 4], &[], None, &mut pools);
        let stranger = tree.add(Some(second), &[4], &[], None, &mut pools);
        let text = [&[1; PAGE_CELLS][..], &[2; PAGE_CELLS], &[3; 7]].concat();
        let walk = |text: &[u32]| tree.walk(text);
        assert_eq!(walk(&text), (vec![first, second], vec![(longer, 7), (last, 5), (other, 2)]));
        assert_eq!(walk(&text[..2 * PAGE_CELLS]), (vec![first, second], vec![]));
        assert_eq!(walk(&text[..2 * PAGE_CELLS - 1]), (vec![first], vec![(second, PAGE_CELLS - 1)]));
        assert_eq!(walk(&text[PAGE_CELLS..]), (vec![], vec![]));
        assert_eq!(tree.children(Some(second)), [last, longer, other, stranger]);
        // The id of a removed node is reused.
        tree.remove(last, &mut pools);
        assert_eq!(tree.walk(&text).1, [(longer, 7), (other, 2)]);
        assert_eq!(tree.add(Some(second), &[5], &[], None, &mut pools), last);
        assert_eq!(tree.check(), Ok(()));
        tree.clear(&mut pools);
        assert!(tree.is_empty() && tree.nodes().next().is_none());
    }
}
