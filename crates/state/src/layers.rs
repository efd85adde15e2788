//! The layers of all models in one state: which layers belong to which model, and how a draft model adds its layers.

use crate::model::{MAX_MODELS, ModelLayers, ModelSet, ModelSpec};
use crate::pool::Pool;
use crate::spec::SLOTS_PER_SEQUENCE;
use crate::{AppendError, Group, LayerSpec, ModelId, SequenceId, State, StateError, pages_for};
use std::ops::Range;
use verbatim_backend::{KvSpec, PAGE_CELLS, RecurrentSpec, StateLayers, StateMemoryError, StateStore};

impl<S: StateStore> State<S> {
    /// A model's range among all attention layers: its first layer is `kv[start]` in its graphs.
    pub fn layers(&self, model: ModelId) -> Range<usize> {
        self.models[model.0].layers.clone()
    }

    /// A model's range among all recurrent layers: its first layer is `conv[start]` and `delta[start]` in its graphs.
    pub fn recurrent_layers(&self, model: ModelId) -> Range<usize> {
        self.models[model.0].recurrent.clone()
    }

    /// All models, the target first.
    pub fn models(&self) -> impl Iterator<Item = ModelId> + use<S> {
        (0..self.models.len()).map(ModelId)
    }

    /// Adds a draft model's layers to those of the target. Attention layers join the KV cache group with their window; recurrent
    /// layers share the slots. The prefix cache keeps its size in positions; the draft model's layers add bytes.
    ///
    /// # Errors
    /// If a sequence has begun or the prefix cache is not empty, if there are too many models, or not enough memory.
    pub fn append_model(&mut self, model: ModelSpec) -> Result<ModelId, AppendError> {
        if !self.is_unused() {
            return Err(AppendError::InUse);
        }
        if self.models.len() == MAX_MODELS {
            return Err(AppendError::TooMany(MAX_MODELS));
        }
        Ok(self.add_model(model)?)
    }

