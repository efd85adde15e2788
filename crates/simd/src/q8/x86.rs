//! The quantiser of activations on x86-64.

use std::arch::x86_64::*;
use std::array;

use super::{Q8_COLS, Q8Block, TRIALS};

/// The reference with eight lanes; AVX-512 uses it too, since a block is too short to gain from more.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn quantize(values: &[f32; Q8_COLS]) -> Q8Block {
    // SAFETY: the four loads cover exactly the 32 values.
    let values: [__m256; 4] = array::from_fn(|i| unsafe { _mm256_loadu_ps(values.as_ptr().add(8 * i)) });
    let absmax_bits = absmax_bits(values);
    if let Some(block) = Q8Block::degenerate(absmax_bits) {
        return block;
    }
    let absmax = f32::from_bits(absmax_bits);
    let inverse = _mm256_set1_ps(127.0 / absmax);
    let units = values.map(|value| _mm256_mul_ps(value, inverse));

    let mut products = [_mm256_setzero_ps(); 8];
    let mut squares = [_mm256_setzero_ps(); 8];
    for (trial, factor) in TRIALS.into_iter().enumerate() {
        let factor = _mm256_set1_ps(factor);
        let rounded = units.map(|unit| round(_mm256_mul_ps(unit, factor)));
        products[trial] = eight_sums(units, rounded);
        squares[trial] = eight_sums(rounded, rounded);
    }
    let (products, squares) = (sum_each(products), sum_each(squares));
    let scores = _mm256_div_ps(_mm256_mul_ps(products, products), squares);
    let refits = to_array(_mm256_div_ps(products, squares));
    let best = first_of_largest(scores);

    let factor = _mm256_set1_ps(TRIALS[best]);
    let rounded = units.map(|unit| _mm256_cvtps_epi32(_mm256_mul_ps(unit, factor)));
    finish(rounded, absmax / 127.0 * refits[best])
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn round(values: __m256) -> __m256 {
    _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(values)
}

/// The largest magnitude, as bits.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn absmax_bits(values: [__m256; 4]) -> u32 {
    let magnitude = _mm256_set1_epi32(i32::MAX);
    let bits = values.map(|value| _mm256_and_si256(_mm256_castps_si256(value), magnitude));
    let absmax = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
    let absmax = _mm_max_epi32(_mm256_castsi256_si128(absmax), _mm256_extracti128_si256::<1>(absmax));
    let absmax = _mm_max_epi32(absmax, _mm_shuffle_epi32::<0b01_00_11_10>(absmax));
    let absmax = _mm_max_epi32(absmax, _mm_shuffle_epi32::<0b10_11_00_01>(absmax));
    _mm_cvtsi128_si32(absmax).cast_unsigned()
}

/// The first level of the tree: 32 products to eight sums.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn eight_sums(a: [__m256; 4], b: [__m256; 4]) -> __m256 {
    let first = _mm256_fmadd_ps(a[0], b[0], _mm256_mul_ps(a[2], b[2]));
    let second = _mm256_fmadd_ps(a[1], b[1], _mm256_mul_ps(a[3], b[3]));
    _mm256_add_ps(first, second)
}

/// The rest of the tree for eight of them at once: lane `i` of the result is the sum of vector `i`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_each(s: [__m256; 8]) -> __m256 {
    let pairs: [__m256; 4] = array::from_fn(|i| _mm256_hadd_ps(s[2 * i], s[2 * i + 1]));
    let quads = [_mm256_hadd_ps(pairs[0], pairs[1]), _mm256_hadd_ps(pairs[2], pairs[3])];
    let low = _mm256_permute2f128_ps::<0x20>(quads[0], quads[1]);
    let high = _mm256_permute2f128_ps::<0x31>(quads[0], quads[1]);
    _mm256_add_ps(low, high)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn first_of_largest(scores: __m256) -> usize {
    let largest = _mm256_max_ps(scores, _mm256_permute2f128_ps::<0x01>(scores, scores));
    let largest = _mm256_max_ps(largest, _mm256_permute_ps::<0b01_00_11_10>(largest));
    let largest = _mm256_max_ps(largest, _mm256_permute_ps::<0b10_11_00_01>(largest));
    let is_largest = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(scores, largest));
    is_largest.trailing_zeros() as usize % TRIALS.len()
}

/// Narrows the values and takes their sums.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn finish(values: [__m256i; 4], scale: f32) -> Q8Block {
    let first_half = sum_of_16(values[0], values[1]);
    let second_half = sum_of_16(values[2], values[3]);
    let bytes = _mm256_packs_epi16(
        _mm256_packs_epi32(values[0], values[1]),
        _mm256_packs_epi32(values[2], values[3]),
    );
    // The narrowing works within 128-bit halves and leaves the groups of four as 0 2 4 6 1 3 5 7.
    let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let mut block = Q8Block {
        values: [0; Q8_COLS],
        scale,
        sum: (first_half + second_half) as f32,
        half_sums: [first_half as f32, second_half as f32],
    };
    // SAFETY: `values` has the 32 bytes of the vector.
    unsafe { _mm256_storeu_si256(block.values.as_mut_ptr().cast(), bytes) };
    block
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_of_16(a: __m256i, b: __m256i) -> i32 {
    let sum = _mm256_add_epi32(a, b);
    let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum));
    _mm_cvtsi128_si32(sum)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn to_array(values: __m256) -> [f32; 8] {
    let mut array = [0.0; 8];
    // SAFETY: the array has the eight values of the vector.
    unsafe { _mm256_storeu_ps(array.as_mut_ptr(), values) };
    array
}
