//! AVX2 with FMA and F16C: eight lanes. With AVX-VNNI, int8 dot products use `vpdpbusd`; without it, `maddubs` with
//! 16-bit sums that cannot saturate.

use std::arch::x86_64::*;

use crate::q8::{Q8Block, x86::quantize};
use crate::simd::{Kernel, Simd, intrinsics};
use crate::x86::bytes16;

/// Eight lanes, without and with `vpdpbusd`.
#[derive(Clone, Copy)]
pub(crate) struct EightLanes<const VNNI: bool>(());

pub(crate) type Avx2 = EightLanes<false>;
pub(crate) type AvxVnni = EightLanes<true>;

/// The maximum of an i16 lane, in units of the largest |activation|.
const I16_ROOM: usize = i16::MAX as usize / 127;

impl<const VNNI: bool> EightLanes<VNNI> {
    /// # Safety
    /// The CPU supports the instructions.
    pub(crate) const unsafe fn new_unchecked() -> Self {
        EightLanes(())
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn on_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(EightLanes::<false>(()))
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline(never)]
fn on_avx_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(EightLanes::<true>(()))
}

// SAFETY (of every `unsafe` below): a token exists only if the CPU supports the instructions; the callers of `Simd` guarantee that
// the pointers are valid, and all loads and stores are unaligned.
impl<const VNNI: bool> Simd for EightLanes<VNNI> {
    const LANES: usize = 8;
    const TILE_TOKENS: usize = 8;
    const MATMUL_ACCUMULATORS: usize = 12;
    // Twelve of the sixteen registers. Some may be spilled; eight, which are not, were slower, since keys and values are then
    // walked in narrower strips.
    const ATTENTION_ACCUMULATORS: usize = 6;
    type Floats = __m256;
    type Bytes = __m256i;
    type Bytes16 = __m128i;
    type X16<T: Copy> = [T; 2];

    #[inline(always)]
    fn x16<T: Copy>(mut make: impl FnMut(usize) -> T) -> [T; 2] {
        [make(0), make(1)]
    }

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: as above.
        unsafe { if VNNI && K::USES_INT8_DOT { on_avx_vnni(kernel) } else { on_avx2(kernel) } }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }

    intrinsics! {
        fn splat(self, value: f32) -> __m256 { _mm256_set1_ps(value) }
        fn add(self, a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        fn sub(self, a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        fn mul(self, a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        fn div(self, a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        fn neg_mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fnmadd_ps(a, b, c) }
        fn max(self, a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        fn min(self, a: __m256, b: __m256) -> __m256 { _mm256_min_ps(a, b) }
        fn round(self, x: __m256) -> __m256 {
            _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x)
        }
        fn pow2(self, n: __m256) -> __m256 {{
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        }}
        fn select_ge_or_zero(self, a: __m256, b: __m256, x: __m256) -> __m256 {
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a, b), x)
        }
        fn select_first(self, count: i32, a: __m256, b: __m256) -> __m256 {{
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let is_first = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), lane);
            _mm256_blendv_ps(b, a, _mm256_castsi256_ps(is_first))
        }}

        fn splat_byte(self, byte: u8) -> __m256i { _mm256_set1_epi8(byte.cast_signed()) }
        fn and(self, a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        fn or(self, a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        fn shift_right(self, a: __m256i, count: u32) -> __m256i {
            _mm256_srl_epi16(a, _mm_cvtsi32_si128(count.cast_signed()))
        }
        fn shift_left(self, a: __m256i, count: u32) -> __m256i {
            _mm256_sll_epi16(a, _mm_cvtsi32_si128(count.cast_signed()))
        }
        fn look_up(self, table: &[u8; 16], indices: __m256i) -> __m256i {
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), indices)
        }
        fn negate(self, a: __m256i, which: __m256i) -> __m256i {{
            let mask = _mm256_sub_epi8(_mm256_setzero_si256(), which);
            _mm256_sub_epi8(_mm256_xor_si256(a, mask), mask)
        }}
        fn bits(self, a: __m256i, from: u32, count: u32, to: u32) -> __m256i {{
            let mask = _mm256_set1_epi32((!(u32::MAX << count)).cast_signed());
            let low = _mm256_and_si256(_mm256_srl_epi32(a, _mm_cvtsi32_si128(from.cast_signed())), mask);
            _mm256_sll_epi32(low, _mm_cvtsi32_si128(to.cast_signed()))
        }}
        fn to_floats(self, ints: __m256i) -> __m256 { _mm256_cvtepi32_ps(ints) }
        fn widen16(self, bytes: __m128i) -> [__m256; 2] {
            [bytes, _mm_unpackhi_epi64(bytes, bytes)].map(|x| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)))
        }
        fn quantize_q8(self, values: &[f32; 32]) -> Q8Block { quantize(values) }
    }

    bytes16!();

    intrinsics! {
        unsafe fn load_f32(self, values: *const u8) -> __m256 { _mm256_loadu_ps(values.cast()) }
        unsafe fn load_f16(self, values: *const u8) -> __m256 {
            _mm256_cvtph_ps(_mm_loadu_si128(values.cast()))
        }
        unsafe fn load_bf16(self, values: *const u8) -> __m256 {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(values.cast()))))
        }
        unsafe fn load_u8(self, values: *const u8) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(values.cast())))
        }
        unsafe fn load_i8(self, values: *const u8) -> __m256 {
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(values.cast())))
        }
        unsafe fn store(self, to: *mut f32, values: __m256) -> () { _mm256_storeu_ps(to, values) }
        unsafe fn load_bytes(self, bytes: *const u8) -> __m256i { _mm256_loadu_si256(bytes.cast()) }
        unsafe fn widen_u8(self, values: *const u8) -> __m256i {
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(values.cast()))
        }
        unsafe fn widen_u16(self, values: *const u8) -> __m256i {
            _mm256_cvtepu16_epi32(_mm_loadu_si128(values.cast()))
        }
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE: i32>(self, table: *const u8, ints: __m256i) -> __m256i {
        // SAFETY: as above.
        unsafe { _mm256_i32gather_epi32::<STRIDE>(table.cast(), ints) }
    }

    #[inline(always)]
    unsafe fn dot<const N: usize>(
        self,
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
}

