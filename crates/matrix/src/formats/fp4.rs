//! Four-bit floating point.

use half::f16;

use super::{BlockFormat, Coefficients, F16_ROW_BYTES, RowQuants, RowScales, offset_128, packed_quants};
use verbatim_quant::DType;
use verbatim_simd::Simd;

/// The sixteen E2M1 values of MXFP4 and NVFP4, doubled so that they are integers.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Four-bit floating point with a power of two per 32 columns. Packed: the power as a bf16, which can
/// represent every one.
pub(crate) struct MXFP4;
impl BlockFormat for MXFP4 {
    const DTYPE: DType = DType::MXFP4;
    const BITS: usize = 4;
    const CODEBOOK: Option<[u8; 16]> = Some(offset_128(E2M1_DOUBLED));
    const OFFSET: u8 = 128;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<4, 16>(&block[1..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        // Half of 2^(exponent − 127), since the levels are doubled; the smallest two are subnormal.
        let half_scale = match block[0] {
            exponent @ (0 | 1) => 0x0020 << exponent,
            exponent => u16::from(exponent - 1) << 7,
        };
        RowScales::new([half_scale.to_le_bytes()], [])
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, _sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe { Coefficients::one(simd, simd.load_bf16(scales.add(2 * lane))) }
    }
}

/// Four-bit floating point with a small floating-point scale per 16 columns. Packed: the scales as f16,
/// which can represent every one.
pub(crate) struct NVFP4;
impl BlockFormat for NVFP4 {
    const DTYPE: DType = DType::NVFP4;
    const BITS: usize = 4;
    const CODEBOOK: Option<[u8; 16]> = MXFP4::CODEBOOK;
    const OFFSET: u8 = 128;
    const SCALE_PER_16: bool = true;
    const F16_SCALES: usize = 4;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<4, 8>(&block[4..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([0, 1, 2, 3].map(|sub| half_of_e4m3(block[sub]).to_le_bytes()), [])
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe {
            let scales = scales.add(2 * sub * F16_ROW_BYTES + 2 * lane);
            Coefficients::per_16(simd, [simd.load_f16(scales), simd.load_f16(scales.add(F16_ROW_BYTES))])
        }
    }
}

/// Half of an E4M3 value (the levels are doubled) without its sign; its one NaN becomes 0. Both formats have their exponent
/// above their mantissa, so adding to the exponent converts all but subnormal values.
#[inline(always)]
fn half_of_e4m3(byte: u8) -> f16 {
    match u16::from(byte & 0x7f) {
        _ if byte == 0x7f => f16::ZERO,
        subnormal @ 0..8 => f16::from_f32(f32::from(subnormal) / 1024.0),
        normal => f16::from_bits((normal << 7) + (7 << 10)),
    }
}
