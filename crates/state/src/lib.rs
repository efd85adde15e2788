//! Sequence state: which positions of which sequence live in which cells of the backend's memory.
//!
//! **A sequence grows in transactions.** [`State::append`] (a chain) or [`State::append_tree`] reserves places for positions
//! in flight, steps store their K and V, and [`State::commit`] or [`State::commit_path`] keeps those along one path;
//! [`State::rollback`] drops them all. Nothing that was committed is touched by any of it, so a step that fails, or drafts that
//! are rejected, leave a sequence as it was. What other crates keep per sequence takes part as a [`Part`].
//!
//! **Kinds of layers** have pages of their own, [`PAGE_CELLS`] positions each: those that see all positions, and those that
//! see a window, whose pages are given back once no position to come can see them. Layers that recur have slots: the state
//! after the last committed position in one, and those after positions in flight in others, so that any of the last
//! [`CHECKPOINTS`] can be the one that is kept, without a copy.
//!
//! **Pages and slots are shared** and counted: by sequences that were forked, and by the prefix tree, where texts
//! stay until the memory is needed. Who writes into a shared page gets a copy of his own first.
//!
//! [`State::remove`] takes positions from the middle, for models that can bear it. [`State::save`] and [`State::restore`] bring a
//! sequence into another process.

mod commit;
mod error;
mod grow;
mod integrity;
mod part;
mod pool;
mod prefix;
mod remove;
mod reuse;
mod saved;
mod sequence;
#[cfg(test)]
mod tests;

pub use error::{StateError, StateMemoryError};
pub use part::Part;
pub use prefix::Digest;
pub use saved::{RestoreError, Restored, Saved, SavedError};

use pool::Pool;
use prefix::{Pools, PrefixTree};
use sequence::Sequence;
use verbatim_cpu::{
    KvMemory, KvMemoryError, KvSpec, PAGE_CELLS, RecurrentMemory, RecurrentMemoryError, RecurrentSpec,
    StateMemory,
};
use verbatim_graph::{RopeLayout, RopeTable};

/// Positions in flight of one sequence whose recurrent states are kept apart.
pub const CHECKPOINTS: usize = 16;
/// Slots that a sequence may need: for the committed state, for the checkpoints, and for one at the end of a page.
const SLOTS_PER_SEQUENCE: usize = CHECKPOINTS + 2;

/// Names a sequence of one [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    index: usize,
    /// Tells sequences apart that had the same index one after the other.
    generation: u64,
}

impl SequenceId {
    /// The sequence's row in the page tables.
    pub fn index(self) -> usize {
        self.index
    }
}

/// How the keys of a layer depend on their positions.
#[derive(Clone, Debug, PartialEq)]
pub enum Keys {
    /// Not at all.
    Still,
    /// They are rotated.
    Rotated {
        /// The angles.
        table: RopeTable,
        /// The pairs.
        layout: RopeLayout,
        /// What the frequencies are divided by.
        divisors: Option<Vec<f32>>,
    },
}

/// A layer that attends.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// The form of its K and V.
    pub kv: KvSpec,
    /// How many positions a row sees, its own included; all if `None`.
    pub window: Option<usize>,
    /// What a key's position does to it.
    pub keys: Keys,
    /// Keys are stored transformed by [`verbatim_graph::Op::Hadamard`].
    pub transformed: bool,
}

/// What a [`State`] is made for.
#[derive(Clone, Debug)]
pub struct StateSpec {
    /// The layers that attend.
    pub layers: Vec<LayerSpec>,
    /// The layers that recur.
    pub recurrent: Vec<RecurrentSpec>,
    /// Sequences at a time.
    pub sequences: usize,
    /// The most positions of each.
    pub context: usize,
    /// The most positions in flight of each.
    pub in_flight: usize,
    /// Pages, shared by all sequences, of the layers that see all positions. See [`State::pages_for`].
    pub pages: usize,
    /// Memory for what no sequence holds but others may begin with.
    pub cache_bytes: usize,
}

/// Layers that see equally many positions, and so need pages for the same ones.
struct Group {
    window: Option<usize>,
    /// Their indices among those that attend.
    layers: Vec<usize>,
    /// \[sequence, block of positions\] → page; -1 where there is none.
    table: Vec<i32>,
    /// The most pages that the tree alone may hold.
    cache_pages: usize,
}

