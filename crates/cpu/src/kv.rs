//! The memory of K and V: pages of cells, laid out for the attention kernel.
//!
//! A page holds [`PAGE_CELLS`] cells of every layer. Within a page, a K/V head's keys are transposed (element by
//! element over all cells), so that lanes of a vector are keys and a score needs no sum across lanes; its values lie
//! cell by cell, so that lanes are elements of the result.

use crate::memory::{AlignedBytes, physical_bytes};
use crate::recurrent::RecurrentMemory;
use half::f16;

/// Cells of a page, and keys of a block of the attention's fixed order. A multiple of the lanes of a vector.
pub const PAGE_CELLS: usize = 64;

/// How K or V are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// As computed.
    F32,
    /// Rounded to half precision.
    F16,
}

impl KvType {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
        }
    }
}

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
        self.kv_heads.checked_mul(self.head_dim)?.checked_mul(self.k.bytes() + self.v.bytes())
    }
}

/// Why memory for K and V could not be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "no memory for {pages} pages of {PAGE_CELLS} positions of K and V ({layers} layers); use a smaller context or --ctk/--ctv f16"
)]
pub struct KvMemoryError {
    /// Pages asked for.
    pub pages: usize,
    /// Layers.
    pub layers: usize,
}

/// K and V of all layers.
#[derive(Default)]
pub struct KvMemory {
    layers: Vec<KvLayer>,
    pages: usize,
}

/// All that sequences keep from one step to the next.
#[derive(Default)]
pub struct StateMemory {
    /// K and V of the layers that attend.
    pub kv: KvMemory,
    /// The states of the layers that recur.
    pub recurrent: RecurrentMemory,
}

/// K and V of one layer.
pub struct KvLayer {
    spec: KvSpec,
    k: AlignedBytes,
    v: AlignedBytes,
}

impl KvMemory {
    /// Memory for `pages` pages of every layer. It is zeroed, and becomes resident as it is written.
    pub fn new(specs: &[KvSpec], pages: usize) -> Result<KvMemory, KvMemoryError> {
        // Zeroed memory is promised freely and runs out later, when another program may be the one to pay for it.
        let cells = pages.checked_mul(PAGE_CELLS);
        let bytes = cells.and_then(|cells| {
            specs.iter().try_fold(0usize, |sum, spec| sum.checked_add(spec.cell_bytes()?.checked_mul(cells)?))
        });
        if bytes.is_none_or(|bytes| physical_bytes().is_some_and(|all| bytes > all)) {
            return Err(KvMemoryError { pages, layers: specs.len() });
        }
        let layer = |spec: &KvSpec| {
            let elements =
                pages.checked_mul(PAGE_CELLS)?.checked_mul(spec.kv_heads.checked_mul(spec.head_dim)?)?;
            let bytes = |kind: KvType| AlignedBytes::zeroed(elements.checked_mul(kind.bytes())?);
            Some(KvLayer { spec: *spec, k: bytes(spec.k)?, v: bytes(spec.v)? })
        };
        let layers: Option<Vec<KvLayer>> = specs.iter().map(layer).collect();
        layers.map(|layers| KvMemory { layers, pages }).ok_or(KvMemoryError { pages, layers: specs.len() })
    }

    /// Pages of every layer.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Layers.
    pub fn layers(&self) -> &[KvLayer] {
        &self.layers
    }
}

impl KvLayer {
    /// The layer's form.
    pub fn spec(&self) -> KvSpec {
        self.spec
    }

    /// Stores one row's K and V in a cell. Different cells may be written by different threads at once; nobody may
    /// read meanwhile.
    pub(crate) fn write(&self, cell: usize, k: &[f32], v: &[f32]) {
        let KvSpec { kv_heads, head_dim, .. } = self.spec;
        let (page, slot) = (cell / PAGE_CELLS, cell % PAGE_CELLS);
        for head in 0..kv_heads {
            let block = (page * kv_heads + head) * head_dim * PAGE_CELLS;
            let (k, v) = (&k[head * head_dim..][..head_dim], &v[head * head_dim..][..head_dim]);
            for i in 0..head_dim {
                put(&self.k, self.spec.k, block + i * PAGE_CELLS + slot, k[i]);
                put(&self.v, self.spec.v, block + slot * head_dim + i, v[i]);
            }
        }
    }

    /// One head's block of a page: keys transposed.
    pub(crate) fn k_block(&self, page: usize, head: usize) -> Block<'_> {
        self.block(&self.k, self.spec.k, page, head)
    }

    /// One head's block of a page: values cell by cell.
    pub(crate) fn v_block(&self, page: usize, head: usize) -> Block<'_> {
        self.block(&self.v, self.spec.v, page, head)
    }

    fn block<'a>(&self, bytes: &'a AlignedBytes, kind: KvType, page: usize, head: usize) -> Block<'a> {
        let elements = self.spec.head_dim * PAGE_CELLS;
        let start = (page * self.spec.kv_heads + head) * elements;
        match kind {
            KvType::F32 => Block::F32(bytes.slice(start, elements)),
            KvType::F16 => Block::F16(bytes.slice(start, elements)),
        }
    }
}

fn put(bytes: &AlignedBytes, kind: KvType, index: usize, x: f32) {
    match kind {
        KvType::F32 => bytes.put(index, x),
        KvType::F16 => bytes.put(index, f16::from_f32(x).to_bits()),
    }
}

/// `head_dim * PAGE_CELLS` elements of K or V.
#[derive(Clone, Copy)]
pub(crate) enum Block<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
}
