//! K and V of one layer: cells and pages are written, read, copied and moved.
#![allow(unsafe_code)] // Several threads store the heads of their rows concurrently.

use super::layout::{ByteRun, HeadLayout, HeadPage};
use crate::ops::{hadamard, rope};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use verbatim_backend::{KShift, KvSpec, KvType, PAGE_CELLS};
use verbatim_graph::RopeLayout;
use verbatim_quant::{DType, dequantize, quantize};
use verbatim_simd::Isa;
use verbatim_team::{AlignedBytes, Pod};

/// Elements of a quant block.
const BLOCK_LEN: usize = 32;
/// Maximum number of bytes of a quant block.
const BLOCK_BYTES: usize = 34;

/// K and V of one layer.
pub struct KvLayer {
    spec: KvSpec,
    pages: usize,
    k: HeadPages,
    v: HeadPages,
}

/// Rotates the keys of cells by a [`KShift`].
pub(crate) struct KeyShifter {
    layout: RopeLayout,
    /// Cosines, then sines, of the angles between the positions.
    angles: Vec<f32>,
    hadamard: bool,
}

impl KeyShifter {
    pub(crate) fn new(shift: &KShift) -> KeyShifter {
        // The mscale is in the keys already.
        let (frequencies, _) = rope::frequencies(&shift.table, shift.freq_factors.as_deref());
        let mut angles = vec![0.0; shift.table.rotary_dim];
        rope::angles(shift.positions, &frequencies, 1.0, &mut angles);
        KeyShifter { layout: shift.layout, angles, hadamard: shift.hadamard }
    }

    /// Shifts the keys of one cell, all heads.
    fn apply(&self, head_dim: usize, k: Vec<f32>) -> Vec<f32> {
        let transform = |k: Vec<f32>| {
            let mut out = vec![0.0; k.len()];
            hadamard::transform(Isa::scalar(), head_dim, &k, &mut out);
            out
        };
        let k = if self.hadamard { transform(k) } else { k };
        let mut rotated = vec![0.0; k.len()];
        rope::rotate(self.layout, head_dim, &k, &self.angles, &mut rotated);
        if self.hadamard { transform(rotated) } else { rotated }
    }
}

impl KvLayer {
    /// Zeroed pages; `None` if the allocation fails.
    pub(super) fn new(spec: KvSpec, pages: usize) -> Option<KvLayer> {
        let KvSpec { kv_heads, head_dim, k, v } = spec;
        let of = |kind, transposed| {
            HeadPages::zeroed(HeadLayout::new(kind, head_dim, transposed)?, kv_heads, pages)
        };
        Some(KvLayer { spec, pages, k: of(k, true)?, v: of(v, false)? })
    }

    /// The layer's shape and types.
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
        self.k.copy_page(from, to);
        self.v.copy_page(from, to);
    }

    /// Appends a cell's K and V, as they are stored, to `out`: [`KvSpec::cell_bytes`] bytes, which do not depend on how
    /// a page is laid out.
    pub fn read_cell(&self, cell: usize, out: &mut Vec<u8>) {
        self.k.read_cell(cell, out);
        self.v.read_cell(cell, out);
    }

    /// Stores what [`KvLayer::read_cell`] has read from a layer of the same spec.
    pub fn write_cell(&mut self, cell: usize, from: &[u8]) {
        let (k, v) = from.split_at(self.k.cell_bytes());
        assert_eq!(v.len(), self.v.cell_bytes(), "the bytes of a cell of a different spec");
        self.k.write_cell(cell, k);
        self.v.write_cell(cell, v);
    }

    /// Copies a cell to the cell of a different position: with a K-shift, its K is rotated to that position. K stored in less than
    /// f32 is rounded a second time; V is copied as it is stored.
    pub(crate) fn move_cell(&mut self, from: usize, to: usize, shift: Option<&KeyShifter>) {
        self.copy_cell(from, to);
        if let Some(shift) = shift {
            let k = shift.apply(self.spec.head_dim, self.k.decode(to));
            // SAFETY: the layer is borrowed mutably.
            unsafe { self.k.put(to, 0, &k) };
        }
    }

    /// Stores one row's K and V in a cell: the given heads, starting at `head`. A quant block with an element that is not
    /// finite, or too large for its scale, becomes NaN.
    ///
    /// # Safety
    /// No other thread may read or write these heads of the cell during the call. Different threads may write different cells,
    /// or different heads of one cell, at once.
    pub(crate) unsafe fn write(&self, cell: usize, head: usize, k: &[f32], v: &[f32]) {
        // SAFETY: the contract of this function.
        unsafe {
            self.k.put(cell, head, k);
            self.v.put(cell, head, v);
        }
    }

    /// The same, for single-threaded tests.
    #[cfg(test)]
    pub(crate) fn write_alone(&self, cell: usize, k: &[f32], v: &[f32]) {
        // SAFETY: no test reads or writes on another thread.
        unsafe { self.write(cell, 0, k, v) };
    }

    /// The K, then the V, of a cell, all heads.
    pub(crate) fn read(&self, cell: usize, out: &mut [f32]) {
        let (k, v) = out.split_at_mut(out.len() / 2);
        self.k.read(cell, k);
        self.v.read(cell, v);
    }

    /// The keys.
    pub(crate) fn k(&self) -> &HeadPages {
        &self.k
    }

    /// The values.
    pub(crate) fn v(&self) -> &HeadPages {
        &self.v
    }
}

