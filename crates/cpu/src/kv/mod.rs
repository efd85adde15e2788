//! The memory of K and V: pages of cells, laid out for the attention kernel.
//!
//! A page holds [`PAGE_CELLS`] cells. Within a page, a K/V head's keys are transposed (element by element over all
//! cells), so that lanes of a vector are keys and a score needs no sum across lanes; its values lie cell by cell, so that
//! lanes are elements of the result. Different cells share no byte, so several threads may write several cells at once.

mod kind;
mod layer;
mod layout;

pub use kind::KvType;
pub use layer::{KvLayer, Turn};
pub(crate) use layout::{Block, Quantized};

use crate::memory::physical_bytes;
use crate::recurrent::RecurrentMemory;

/// Cells of a page, and keys of a block of the attention's fixed order. A multiple of the lanes of a vector.
pub const PAGE_CELLS: usize = 64;

/// The form of one layer's K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// K/V heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Storage of K.
    pub k: KvType,
    /// Storage of V.
    pub v: KvType,
}

impl KvSpec {
    /// Bytes of K and V of one cell; `None` if the sizes overflow.
    pub fn cell_bytes(&self) -> Option<usize> {
        let head_bytes = self.k.head_bytes(self.head_dim)?.checked_add(self.v.head_bytes(self.head_dim)?)?;
        self.kv_heads.checked_mul(head_bytes)
    }
}

/// Why memory for K and V could not be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no memory for {pages} pages of {PAGE_CELLS} positions of K and V ({layers} layers); use a smaller context, smaller \
     types of K and V (--ctk/--ctv), or less for what is kept (--cache-mib)"
)]
pub struct KvMemoryError {
    /// Pages asked for.
    pub pages: usize,
    /// Layers.
    pub layers: usize,
}

/// K and V of all layers. Each layer has pages of its own, numbered from 0; which position lies where is for the caller to
/// know.
#[derive(Default)]
pub struct KvMemory {
    layers: Vec<KvLayer>,
}

/// All that sequences keep from one step to the next.
#[derive(Default)]
pub struct StateMemory {
    /// K and V of the layers that attend.
    pub kv: KvMemory,
    /// The states of the layers that recur.
    pub recurrent: RecurrentMemory,
}

impl KvMemory {
    /// Memory for so many pages of each layer. It is zeroed, and becomes resident as it is written.
    ///
    /// # Errors
    /// If there is no memory for so many.
    pub fn new(layers: &[(KvSpec, usize)]) -> Result<KvMemory, KvMemoryError> {
        let pages = layers.iter().map(|&(_, pages)| pages).max().unwrap_or(0);
        let error = KvMemoryError { pages, layers: layers.len() };
        // Zeroed memory is promised freely and runs out later, when another program may be the one to pay for it.
        let bytes = layers.iter().try_fold(0usize, |sum, (spec, pages)| {
            sum.checked_add(spec.cell_bytes()?.checked_mul(pages.checked_mul(PAGE_CELLS)?)?)
        });
        if bytes.is_none_or(|bytes| physical_bytes().is_some_and(|all| bytes > all)) {
            return Err(error);
        }
        let layers: Option<Vec<KvLayer>> =
            layers.iter().map(|&(spec, pages)| KvLayer::new(spec, pages)).collect();
        layers.map(|layers| KvMemory { layers }).ok_or(error)
    }

    /// Layers.
    pub fn layers(&self) -> &[KvLayer] {
        &self.layers
    }

    /// Layers, to be changed between runs.
    pub fn layers_mut(&mut self) -> &mut [KvLayer] {
        &mut self.layers
    }
}
