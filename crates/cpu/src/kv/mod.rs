//! The KV cache memory: pages of cells, laid out for the attention kernel.
//!
//! A page holds [`PAGE_CELLS`] cells. Within a page, a KV head's keys are transposed (element by element over all
//! cells), so that lanes of a vector are keys and a score needs no sum across lanes; its values are stored cell by cell, so
//! that lanes are elements of the result. Different cells share no byte, so several threads may write different cells at once.

mod layer;
mod layout;

pub(crate) use layer::KeyShifter;
pub use layer::KvLayer;
pub(crate) use layout::{HeadPage, Quantized};

use verbatim_backend::{KvSpec, PAGE_CELLS, StateMemoryError};
use verbatim_team::physical_bytes;

/// K and V of all layers. Each layer has its own pages, numbered from 0; the caller maps positions to cells.
#[derive(Default)]
pub struct KvMemory {
    layers: Vec<KvLayer>,
}

impl KvMemory {
    /// Memory for the given number of pages of each layer. It is zeroed, and becomes resident as it is written.
    ///
    /// # Errors
    /// If the allocation fails.
    pub fn new(layers: &[(KvSpec, usize)]) -> Result<KvMemory, StateMemoryError> {
        let mut memory = KvMemory::default();
        memory.append(layers)?;
        Ok(memory)
    }

    /// Appends layers.
    pub(crate) fn append(&mut self, layers: &[(KvSpec, usize)]) -> Result<(), StateMemoryError> {
        let pages = layers.iter().map(|&(_, pages)| pages).max().unwrap_or(0);
        let error = StateMemoryError::Kv { pages, layers: layers.len() };
        // The system overcommits zeroed memory: without this check, memory would run out later, possibly in another process.
        let here = self.layers.iter().map(|layer| (layer.spec(), layer.pages()));
        let bytes = here.chain(layers.iter().copied()).try_fold(0usize, |sum, (spec, pages)| {
            sum.checked_add(spec.cell_bytes()?.checked_mul(pages.checked_mul(PAGE_CELLS)?)?)
        });
        if bytes.is_none_or(|bytes| physical_bytes().is_some_and(|all| bytes > all)) {
            return Err(error);
        }
        let layers: Option<Vec<KvLayer>> =
            layers.iter().map(|&(spec, pages)| KvLayer::new(spec, pages)).collect();
        self.layers.extend(layers.ok_or(error)?);
        Ok(())
    }

    /// Removes the layers that were appended last.
    pub(crate) fn truncate(&mut self, layers: usize) {
        self.layers.truncate(layers);
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