/// The state of all sequences.
pub struct State {
    memory: StateMemory,
    layers: Vec<LayerSpec>,
    groups: Vec<Group>,
    /// Pages, by group.
    pools: Vec<Pool>,
    /// Recurrent states.
    slots: Pool,
    cache_slots: usize,
    recurs: bool,
    context: usize,
    most_in_flight: usize,
    sequences: Vec<Option<Sequence>>,
    generation: u64,
    tree: PrefixTree,
}

impl State {
    /// State for sequences of a model.
    ///
    /// # Errors
    /// If there is no memory for so many pages, or for the recurrent states of so many sequences.
    pub fn new(spec: StateSpec) -> Result<State, StateMemoryError> {
        let StateSpec { layers, recurrent, sequences, context, in_flight, pages, cache_bytes } = spec;
        let too_many = || KvMemoryError { pages, layers: layers.len() };
        let mut windows: Vec<Option<usize>> = Vec::new();
        for layer in &layers {
            if !windows.contains(&layer.window) {
                windows.push(layer.window);
            }
        }
        let page_bytes = layers
            .iter()
            .try_fold(0usize, |sum, layer| sum.checked_add(layer.kv.cell_bytes()?.checked_mul(PAGE_CELLS)?));
        let page_bytes = page_bytes.ok_or_else(too_many)?;
        let recurs = !recurrent.is_empty();
        // Where layers recur, a page is of no use without a state to go on from.
        let for_pages = if recurs { cache_bytes / 2 } else { cache_bytes };
        let cache_pages = for_pages.checked_div(page_bytes).unwrap_or(0);
        let entries = sequences.checked_mul(Self::pages_for(context)).ok_or_else(too_many)?;
        let groups: Vec<Group> = windows
            .into_iter()
            .map(|window| Group {
                window,
                layers: (0..layers.len()).filter(|&layer| layers[layer].window == window).collect(),
                table: vec![-1; entries],
                cache_pages,
            })
            .collect();
        let pools = groups.iter().map(|group| {
            let own = match group.window {
                None => pages,
                // The first and the last page of a window may be used in part.
                Some(window) => {
                    let most = window.saturating_add(in_flight).div_ceil(PAGE_CELLS).saturating_add(1);
                    pages.min(most.saturating_mul(sequences))
                }
            };
            own.checked_add(cache_pages).and_then(Pool::new)
        });
        let pools: Vec<Pool> = pools.collect::<Option<_>>().ok_or_else(too_many)?;
        let group_of = |layer: usize| groups.iter().position(|group| group.layers.contains(&layer));
        let sized = layers.iter().enumerate().map(|(index, layer)| {
            let group = group_of(index).expect("every layer is in the group of its window");
            (layer.kv, pools[group].len())
        });
        let kv = KvMemory::new(&sized.collect::<Vec<_>>())?;

        let slot_bytes = recurrent.iter().try_fold(0usize, |sum, spec| sum.checked_add(spec.slot_bytes()?));
        let cache_slots = slot_bytes.map_or(0, |bytes| (cache_bytes / 2).checked_div(bytes).unwrap_or(0));
        let own = if recurs { sequences.saturating_mul(SLOTS_PER_SEQUENCE) } else { 0 };
        let no_slots = || RecurrentMemoryError { slots: own, layers: recurrent.len() };
        let slots = own.checked_add(cache_slots).and_then(Pool::new).ok_or_else(no_slots)?;
        let memory = StateMemory { kv, recurrent: RecurrentMemory::new(&recurrent, slots.len())? };
        Ok(State {
            memory,
            layers,
            groups,
            pools,
            slots,
            cache_slots,
            recurs,
            context,
            most_in_flight: in_flight,
            sequences: (0..sequences).map(|_| None).collect(),
            generation: 0,
            tree: PrefixTree::new([0; 32]),
        })
    }

    /// Says whose state it is: the digest of the model, and of what was adapted in it. What is saved can be restored only where
    /// the digest is the same. It is not needed to see whether there is memory, and may take long to find.
    ///
    /// # Panics
    /// If a sequence has begun.
    pub fn identify(&mut self, identity: Digest) {
        assert!(self.tree.is_empty() && self.sequences.iter().all(Option::is_none), "identified too late");
        self.tree = PrefixTree::new(identity);
    }

    /// Pages that hold one sequence of `context` positions.
    pub fn pages_for(context: usize) -> usize {
        context.div_ceil(PAGE_CELLS)
    }

