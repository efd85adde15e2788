//! The formats with blocks of 32 columns: four, five and eight bits.

use super::{
    BlockFormat, Coefficients, F16_ROW_BYTES, FileBlocks, RowQuants, RowScales, f16_at, joined, negated,
    packed_quants, u32_at,
};
use crate::layout::{self, BLOCK_COLS, GROUP_ROWS, quant_bytes};
use verbatim_quant::DType;
use verbatim_simd::Simd;

/// Four bits, `d · (q − 8)`.
pub(crate) struct Q4_0;
impl BlockFormat for Q4_0 {
    const DTYPE: DType = DType::Q4_0;
    const BITS: usize = 4;
    const OFFSET: u8 = 8;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<4, 16>(&block[2..], sub)
    }
}

/// Four bits, `d · q + m`.
pub(crate) struct Q4_1;
impl BlockFormat for Q4_1 {
    const DTYPE: DType = DType::Q4_1;
    const BITS: usize = 4;
    const OFFSET: u8 = 0;
    const MINS: bool = true;
    const F16_SCALES: usize = 2;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<4, 16>(&block[4..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([f16_at(block, 0), negated(f16_at(block, 2))], [])
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, _sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe {
            let scales = scales.add(2 * lane);
            Coefficients::affine(simd.load_f16(scales), simd.load_f16(scales.add(F16_ROW_BYTES)))
        }
    }
}

/// Writes the quants of Q5_0 and Q5_1: 32 high bits at `at`, and 16 bytes of low halves after them.
#[inline(always)]
fn write_five_bits(blocks: FileBlocks<'_>, file_bytes: usize, at: usize, quants: &mut [u8]) {
    let mut low = [[[0; 4]; BLOCK_COLS / 4]; GROUP_ROWS];
    let mut high = [0; GROUP_ROWS];
    for ((low, high), block) in low.iter_mut().zip(&mut high).zip(blocks.iter(file_bytes)) {
        *high = u32_at(block, at);
        low.as_flattened_mut().copy_from_slice(&packed_quants::<4, 16>(&block[at + 4..], 0));
    }
    let (low_quants, high_quants) = quants.split_at_mut(quant_bytes(4));
    layout::pack(4, &low, low_quants);
    layout::pack_bits(&high, high_quants);
}

/// Five bits, `d · (q − 16)`.
pub(crate) struct Q5_0;
impl BlockFormat for Q5_0 {
    const DTYPE: DType = DType::Q5_0;
    const BITS: usize = 5;
    const OFFSET: u8 = 16;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        joined(4, packed_quants::<4, 16>(&block[6..], sub), packed_quants::<1, 1>(&block[2..], sub))
    }

    #[inline(always)]
    fn write_quants(blocks: FileBlocks<'_>, _sub: usize, quants: &mut [u8]) {
        write_five_bits(blocks, Self::FILE_BYTES, 2, quants);
    }
}

/// Five bits, `d · q + m`.
pub(crate) struct Q5_1;
impl BlockFormat for Q5_1 {
    const DTYPE: DType = DType::Q5_1;
    const BITS: usize = 5;
    const OFFSET: u8 = 0;
    const MINS: bool = true;
    const F16_SCALES: usize = 2;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        joined(4, packed_quants::<4, 16>(&block[8..], sub), packed_quants::<1, 1>(&block[4..], sub))
    }

    #[inline(always)]
    fn write_quants(blocks: FileBlocks<'_>, _sub: usize, quants: &mut [u8]) {
        write_five_bits(blocks, Self::FILE_BYTES, 4, quants);
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        Q4_1::row_scales(block)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe { Q4_1::coefficients(simd, scales, lane, sub) }
    }
}

/// Eight bits, `d · q` with a signed q, stored as q + 128.
pub(crate) struct Q8_0;
impl BlockFormat for Q8_0 {
    const DTYPE: DType = DType::Q8_0;
    const BITS: usize = 8;
    const OFFSET: u8 = 128;

    #[inline(always)]
    fn row_quants(block: &[u8], _sub: usize) -> RowQuants {
        let mut quants = packed_quants::<8, 32>(&block[2..], 0);
        quants.iter_mut().for_each(|quant| *quant ^= 0x80);
        quants
    }
}
