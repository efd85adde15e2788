//! Activations quantised to eight bits, in blocks of 32 columns.
//!
//! A block's scale is not the customary peak / 127. Eight scales are tried, which bring the peak to 127, 126,
//! … 120 steps; for each the least-squares best scale for the rounded values is known in closed form, and the
//! one with the least squared error wins. On Gaussian data this takes 11 % off the rounding error of peak /
//! 127, and costs the matrix product nothing.
//!
//! The result depends on the 32 values alone and is the same on every instruction set: sums that round are
//! taken in one fixed tree.

use crate::isa::{Isa, Level};
#[cfg(target_arch = "x86_64")]
use crate::matrix::simd::{Avx2, Avx512};
use crate::matrix::simd::{Scalar, Simd};

use super::layout::BLOCK_COLS;

/// Bytes that [`quantize_row`] writes for a row of `cols` activations, a multiple of 32.
pub const fn activation_row_bytes(cols: usize) -> usize {
    cols / BLOCK_COLS * size_of::<ActivationBlock>()
}

/// Quantises a row of activations for the products with block-format weights.
///
/// `row` holds a multiple of 32 values and `out` holds [`activation_row_bytes`] of that many bytes. Blocks
/// are independent, so parts of a row at multiples of 32 can be quantised on their own. A block with a NaN or
/// an infinity gets a NaN scale, which makes every product with it a NaN: garbage stays visible. A block
/// without a value above 1e-30 counts as zeros.
///
/// # Panics
/// If the sizes are others than these.
pub fn quantize_row(isa: Isa, row: &[f32], out: &mut [u8]) {
    assert!(
        row.len().is_multiple_of(BLOCK_COLS) && out.len() == activation_row_bytes(row.len()),
        "quantize_row: {} activations into {} bytes; it takes a multiple of 32, and {} bytes for that many",
        row.len(),
        out.len(),
        activation_row_bytes(row.len()),
    );
    match isa.level() {
        Level::Scalar => quantize_blocks::<Scalar>(row, out),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => quantize_blocks::<Avx2>(row, out),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => quantize_blocks::<Avx512>(row, out),
    }
}

/// Quantises a row `planes` times: each plane after the first holds what the planes before it have left over. The planes
/// follow one another in `out`, each as [`quantize_row`] writes it; their products add up to that of the row.
///
/// # Panics
/// As [`quantize_row`].
pub fn quantize_planes(isa: Isa, planes: usize, row: &[f32], out: &mut [u8]) {
    let plane_bytes = activation_row_bytes(row.len());
    assert!(out.len() == planes * plane_bytes, "{planes} planes of {plane_bytes} bytes in {}", out.len());
    if planes == 1 {
        return quantize_row(isa, row, out);
    }
    for (index, values) in row.as_chunks::<BLOCK_COLS>().0.iter().enumerate() {
        let mut rest = *values;
        for plane in 0..planes {
            let start = plane * plane_bytes + index * size_of::<ActivationBlock>();
            let block = &mut out[start..start + size_of::<ActivationBlock>()];
            quantize_row(isa, &rest, block);
            let (codes, numbers) = block.split_at(BLOCK_COLS);
            let scale = f32::from_ne_bytes(numbers.as_chunks().0[0]);
            for (value, code) in rest.iter_mut().zip(codes) {
                *value = f32::from(code.cast_signed()).mul_add(-scale, *value);
            }
        }
    }
}

fn quantize_blocks<S: Simd>(row: &[f32], out: &mut [u8]) {
    let blocks = out.as_chunks_mut::<{ size_of::<ActivationBlock>() }>().0;
    for (values, out) in row.as_chunks::<BLOCK_COLS>().0.iter().zip(blocks) {
        // SAFETY: `quantize_row` has an `Isa`, the proof that the machine has the instruction set of `S`; the
        // write is an unaligned one of as many bytes as `out` has, of a type without padding.
        unsafe {
            let block = S::quantize_block(values);
            out.as_mut_ptr().cast::<ActivationBlock>().write_unaligned(block);
        }
    }
}

/// 32 quantised activations, `scale * values`; 48 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ActivationBlock {
    /// From −127 to 127.
    pub values: [i8; BLOCK_COLS],
    pub scale: f32,
    /// The sum of `values`, exact.
    pub sum: f32,
    /// The sums of the first and of the last sixteen, exact.
    pub half_sums: [f32; 2],
}

/// Peaks below this count as zero, so that no intermediate number overflows.
const LEAST_PEAK: f32 = 1e-30;

/// The number of steps that each trial brings the peak to, over 127.
const TRIALS: [f32; 8] = [
    1.0,
    126.0 / 127.0,
    125.0 / 127.0,
    124.0 / 127.0,
    123.0 / 127.0,
    122.0 / 127.0,
    121.0 / 127.0,
    120.0 / 127.0,
];

const INFINITY_BITS: u32 = f32::INFINITY.to_bits();

impl ActivationBlock {
    /// The block for a peak that is not worth or not fit for calculation, if it is so.
    #[inline(always)]
    fn degenerate(peak_bits: u32) -> Option<ActivationBlock> {
        let scale = match f32::from_bits(peak_bits) {
            _ if peak_bits >= INFINITY_BITS => f32::NAN,
            peak if peak < LEAST_PEAK => 0.0,
            _ => return None,
        };
        Some(ActivationBlock { values: [0; BLOCK_COLS], scale, sum: 0.0, half_sums: [0.0; 2] })
    }
}