    /// The most positions of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The backend's memory, for a run.
    pub fn memory_mut(&mut self) -> &mut StateMemory {
        &mut self.memory
    }

    /// The windows of the kinds of layers, in the order of their numbers.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.groups.iter().map(|group| group.window).collect()
    }

    /// Sequences, and pages of each, of [`State::page_table`].
    pub fn page_table_shape(&self) -> [usize; 2] {
        [self.sequences.len(), self.blocks()]
    }

    /// For a kind of layer, and each sequence, the page of each block of [`PAGE_CELLS`] positions; -1 where there is none.
    pub fn page_table(&self, group: usize) -> &[i32] {
        &self.groups[group].table
    }

    fn blocks(&self) -> usize {
        Self::pages_for(self.context)
    }

    /// Whether layers carry a state from position to position.
    pub fn recurs(&self) -> bool {
        self.recurs
    }

    /// A new, empty sequence.
    pub fn begin(&mut self) -> Result<SequenceId, StateError> {
        let free = self.sequences.iter().position(Option::is_none);
        let index = free.ok_or(StateError::NoSequence(self.sequences.len()))?;
        self.generation += 1;
        let generation = self.generation;
        self.sequences[index] = Some(Sequence::new(generation, self.groups.len(), self.context));
        Ok(SequenceId { index, generation })
    }

    /// Ends a sequence. Its text stays in the prefix tree as long as there is room.
    ///
    /// # Errors
    /// If there is no such sequence; or if it was the last and the books do not balance ([`State::integrity`]).
    pub fn end(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.rollback(id)?;
        self.keep_tail(id);
        self.release_from(id, 0);
        if let Some(Sequence { slot: Some(slot), .. }) = self.sequences[id.index].take() {
            self.slots.release(slot);
        }
        self.shrink_cache();
        match self.sequences.iter().all(Option::is_none) {
            true => self.integrity().map_err(StateError::Damaged),
            false => Ok(()),
        }
    }

    /// Lets a part of another crate take part in what happens to a sequence.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn attach(&mut self, id: SequenceId, mut part: Box<dyn Part>) -> Result<(), StateError> {
        let sequence = self.sequence_mut(id)?;
        part.reset(&sequence.tokens);
        sequence.parts.push(part);
        Ok(())
    }

    /// The parts that were attached to a sequence, in order.
    pub fn parts(&self, id: SequenceId) -> Result<&[Box<dyn Part>], StateError> {
        self.sequence(id).map(|sequence| &sequence.parts[..])
    }

    /// Positions committed.
    pub fn len(&self, id: SequenceId) -> Result<usize, StateError> {
        self.sequence(id).map(Sequence::committed)
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self, id: SequenceId) -> Result<bool, StateError> {
        self.len(id).map(|len| len == 0)
    }

    /// The tokens committed.
    pub fn tokens(&self, id: SequenceId) -> Result<&[u32], StateError> {
        self.sequence(id).map(|sequence| &sequence.tokens[..])
    }

    /// Positions that were removed from the middle.
    pub fn removed(&self, id: SequenceId) -> Result<usize, StateError> {
        self.sequence(id).map(|sequence| sequence.removed)
    }

    /// Forgets what no sequence holds.
    pub fn clear_cache(&mut self) {
        self.tree.clear(&mut Pools { pages: &mut self.pools, slots: &mut self.slots });
    }

    /// Bytes of K, V and recurrent states that no sequence holds but others may begin with.
    pub fn cached_bytes(&self) -> usize {
        let page = |layer: &usize| self.layers[*layer].kv.cell_bytes().unwrap_or(0) * PAGE_CELLS;
        let pages = self.groups.iter().zip(&self.pools);
        let pages: usize =
            pages.map(|(group, pool)| pool.cached() * group.layers.iter().map(page).sum::<usize>()).sum();
        pages + self.slots.cached() * self.memory.recurrent.slot_bytes()
    }

    fn sequence(&self, id: SequenceId) -> Result<&Sequence, StateError> {
        let sequence = self.sequences.get(id.index).and_then(Option::as_ref);
        sequence
            .filter(|sequence| sequence.generation == id.generation)
            .ok_or(StateError::NoSuchSequence(id.index))
    }

    fn sequence_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, StateError> {
        let sequence = self.sequences.get_mut(id.index).and_then(Option::as_mut);
        sequence
            .filter(|sequence| sequence.generation == id.generation)
            .ok_or(StateError::NoSuchSequence(id.index))
    }
}
