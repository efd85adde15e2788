//! AVX-512 with VNNI: sixteen rows at a time, four columns of each per `vpdpbusd`.

use std::arch::x86_64::*;

use super::Simd;
use crate::matrix::activations::{self, ActivationBlock};
use crate::matrix::formats::BlockFormat;
use crate::matrix::kernel::{self, DenseWeights, Tile};
use crate::matrix::peak;
use verbatim_backend::Products;

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(in crate::matrix) struct Avx512;

// SAFETY (of every `unsafe` below): the callers of `Simd` vouch for the instruction set and the pointers, and
// all loads and stores are unaligned ones. The small functions are inlined into the `target_feature` ones.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const MAX_TOKENS: usize = 8;
    const SUMS: usize = 24;
    type Bytes = __m512i;
    type Floats = __m512;
    type PerLanes<T: Copy> = [T; 1];

    #[inline(always)]
    fn per_lanes<T: Copy>(element: T) -> [T; 1] {
        [element; 1]
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn run_block_tile<F: BlockFormat, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { kernel::block_tile::<Self, F, M>(tile) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn run_dense_tile<W: DenseWeights, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { kernel::dense_tile::<Self, W, M>(tile) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
    unsafe fn run_peak(products: Products, rounds: usize) {
        // SAFETY: as above.
        unsafe { peak::run::<Self>(products, rounds) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
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
    unsafe fn load_bytes(bytes: *const u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_loadu_si512(bytes.cast()) }
    }

    #[inline(always)]
    unsafe fn splat_byte(byte: u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_set1_epi8(byte as i8) }
    }

    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn shift_right(a: __m512i, count: u32) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(count as i32)) }
    }

    #[inline(always)]
    unsafe fn shift_left(a: __m512i, count: u32) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(count as i32)) }
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }

    #[inline(always)]
    unsafe fn negate(a: __m512i, which: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let mask = _mm512_sub_epi8(_mm512_setzero_si512(), which);
            _mm512_sub_epi8(_mm512_xor_si512(a, mask), mask)
        }
    }

    #[inline(always)]
    unsafe fn widen_u8(values: *const u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(values.cast())) }
    }

    #[inline(always)]
    unsafe fn widen_u16(values: *const u8) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(values.cast())) }
    }

    #[inline(always)]
    unsafe fn bits(a: __m512i, from: u32, count: u32, to: u32) -> __m512i {
        // SAFETY: as above.
        unsafe {
            let mask = _mm512_set1_epi32((!(u32::MAX << count)).cast_signed());
            let low = _mm512_and_si512(_mm512_srl_epi32(a, _mm_cvtsi32_si128(from as i32)), mask);
            _mm512_sll_epi32(low, _mm_cvtsi32_si128(to as i32))
        }
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE: i32>(table: *const u8, numbers: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_i32gather_epi32::<STRIDE>(numbers, table.cast()) }
    }

    #[inline(always)]
    unsafe fn to_floats(numbers: __m512i) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(numbers) }
    }

    #[inline(always)]
    unsafe fn dot<const N: usize>(
        weights: [__m512i; N],
        _weight_max: u8,
        offset: u8,
        activations: *const u8,
        sum: f32,
    ) -> __m512 {
        // SAFETY: as above.
        unsafe {
            // Two sums, since each `vpdpbusd` waits for the one before for longer than few tokens can fill.
            let mut sums = [_mm512_setzero_si512(); 2];
            for (chunk, weights) in weights.into_iter().enumerate() {
                let four = activations.add(4 * chunk).cast::<i32>().read_unaligned();
                let sum = &mut sums[chunk % 2];
                *sum = _mm512_dpbusd_epi32(*sum, weights, _mm512_set1_epi32(four));
            }
            let total = _mm512_cvtepi32_ps(_mm512_add_epi32(sums[0], sums[1]));
            if offset == 0 {
                total
            } else {
                _mm512_fnmadd_ps(_mm512_set1_ps(f32::from(offset)), _mm512_set1_ps(sum), total)
            }
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_f32(values: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(values.cast()) }
    }

    #[inline(always)]
    unsafe fn load_f16(values: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(values: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(values.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(values: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(values.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_i8(values: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(values.cast()))) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, values: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, values) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn mul_sub_from(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
}
