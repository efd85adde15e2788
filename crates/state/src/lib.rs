//! Sequence state: which positions of which sequence are stored in which cells of the backend's memory.
//!
//! **A sequence grows in transactions.** [`State::append`] (a chain) or [`State::append_tree`] allocates KV cells for positions *in
//! flight* (allocated, not yet committed: draft tokens), steps store their K and V, and [`State::commit`] or
//! [`State::commit_path`] commits those on one path; [`State::rollback`] drops them all. None of this changes committed positions,
//! so a failed step or rejected draft tokens leave a sequence unchanged. Each row has its own *KV index* in the sequence's
//! KV cache; it equals the position unless a tree is in flight, whose rows share positions. Other crates attach their own
//! per-sequence state as a [`SequenceExtension`].
//!
//! **A step** calls [`State::batch`] to find where its rows read and write, then [`State::begin_compute`], runs, and calls
//! [`State::computed`] if the run has succeeded.
//!
//! **A draft model's layers are added to the same sequences** ([`State::append_model`]). It shares KV indices, pages, slots and
//! transactions with the target, so a rollback cannot miss the draft model. [`State::computed_range`] returns the committed
//! positions that a draft model has computed; it only attends to those. A draft model never blocks the target: positions that no
//! longer fit its window or recurrent state are treated as not computed.
//!
//! **KV cache groups** are layers with the same window. Each has its own pages of [`PAGE_CELLS`] positions; pages that have slid
//! out of the window are released. Recurrent layers have state slots: one for the state after the last committed position, more for
//! positions in flight, so that any of the last [`MAX_STATE_CHECKPOINTS`] can be committed without a copy.
//!
//! **Pages and slots are reference-counted**: forked sequences share them, and so does the prefix tree (the prefix cache), which
//! keeps them until the memory is needed. Writing to a shared page copies it first.
//!
//! [`State::remove_and_shift`] removes positions from the middle, for models that support a K-shift. [`State::save`] and
//! [`State::restore`] move a sequence to another process.

mod batch;
mod commit;
mod compute;
mod error;
mod extension;
mod grow;
mod integrity;
mod layers;
mod model;
mod pool;
mod prefix;
mod resume;
mod run;
mod saved;
mod sequence;
mod shift;
mod spec;
#[cfg(test)]
mod tests;

pub use batch::{Batch, BatchError};
pub use error::StateError;
pub use extension::SequenceExtension;
pub use model::{AppendError, Digest, ModelId, ModelSpec};
pub use run::PageTables;
pub use saved::{RestoreError, Restored, SavedFile, SavedFileError};
pub use sequence::NOT_A_TOKEN;
pub use spec::{LayerSpec, MAX_STATE_CHECKPOINTS, RopeKind, SLOTS_PER_SEQUENCE, StateSpec, pages_for};
pub use verbatim_backend::StateMemoryError;

use model::{ModelLayers, ModelSet};
use pool::Pool;
use prefix::{Pools, PrefixTree};
use sequence::Sequence;
use verbatim_backend::{PAGE_CELLS, RecurrentSpec, StateStore};

/// The id of a sequence of one [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId {
    index: usize,
    /// Distinguishes sequences that had the same index one after the other.
    generation: u64,
}

impl SequenceId {
    /// The sequence's index in the page tables.
    pub fn index(self) -> usize {
        self.index
    }
}

/// A KV cache group: layers with the same window, which need pages for the same positions.
///
/// A group without layers of the target may be missing pages inside the window: positions that no draft model has computed.
struct Group {
    window: Option<usize>,
    /// Indices of the group's layers among all attention layers.
    layers: Vec<usize>,
    /// The models that have layers in the group.
    models: ModelSet,
    /// \[sequence, index of a page in the sequence\]: the page; -1 for none.
    table: Vec<i32>,
    /// Maximum number of pages that only the prefix tree references.
    cache_pages: usize,
}

/// The state of all sequences.
pub struct State<S> {
    store: S,
    models: Vec<ModelLayers>,
    /// All models' layers.
    layers: Vec<LayerSpec>,
    recurrent: Vec<RecurrentSpec>,
    groups: Vec<Group>,
    /// Pages, by group.
    pools: Vec<Pool>,
    /// Recurrent state slots; empty without recurrent layers.
    slots: Pool,
    cache_slots: usize,
    pages: usize,
    cache_bytes: usize,
    context: usize,
    max_in_flight: usize,
    sequences: Vec<Option<Sequence>>,
    generation: u64,
    tree: PrefixTree,
}

impl<S: StateStore> State<S> {
    /// State for sequences of the target model, in a store that has no layers yet.
    ///
    /// # Errors
    /// If there is not enough memory for the pages or the recurrent states.
    pub fn new(store: S, spec: StateSpec, target: ModelSpec) -> Result<State<S>, StateMemoryError> {
        let StateSpec { sequences, context, in_flight, pages, cache_bytes } = spec;
        let mut state = State {
            store,
            models: Vec::new(),
            layers: Vec::new(),
            recurrent: Vec::new(),
            groups: Vec::new(),
            pools: Vec::new(),
            slots: Pool::default(),
            cache_slots: 0,
            pages,
            cache_bytes,
            context,
            max_in_flight: in_flight,
            sequences: (0..sequences).map(|_| None).collect(),
            generation: 0,
            tree: PrefixTree::new([0; 32]),
        };
        state.add_model(target)?;
        Ok(state)
    }

