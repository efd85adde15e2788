//! Four bits that index a codebook.

use super::{
    BlockFormat, Coefficients, F16_ROW_BYTES, Q4_0, RowQuants, RowScales, f16_at, offset_128, packed_quant,
    packed_quants,
};
use crate::layout::GROUP_ROWS;
use verbatim_quant::DType;
use verbatim_simd::Simd;

/// Four bits that index a fixed codebook, `d · level`.
pub(crate) struct IQ4_NL;
impl BlockFormat for IQ4_NL {
    const DTYPE: DType = DType::IQ4_NL;
    const BITS: usize = 4;
    const CODEBOOK: Option<[u8; 16]> = Some(offset_128(IQ4_LEVELS));
    const OFFSET: u8 = 128;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        Q4_0::row_quants(block, sub)
    }
}

/// The levels of IQ4_NL and IQ4_XS.
const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// IQ4_NL with six-bit scales per 32 columns, `d · (scale − 32) · level`. Packed: `d`, then the signed
/// scales.
pub(crate) struct IQ4_XS;
impl BlockFormat for IQ4_XS {
    const DTYPE: DType = DType::IQ4_XS;
    const BITS: usize = 4;
    const CODEBOOK: Option<[u8; 16]> = IQ4_NL::CODEBOOK;
    const OFFSET: u8 = 128;
    const INT8_SCALES: usize = 8;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<4, 16>(&block[8..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        let mut scales = [0; 8];
        for (sub, scale) in scales.iter_mut().enumerate() {
            let quant = packed_quant::<4, 1>(&block[4..], sub) | packed_quant::<2, 1>(&block[2..], sub) << 4;
            *scale = quant.wrapping_sub(32);
        }
        RowScales::new([f16_at(block, 0)], scales)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe {
            let d = simd.load_f16(scales.add(2 * lane));
            let scale = simd.load_i8(scales.add(F16_ROW_BYTES + sub * GROUP_ROWS + lane));
            Coefficients::one(simd, simd.mul(d, scale))
        }
    }
}
