//! The block formats: the layout of quants and scales in a file, the layout of packed scales, and the coefficients that turn
//! integer sums into a dot product.
//!
//! Every format has one of two formulas, `d · (q − OFFSET)` or `d · q − m`, with an unsigned quant `q` and with `d` and `m` per 32
//! columns or per 16 ([`BlockFormat::SCALE_PER_16`]). A new format is one `impl` in the file of its family, under its name in
//! [`DType`](verbatim_quant::DType), and that name in the list of `packed_format.rs`.
//!
//! Sources: the format definitions of ggml (`ggml-common.h`) and the OCP Microscaling specification 1.0
//! (MXFP4); the decoders of `verbatim-quant` are the reference that the tests compare with.
#![allow(non_camel_case_types)] // The names of the formats.

mod fp4;
mod grids;
mod iq4;
mod k;
mod legacy;
mod ternary;

use crate::layout::{self, BLOCK_COLS, GROUP_ROWS, quant_bytes, unpack};
use verbatim_quant::DType;
use verbatim_simd::Simd;

pub(super) use fp4::*;
pub(super) use grids::*;
pub(super) use iq4::*;
pub(super) use k::*;
pub(super) use legacy::*;
pub(super) use ternary::*;

/// A packed block format. A *file block* is `32 * BLOCKS` columns of one row.
pub(super) trait BlockFormat: 'static {
    /// The format in files.
    const DTYPE: DType;
    /// Bits of a quant: 1, 2, 3, 4, 5, 6 or 8.
    const BITS: usize;
    /// The values of the quants, if they are indices of a codebook.
    const CODEBOOK: Option<[u8; 16]> = None;
    /// Subtracted from a quant to make it signed; 0 in the formula with mins.
    const OFFSET: u8;
    /// Whether there are mins, `m`.
    const MINS: bool = false;
    /// Whether scales are per 16 columns, not 32.
    const SCALE_PER_16: bool = false;

    /// Blocks of 32 columns in a file block.
    const BLOCKS: usize = Self::DTYPE.block_len() / BLOCK_COLS;
    /// Bytes of a file block.
    const FILE_BYTES: usize = Self::DTYPE.block_bytes();
    /// The offset of a file block's scale, if it has a single f16 scale.
    const SCALE_OFFSET: usize = 0;
    /// Bytes of the packed quants of 32 columns, all sixteen rows together.
    const QUANT_BYTES: usize = quant_bytes(Self::BITS);
    /// The number of f16 scales of a file block. They come first, each for all sixteen rows.
    const F16_SCALES: usize = 1;
    /// The number of scales of a file block that are one byte, mostly int8. They follow, each for all sixteen rows.
    const INT8_SCALES: usize = 0;
    /// Bytes of the packed scales of a file block, all sixteen rows together.
    const SCALE_BYTES: usize = F16_ROW_BYTES * Self::F16_SCALES + GROUP_ROWS * Self::INT8_SCALES;

    /// The quants of block `sub` of a file block, each below `2^BITS`.
    fn row_quants(block: &[u8], sub: usize) -> RowQuants;
    /// Writes the quants of block `sub` of the rows' file blocks, into bytes that are zero.
    #[inline(always)]
    fn write_quants(blocks: FileBlocks<'_>, sub: usize, quants: &mut [u8]) {
        let mut rows = [[[0; 4]; BLOCK_COLS / 4]; GROUP_ROWS];
        for (row, block) in rows.iter_mut().zip(blocks.iter(Self::FILE_BYTES)) {
            row.as_flattened_mut().copy_from_slice(&Self::row_quants(block, sub));
        }
        layout::pack(Self::BITS, &rows, quants);
    }
    /// The scales of a file block.
    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([f16_at(block, Self::SCALE_OFFSET)], [])
    }
    /// Writes the scales of the rows' file blocks, into bytes that are zero.
    #[inline(always)]
    fn write_scales(blocks: FileBlocks<'_>, scales: &mut [u8]) {
        let (f16_scales, int8_scales) = scales.split_at_mut(F16_ROW_BYTES * Self::F16_SCALES);
        let mut rows = [[[0; 4]; 4]; GROUP_ROWS];
        for (lane, block) in blocks.iter(Self::FILE_BYTES).enumerate() {
            let scales = Self::row_scales(block);
            for (row, scale) in f16_scales.chunks_exact_mut(F16_ROW_BYTES).zip(scales.f16_scales) {
                row[2 * lane..2 * lane + 2].copy_from_slice(&scale);
            }
            rows[lane].as_flattened_mut().copy_from_slice(&scales.int8_scales);
        }
        if Self::INT8_SCALES > 0 {
            layout::pack_bytes(&rows, int8_scales);
        }
    }
    /// The scales of `S::LANES` rows starting at `lane`, for block `sub` of a file block.
    ///
    /// # Safety
    /// `scales` points to `SCALE_BYTES` bytes.
    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, _sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of this function.
        unsafe { Coefficients::one(simd, simd.load_f16(scales.add(2 * lane))) }
    }

    /// The maximum value of a quant.
    const QUANT_MAX: u8 = match Self::CODEBOOK {
        Some(_) => u8::MAX,
        None => u8::MAX >> (8 - Self::BITS),
    };

    /// The unsigned quants of 32 columns, four columns to a vector.
    ///
    /// # Safety
    /// `quants` points to the packed quants of one block.
    #[inline(always)]
    unsafe fn quants<S: Simd>(simd: S, quants: *const u8, lane: usize) -> [S::Bytes; 8] {
        // SAFETY: the contract of this function.
        unsafe {
            let mut quants = unpack(simd, Self::BITS, quants, lane);
            if let Some(table) = &Self::CODEBOOK {
                for quants in &mut quants {
                    *quants = simd.look_up(table, *quants);
                }
            }
            quants
        }
    }
}

