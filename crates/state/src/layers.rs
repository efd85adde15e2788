//! The layers of all owners in one state: which are whose, and how a draft adds its own.

use crate::owner::{MOST_OWNERS, Owner, OwnerSet, OwnerSpec};
use crate::pool::Pool;
use crate::spec::SLOTS_PER_SEQUENCE;
use crate::{AppendError, Group, LayerSpec, OwnerId, SequenceId, State, StateError, pages_for};
use std::ops::Range;
use verbatim_backend::{KvSpec, PAGE_CELLS, RecurrentSpec, StateLayers, StateMemoryError, StateStore};

impl<S: StateStore> State<S> {
    /// A model's attention layers among all: the first is `kv[start]` in its graphs.
    pub fn layers(&self, owner: OwnerId) -> Range<usize> {
        self.owners[owner.0].layers.clone()
    }

    /// A model's recurrent layers among all: the first is `conv[start]` and `delta[start]` in its graphs.
    pub fn recurrent_layers(&self, owner: OwnerId) -> Range<usize> {
        self.owners[owner.0].recurrent.clone()
    }

    /// All models, the target first.
    pub fn owners(&self) -> impl Iterator<Item = OwnerId> + use<S> {
        (0..self.owners.len()).map(OwnerId)
    }

    /// Adds a draft's layers to those of the target. Attention layers join the KV cache group with their window; recurrent layers
    /// share the slots. The prefix cache keeps its size in positions; the draft's layers add bytes.
    ///
    /// # Errors
    /// If a sequence has begun or the prefix cache is not empty, if there are too many owners, or if there is no memory.
    pub fn append_owner(&mut self, owner: OwnerSpec) -> Result<OwnerId, AppendError> {
        if !self.is_unused() {
            return Err(AppendError::InUse);
        }
        if self.owners.len() == MOST_OWNERS {
            return Err(AppendError::TooMany(MOST_OWNERS));
        }
        Ok(self.add_owner(owner)?)
    }

    /// The last contiguous range of committed positions whose cells, and the recurrent state after the last of them, an owner has
    /// computed. All of them for the target.
    ///
    /// # Errors
    /// If there is no such sequence.
    pub fn filled(&self, id: SequenceId, owner: OwnerId) -> Result<Range<usize>, StateError> {
        self.sequence(id).map(|sequence| sequence.filled(owner))
    }

    /// The drafts, which are all owners but the target.
    pub(crate) fn drafts(&self) -> impl Iterator<Item = OwnerId> + use<S> {
        self.owners().skip(1)
    }

    /// After positions were removed: clips what drafts have filled to what is left.
    pub(crate) fn clip_filled(&mut self, id: SequenceId) {
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        let committed = sequence.committed();
        for (draft, filled) in sequence.filled.iter_mut().enumerate() {
            filled.end = filled.end.min(committed);
            for (group, span) in self.groups.iter().zip(&sequence.spans) {
                if group.owners.contains(OwnerId(draft + 1)) && span.whole_from > group.first_seen(committed)
                {
                    filled.start = filled.start.max(span.whole_from);
                }
            }
            if filled.start >= filled.end {
                *filled = 0..0;
            }
        }
    }

    /// The recurrent state after the last committed position is gone, and with it what recurrent drafts have filled.
    pub(crate) fn lose_states(&mut self, id: SequenceId) {
        let Some(sequence) = &mut self.sequences[id.index] else { return };
        for (filled, owner) in sequence.filled.iter_mut().zip(&self.owners[1..]) {
            if owner.is_recurrent() {
                *filled = 0..0;
            }
        }
        sequence.slot.take().into_iter().for_each(|slot| self.slots.release(slot));
    }

    /// Adds layers to the store and to the cache metadata; changes nothing if there is no memory for them.
    pub(crate) fn add_owner(&mut self, spec: OwnerSpec) -> Result<OwnerId, StateMemoryError> {
        let OwnerSpec { layers, recurrent } = spec;
        let owner = OwnerId(self.owners.len());
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
            group.owners.insert(owner);
        }
        self.layers.extend(layers);
        self.recurrent.extend(recurrent);
        self.owners.push(Owner {
            layers: first..self.layers.len(),
            recurrent: first_recurrent..self.recurrent.len(),
            digest: [0; 32],
        });
        Ok(owner)
    }

    /// Groups, still without layers, for the windows that have none yet; `None` if sizes overflow.
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
                // The first and the last page of a window may be partly used.
                Some(window) => {
                    let most =
                        window.saturating_add(self.most_in_flight).div_ceil(PAGE_CELLS).saturating_add(1);
                    self.pages.min(most.saturating_mul(self.sequences.len()))
                }
            };
            pools.push(Pool::new(own.checked_add(cache_pages)?)?);
            let (layers, owners, table) = (Vec::new(), OwnerSet::default(), vec![-1; entries]);
            groups.push(Group { window, layers, owners, table, cache_pages });
        }
        Some((groups, pools))
    }

    /// Slots for recurrent layers, if there are none yet, and how many of them are for the prefix cache; `None` if sizes overflow.
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
