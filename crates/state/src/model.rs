//! The models that share sequences: the target and its draft models, whose layers are added to the same sequences.

use crate::spec::LayerSpec;
use std::ops::Range;
use verbatim_backend::{RecurrentSpec, StateMemoryError};

/// SHA-256 of a model, or of a model and a prefix of tokens.
pub type Digest = [u8; 32];

/// Maximum number of models of one [`State`](crate::State).
pub(crate) const MAX_MODELS: usize = u32::BITS as usize;

/// The id of a model of a [`State`](crate::State): the target or a draft model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId(pub(crate) usize);

impl ModelId {
    /// The target model, which generates the text.
    pub const TARGET: ModelId = ModelId(0);

    /// The model that was added as the `index`-th; 0 is the target.
    #[inline]
    pub fn from_index(index: usize) -> ModelId {
        ModelId(index)
    }

    /// Index in the order in which the models were added; 0 is the target.
    #[inline]
    pub fn index(self) -> usize {
        self.0
    }
}

/// The layers of one model that keep per-sequence state.
#[derive(Clone, Debug, Default)]
pub struct ModelSpec {
    /// The attention layers.
    pub layers: Vec<LayerSpec>,
    /// The recurrent layers.
    pub recurrent: Vec<RecurrentSpec>,
}

/// Why a draft model's layers were not added. Nothing was modified.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AppendError {
    /// Sequences have begun, or the prefix cache is not empty.
    #[error("draft models must be loaded before the first sequence begins")]
    InUse,
    /// The maximum number of models is reached.
    #[error("at most {0} models can share sequences")]
    TooMany(usize),
    /// There is not enough memory for them.
    #[error(transparent)]
    Memory(#[from] StateMemoryError),
}

/// A set of models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelSet(u32);

impl ModelSet {
    pub(crate) const DRAFTS: ModelSet = ModelSet(!1);

    #[inline]
    pub(crate) fn from_model(model: ModelId) -> ModelSet {
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

    /// Whether it contains all of `others`.
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

/// The ranges of one model's layers among the layers of all models.
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
