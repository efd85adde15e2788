//! The memory of K and V: pages of cells, laid out for the attention kernel.
//!
//! A page holds [`PAGE_CELLS`] cells of every layer. Within a page, a K/V head's keys are transposed (element by
//! element over all cells), so that lanes of a vector are keys and a score needs no sum across lanes; its values lie
//! cell by cell, so that lanes are elements of the result.

use crate::memory::{AlignedBytes, physical_bytes};
use crate::ops::rope;
use crate::recurrent::RecurrentMemory;
use half::f16;
use verbatim_graph::{RopeLayout, RopeTable};

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

/// K and V of one layer.
pub struct KvLayer {
    spec: KvSpec,
    pages: usize,
    k: AlignedBytes,
    v: AlignedBytes,
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
        let layer = |&(spec, pages): &(KvSpec, usize)| {
            let elements =
                pages.checked_mul(PAGE_CELLS)?.checked_mul(spec.kv_heads.checked_mul(spec.head_dim)?)?;
            let bytes = |kind: KvType| AlignedBytes::zeroed(elements.checked_mul(kind.bytes())?);
            Some(KvLayer { spec, pages, k: bytes(spec.k)?, v: bytes(spec.v)? })
        };
        let layers: Option<Vec<KvLayer>> = layers.iter().map(layer).collect();
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

/// How keys are moved to other positions: by the rotation from one to the other.
#[derive(Clone, Debug)]
pub struct Turn {
    layout: RopeLayout,
    /// Cosines, then sines, of the angles between the positions.
    angles: Vec<f32>,
    /// The keys are kept transformed by [`verbatim_graph::Op::Hadamard`].
    transformed: bool,
}

impl Turn {
    /// The turn of keys by so many positions, which may be negative. `divisors` are those of [`verbatim_graph::Op::RopeTable`].
    pub fn new(
        table: &RopeTable,
        layout: RopeLayout,
        divisors: Option<&[f32]>,
        positions: i32,
        transformed: bool,
    ) -> Turn {
        // The amplitude is in the keys already.
        let (frequencies, _) = rope::frequencies(table, divisors);
        let mut angles = vec![0.0; table.rotated];
        rope::angles(positions, &frequencies, 1.0, &mut angles);
        Turn { layout, angles, transformed }
    }
}

impl KvLayer {
    /// The layer's form.
    pub fn spec(&self) -> KvSpec {
        self.spec
    }

    /// Pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Copies a cell as it is stored.
    pub fn copy_cell(&mut self, from: usize, to: usize) {
        let mut bytes = Vec::new();
        self.read_cell(from, &mut bytes);
        self.write_cell(to, &bytes);
    }

    /// Copies a page as it is stored.
    pub fn copy_page(&mut self, from: usize, to: usize) {
        for (bytes, kind) in [(&mut self.k, self.spec.k), (&mut self.v, self.spec.v)] {
            let page = self.spec.kv_heads * self.spec.head_dim * PAGE_CELLS * kind.bytes();
            let from = bytes.read::<u8>(from * page, page).to_vec();
            bytes.bytes_mut()[to * page..][..page].copy_from_slice(&from);
        }
    }

    /// Appends a cell's K and V, as they are stored, to `out`: [`KvSpec::cell_bytes`] bytes.
    pub fn read_cell(&self, cell: usize, out: &mut Vec<u8>) {
        for (bytes, kind, is_k) in [(&self.k, self.spec.k, true), (&self.v, self.spec.v, false)] {
            for index in self.elements(cell, is_k) {
                out.extend_from_slice(bytes.read::<u8>(index * kind.bytes(), kind.bytes()));
            }
        }
    }

    /// Stores what [`KvLayer::read_cell`] gave of a layer of this form.
    pub fn write_cell(&mut self, cell: usize, from: &[u8]) {
        let KvSpec { k, v, kv_heads, head_dim } = self.spec;
        let (from_k, from_v) = from.split_at(kv_heads * head_dim * k.bytes());
        for (i, index) in self.elements(cell, true).enumerate() {
            let from = &from_k[i * k.bytes()..][..k.bytes()];
            self.k.bytes_mut()[index * k.bytes()..][..k.bytes()].copy_from_slice(from);
        }
        for (i, index) in self.elements(cell, false).enumerate() {
            let from = &from_v[i * v.bytes()..][..v.bytes()];
            self.v.bytes_mut()[index * v.bytes()..][..v.bytes()].copy_from_slice(from);
        }
    }

    /// Copies a cell to another position's: its K is turned, if the layer's keys depend on their position.
    pub fn move_cell(&mut self, from: usize, to: usize, turn: Option<&Turn>) {
        self.copy_cell(from, to);
        let Some(Turn { layout, angles, transformed }) = turn else { return };
        assert!(!transformed, "no type of K that can be had is kept transformed");
        let KvSpec { kv_heads, head_dim, k: kind, .. } = self.spec;
        let at: Vec<usize> = self.elements(to, true).collect();
        let x: Vec<f32> = at.iter().map(|&index| get(&self.k, kind, index)).collect();
        let mut turned = vec![0.0; kv_heads * head_dim];
        rope::rotate(*layout, head_dim, &x, angles, &mut turned);
        for (index, x) in at.into_iter().zip(turned) {
            put(&self.k, kind, index, x);
        }
    }

    /// Where the elements of a cell's K or V are, head by head.
    fn elements(&self, cell: usize, is_k: bool) -> impl Iterator<Item = usize> + use<> {
        let KvSpec { kv_heads, head_dim, .. } = self.spec;
        let (page, slot) = (cell / PAGE_CELLS, cell % PAGE_CELLS);
        (0..kv_heads * head_dim).map(move |element| {
            let (head, i) = (element / head_dim, element % head_dim);
            let block = (page * kv_heads + head) * head_dim * PAGE_CELLS;
            block + if is_k { i * PAGE_CELLS + slot } else { slot * head_dim + i }
        })
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

fn get(bytes: &AlignedBytes, kind: KvType, index: usize) -> f32 {
    match kind {
        KvType::F32 => bytes.slice::<f32>(index, 1)[0],
        KvType::F16 => f16::from_bits(bytes.slice(index, 1)[0]).to_f32(),
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