/// The reference.
pub(super) fn quantize_block_scalar(values: &[f32; BLOCK_COLS]) -> ActivationBlock {
    // As integers, magnitudes compare as numbers do, with the infinities and NaNs on top.
    let peak_bits = values.iter().fold(0, |peak, value| peak.max(value.abs().to_bits()));
    if let Some(block) = ActivationBlock::degenerate(peak_bits) {
        return block;
    }
    let peak = f32::from_bits(peak_bits);
    let units = values.map(|value| value * (127.0 / peak));
    let mut best = Trial { score: 0.0, refit: 0.0, shrink: 0.0 };
    for shrink in TRIALS {
        let trial = Trial::new(&units, shrink);
        if trial.score > best.score {
            best = trial;
        }
    }
    let values = units.map(|unit| (unit * best.shrink).round_ties_even() as i8);
    let half_sums =
        [&values[..16], &values[16..]].map(|half| half.iter().map(|&q| f32::from(q)).sum::<f32>());
    ActivationBlock { values, scale: peak / 127.0 * best.refit, sum: half_sums[0] + half_sums[1], half_sums }
}

/// Rounding the units after multiplication by `shrink`.
struct Trial {
    /// The part of the sum of squares that the rounded values explain: Σ(unit · q)² / Σq².
    score: f32,
    /// The least-squares best scale, Σ(unit · q) / Σq².
    refit: f32,
    shrink: f32,
}

impl Trial {
    fn new(units: &[f32; BLOCK_COLS], shrink: f32) -> Trial {
        let rounded = units.map(|unit| (unit * shrink).round_ties_even());
        let products = tree_sum(units, &rounded);
        let squares = tree_sum(&rounded, &rounded);
        Trial { score: products * products / squares, refit: products / squares, shrink }
    }
}

/// Σ a · b, in the one order that every instruction set keeps.
fn tree_sum(a: &[f32; BLOCK_COLS], b: &[f32; BLOCK_COLS]) -> f32 {
    let s: [f32; 8] = std::array::from_fn(|i| {
        let first = a[i].mul_add(b[i], a[i + 16] * b[i + 16]);
        let second = a[i + 8].mul_add(b[i + 8], a[i + 24] * b[i + 24]);
        first + second
    });
    ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::quantize_block_avx2;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::array;

    use super::{ActivationBlock, BLOCK_COLS, TRIALS};

    /// The reference with eight lanes; AVX-512 uses it too, since a block is too short to gain from more.
    ///
    /// # Safety
    /// The machine has AVX2 and FMA.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(in crate::matrix) unsafe fn quantize_block_avx2(values: &[f32; BLOCK_COLS]) -> ActivationBlock {
        // SAFETY: the four loads cover exactly the 32 values.
        let values: [__m256; 4] = array::from_fn(|i| unsafe { _mm256_loadu_ps(values.as_ptr().add(8 * i)) });
        let peak_bits = peak_bits(values);
        if let Some(block) = ActivationBlock::degenerate(peak_bits) {
            return block;
        }
        let peak = f32::from_bits(peak_bits);
        let inverse = _mm256_set1_ps(127.0 / peak);
        let units = values.map(|value| _mm256_mul_ps(value, inverse));

        let mut products = [_mm256_setzero_ps(); 8];
        let mut squares = [_mm256_setzero_ps(); 8];
        for (trial, shrink) in TRIALS.into_iter().enumerate() {
            let shrink = _mm256_set1_ps(shrink);
            let rounded = units.map(|unit| round(_mm256_mul_ps(unit, shrink)));
            products[trial] = eight_sums(units, rounded);
            squares[trial] = eight_sums(rounded, rounded);
        }
        let (products, squares) = (sum_each(products), sum_each(squares));
        let scores = _mm256_div_ps(_mm256_mul_ps(products, products), squares);
        let refits = to_array(_mm256_div_ps(products, squares));
        let best = first_of_largest(scores);

        let shrink = _mm256_set1_ps(TRIALS[best]);
        let rounded = units.map(|unit| _mm256_cvtps_epi32(_mm256_mul_ps(unit, shrink)));
        finish(rounded, peak / 127.0 * refits[best])
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn round(values: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(values)
    }

    /// The largest magnitude, as bits.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn peak_bits(values: [__m256; 4]) -> u32 {
        let magnitude = _mm256_set1_epi32(i32::MAX);
        let bits = values.map(|value| _mm256_and_si256(_mm256_castps_si256(value), magnitude));
        let peak = _mm256_max_epi32(_mm256_max_epi32(bits[0], bits[1]), _mm256_max_epi32(bits[2], bits[3]));
        let peak = _mm_max_epi32(_mm256_castsi256_si128(peak), _mm256_extracti128_si256::<1>(peak));
        let peak = _mm_max_epi32(peak, _mm_shuffle_epi32::<0b01_00_11_10>(peak));
        let peak = _mm_max_epi32(peak, _mm_shuffle_epi32::<0b10_11_00_01>(peak));
        _mm_cvtsi128_si32(peak).cast_unsigned()
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
    fn finish(values: [__m256i; 4], scale: f32) -> ActivationBlock {
        let first_half = sum_of_16(values[0], values[1]);
        let second_half = sum_of_16(values[2], values[3]);
        let bytes = _mm256_packs_epi16(
            _mm256_packs_epi32(values[0], values[1]),
            _mm256_packs_epi32(values[2], values[3]),
        );
        // The narrowing works within 128-bit halves and leaves the groups of four as 0 2 4 6 1 3 5 7.
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        let mut block = ActivationBlock {
            values: [0; BLOCK_COLS],
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
}
