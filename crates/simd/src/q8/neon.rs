//! The quantiser of activations on aarch64.

use std::arch::aarch64::*;
use std::array;

use super::{Q8_COLS, Q8Block, TRIALS};

/// The reference with four lanes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn quantize(values: &[f32; Q8_COLS]) -> Q8Block {
    // SAFETY: the eight loads cover exactly the 32 values.
    let values: [float32x4_t; 8] = array::from_fn(|i| unsafe { vld1q_f32(values.as_ptr().add(4 * i)) });
    let absmax_bits = absmax_bits(values);
    if let Some(block) = Q8Block::degenerate(absmax_bits) {
        return block;
    }
    let absmax = f32::from_bits(absmax_bits);
    let inverse = vdupq_n_f32(127.0 / absmax);
    let units = values.map(|value| vmulq_f32(value, inverse));

    let mut products = [vdupq_n_f32(0.0); 8];
    let mut squares = products;
    for (trial, factor) in TRIALS.into_iter().enumerate() {
        let factor = vdupq_n_f32(factor);
        let rounded = units.map(|unit| vrndnq_f32(vmulq_f32(unit, factor)));
        products[trial] = four_sums(units, rounded);
        squares[trial] = four_sums(rounded, rounded);
    }
    let (products, squares) = (sum_each(products), sum_each(squares));
    let scores = array::from_fn(|i| vdivq_f32(vmulq_f32(products[i], products[i]), squares[i]));
    let best = first_of_largest(scores);
    let mut refits = [0.0; TRIALS.len()];
    for i in 0..2 {
        // SAFETY: the array has the eight values of the two vectors.
        unsafe { vst1q_f32(refits.as_mut_ptr().add(4 * i), vdivq_f32(products[i], squares[i])) };
    }

    let factor = vdupq_n_f32(TRIALS[best]);
    let rounded = units.map(|unit| vcvtnq_s32_f32(vmulq_f32(unit, factor)));
    finish(rounded, absmax / 127.0 * refits[best])
}

/// The largest magnitude, as bits.
#[inline]
#[target_feature(enable = "neon")]
fn absmax_bits(values: [float32x4_t; 8]) -> u32 {
    let bits = values.map(|value| vreinterpretq_u32_f32(vabsq_f32(value)));
    vmaxvq_u32(bits.into_iter().fold(vdupq_n_u32(0), |a, b| vmaxq_u32(a, b)))
}

/// The first two levels of the tree: 32 products to eight sums, and those to four.
#[inline]
#[target_feature(enable = "neon")]
fn four_sums(a: [float32x4_t; 8], b: [float32x4_t; 8]) -> float32x4_t {
    let [low, high] = array::from_fn(|i| {
        let first = vfmaq_f32(vmulq_f32(a[i + 4], b[i + 4]), a[i], b[i]);
        let second = vfmaq_f32(vmulq_f32(a[i + 6], b[i + 6]), a[i + 2], b[i + 2]);
        vaddq_f32(first, second)
    });
    vpaddq_f32(low, high)
}

/// The rest of the tree for eight of them at once: lane `i` of the result is the sum of vector `i`.
#[inline]
#[target_feature(enable = "neon")]
fn sum_each(s: [float32x4_t; 8]) -> [float32x4_t; 2] {
    let pairs: [float32x4_t; 4] = array::from_fn(|i| vpaddq_f32(s[2 * i], s[2 * i + 1]));
    [vpaddq_f32(pairs[0], pairs[1]), vpaddq_f32(pairs[2], pairs[3])]
}

#[inline]
#[target_feature(enable = "neon")]
fn first_of_largest(scores: [float32x4_t; 2]) -> usize {
    let largest = vdupq_n_f32(vmaxvq_f32(vmaxq_f32(scores[0], scores[1])));
    let indices = [0, 1, 2, 3u32];
    // SAFETY: the array has the four values of the vector.
    let indices = unsafe { vld1q_u32(indices.as_ptr()) };
    let indices = [indices, vaddq_u32(indices, vdupq_n_u32(4))];
    // All bits where a score is not the largest: above every index.
    let [low, high] = array::from_fn(|i| vornq_u32(indices[i], vceqq_f32(scores[i], largest)));
    vminvq_u32(vminq_u32(low, high)) as usize % TRIALS.len()
}

/// Narrows the values and takes their sums.
#[inline]
#[target_feature(enable = "neon")]
fn finish(values: [int32x4_t; 8], scale: f32) -> Q8Block {
    let mut block = Q8Block { values: [0; Q8_COLS], scale, sum: 0.0, half_sums: [0.0; 2] };
    let mut sum = 0;
    for (half, values) in values.as_chunks::<4>().0.iter().enumerate() {
        let low = vcombine_s16(vmovn_s32(values[0]), vmovn_s32(values[1]));
        let high = vcombine_s16(vmovn_s32(values[2]), vmovn_s32(values[3]));
        let bytes = vcombine_s8(vmovn_s16(low), vmovn_s16(high));
        // SAFETY: a half has the sixteen bytes of the vector.
        unsafe { vst1q_s8(block.values.as_mut_ptr().add(16 * half), bytes) };
        let half_sum = i32::from(vaddlvq_s8(bytes) as i16);
        block.half_sums[half] = half_sum as f32;
        sum += half_sum;
    }
    block.sum = sum as f32;
    block
}