/// The quants of 32 columns of one row.
pub(super) type RowQuants = [u8; BLOCK_COLS];

/// The scales of one row of a file block. A format uses the first `F16_SCALES` and `INT8_SCALES` of them.
#[derive(Clone, Copy)]
pub(super) struct RowScales {
    /// The bytes of f16 values.
    pub f16_scales: [[u8; 2]; 4],
    pub int8_scales: [u8; 16],
}

impl RowScales {
    #[inline(always)]
    pub fn new<const F16: usize, const INT8: usize>(
        f16_scales: [[u8; 2]; F16],
        int8_scales: [u8; INT8],
    ) -> RowScales {
        let mut scales = RowScales { f16_scales: [[0; 2]; 4], int8_scales: [0; 16] };
        scales.f16_scales[..F16].copy_from_slice(&f16_scales);
        scales.int8_scales[..INT8].copy_from_slice(&int8_scales);
        scales
    }
}

/// One file block of each row of a group, at the same offset in all of them. The last group may have fewer than sixteen rows.
#[derive(Clone, Copy)]
pub(super) struct FileBlocks<'a> {
    pub rows: &'a [&'a [u8]],
    /// Where the block starts in a row's bytes.
    pub at: usize,
}

impl<'a> FileBlocks<'a> {
    /// Row by row, the block's bytes.
    #[inline(always)]
    pub fn iter(self, file_bytes: usize) -> impl Iterator<Item = &'a [u8]> {
        self.rows.iter().map(move |row| &row[self.at..self.at + file_bytes])
    }
}

/// The scales of one block of 32 columns: `[0]` for its first half or all of it, `[1]` for its second half.
pub(super) struct Coefficients<S: Simd> {
    pub d: [S::Floats; 2],
    pub m: [S::Floats; 2],
}

impl<S: Simd> Coefficients<S> {
    #[inline(always)]
    fn one(simd: S, d: S::Floats) -> Self {
        Self::affine(d, simd.splat(0.0))
    }

    #[inline(always)]
    fn per_16(simd: S, d: [S::Floats; 2]) -> Self {
        Coefficients { d, m: [simd.splat(0.0); 2] }
    }

    #[inline(always)]
    fn affine(d: S::Floats, m: S::Floats) -> Self {
        Coefficients { d: [d; 2], m: [m; 2] }
    }
}

/// Bytes of one f16 per row of a group.
pub(super) const F16_ROW_BYTES: usize = 2 * GROUP_ROWS;

/// The position of quant `i`, byte and lowest bit, in an array of `BITS`-bit quants that are interleaved with stride `WIDTH`:
/// `WIDTH` bytes hold `WIDTH` neighbours in their lowest bits, the next `WIDTH` in the bits above those, and so on until the bytes
/// are full. Every quant array of every format has this layout.
#[inline(always)]
const fn packed_position<const BITS: usize, const WIDTH: usize>(i: usize) -> (usize, usize) {
    let elements = WIDTH * (8 / BITS);
    (i / elements * WIDTH + i % WIDTH, i % elements / WIDTH * BITS)
}

