//! AVX-512 with VNNI: sixteen lanes, four bytes of each per `vpdpbusd`.

use std::arch::x86_64::*;

use crate::q8::{Q8Block, x86::quantize};
use crate::simd::{Kernel, Simd, intrinsics};
use crate::x86::bytes16;

/// Sixteen lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The CPU supports the instructions.
    pub(crate) const unsafe fn new_unchecked() -> Self {
        Avx512(())
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline(never)]
fn on_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// The first `count` of sixteen lanes.
#[inline(always)]
fn first(count: usize) -> __mmask16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}

// SAFETY (of every `unsafe` below): a token exists only if the CPU supports the instructions; the callers of `Simd` guarantee that
// the pointers are valid, and all loads and stores are unaligned.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const TILE_TOKENS: usize = 8;
    const MATMUL_ACCUMULATORS: usize = 24;
    const ATTENTION_ACCUMULATORS: usize = 16;
    type Floats = __m512;
    type Bytes = __m512i;
    type Bytes16 = __m128i;
    type X16<T: Copy> = [T; 1];

    #[inline(always)]
    fn x16<T: Copy>(mut make: impl FnMut(usize) -> T) -> [T; 1] {
        [make(0)]
    }

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: as above.
        unsafe { on_avx512(kernel) }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    intrinsics! {
        fn splat(self, value: f32) -> __m512 { _mm512_set1_ps(value) }
        fn add(self, a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        fn sub(self, a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        fn mul(self, a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        fn div(self, a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        fn neg_mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fnmadd_ps(a, b, c) }
        fn max(self, a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        fn min(self, a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        fn round(self, x: __m512) -> __m512 {
            _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
        }
        fn pow2(self, n: __m512) -> __m512 {{
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }}
        fn select_ge_or_zero(self, a: __m512, b: __m512, x: __m512) -> __m512 {
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b), x)
        }
        fn select_first(self, count: i32, a: __m512, b: __m512) -> __m512 {
            _mm512_mask_blend_ps(first(count.max(0).cast_unsigned() as usize), b, a)
        }

        fn splat_byte(self, byte: u8) -> __m512i { _mm512_set1_epi8(byte.cast_signed()) }
        fn and(self, a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        fn or(self, a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        fn shift_right(self, a: __m512i, count: u32) -> __m512i {
            _mm512_srl_epi16(a, _mm_cvtsi32_si128(count.cast_signed()))
        }
        fn shift_left(self, a: __m512i, count: u32) -> __m512i {
            _mm512_sll_epi16(a, _mm_cvtsi32_si128(count.cast_signed()))
        }
        fn look_up(self, table: &[u8; 16], indices: __m512i) -> __m512i {
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), indices)
        }
        fn negate(self, a: __m512i, which: __m512i) -> __m512i {{
            let mask = _mm512_sub_epi8(_mm512_setzero_si512(), which);
            _mm512_sub_epi8(_mm512_xor_si512(a, mask), mask)
        }}
        fn bits(self, a: __m512i, from: u32, count: u32, to: u32) -> __m512i {{
            let mask = _mm512_set1_epi32((!(u32::MAX << count)).cast_signed());
            let low = _mm512_and_si512(_mm512_srl_epi32(a, _mm_cvtsi32_si128(from.cast_signed())), mask);
            _mm512_sll_epi32(low, _mm_cvtsi32_si128(to.cast_signed()))
        }}
        fn to_floats(self, ints: __m512i) -> __m512 { _mm512_cvtepi32_ps(ints) }
        fn widen16(self, bytes: __m128i) -> [__m512; 1] { [_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))] }
        fn quantize_q8(self, values: &[f32; 32]) -> Q8Block { quantize(values) }
    }

    bytes16!();

    intrinsics! {
        unsafe fn load_f32(self, values: *const u8) -> __m512 { _mm512_loadu_ps(values.cast()) }
        unsafe fn load_f16(self, values: *const u8) -> __m512 {
            _mm512_cvtph_ps(_mm256_loadu_si256(values.cast()))
        }
        unsafe fn load_bf16(self, values: *const u8) -> __m512 {{
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(values.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }}
        unsafe fn load_u8(self, values: *const u8) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(values.cast())))
        }
        unsafe fn load_i8(self, values: *const u8) -> __m512 {
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(values.cast())))
        }
        unsafe fn store(self, to: *mut f32, values: __m512) -> () { _mm512_storeu_ps(to, values) }
        unsafe fn load_bytes(self, bytes: *const u8) -> __m512i { _mm512_loadu_si512(bytes.cast()) }
        unsafe fn widen_u8(self, values: *const u8) -> __m512i {
            _mm512_cvtepu8_epi32(_mm_loadu_si128(values.cast()))
        }
        unsafe fn widen_u16(self, values: *const u8) -> __m512i {
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(values.cast()))
        }
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE: i32>(self, table: *const u8, ints: __m512i) -> __m512i {
        // SAFETY: as above.
        unsafe { _mm512_i32gather_epi32::<STRIDE>(ints, table.cast()) }
    }

    #[inline(always)]
    unsafe fn dot<const N: usize>(
        self,
        weights: [__m512i; N],
        _weight_max: u8,
        offset: u8,
        activations: *const u8,
        sum: f32,
    ) -> __m512 {
        // SAFETY: as above.
        unsafe {
            // Two accumulators, because with few tokens one would be bound by the latency of `vpdpbusd`.
            let mut sums = [_mm512_setzero_si512(); 2];
            for (tile, weights) in weights.into_iter().enumerate() {
                let four = activations.add(4 * tile).cast::<i32>().read_unaligned();
                let sum = &mut sums[tile % 2];
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
}
