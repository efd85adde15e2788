//! The layout of the bytes of one head in a page.
//!
//! A head is split into quant blocks: of 32 elements for the quantised types, the whole head for the others. A block has *headers*
//! (its scale, and in the `_1` types its min) and *quants*: the bytes of a quant block in the order of the GGUF format, or float
//! elements. A page holds for each block first the headers, each of them for all cells, and then the quants: of K each quant byte
//! for all cells, of V each cell's quants together.

use std::ops::Range;
use verbatim_backend::{KvType, PAGE_CELLS};
use verbatim_team::AlignedBytes;

/// Bytes of a header, an f16.
const HEADER_BYTES: usize = 2;

/// The layout of a head's K or V.
#[derive(Clone, Copy)]
pub(crate) struct HeadLayout {
    kind: KvType,
    head_dim: usize,
    /// Whether each quant byte is stored for all cells together: K.
    transposed: bool,
    blocks: usize,
    /// Of a block.
    headers: usize,
    /// Of a block.
    quants: usize,
    quant_bytes: usize,
}

/// Bytes that are contiguous in a page and in a serialised cell.
#[derive(Clone, Copy)]
pub(crate) struct ByteRun {
    /// Their offset in the head's bytes of a cell, in the order of the GGUF format.
    pub(crate) in_cell: usize,
    /// Their offset in the page, for the page's first cell.
    in_page: usize,
    pub(crate) bytes: usize,
}

impl ByteRun {
    /// Their offset in the page, for a cell of the page.
    pub(crate) fn at(&self, cell_in_page: usize) -> usize {
        self.in_page + cell_in_page * self.bytes
    }
}

impl HeadLayout {
    /// `None` if the sizes overflow.
    pub(crate) fn new(kind: KvType, head_dim: usize, transposed: bool) -> Option<HeadLayout> {
        kind.head_bytes(head_dim)?.checked_mul(PAGE_CELLS)?;
        let (len, bytes) = (kind.dtype().block_len(), kind.dtype().block_bytes());
        Some(if kind.is_quantized() {
            let headers = if matches!(kind, KvType::Q4_1 | KvType::Q5_1) { 2 } else { 1 };
            let quants = bytes - headers * HEADER_BYTES;
            let blocks = head_dim.div_ceil(len);
            HeadLayout { kind, head_dim, transposed, blocks, headers, quants, quant_bytes: 1 }
        } else {
            HeadLayout {
                kind,
                head_dim,
                transposed,
                blocks: 1,
                headers: 0,
                quants: head_dim,
                quant_bytes: bytes,
            }
        })
    }

    pub(crate) fn kind(&self) -> KvType {
        self.kind
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// Bytes of a block of one cell.
    fn block_bytes(&self) -> usize {
        self.headers * HEADER_BYTES + self.quants * self.quant_bytes
    }

    /// Bytes of the head of one cell.
    pub(crate) fn cell_bytes(&self) -> usize {
        self.blocks * self.block_bytes()
    }

    /// Bytes of the head of all cells of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.cell_bytes() * PAGE_CELLS
    }

    /// The index of a cell's element in the page; only for the types that are not quantised.
    pub(crate) fn element(&self, element: usize, cell_in_page: usize) -> usize {
        if self.transposed {
            element * PAGE_CELLS + cell_in_page
        } else {
            cell_in_page * self.head_dim + element
        }
    }

    /// The stride between the elements of a cell, in elements; only for the types that are not quantised.
    pub(crate) fn stride(&self) -> usize {
        if self.transposed { PAGE_CELLS } else { 1 }
    }

    /// The byte runs that one cell consists of.
    pub(crate) fn for_each_run(&self, mut each: impl FnMut(ByteRun)) {
        (0..self.blocks).for_each(|block| self.for_each_run_of(block, &mut each));
    }

    /// The byte runs of one block, with `in_cell` relative to the block.
    pub(crate) fn for_each_run_of_block(&self, block: usize, mut each: impl FnMut(ByteRun)) {
        let start = block * self.block_bytes();
        self.for_each_run_of(block, &mut |run| each(ByteRun { in_cell: run.in_cell - start, ..run }));
    }

    fn for_each_run_of(&self, block: usize, each: &mut impl FnMut(ByteRun)) {
        let mut in_cell = block * self.block_bytes();
        let mut emit = |runs: usize, bytes: usize| {
            for _ in 0..runs {
                each(ByteRun { in_cell, in_page: in_cell * PAGE_CELLS, bytes });
                in_cell += bytes;
            }
        };
        emit(self.headers, HEADER_BYTES);
        if self.transposed {
            emit(self.quants, self.quant_bytes);
        } else {
            emit(1, self.quants * self.quant_bytes);
        }
    }

    /// One head of a page, which starts at byte `start` of `bytes`.
    pub(crate) fn view<'a>(&self, bytes: &'a AlignedBytes, start: usize) -> HeadPage<'a> {
        let elements = self.head_dim * PAGE_CELLS;
        match self.kind {
            KvType::F32 => HeadPage::F32(bytes.slice_at(start, elements)),
            KvType::F16 => HeadPage::F16(bytes.slice_at(start, elements)),
            KvType::Bf16 => HeadPage::Bf16(bytes.slice_at(start, elements)),
            kind => HeadPage::Quantized(Quantized {
                kind,
                bytes: bytes.slice_at(start, self.page_bytes()),
                halves: bytes.slice_at(start, self.page_bytes() / HEADER_BYTES),
                quants_at: self.headers * HEADER_BYTES * PAGE_CELLS,
                block_bytes: self.block_bytes() * PAGE_CELLS,
            }),
        }
    }
}

/// One head of a page's K or V.
#[derive(Clone, Copy)]
pub(crate) enum HeadPage<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Bf16(&'a [u16]),
    Quantized(Quantized<'a>),
}

impl HeadPage<'_> {
    /// The address range of its bytes.
    pub(crate) fn addresses(&self) -> Range<*const u8> {
        fn cast<T>(elements: &[T]) -> Range<*const u8> {
            let Range { start, end } = elements.as_ptr_range();
            start.cast()..end.cast()
        }
        match self {
            HeadPage::F32(elements) => cast(elements),
            HeadPage::F16(elements) | HeadPage::Bf16(elements) => cast(elements),
            HeadPage::Quantized(page) => cast(page.bytes),
        }
    }
}

/// One head of a page's quantised K or V.
#[derive(Clone, Copy)]
pub(crate) struct Quantized<'a> {
    pub(crate) kind: KvType,
    bytes: &'a [u8],
    /// The same bytes.
    halves: &'a [u16],
    /// Bytes of a block's headers, all cells.
    quants_at: usize,
    /// Bytes of a block, all cells.
    block_bytes: usize,
}

impl<'a> Quantized<'a> {
    /// The headers of a block: each for all cells.
    pub(crate) fn headers(&self, block: usize) -> &'a [u16] {
        &self.halves[self.range(block, HEADER_BYTES)][..self.quants_at / HEADER_BYTES]
    }

    /// The quants of a block.
    pub(crate) fn quants(&self, block: usize) -> &'a [u8] {
        &self.bytes[self.range(block, 1)][self.quants_at..]
    }

    fn range(&self, block: usize, element_bytes: usize) -> Range<usize> {
        let len = self.block_bytes / element_bytes;
        block * len..(block + 1) * len
    }
}
