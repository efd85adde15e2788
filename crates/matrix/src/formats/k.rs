//! The K formats: blocks of 256 columns, whose scales are small integers.

use super::{
    BlockFormat, Coefficients, F16_ROW_BYTES, RowQuants, RowScales, f16_at, joined, packed_quants, u32_at,
};
use crate::layout::GROUP_ROWS;
use verbatim_quant::DType;
use verbatim_simd::Simd;

/// Four bits, `d · scale · q − dmin · min`, six-bit scales and mins per 32 columns. Packed: `d`,
/// `dmin`, then per 32 columns the scales and the mins as bytes.
pub(crate) struct Q4_K;
impl BlockFormat for Q4_K {
    const DTYPE: DType = DType::Q4_K;
    const BITS: usize = 4;
    const OFFSET: u8 = 0;
    const MINS: bool = true;
    const F16_SCALES: usize = 2;
    const INT8_SCALES: usize = 16;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<4, 32>(&block[16..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([f16_at(block, 0), f16_at(block, 2)], six_bit_pairs(block))
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe {
            let d = simd.load_f16(scales.add(2 * lane));
            let dmin = simd.load_f16(scales.add(F16_ROW_BYTES + 2 * lane));
            let subs = scales.add(2 * F16_ROW_BYTES + sub * 2 * GROUP_ROWS + lane);
            let (scale, min) = (simd.load_u8(subs), simd.load_u8(subs.add(GROUP_ROWS)));
            Coefficients::affine(simd.mul(d, scale), simd.mul(dmin, min))
        }
    }
}

/// The scales of a block of Q4_K or Q5_K, each with its min after it. In the file, in bytes 4..16, the first word holds the
/// first four scales and the second their mins, with the high bits of the last four above them; the third holds the
/// low bits of the last four.
#[inline(always)]
fn six_bit_pairs(block: &[u8]) -> [u8; 16] {
    let [scales, mins, low] = [u32_at(block, 4), u32_at(block, 8), u32_at(block, 12)];
    let last = |low: u32, high: u32| low & 0x0f0f_0f0f | high >> 2 & 0x3030_3030;
    let first = alternating(scales & 0x3f3f_3f3f, mins & 0x3f3f_3f3f);
    let last = alternating(last(low, scales), last(low >> 4, mins));
    (u128::from(first) | u128::from(last) << 64).to_le_bytes()
}

/// Interleaves the bytes of two words.
#[inline(always)]
fn alternating(even: u32, odd: u32) -> u64 {
    let apart = |word: u32| {
        let halves = (u64::from(word) | u64::from(word) << 16) & 0x0000_ffff_0000_ffff;
        (halves | halves << 8) & 0x00ff_00ff_00ff_00ff
    };
    apart(even) | apart(odd) << 8
}

/// Q4_K with five bits.
pub(crate) struct Q5_K;
impl BlockFormat for Q5_K {
    const DTYPE: DType = DType::Q5_K;
    const BITS: usize = 5;
    const OFFSET: u8 = 0;
    const MINS: bool = true;
    const F16_SCALES: usize = 2;
    const INT8_SCALES: usize = 16;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        joined(4, packed_quants::<4, 32>(&block[48..], sub), packed_quants::<1, 32>(&block[16..], sub))
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        Q4_K::row_scales(block)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe { Q4_K::coefficients(simd, scales, lane, sub) }
    }
}

/// Two signed byte scales per block in units of `d`: the packed form of Q3_K, Q6_K.
#[inline(always)]
unsafe fn signed_per_16<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
    // SAFETY: the caller guarantees `F16_ROW_BYTES + 16 * GROUP_ROWS` bytes and the instruction set.
    unsafe {
        let d = simd.load_f16(scales.add(2 * lane));
        let subs = scales.add(F16_ROW_BYTES + 2 * sub * GROUP_ROWS + lane);
        Coefficients::per_16(
            simd,
            [simd.mul(d, simd.load_i8(subs)), simd.mul(d, simd.load_i8(subs.add(GROUP_ROWS)))],
        )
    }
}

/// Six bits, `d · scale · (q − 32)`, signed scales per 16 columns.
pub(crate) struct Q6_K;
impl BlockFormat for Q6_K {
    const DTYPE: DType = DType::Q6_K;
    const BITS: usize = 6;
    const OFFSET: u8 = 32;
    const SCALE_PER_16: bool = true;
    const INT8_SCALES: usize = 16;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        joined(4, packed_quants::<4, 64>(block, sub), packed_quants::<2, 32>(&block[128..], sub))
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        let mut scales = [0; 16];
        scales.copy_from_slice(&block[192..208]);
        RowScales::new([f16_at(block, 208)], scales)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe { signed_per_16(simd, scales, lane, sub) }
    }
}

/// Three bits, `d · (scale − 32) · (q − 4)`, six-bit scales per 16 columns.
pub(crate) struct Q3_K;
impl BlockFormat for Q3_K {
    const DTYPE: DType = DType::Q3_K;
    const BITS: usize = 3;
    const OFFSET: u8 = 4;
    const SCALE_PER_16: bool = true;
    const INT8_SCALES: usize = 16;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        joined(2, packed_quants::<2, 32>(&block[32..], sub), packed_quants::<1, 32>(block, sub))
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        // Four scales at a time: `packed_quant::<4, 8>` and, above it, `packed_quant::<2, 4>`.
        let mut subs = [0; 16];
        for (i, subs) in subs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let low = u32_at(block, 96 + i % 2 * 4) >> (i / 2 * 4) & 0x0f0f_0f0f;
            let high = u32_at(block, 104) >> (2 * i) & 0x0303_0303;
            *subs = (low | high << 4).to_le_bytes();
        }
        for scale in &mut subs {
            *scale = scale.wrapping_sub(32);
        }
        RowScales::new([f16_at(block, 108)], subs)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe { signed_per_16(simd, scales, lane, sub) }
    }
}

/// Two bits, `d · scale · q − dmin · min`, four-bit scales and mins per 16 columns. Packed: `d`,
/// `dmin`, then per 16 columns a byte with the scale in its lower half and the min in its upper.
pub(crate) struct Q2_K;
impl BlockFormat for Q2_K {
    const DTYPE: DType = DType::Q2_K;
    const BITS: usize = 2;
    const OFFSET: u8 = 0;
    const MINS: bool = true;
    const SCALE_PER_16: bool = true;
    const F16_SCALES: usize = 2;
    const INT8_SCALES: usize = 16;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<2, 32>(&block[16..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        let mut pairs = [0; 16];
        pairs.copy_from_slice(&block[..16]);
        RowScales::new([f16_at(block, 80), f16_at(block, 82)], pairs)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe {
            let d = simd.load_f16(scales.add(2 * lane));
            let dmin = simd.load_f16(scales.add(F16_ROW_BYTES + 2 * lane));
            let pairs = scales.add(2 * F16_ROW_BYTES + 2 * sub * GROUP_ROWS + lane);
            let pairs = [simd.widen_u8(pairs), simd.widen_u8(pairs.add(GROUP_ROWS))];
            let nibble = |half: usize, from| simd.to_floats(simd.bits(pairs[half], from, 4, 0));
            Coefficients {
                d: [simd.mul(d, nibble(0, 0)), simd.mul(d, nibble(1, 0))],
                m: [simd.mul(dmin, nibble(0, 4)), simd.mul(dmin, nibble(1, 4))],
            }
        }
    }
}