/// Σ weight · activation.
#[inline(always)]
unsafe fn dot_vnni<const N: usize>(weights: [__m256i; N], activations: *const u8) -> __m256i {
    // SAFETY: the caller guarantees AVX-VNNI and `4 * N` readable activations.
    unsafe {
        let mut total = _mm256_setzero_si256();
        for (tile, weights) in weights.into_iter().enumerate() {
            total = _mm256_dpbusd_avx_epi32(total, weights, splat_four(activations.add(4 * tile)));
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
    // SAFETY: the caller guarantees AVX2 and `4 * N` readable activations.
    unsafe {
        let mut total = _mm256_setzero_si256();
        let mut narrow = _mm256_setzero_si256();
        for (tile, weights) in weights.into_iter().enumerate() {
            let pairs = _mm256_maddubs_epi16(weights, splat_four(activations.add(4 * tile)));
            narrow = if tile.is_multiple_of(pair_sums) { pairs } else { _mm256_add_epi16(narrow, pairs) };
            if (tile + 1).is_multiple_of(pair_sums) || tile + 1 == N {
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
    // SAFETY: the caller guarantees AVX2 and `4 * N` readable activations.
    unsafe {
        let mut total = _mm256_setzero_si256();
        for (tile, weights) in weights.into_iter().enumerate() {
            let centred = _mm256_xor_si256(weights, _mm256_set1_epi8(-128));
            let signed = _mm256_sign_epi8(splat_four(activations.add(4 * tile)), centred);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(centred), signed);
            total = _mm256_add_epi32(total, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        total
    }
}

/// The same four signed bytes in every lane.
#[inline(always)]
unsafe fn splat_four(bytes: *const u8) -> __m256i {
    // SAFETY: the caller guarantees AVX2 and four readable bytes.
    unsafe { _mm256_set1_epi32(bytes.cast::<i32>().read_unaligned()) }
}
