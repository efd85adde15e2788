//! The reference: one lane at a time, in plain Rust.

use std::array;

use half::{bf16, f16};

use crate::lanes::larger;
use crate::q8::{self, Q8Block};
use crate::simd::{Kernel, Simd};

/// One lane, no special instructions.
#[derive(Clone, Copy, Debug)]
pub struct Scalar;

// SAFETY (of every `unsafe` below): the callers of `Simd` guarantee that the pointers are valid, and all reads and
// writes are unaligned.
impl Simd for Scalar {
    const LANES: usize = 1;
    const TILE_TOKENS: usize = 1;
    const MATMUL_ACCUMULATORS: usize = 1;
    const ATTENTION_ACCUMULATORS: usize = 4;
    type Floats = f32;
    type Bytes = [u8; 4];
    type Bytes16 = [u8; 16];
    type X16<T: Copy> = [T; 16];

    #[inline(always)]
    fn x16<T: Copy>(make: impl FnMut(usize) -> T) -> [T; 16] {
        array::from_fn(make)
    }

    #[inline(never)] // As of all instruction sets: see `Simd::vectorize`.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}

    #[inline(always)]
    fn splat(self, value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }

    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }

    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }

    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }

    #[inline(always)]
    fn mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn neg_mul_add(self, a: f32, b: f32, c: f32) -> f32 {
        (-a).mul_add(b, c)
    }

    #[inline(always)]
    fn max(self, a: f32, b: f32) -> f32 {
        larger(a, b)
    }

    #[inline(always)]
    fn min(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }

    #[inline(always)]
    fn round(self, x: f32) -> f32 {
        x.round_ties_even()
    }

    #[inline(always)]
    fn pow2(self, n: f32) -> f32 {
        f32::from_bits(((n as i32).wrapping_add(127) << 23) as u32)
    }

    #[inline(always)]
    fn select_ge_or_zero(self, a: f32, b: f32, x: f32) -> f32 {
        if a >= b { x } else { 0.0 }
    }

    #[inline(always)]
    fn select_first(self, count: i32, a: f32, b: f32) -> f32 {
        if count > 0 { a } else { b }
    }

    #[inline(always)]
    unsafe fn load_f32(self, values: *const u8) -> f32 {
        // SAFETY: as above.
        unsafe { values.cast::<f32>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_f16(self, values: *const u8) -> f32 {
        // SAFETY: as above.
        f16::from_bits(unsafe { values.cast::<u16>().read_unaligned() }).to_f32()
    }

    #[inline(always)]
    unsafe fn load_bf16(self, values: *const u8) -> f32 {
        // SAFETY: as above.
        bf16::from_bits(unsafe { values.cast::<u16>().read_unaligned() }).to_f32()
    }

    #[inline(always)]
    unsafe fn load_u8(self, values: *const u8) -> f32 {
        // SAFETY: as above.
        f32::from(unsafe { values.read() })
    }

    #[inline(always)]
    unsafe fn load_i8(self, values: *const u8) -> f32 {
        // SAFETY: as above.
        f32::from(unsafe { values.cast::<i8>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, value: f32) {
        // SAFETY: as above.
        unsafe { to.write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, bytes: *const u8) -> [u8; 4] {
        // SAFETY: as above.
        unsafe { bytes.cast::<[u8; 4]>().read() }
    }

    #[inline(always)]
    fn splat_byte(self, byte: u8) -> [u8; 4] {
        [byte; 4]
    }

    #[inline(always)]
    fn and(self, a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
        array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(self, a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
        array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shift_right(self, a: [u8; 4], count: u32) -> [u8; 4] {
        a.map(|byte| byte >> count)
    }

    #[inline(always)]
    fn shift_left(self, a: [u8; 4], count: u32) -> [u8; 4] {
        a.map(|byte| byte << count)
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], indices: [u8; 4]) -> [u8; 4] {
        indices.map(|index| table[usize::from(index)])
    }

    #[inline(always)]
    fn negate(self, a: [u8; 4], which: [u8; 4]) -> [u8; 4] {
        array::from_fn(|i| if which[i] == 0 { a[i] } else { a[i].wrapping_neg() })
    }

    #[inline(always)]
    unsafe fn widen_u8(self, values: *const u8) -> [u8; 4] {
        // SAFETY: as above.
        [unsafe { values.read() }, 0, 0, 0]
    }

    #[inline(always)]
    unsafe fn widen_u16(self, values: *const u8) -> [u8; 4] {
        // SAFETY: as above.
        let [low, high] = unsafe { values.cast::<[u8; 2]>().read() };
        [low, high, 0, 0]
    }

    #[inline(always)]
    fn bits(self, a: [u8; 4], from: u32, count: u32, to: u32) -> [u8; 4] {
        let number = u32::from_le_bytes(a) >> from & !(u32::MAX << count);
        (number << to).to_le_bytes()
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE: i32>(self, table: *const u8, ints: [u8; 4]) -> [u8; 4] {
        let index = u32::from_le_bytes(ints) as usize;
        // SAFETY: as above.
        unsafe { table.add(index * STRIDE as usize).cast::<[u8; 4]>().read() }
    }

    #[inline(always)]
    fn to_floats(self, ints: [u8; 4]) -> f32 {
        u32::from_le_bytes(ints) as f32
    }

    #[inline(always)]
    unsafe fn dot<const N: usize>(
        self,
        weights: [[u8; 4]; N],
        _weight_max: u8,
        offset: u8,
        activations: *const u8,
        _sum: f32,
    ) -> f32 {
        let mut total = 0;
        for (tile, weights) in weights.into_iter().enumerate() {
            // SAFETY: as above.
            let activations = unsafe { activations.add(4 * tile).cast::<[i8; 4]>().read() };
            for (weight, activation) in weights.into_iter().zip(activations) {
                total += (i32::from(weight) - i32::from(offset)) * i32::from(activation);
            }
        }
        total as f32
    }

    #[inline(always)]
    fn load16(self, from: &[u8; 16]) -> [u8; 16] {
        *from
    }

    #[inline(always)]
    fn splat16(self, byte: u8) -> [u8; 16] {
        [byte; 16]
    }

    #[inline(always)]
    fn spread16(self, pair: [u8; 2]) -> [u8; 16] {
        array::from_fn(|i| pair[i / 8])
    }

    #[inline(always)]
    fn low_nibbles16(self, x: [u8; 16]) -> [u8; 16] {
        x.map(|x| x & 15)
    }

    #[inline(always)]
    fn high_nibbles16(self, x: [u8; 16]) -> [u8; 16] {
        x.map(|x| x >> 4)
    }

    #[inline(always)]
    fn look_up16(self, table: [u8; 16], indices: [u8; 16]) -> [u8; 16] {
        indices.map(|index| table[usize::from(index & 15)])
    }

    #[inline(always)]
    fn and16(self, a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
        array::from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or16(self, a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
        array::from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn equal16(self, a: [u8; 16], b: [u8; 16]) -> [u8; 16] {
        array::from_fn(|i| if a[i] == b[i] { u8::MAX } else { 0 })
    }

    #[inline(always)]
    fn widen16(self, bytes: [u8; 16]) -> [f32; 16] {
        bytes.map(|byte| f32::from(byte.cast_signed()))
    }

    #[inline(always)]
    fn quantize_q8(self, values: &[f32; 32]) -> Q8Block {
        q8::quantize(values)
    }
}
