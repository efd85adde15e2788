//! AVX2 with FMA and F16C: eight rows at a time. With AVX-VNNI, `vpdpbusd` makes the byte products; without
//! it they go through 16-bit sums that cannot saturate.

use std::arch::x86_64::*;

use super::Simd;
use crate::matrix::activations::{self, ActivationBlock};
use crate::matrix::formats::BlockFormat;
use crate::matrix::kernel::{self, DenseWeights, Tile};
use crate::matrix::peak;
use verbatim_backend::Products;

/// Eight lanes, without and with `vpdpbusd`.
#[derive(Clone, Copy)]
pub(in crate::matrix) struct EightLanes<const VNNI: bool>;

pub(in crate::matrix) type Avx2 = EightLanes<false>;
pub(in crate::matrix) type AvxVnni = EightLanes<true>;

/// What an i16 lane can hold, in units of the largest |activation|.
const I16_ROOM: usize = i16::MAX as usize / 127;

// SAFETY (of every `unsafe` below): the callers of `Simd` vouch for the instruction set and the pointers, and
// all loads and stores are unaligned ones. The small functions are inlined into the `target_feature` ones.
impl<const VNNI: bool> Simd for EightLanes<VNNI> {
    const LANES: usize = 8;
    const MAX_TOKENS: usize = 8;
    const SUMS: usize = 12;
    type Bytes = __m256i;
    type Floats = __m256;
    type PerLanes<T: Copy> = [T; 2];

    #[inline(always)]
    fn per_lanes<T: Copy>(element: T) -> [T; 2] {
        [element; 2]
    }

