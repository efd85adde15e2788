//! AVX2 with FMA and F16C.

use std::arch::x86_64::*;
use std::array;

use super::{LANES, Lanes};

/// Two vectors of eight.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(pub(super) ());

// SAFETY (of every `unsafe` below): a value of the type exists only inside the functions
// that `dispatch` enters after the machine was found to have the instructions; loads and stores are unaligned and
// stay within the arrays referred to.
impl Lanes for Avx2 {
    type F = [__m256; 2];
    // Twelve of the sixteen registers. Some may be spilled; eight, which are not, were slower, since keys and values are then
    // walked in narrower strips.
    const SUMS: usize = 6;

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch does not fault, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let halves = from.as_ptr().cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves.add(1)))]
        }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let halves = from.as_ptr().cast::<__m128i>();
            [_mm_loadu_si128(halves), _mm_loadu_si128(halves.add(1))]
                .map(|x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x))))
        }
    }
    #[inline(always)]
    fn widen(self, bytes: __m128i) -> Self::F {
        // SAFETY: as above.
        unsafe {
            [bytes, _mm_unpackhi_epi64(bytes, bytes)].map(|x| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)))
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: as above.
        unsafe { [_mm256_round_ps::<NEAREST>(x[0]), _mm256_round_ps::<NEAREST>(x[1])] }
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            n.map(|n| {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), bias);
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            })
        }
    }
    #[inline(always)]
    fn keep_if_ge(self, a: Self::F, b: Self::F, x: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { array::from_fn(|i| _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a[i], b[i]), x[i])) }
    }
    #[inline(always)]
    fn keep_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        // SAFETY: as above.
        unsafe {
            array::from_fn(|i| {
                let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let left = _mm256_set1_epi32(count as i32 - 8 * i as i32);
                let keep = _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, lane));
                _mm256_blendv_ps(_mm256_set1_ps(fill), x[i], keep)
            })
        }
    }
    #[inline(always)]
    fn drop_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        let fill = self.splat(fill);
        // SAFETY: as above.
        unsafe {
            array::from_fn(|i| {
                let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let left = _mm256_set1_epi32(count as i32 - 8 * i as i32);
                let drop = _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, lane));
                _mm256_blendv_ps(x[i], fill[i], drop)
            })
        }
    }
}