    /// The last contiguous range of committed positions that a model has computed: their cells are valid, and so is the recurrent
    /// state after the last of them. All committed positions for the target.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn computed_range(&self, id: SequenceId, model: ModelId) -> Result<Range<usize>, StateError> {
        self.sequence(id).map(|sequence| sequence.computed_range(model))
    }

    /// The draft models: all models except the target.
    pub(crate) fn drafts(&self) -> impl Iterator<Item = ModelId> + use<S> {
        self.models().skip(1)
    }

    /// Clips the draft models' computed ranges to the remaining positions, after positions were removed.
    pub(crate) fn clip_computed(&mut self, id: SequenceId) {
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        let committed = sequence.committed();
        for (draft, computed) in sequence.computed_ranges.iter_mut().enumerate() {
            computed.end = computed.end.min(committed);
            for (group, span) in self.groups.iter().zip(&sequence.spans) {
                if group.models.contains(ModelId(draft + 1))
                    && span.valid_from > group.first_visible(committed)
                {
                    computed.start = computed.start.max(span.valid_from);
                }
            }
            if computed.start >= computed.end {
                *computed = 0..0;
            }
        }
    }

    /// Drops the recurrent state after the last committed position, and with it the computed ranges of recurrent draft models.
    pub(crate) fn invalidate_states(&mut self, id: SequenceId) {
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        for (computed, model) in sequence.computed_ranges.iter_mut().zip(&self.models[1..]) {
            if model.is_recurrent() {
                *computed = 0..0;
            }
        }
        sequence.slot.take().into_iter().for_each(|slot| self.slots.release(slot));
    }

    /// Adds layers to the store and to the cache metadata; on error, nothing is modified.
    pub(crate) fn add_model(&mut self, spec: ModelSpec) -> Result<ModelId, StateMemoryError> {
        let ModelSpec { layers, recurrent } = spec;
        let model = ModelId(self.models.len());
        let too_many = StateMemoryError::Kv { pages: self.pages, layers: layers.len() };
        let Some((added, pools)) = self.new_groups(&layers, !recurrent.is_empty()) else {
            return Err(too_many);
        };
        let no_slots = StateMemoryError::Recurrent {
            slots: self.sequences.len().saturating_mul(SLOTS_PER_SEQUENCE),
            layers: recurrent.len(),
        };
        let Some((slots, cache_slots)) = self.new_slots(&recurrent) else { return Err(no_slots) };
        let pages = |window: Option<usize>| {
            let old = self.groups.iter().zip(&self.pools).chain(added.iter().zip(&pools));
            old.filter(|(group, _)| group.window == window).map(|(_, pool)| pool.len()).next()
        };
        let sized = |layer: &LayerSpec| (layer.kv, pages(layer.window).expect("every window has a group"));
        let kv: Vec<(KvSpec, usize)> = layers.iter().map(sized).collect();
        let slot_count = slots.as_ref().unwrap_or(&self.slots).len();
        self.store.append(&StateLayers { kv, recurrent: recurrent.clone(), slots: slot_count })?;

        if let Some(slots) = slots {
            (self.slots, self.cache_slots) = (slots, cache_slots);
        }
        self.groups.extend(added);
        self.pools.extend(pools);
        let (first, first_recurrent) = (self.layers.len(), self.recurrent.len());
        for (index, layer) in layers.iter().enumerate() {
            let group = self.groups.iter_mut().find(|group| group.window == layer.window);
            let group = group.expect("every window has a group");
            group.layers.push(first + index);
            group.models.insert(model);
        }
        self.layers.extend(layers);
        self.recurrent.extend(recurrent);
        self.models.push(ModelLayers {
            layers: first..self.layers.len(),
            recurrent: first_recurrent..self.recurrent.len(),
            digest: [0; 32],
        });
        Ok(model)
    }

    /// New groups, still without layers, for windows that have no group yet; `None` if sizes overflow.
    fn new_groups(&self, layers: &[LayerSpec], is_recurrent: bool) -> Option<(Vec<Group>, Vec<Pool>)> {
        let page_bytes = layers.iter().try_fold(0usize, |sum, layer| {
            sum.checked_add(layer.kv.cell_bytes()?.checked_mul(PAGE_CELLS)?)
        })?;
        // With recurrent layers, a page is useless without a state to resume from.
        let for_pages = if is_recurrent { self.cache_bytes / 2 } else { self.cache_bytes };
        let cache_pages = match self.groups.first() {
            Some(group) => group.cache_pages,
            None => for_pages.checked_div(page_bytes).unwrap_or(0),
        };
        let entries = self.sequences.len().checked_mul(pages_for(self.context))?;
        let (mut groups, mut pools): (Vec<Group>, Vec<Pool>) = Default::default();
        for &LayerSpec { window, .. } in layers {
            if self.groups.iter().chain(&groups).any(|group| group.window == window) {
                continue;
            }
            let own = match window {
                None => self.pages,
                // The first and the last page of a window may be partially used.
                Some(window) => {
                    let max_pages =
                        window.saturating_add(self.max_in_flight).div_ceil(PAGE_CELLS).saturating_add(1);
                    self.pages.min(max_pages.saturating_mul(self.sequences.len()))
                }
            };
            pools.push(Pool::new(own.checked_add(cache_pages)?)?);
            let (layers, models, table) = (Vec::new(), ModelSet::default(), vec![-1; entries]);
            groups.push(Group { window, layers, models, table, cache_pages });
        }
        Some((groups, pools))
    }

    /// The slot pool if there is none yet, and how many of its slots are for the prefix cache; `None` if sizes overflow.
    fn new_slots(&self, recurrent: &[RecurrentSpec]) -> Option<(Option<Pool>, usize)> {
        if recurrent.is_empty() || self.has_slots() {
            return Some((None, 0));
        }
        let bytes = recurrent.iter().try_fold(0usize, |sum, spec| sum.checked_add(spec.slot_bytes()?))?;
        let cache_slots = (self.cache_bytes / 2).checked_div(bytes).unwrap_or(0);
        let own = self.sequences.len().saturating_mul(SLOTS_PER_SEQUENCE);
        Some((Some(Pool::new(own.checked_add(cache_slots)?)?), cache_slots))
    }
}
