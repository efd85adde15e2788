//! AVX-512 F.

use std::arch::x86_64::*;

use super::{LANES, Lanes};

/// One vector of sixteen.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(pub(super) ());

// SAFETY (of every `unsafe` below): a value of the type exists only inside the functions
// that `dispatch` enters after the machine was found to have the instructions; loads and stores are unaligned and
// stay within the arrays referred to.
impl Lanes for Avx512 {
    type F = __m512;
    const SUMS: usize = 16;

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch does not fault, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn widen(self, bytes: __m128i) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: as above.
        unsafe { _mm512_roundscale_ps::<NEAREST>(x) }
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    fn keep_if_ge(self, a: Self::F, b: Self::F, x: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b), x) }
    }
    #[inline(always)]
    fn keep_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        let mask = if count >= LANES { u16::MAX } else { (1 << count) - 1 };
        // SAFETY: as above.
        unsafe { _mm512_mask_blend_ps(mask, _mm512_set1_ps(fill), x) }
    }
    #[inline(always)]
    fn drop_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        let mask = if count >= LANES { u16::MAX } else { (1 << count) - 1 };
        // SAFETY: as above.
        unsafe { _mm512_mask_blend_ps(mask, x, _mm512_set1_ps(fill)) }
    }
}