/// K or V of one layer.
pub(crate) struct HeadPages {
    layout: HeadLayout,
    kv_heads: usize,
    bytes: AlignedBytes,
}

impl HeadPages {
    fn zeroed(layout: HeadLayout, kv_heads: usize, pages: usize) -> Option<HeadPages> {
        let bytes = layout.page_bytes().checked_mul(kv_heads)?.checked_mul(pages)?;
        Some(HeadPages { layout, kv_heads, bytes: AlignedBytes::zeroed(bytes)? })
    }

    pub(crate) fn layout(&self) -> &HeadLayout {
        &self.layout
    }

    /// One head of a page.
    pub(crate) fn head_page(&self, page: usize, head: usize) -> HeadPage<'_> {
        self.layout.view(&self.bytes, self.start(page, head))
    }

    /// Copies one head of a page to the start of `to`.
    pub(crate) fn copy_head_page(&self, page: usize, head: usize, to: &mut [u8]) {
        let page = self.bytes.slice_at::<u8>(self.start(page, head), self.layout.page_bytes());
        to[..page.len()].copy_from_slice(page);
    }

    /// Copies one head of a cell to position `cell_in_page` of the single-head page in `to`.
    pub(crate) fn copy_head(&self, cell: usize, head: usize, to: &mut [u8], cell_in_page: usize) {
        let (start, from) = (self.start(cell / PAGE_CELLS, head), cell % PAGE_CELLS);
        self.layout.for_each_run(|run| {
            to[run.at(cell_in_page)..][..run.bytes].copy_from_slice(self.run(start, run, from));
        });
    }

    fn start(&self, page: usize, head: usize) -> usize {
        (page * self.kv_heads + head) * self.layout.page_bytes()
    }

    fn run(&self, start: usize, run: ByteRun, cell_in_page: usize) -> &[u8] {
        self.bytes.slice_at(start + run.at(cell_in_page), run.bytes)
    }

    /// Bytes of a cell, all heads.
    fn cell_bytes(&self) -> usize {
        self.kv_heads * self.layout.cell_bytes()
    }

    fn copy_page(&mut self, from: usize, to: usize) {
        let page = self.kv_heads * self.layout.page_bytes();
        assert!((to + 1) * page <= self.bytes.len(), "page {to} is beyond the layer's");
        self.bytes.bytes_mut().copy_within(from * page..(from + 1) * page, to * page);
    }

    fn read_cell(&self, cell: usize, out: &mut Vec<u8>) {
        for head in 0..self.kv_heads {
            let start = self.start(cell / PAGE_CELLS, head);
            self.layout.for_each_run(|run| {
                out.extend_from_slice(self.run(start, run, cell % PAGE_CELLS));
            });
        }
    }

    fn write_cell(&mut self, cell: usize, from: &[u8]) {
        for (head, from) in from.chunks_exact(self.layout.cell_bytes()).enumerate() {
            let start = self.start(cell / PAGE_CELLS, head);
            self.layout.for_each_run(|run| {
                let from = &from[run.in_cell..][..run.bytes];
                self.bytes.bytes_mut()[start + run.at(cell % PAGE_CELLS)..][..from.len()]
                    .copy_from_slice(from);
            });
        }
    }

    /// A cell's elements, all heads.
    pub(crate) fn decode(&self, cell: usize) -> Vec<f32> {
        let mut elements = vec![0.0; self.kv_heads * self.layout.head_dim()];
        self.read(cell, &mut elements);
        elements
    }

    /// The same into a slice.
    fn read(&self, cell: usize, out: &mut [f32]) {
        let element = |i: usize| self.layout.element(i, cell % PAGE_CELLS);
        for (head, out) in out.chunks_exact_mut(self.layout.head_dim()).enumerate() {
            let elements = out.iter_mut().enumerate();
            match self.head_page(cell / PAGE_CELLS, head) {
                HeadPage::F32(page) => elements.for_each(|(i, x)| *x = page[element(i)]),
                HeadPage::F16(page) => {
                    elements.for_each(|(i, x)| *x = f16::from_bits(page[element(i)]).to_f32())
                }
                HeadPage::Bf16(page) => {
                    elements.for_each(|(i, x)| *x = bf16::from_bits(page[element(i)]).to_f32());
                }
                HeadPage::Quantized(_) => self.read_blocks(cell, head, out),
            }
        }
    }

    fn read_blocks(&self, cell: usize, head: usize, out: &mut [f32]) {
        let (dtype, start) = (self.layout.kind().dtype(), self.start(cell / PAGE_CELLS, head));
        for (block, out) in out.chunks_mut(BLOCK_LEN).enumerate() {
            let (mut elements, mut bytes) = ([0.0; BLOCK_LEN], [0; BLOCK_BYTES]);
            self.layout.for_each_run_of_block(block, |run| {
                bytes[run.in_cell..][..run.bytes].copy_from_slice(self.run(start, run, cell % PAGE_CELLS));
            });
            dequantize(dtype, &bytes[..dtype.block_bytes()], &mut elements)
                .expect("a block of a type that can be decoded");
            out.copy_from_slice(&elements[..out.len()]);
        }
    }

    /// Stores a cell's elements of the heads starting at `first`.
    ///
    /// # Safety
    /// Of this and the functions that it calls: no other thread may read or write these heads of the cell during the call.
    unsafe fn put(&self, cell: usize, first: usize, x: &[f32]) {
        let cell_in_page = cell % PAGE_CELLS;
        for (head, x) in (first..).zip(x.chunks_exact(self.layout.head_dim())) {
            let start = self.start(cell / PAGE_CELLS, head);
            // SAFETY: the contract of this function.
            unsafe {
                match self.layout.kind() {
                    KvType::F32 => self.put_elements(start, cell_in_page, 0, x),
                    KvType::F16 => self.put_halves(start, cell_in_page, x, |x, bits| {
                        bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(x);
                    }),
                    KvType::Bf16 => self.put_halves(start, cell_in_page, x, |x, bits| {
                        bits.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(x);
                    }),
                    kind => self.put_blocks(kind.dtype(), start, cell_in_page, x),
                }
            }
        }
    }

    /// Stores elements, starting at `first`, of the head that begins at byte `start` of a page.
    unsafe fn put_elements<T: Pod>(&self, start: usize, cell_in_page: usize, first: usize, x: &[T]) {
        let start = start / size_of::<T>() + self.layout.element(first, cell_in_page);
        // SAFETY: as for `put`.
        unsafe {
            match self.layout.stride() {
                1 => self.bytes.put_all(start, x),
                stride => x.iter().enumerate().for_each(|(i, &x)| self.bytes.put(start + i * stride, x)),
            }
        }
    }

    /// Rounds a head to a two-byte float type and stores it.
    unsafe fn put_halves(
        &self,
        start: usize,
        cell_in_page: usize,
        x: &[f32],
        round: impl Fn(&[f32], &mut [u16]),
    ) {
        const AT_ONCE: usize = 64;
        for (i, x) in x.chunks(AT_ONCE).enumerate() {
            let mut bits = [0; AT_ONCE];
            let bits = &mut bits[..x.len()];
            round(x, bits);
            // SAFETY: as for `put`.
            unsafe { self.put_elements(start, cell_in_page, i * AT_ONCE, bits) };
        }
    }

    unsafe fn put_blocks(&self, dtype: DType, start: usize, cell_in_page: usize, x: &[f32]) {
        for (block, x) in x.chunks(BLOCK_LEN).enumerate() {
            let (mut padded, mut bytes) = ([0.0; BLOCK_LEN], [0; BLOCK_BYTES]);
            padded[..x.len()].copy_from_slice(x);
            let bytes = &mut bytes[..dtype.block_bytes()];
            if quantize(dtype, &padded, bytes).is_err() {
                bytes.fill(0);
                bytes[..2].copy_from_slice(&f16::NAN.to_le_bytes());
            }
            self.layout.for_each_run_of_block(block, |run| {
                // SAFETY: as for `put`.
                unsafe {
                    self.bytes.put_all(start + run.at(cell_in_page), &bytes[run.in_cell..][..run.bytes])
                };
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::KvMemory;
    use super::*;
    use verbatim_graph::random::Random;
    use verbatim_graph::{F32Bits, RopeTable};

    fn random_values(random: &mut Random, count: usize) -> Vec<f32> {
        (0..count).map(|_| random.unit()).collect()
    }

    /// Every type of K, with different types of V, and head sizes that are and are not multiples of the block size.
    fn specs() -> impl Iterator<Item = KvSpec> {
        let kinds = KvType::ALL.into_iter().enumerate();
        kinds.flat_map(|(i, k)| {
            [1, 16, 24, 80, 96, 128].map(|head_dim| KvSpec {
                kv_heads: 3,
                head_dim,
                k,
                v: KvType::ALL[(i + head_dim) % KvType::ALL.len()],
            })
        })
    }

    /// A row after quantisation and dequantisation.
    fn rounded(kind: KvType, head_dim: usize, x: &[f32]) -> Vec<f32> {
        let dtype = kind.dtype();
        let mut out = Vec::new();
        for head in x.chunks_exact(head_dim) {
            let mut padded = head.to_vec();
            padded.resize(head_dim.next_multiple_of(dtype.block_len()), 0.0);
            let mut bytes = vec![0; dtype.row_bytes(padded.len()).expect("whole blocks")];
            quantize(dtype, &padded, &mut bytes).expect("small values");
            dequantize(dtype, &bytes, &mut padded).expect("whole blocks");
            out.extend_from_slice(&padded[..head_dim]);
        }
        out
    }

    #[test]
    fn cells_hold_the_rounded_values_and_do_not_overlap() {
        let mut random = Random(4);
        for spec in specs() {
            let memory = KvMemory::new(&[(spec, 2)]).expect("small");
            let layer = &memory.layers()[0];
            let cells = 2 * PAGE_CELLS;
            let mut rows = vec![(Vec::new(), Vec::new()); cells];
            for i in 0..cells {
                let cell = i * 37 % cells;
                let width = spec.kv_heads * spec.head_dim;
                rows[cell] = (random_values(&mut random, width), random_values(&mut random, width));
                layer.write_alone(cell, &rows[cell].0, &rows[cell].1);
            }
            for (cell, (k, v)) in rows.iter().enumerate() {
                assert_eq!(layer.k.decode(cell), rounded(spec.k, spec.head_dim, k), "{spec:?}");
                assert_eq!(layer.v.decode(cell), rounded(spec.v, spec.head_dim, v), "{spec:?}");
            }
        }
    }

    #[test]
    fn cells_and_pages_are_copied_as_they_are_stored() {
        let mut random = Random(5);
        for spec in specs() {
            let mut memory = KvMemory::new(&[(spec, 3)]).expect("small");
            let layer = &mut memory.layers_mut()[0];
            for cell in 0..PAGE_CELLS {
                let [k, v] = [0, 1].map(|_| random_values(&mut random, spec.kv_heads * spec.head_dim));
                layer.write_alone(cell, &k, &v);
            }
            let read = |layer: &KvLayer, cell: usize| {
                let mut bytes = Vec::new();
                layer.read_cell(cell, &mut bytes);
                bytes
            };
            layer.copy_page(0, 2);
            layer.copy_cell(7, PAGE_CELLS + 9);
            assert_eq!(read(layer, 7).len(), spec.cell_bytes().expect("small"));
            for cell in 0..PAGE_CELLS {
                assert_eq!(read(layer, cell), read(layer, 2 * PAGE_CELLS + cell));
                let other = read(layer, PAGE_CELLS + cell);
                assert!(if cell == 9 { other == read(layer, 7) } else { other.iter().all(|&b| b == 0) });
            }
        }
    }

    #[test]
    fn a_quant_block_with_a_non_finite_element_becomes_nan_and_no_other_does() {
        for kind in KvType::ALL.into_iter().filter(|kind| kind.is_quantized()) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
                let spec = KvSpec { kv_heads: 1, head_dim: 80, k: kind, v: kind };
                let memory = KvMemory::new(&[(spec, 1)]).expect("small");
                let layer = &memory.layers()[0];
                let good: Vec<f32> = (0..80).map(|i| i as f32 - 40.0).collect();
                let mut x = good.clone();
                x[40] = bad;
                (0..PAGE_CELLS).for_each(|cell| layer.write_alone(cell, &good, &good));
                layer.write_alone(5, &x, &x);
                for cell in 0..PAGE_CELLS {
                    for pages in [&layer.k, &layer.v] {
                        let found = pages.decode(cell);
                        let nan = |i: usize| cell == 5 && (32..64).contains(&i);
                        assert!((0..80).all(|i| found[i].is_nan() == nan(i)), "{kind:?} {bad} {cell}");
                    }
                }
            }
        }
    }

    #[test]
    fn moved_keys_are_rotated_and_keep_their_rounding_small() {
        let scaling = verbatim_graph::RopeScaling::Linear { factor: F32Bits(1.0) };
        let table = RopeTable { rotary_dim: 48, base: F32Bits(1e4), scaling };
        let mut random = Random(6);
        for (spec, transformed) in specs().flat_map(|spec| [(spec, false), (spec, true)]) {
            let spec = KvSpec { head_dim: 96, ..spec };
            let width = spec.kv_heads * spec.head_dim;
            let (k, v) = (random_values(&mut random, width), random_values(&mut random, width));
            let transform = |x: &[f32]| {
                let mut out = x.to_vec();
                if transformed {
                    hadamard::transform(Isa::best(), spec.head_dim, x, &mut out);
                }
                out
            };
            let mut memory = KvMemory::new(&[(spec, 2)]).expect("small");
            let layer = &mut memory.layers_mut()[0];
            layer.write_alone(3, &transform(&k), &v);
            let (layout, hadamard) = (RopeLayout::NeoX, transformed);
            let shift = KShift { table, layout, freq_factors: None, positions: -12, hadamard };
            let shift = KeyShifter::new(&shift);
            layer.move_cell(3, 77, Some(&shift));
            let mut wanted = vec![0.0; width];
            rope::rotate(RopeLayout::NeoX, spec.head_dim, &k, &shift.angles, &mut wanted);
            let found = transform(&layer.k.decode(77));
            let error = found.iter().zip(&wanted).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / width as f32;
            let bound = if spec.k == KvType::F32 { 1e-6 } else { 0.12 };
            assert!(error.sqrt() < bound, "{spec:?} {transformed}: {error}");
            assert_eq!(layer.v.decode(77), layer.v.decode(3));
            layer.move_cell(3, 78, None);
            assert_eq!(layer.k.decode(78), layer.k.decode(3));
        }
    }

    #[test]
    fn sizes_that_overflow_or_exceed_memory_are_rejected() {
        for kind in KvType::ALL {
            let spec = KvSpec { kv_heads: 4, head_dim: usize::MAX / 8, k: kind, v: KvType::Q8_0 };
            assert!(KvMemory::new(&[(spec, 1)]).is_err());
            let spec = KvSpec { head_dim: 64, ..spec };
            assert!(KvMemory::new(&[(spec, usize::MAX / 64)]).is_err());
        }
    }
}
