//! Owners of layers: the target and its drafts. A draft is more layers of the same sequences.

use crate::spec::LayerSpec;
use std::ops::Range;
use verbatim_backend::{RecurrentSpec, StateMemoryError};

/// Identifies a model, or a model and a prefix.
pub type Digest = [u8; 32];

/// The most owners of one [`State`](crate::State).
pub(crate) const MOST_OWNERS: usize = u32::BITS as usize;

/// Names a model whose layers a [`State`](crate::State) has: the target, or a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerId(pub(crate) usize);

impl OwnerId {
    /// The model whose text the sequences are.
    pub const TARGET: OwnerId = OwnerId(0);

    /// Its number, in the order in which the owners were added.
    #[inline]
    pub fn index(self) -> usize {
        self.0
    }
}

/// The layers of one model.
#[derive(Clone, Debug, Default)]
pub struct OwnerSpec {
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

/// A set of owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnerSet(u32);

impl OwnerSet {
    pub(crate) const DRAFTS: OwnerSet = OwnerSet(!1);

    #[inline]
    pub(crate) fn of(owner: OwnerId) -> OwnerSet {
        OwnerSet(1 << owner.0)
    }

    #[inline]
    pub(crate) fn contains(self, owner: OwnerId) -> bool {
        self.0 >> owner.0 & 1 == 1
    }

    #[inline]
    pub(crate) fn insert(&mut self, owner: OwnerId) {
        self.0 |= 1 << owner.0;
    }

    #[inline]
    pub(crate) fn remove(&mut self, owner: OwnerId) {
        self.0 &= !(1 << owner.0);
    }

    /// Whether all of these are in it.
    pub(crate) fn contains_all(self, others: OwnerSet) -> bool {
        others.without(self) == OwnerSet::default()
    }

    pub(crate) fn is_empty(self) -> bool {
        self == OwnerSet::default()
    }

    pub(crate) fn union(self, others: OwnerSet) -> OwnerSet {
        OwnerSet(self.0 | others.0)
    }

    pub(crate) fn intersection(self, others: OwnerSet) -> OwnerSet {
        OwnerSet(self.0 & others.0)
    }

    #[inline]
    pub(crate) fn without(self, others: OwnerSet) -> OwnerSet {
        OwnerSet(self.0 & !others.0)
    }
}

impl FromIterator<OwnerId> for OwnerSet {
    fn from_iter<T: IntoIterator<Item = OwnerId>>(owners: T) -> OwnerSet {
        let mut set = OwnerSet::default();
        owners.into_iter().for_each(|owner| set.insert(owner));
        set
    }
}

/// One model's layers among all.
pub(crate) struct Owner {
    /// Among all attention layers.
    pub(crate) layers: Range<usize>,
    /// Among all recurrent layers.
    pub(crate) recurrent: Range<usize>,
    /// Identifies the model.
    pub(crate) digest: Digest,
}

impl Owner {
    /// Whether there are recurrent layers.
    #[inline]
    pub(crate) fn is_recurrent(&self) -> bool {
        !self.recurrent.is_empty()
    }
}