    unsafe fn run_block_tile<F: BlockFormat, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { if VNNI { block_tile_vnni::<F, M>(tile) } else { block_tile_avx2::<F, M>(tile) } }
    }

    unsafe fn run_dense_tile<W: DenseWeights, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { dense_tile_avx2::<W, M>(tile) }
    }

    unsafe fn run_peak(products: Products, rounds: usize) {
        // SAFETY: as above.
        unsafe { if VNNI { peak_vnni(products, rounds) } else { peak_avx2(products, rounds) } }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quantize_block(values: &[f32; 32]) -> ActivationBlock {
        // SAFETY: as above.
        unsafe { activations::quantize_block_avx2(values) }
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: as above.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const u8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_loadu_si256(bytes.cast()) }
    }

    #[inline(always)]
    unsafe fn splat_byte(byte: u8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_set1_epi8(byte as i8) }
    }

    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn shift_right(a: __m256i, count: u32) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_srl_epi16(a, _mm_cvtsi32_si128(count as i32)) }
    }

    #[inline(always)]
    unsafe fn shift_left(a: __m256i, count: u32) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_sll_epi16(a, _mm_cvtsi32_si128(count as i32)) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    unsafe fn negate(a: __m256i, which: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let mask = _mm256_sub_epi8(_mm256_setzero_si256(), which);
            _mm256_sub_epi8(_mm256_xor_si256(a, mask), mask)
        }
    }

    #[inline(always)]
    unsafe fn widen_u8(values: *const u8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(values.cast())) }
    }

    #[inline(always)]
    unsafe fn widen_u16(values: *const u8) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(values.cast())) }
    }

    #[inline(always)]
    unsafe fn bits(a: __m256i, from: u32, count: u32, to: u32) -> __m256i {
        // SAFETY: as above.
        unsafe {
            let mask = _mm256_set1_epi32((!(u32::MAX << count)).cast_signed());
            let low = _mm256_and_si256(_mm256_srl_epi32(a, _mm_cvtsi32_si128(from as i32)), mask);
            _mm256_sll_epi32(low, _mm_cvtsi32_si128(to as i32))
        }
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE: i32>(table: *const u8, numbers: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_i32gather_epi32::<STRIDE>(table.cast(), numbers) }
    }

    #[inline(always)]
    unsafe fn to_floats(numbers: __m256i) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(numbers) }
    }

    #[inline(always)]
    unsafe fn dot<const N: usize>(
        weights: [__m256i; N],
        weight_max: u8,
        offset: u8,
        activations: *const u8,
        sum: f32,
    ) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let total = if VNNI {
                dot_vnni(weights, activations)
            } else if weight_max > 128 {
                debug_assert_eq!(offset, 128, "wide weights are centred ones");
                return _mm256_cvtepi32_ps(dot_wide(weights, activations));
            } else {
                dot_narrow(weights, weight_max, activations)
            };
            let total = _mm256_cvtepi32_ps(total);
            if offset == 0 {
                total
            } else {
                _mm256_fnmadd_ps(_mm256_set1_ps(f32::from(offset)), _mm256_set1_ps(sum), total)
            }
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_f32(values: *const u8) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(values.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(values: *const u8) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(values.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(values: *const u8) -> __m256 {
        // SAFETY: as above.
        unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(values.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(values: *const u8) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(values.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_i8(values: *const u8) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(values.cast()))) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, values: __m256) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to, values) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn mul_sub_from(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_tile_avx2<F: BlockFormat, const M: usize>(tile: &Tile) {
    // SAFETY: the caller vouches for the tile.
    unsafe { kernel::block_tile::<Avx2, F, M>(tile) }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn block_tile_vnni<F: BlockFormat, const M: usize>(tile: &Tile) {
    // SAFETY: the caller vouches for the tile.
    unsafe { kernel::block_tile::<AvxVnni, F, M>(tile) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dense_tile_avx2<W: DenseWeights, const M: usize>(tile: &Tile) {
    // SAFETY: the caller vouches for the tile.
    unsafe { kernel::dense_tile::<Avx2, W, M>(tile) }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn peak_avx2(products: Products, rounds: usize) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { peak::run::<Avx2>(products, rounds) }
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn peak_vnni(products: Products, rounds: usize) {
    // SAFETY: the caller vouches for the instruction set.
    unsafe { peak::run::<AvxVnni>(products, rounds) }
}

/// Σ weight · activation.
#[inline(always)]
unsafe fn dot_vnni<const N: usize>(weights: [__m256i; N], activations: *const u8) -> __m256i {
    // SAFETY: the caller vouches for AVX-VNNI and for `4 * N` readable activations.
    unsafe {
        let mut total = _mm256_setzero_si256();
        for (chunk, weights) in weights.into_iter().enumerate() {
            total = _mm256_dpbusd_avx_epi32(total, weights, splat_four(activations.add(4 * chunk)));
        }
        total
    }
}

/// Σ weight · activation for weights up to `weight_max`, at most 128: as many pair sums as an i16 lane can
/// take are added there before they are widened.
#[inline(always)]
unsafe fn dot_narrow<const N: usize>(
    weights: [__m256i; N],
    weight_max: u8,
    activations: *const u8,
) -> __m256i {
    let pair_sums = I16_ROOM / (2 * usize::from(weight_max));
    // SAFETY: the caller vouches for AVX2 and for `4 * N` readable activations.
    unsafe {
        let mut total = _mm256_setzero_si256();
        let mut narrow = _mm256_setzero_si256();
        for (chunk, weights) in weights.into_iter().enumerate() {
            let pairs = _mm256_maddubs_epi16(weights, splat_four(activations.add(4 * chunk)));
            narrow = if chunk.is_multiple_of(pair_sums) { pairs } else { _mm256_add_epi16(narrow, pairs) };
            if (chunk + 1).is_multiple_of(pair_sums) || chunk + 1 == N {
                total = _mm256_add_epi32(total, _mm256_madd_epi16(narrow, _mm256_set1_epi16(1)));
            }
        }
        total
    }
}

/// Σ (weight − 128) · activation for weights up to 255, which `maddubs` would saturate on: it multiplies
/// |weight − 128| ≤ 128 by the activation with the weight's sign moved to it, so a pair sum is at most
/// 2 · 128 · 127 < 2^15.
#[inline(always)]
unsafe fn dot_wide<const N: usize>(weights: [__m256i; N], activations: *const u8) -> __m256i {
    // SAFETY: the caller vouches for AVX2 and for `4 * N` readable activations.
    unsafe {
        let mut total = _mm256_setzero_si256();
        for (chunk, weights) in weights.into_iter().enumerate() {
            let centred = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
            let signed = _mm256_sign_epi8(splat_four(activations.add(4 * chunk)), centred);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centred), signed);
            total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        total
    }
}

/// The same four signed bytes in every lane.
#[inline(always)]
unsafe fn splat_four(bytes: *const u8) -> __m256i {
    // SAFETY: the caller vouches for AVX2 and for four readable bytes.
    unsafe { _mm256_set1_epi32(bytes.cast::<i32>().read_unaligned()) }
}