/// Quant `i` of such an array.
#[inline(always)]
pub(super) fn packed_quant<const BITS: usize, const WIDTH: usize>(bytes: &[u8], i: usize) -> u8 {
    let (byte, shift) = packed_position::<BITS, WIDTH>(i);
    (bytes[byte] >> shift) & (u8::MAX >> (8 - BITS))
}

/// The quants of block `sub` of such an array, a run of neighbouring bytes at a time.
#[inline(always)]
pub(super) fn packed_quants<const BITS: usize, const WIDTH: usize>(bytes: &[u8], sub: usize) -> RowQuants {
    let mut quants = [0; BLOCK_COLS];
    let mask = u8::MAX >> (8 - BITS);
    if WIDTH == 1 {
        // Four quants are a run of bits. Shifted up three times, each of them is in the lowest bits of a byte.
        let bytes = &bytes[sub * (4 * BITS)..][..4 * BITS];
        for (i, quants) in quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let run = u32::from(bytes[i * BITS / 2] >> (4 * i * BITS % 8));
            let step = 8 - BITS;
            let spread = run | run << step | run << (2 * step) | run << (3 * step);
            *quants = (spread & (u32::from(mask) * 0x0101_0101)).to_le_bytes();
        }
        return quants;
    }
    let run_quants = WIDTH.min(BLOCK_COLS);
    for (run, quants) in quants.chunks_exact_mut(run_quants).enumerate() {
        let (byte, shift) = packed_position::<BITS, WIDTH>(sub * BLOCK_COLS + run * run_quants);
        for (quant, byte) in quants.iter_mut().zip(&bytes[byte..byte + run_quants]) {
            *quant = (byte >> shift) & mask;
        }
    }
    quants
}

/// Joins quants whose bits above `low_bits` are stored separately.
#[inline(always)]
fn joined(low_bits: usize, mut low: RowQuants, high: RowQuants) -> RowQuants {
    for (quant, high) in low.iter_mut().zip(high) {
        *quant |= high << low_bits;
    }
    low
}

/// The bytes of the f16 at `at`.
#[inline(always)]
fn f16_at(block: &[u8], at: usize) -> [u8; 2] {
    [block[at], block[at + 1]]
}

/// The negated f16 of these bytes: for formats that *add* a min, so that one formula covers both signs.
fn negated(f16: [u8; 2]) -> [u8; 2] {
    [f16[0], f16[1] ^ 0x80]
}

/// Four bytes as a u32.
#[inline(always)]
pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Signed levels plus 128, as the unsigned bytes that the kernels take.
const fn offset_128(levels: [i8; 16]) -> [u8; 16] {
    let mut quants = [0; 16];
    let mut i = 0;
    while i < 16 {
        quants[i] = levels[i].cast_unsigned() ^ 0x80;
        i += 1;
    }
    quants
}

#[cfg(test)]
mod tests {
    use std::array;

    use super::*;

    fn blocks_are_quants_one_by_one<const BITS: usize, const WIDTH: usize>() {
        let bytes: [u8; 256] = array::from_fn(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8);
        for sub in 0..8 {
            let expected = array::from_fn(|i| packed_quant::<BITS, WIDTH>(&bytes, sub * BLOCK_COLS + i));
            assert_eq!(
                packed_quants::<BITS, WIDTH>(&bytes, sub),
                expected,
                "{BITS} bits, {WIDTH}, block {sub}"
            );
        }
    }

    #[test]
    fn packed_quants_are_the_single_packed_quants() {
        blocks_are_quants_one_by_one::<1, 1>();
        blocks_are_quants_one_by_one::<1, 32>();
        blocks_are_quants_one_by_one::<2, 1>();
        blocks_are_quants_one_by_one::<2, 32>();
        blocks_are_quants_one_by_one::<4, 8>();
        blocks_are_quants_one_by_one::<4, 16>();
        blocks_are_quants_one_by_one::<4, 32>();
        blocks_are_quants_one_by_one::<4, 64>();
        blocks_are_quants_one_by_one::<8, 32>();
    }
}
