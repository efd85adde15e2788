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
#[cfg(target_arch = "aarch64")]
use crate::matrix::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::matrix::simd::{Avx2, Avx512};
use crate::matrix::simd::{Scalar, Simd};

use super::layout::BLOCK_COLS;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(super) use neon::quantize_block_neon;
#[cfg(target_arch = "x86_64")]
pub(super) use x86::quantize_block_avx2;

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
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::DotProd | Level::I8mm => quantize_blocks::<Neon>(row, out),
    }
}

/// Quantises a row once for each plane: a plane after the first holds what the planes before it have left over. Each is as
/// [`quantize_row`] writes it; their products add up to that of the row.
///
/// # Panics
/// As [`quantize_row`].
pub fn quantize_planes(isa: Isa, row: &[f32], planes: &mut [&mut [u8]]) {
    if let [plane] = planes {
        return quantize_row(isa, row, plane);
    }
    let plane_bytes = activation_row_bytes(row.len());
    for plane in &*planes {
        assert!(plane.len() == plane_bytes, "a plane of {} bytes, not {plane_bytes}", plane.len());
    }
    for (index, values) in row.as_chunks::<BLOCK_COLS>().0.iter().enumerate() {
        let mut rest = *values;
        for plane in &mut *planes {
            let block = &mut plane[index * size_of::<ActivationBlock>()..][..size_of::<ActivationBlock>()];
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