    /// Sets the digest of a model. A saved sequence can only be restored if the digests match. This is separate
    /// from [`State::new`] because hashing takes long and is wasted if there is not enough memory.
    ///
    /// # Panics
    /// If a sequence has begun, or there is no such model.
    pub fn set_model_digest(&mut self, model: ModelId, digest: Digest) {
        assert!(self.is_unused(), "the digest was set after first use");
        self.models[model.0].digest = digest;
        if model == ModelId::TARGET {
            self.tree = PrefixTree::new(digest);
        }
    }

    /// Maximum number of positions of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The backend's memory.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The backend's memory, for a run.
    pub fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// The window of each KV cache group.
    pub fn windows(&self) -> Vec<Option<usize>> {
        self.groups.iter().map(|group| group.window).collect()
    }

    /// The shape of [`State::page_table`]: sequences, and pages per sequence.
    pub fn page_table_shape(&self) -> [usize; 2] {
        [self.sequences.len(), self.pages_per_sequence()]
    }

    /// A KV cache group's page table: for each sequence, the page of every [`PAGE_CELLS`] consecutive positions; -1 for none.
    pub fn page_table(&self, group: usize) -> &[i32] {
        &self.groups[group].table
    }

    /// Entries of a sequence in a page table.
    fn pages_per_sequence(&self) -> usize {
        pages_for(self.context)
    }

    /// Whether the target has recurrent layers. Its sequences can then be truncated to 0 only.
    pub fn is_recurrent(&self) -> bool {
        self.models[ModelId::TARGET.0].is_recurrent()
    }

    /// Whether any model has recurrent layers.
    fn has_slots(&self) -> bool {
        !self.recurrent.is_empty()
    }

    /// Whether there is no sequence and the prefix cache is empty.
    fn is_unused(&self) -> bool {
        self.tree.is_empty() && self.sequences.iter().all(Option::is_none)
    }

    /// A new, empty sequence.
    ///
    /// # Errors
    /// If all sequences are in use.
    pub fn begin(&mut self) -> Result<SequenceId, StateError> {
        let free = self.sequences.iter().position(Option::is_none);
        let index = free.ok_or(StateError::NoSequence(self.sequences.len()))?;
        self.generation += 1;
        let generation = self.generation;
        self.sequences[index] =
            Some(Sequence::new(generation, self.groups.len(), self.models.len() - 1, self.context));
        Ok(SequenceId { index, generation })
    }

    /// Ends a sequence. Its pages stay in the prefix cache as long as there is room.
    ///
    /// # Errors
    /// If there is no such sequence; or if it was the last one and the cache metadata is inconsistent ([`State::integrity`]).
    pub fn end(&mut self, id: SequenceId) -> Result<(), StateError> {
        self.rollback(id)?;
        self.cache_tail(id);
        self.release_from(id, 0);
        if let Some(Sequence { slot: Some(slot), .. }) = self.sequences[id.index].take() {
            self.slots.release(slot);
        }
        self.shrink_cache();
        match self.sequences.iter().all(Option::is_none) {
            true => self.integrity().map_err(StateError::Inconsistent),
            false => Ok(()),
        }
    }

    /// Attaches an extension, which is notified of every change to the sequence's tokens.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn attach(
        &mut self,
        id: SequenceId,
        mut extension: Box<dyn SequenceExtension>,
    ) -> Result<(), StateError> {
        let sequence = self.sequence_mut(id)?;
        extension.reset(&sequence.tokens);
        sequence.extensions.push(extension);
        Ok(())
    }

    /// The extensions that were attached to a sequence, in order.
    pub fn extensions(&self, id: SequenceId) -> Result<&[Box<dyn SequenceExtension>], StateError> {
        self.sequence(id).map(|sequence| &sequence.extensions[..])
    }

    /// Number of committed positions.
    pub fn len(&self, id: SequenceId) -> Result<usize, StateError> {
        self.sequence(id).map(Sequence::committed)
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self, id: SequenceId) -> Result<bool, StateError> {
        self.len(id).map(|len| len == 0)
    }

    /// The committed tokens.
    pub fn tokens(&self, id: SequenceId) -> Result<&[u32], StateError> {
        self.sequence(id).map(|sequence| &sequence.tokens[..])
    }

    /// Number of positions removed by [`State::remove_and_shift`].
    pub fn removed_count(&self, id: SequenceId) -> Result<usize, StateError> {
        self.sequence(id).map(|sequence| sequence.removed)
    }

    /// Clears the prefix cache.
    pub fn clear_cache(&mut self) {
        self.tree.clear(&mut Pools { pages: &mut self.pools, slots: &mut self.slots });
    }

    /// Bytes in the prefix cache that no sequence uses.
    pub fn cached_bytes(&self) -> usize {
        let page = |layer: &usize| self.layers[*layer].kv.cell_bytes().unwrap_or(0) * PAGE_CELLS;
        let pages = self.groups.iter().zip(&self.pools);
        let pages: usize =
            pages.map(|(group, pool)| pool.cached() * group.layers.iter().map(page).sum::<usize>()).sum();
        pages + self.slots.cached() * self.store.slot_bytes(0..self.recurrent.len())
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
