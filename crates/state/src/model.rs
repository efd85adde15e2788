//! Models of layers: the target and its drafts. A draft is more layers of the same sequences.

use crate::spec::LayerSpec;
use std::ops::Range;
use verbatim_backend::{RecurrentSpec, StateMemoryError};

/// Identifies a model, or a model and a prefix.
pub type Digest = [u8; 32];

/// The most models of one [`State`](crate::State).
pub(crate) const MAX_MODELS: usize = u32::BITS as usize;

/// Names a model whose layers a [`State`](crate::State) has: the target, or a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub(crate) usize);

impl ModelId {
    /// The model whose text the sequences are.
    pub const TARGET: ModelId = ModelId(0);

    /// Its number, in the order in which the models were added.
    #[inline]
    pub fn index(self) -> usize {
        self.0
    }
}

/// The layers of one model.
#[derive(Clone, Debug, Default)]
pub struct ModelSpec {
    /// The attention layers.
    pub layers: Vec<LayerSpec>,
    /// The recurrent layers.
    pub recurrent: Vec<RecurrentSpec>,
}

/// Why a draft's layers were not added. Nothing has changed then.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AppendError {
    /// Sequences have begun, or the prefix cache is not empty.
    #[error("a draft is loaded before the first sequence begins")]
    InUse,
    /// There are too many already.
    #[error("there can be at most {0} models that share sequences")]
    TooMany(usize),
    /// There is no memory for them.
    #[error(transparent)]
    Memory(#[from] StateMemoryError),
}

/// A set of models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelSet(u32);

impl ModelSet {
    pub(crate) const DRAFTS: ModelSet = ModelSet(!1);

    #[inline]
    pub(crate) fn of(model: ModelId) -> ModelSet {
        ModelSet(1 << model.0)
    }

    #[inline]
    pub(crate) fn contains(self, model: ModelId) -> bool {
        self.0 >> model.0 & 1 == 1
    }

    #[inline]
    pub(crate) fn insert(&mut self, model: ModelId) {
        self.0 |= 1 << model.0;
    }

    #[inline]
    pub(crate) fn remove(&mut self, model: ModelId) {
        self.0 &= !(1 << model.0);
    }

    /// Whether all of these are in it.
    pub(crate) fn contains_all(self, others: ModelSet) -> bool {
        others.without(self) == ModelSet::default()
    }

    pub(crate) fn is_empty(self) -> bool {
        self == ModelSet::default()
    }

    pub(crate) fn union(self, others: ModelSet) -> ModelSet {
        ModelSet(self.0 | others.0)
    }

    pub(crate) fn intersection(self, others: ModelSet) -> ModelSet {
        ModelSet(self.0 & others.0)
    }

    #[inline]
    pub(crate) fn without(self, others: ModelSet) -> ModelSet {
        ModelSet(self.0 & !others.0)
    }
}

impl FromIterator<ModelId> for ModelSet {
    fn from_iter<T: IntoIterator<Item = ModelId>>(models: T) -> ModelSet {
        let mut set = ModelSet::default();
        models.into_iter().for_each(|model| set.insert(model));
        set
    }
}

/// One model's layers among all.
pub(crate) struct ModelLayers {
    /// Among all attention layers.
    pub(crate) layers: Range<usize>,
    /// Among all recurrent layers.
    pub(crate) recurrent: Range<usize>,
    /// Identifies the model.
    pub(crate) digest: Digest,
}

impl ModelLayers {
    /// Whether there are recurrent layers.
    #[inline]
    pub(crate) fn is_recurrent(&self) -> bool {
        !self.recurrent.is_empty()
    }
}
