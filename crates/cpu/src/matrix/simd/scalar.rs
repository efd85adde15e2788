//! The reference: one row at a time, in plain Rust.

use std::array;

use half::{bf16, f16};

use super::Simd;
use crate::matrix::activations::{self, ActivationBlock};
use crate::matrix::formats::BlockFormat;
use crate::matrix::kernel::{self, DenseWeights, Tile};
use crate::matrix::layout::GROUP_ROWS;
use crate::matrix::peak;
use verbatim_backend::Products;

/// One lane, no special instructions.
#[derive(Clone, Copy)]
pub(in crate::matrix) struct Scalar;

// SAFETY (of every `unsafe` below): the callers of `Simd` vouch for the pointers; nothing here needs an
// instruction set, and all reads and writes are unaligned ones.
impl Simd for Scalar {
    const LANES: usize = 1;
    const MAX_TOKENS: usize = 1;
    const SUMS: usize = 1;
    type Bytes = [u8; 4];
    type Floats = f32;
    type PerLanes<T: Copy> = [T; GROUP_ROWS];

    #[inline(always)]
    fn per_lanes<T: Copy>(element: T) -> [T; GROUP_ROWS] {
        [element; GROUP_ROWS]
    }

    unsafe fn run_block_tile<F: BlockFormat, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { kernel::block_tile::<Self, F, M>(tile) }
    }

    unsafe fn run_dense_tile<W: DenseWeights, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { kernel::dense_tile::<Self, W, M>(tile) }
    }

    unsafe fn run_peak(products: Products, rounds: usize) {
        // SAFETY: as above.
        unsafe { peak::run::<Self>(products, rounds) }
    }

    unsafe fn quantize_block(values: &[f32; 32]) -> ActivationBlock {
        activations::quantize_block_scalar(values)
    }

    #[inline(always)]
    unsafe fn prefetch(_address: *const u8) {}

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const u8) -> [u8; 4] {
        // SAFETY: as above.
        unsafe { bytes.cast::<[u8; 4]>().read() }
    }

    #[inline(always)]
    unsafe fn splat_byte(byte: u8) -> [u8; 4] {
        [byte; 4]
    }

    #[inline(always)]
    unsafe fn and(a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
        array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    unsafe fn or(a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
        array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    unsafe fn shift_right(a: [u8; 4], count: u32) -> [u8; 4] {
        a.map(|byte| byte >> count)
    }

    #[inline(always)]
    unsafe fn shift_left(a: [u8; 4], count: u32) -> [u8; 4] {
        a.map(|byte| byte << count)
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: [u8; 4]) -> [u8; 4] {
        indices.map(|index| table[usize::from(index)])
    }

    #[inline(always)]
    unsafe fn negate(a: [u8; 4], which: [u8; 4]) -> [u8; 4] {
        array::from_fn(|i| if which[i] == 0 { a[i] } else { a[i].wrapping_neg() })
    }

    #[inline(always)]
    unsafe fn widen_u8(values: *const u8) -> [u8; 4] {
        // SAFETY: as above.
        [unsafe { values.read() }, 0, 0, 0]
    }

    #[inline(always)]
    unsafe fn widen_u16(values: *const u8) -> [u8; 4] {
        // SAFETY: as above.
        let [low, high] = unsafe { values.cast::<[u8; 2]>().read() };
        [low, high, 0, 0]
    }

    #[inline(always)]
    unsafe fn bits(a: [u8; 4], from: u32, count: u32, to: u32) -> [u8; 4] {
        let number = u32::from_le_bytes(a) >> from & !(u32::MAX << count);
        (number << to).to_le_bytes()
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE: i32>(table: *const u8, numbers: [u8; 4]) -> [u8; 4] {
        let number = u32::from_le_bytes(numbers) as usize;
        // SAFETY: as above.
        unsafe { table.add(number * STRIDE as usize).cast::<[u8; 4]>().read() }
    }

    #[inline(always)]
    unsafe fn to_floats(numbers: [u8; 4]) -> f32 {
        u32::from_le_bytes(numbers) as f32
    }

    #[inline(always)]
    unsafe fn dot<const N: usize>(
        weights: [[u8; 4]; N],
        _weight_max: u8,
        offset: u8,
        activations: *const u8,
        _sum: f32,
    ) -> f32 {
        let mut total = 0;
        for (chunk, weights) in weights.into_iter().enumerate() {
            // SAFETY: as above.
            let activations = unsafe { activations.add(4 * chunk).cast::<[i8; 4]>().read() };
            for (weight, activation) in weights.into_iter().zip(activations) {
                total += (i32::from(weight) - i32::from(offset)) * i32::from(activation);
            }
        }
        total as f32
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    unsafe fn load_f32(values: *const u8) -> f32 {
        // SAFETY: as above.
        unsafe { values.cast::<f32>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(values: *const u8) -> f32 {
        // SAFETY: as above.
        f16::from_bits(unsafe { values.cast::<u16>().read_unaligned() }).to_f32()
    }

    #[inline(always)]
    unsafe fn load_bf16(values: *const u8) -> f32 {
        // SAFETY: as above.
        bf16::from_bits(unsafe { values.cast::<u16>().read_unaligned() }).to_f32()
    }

    #[inline(always)]
    unsafe fn load_u8(values: *const u8) -> f32 {
        // SAFETY: as above.
        f32::from(unsafe { values.read() })
    }

    #[inline(always)]
    unsafe fn load_i8(values: *const u8) -> f32 {
        // SAFETY: as above.
        f32::from(unsafe { values.cast::<i8>().read() })
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: f32) {
        // SAFETY: as above.
        unsafe { to.write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn add(a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    unsafe fn mul(a: f32, b: f32) -> f32 {
        a * b
    }

    #[inline(always)]
    unsafe fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    unsafe fn mul_sub_from(a: f32, b: f32, c: f32) -> f32 {
        (-a).mul_add(b, c)
    }
}
