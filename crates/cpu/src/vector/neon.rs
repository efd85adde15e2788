//! NEON, which every 64-bit Arm has.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array;

use super::{Bytes, LANES, Lanes};

/// Four vectors of four.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// Pairs of vectors through an operation.
#[inline(always)]
fn both(
    a: [float32x4_t; 4],
    b: [float32x4_t; 4],
    operation: impl Fn(float32x4_t, float32x4_t) -> float32x4_t,
) -> [float32x4_t; 4] {
    array::from_fn(|i| operation(a[i], b[i]))
}

/// All bits in the lanes before `count`, in vector `i` of four.
#[inline(always)]
fn first(count: usize, i: usize) -> uint32x4_t {
    let lanes = [0, 1, 2, 3u32];
    // SAFETY: the target has NEON; the load is within the array.
    unsafe { vcltq_u32(vld1q_u32(lanes.as_ptr()), vdupq_n_u32(count.saturating_sub(4 * i) as u32)) }
}

// SAFETY (of every `unsafe` below): NEON is part of the target; loads and stores have no alignment and stay within the
// arrays referred to.
impl Lanes for Neon {
    type F = [float32x4_t; 4];
    // Sixteen of the 32 registers: with 24, keys and factors do not fit beside them.
    const SUMS: usize = 4;

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch does not fault, wherever it points.
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) address.addr(), options(nomem, nostack, preserves_flags))
        };
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vld1q_f32(from.as_ptr().add(4 * i)) })
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        for (i, x) in x.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { vst1q_f32(to.as_mut_ptr().add(4 * i), x) };
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from.as_ptr().add(4 * i)))) })
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        array::from_fn(|i| unsafe {
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.as_ptr().add(4 * i))))
        })
    }
    #[inline(always)]
    fn widen(self, bytes: uint8x16_t) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let bytes = vreinterpretq_s8_u8(bytes);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]
            .map(|x| vcvtq_f32_s32(x))
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        both(a, b, |a, b| unsafe { vaddq_f32(a, b) })
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        both(a, b, |a, b| unsafe { vsubq_f32(a, b) })
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        both(a, b, |a, b| unsafe { vmulq_f32(a, b) })
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        both(a, b, |a, b| unsafe { vdivq_f32(a, b) })
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }
    // `fmax` and `fmin` give a NaN for a NaN on either side; the trait asks for b.
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        both(a, b, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        both(a, b, |a, b| unsafe { vbslq_f32(vcltq_f32(a, b), a, b) })
    }
    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        // SAFETY: as above.
        x.map(|x| unsafe { vrndnq_f32(x) })
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        // SAFETY: as above.
        n.map(|n| unsafe {
            let exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
        })
    }
    #[inline(always)]
    fn keep_if_ge(self, a: Self::F, b: Self::F, x: Self::F) -> Self::F {
        // SAFETY: as above.
        array::from_fn(|i| unsafe {
            vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(a[i], b[i]), vreinterpretq_u32_f32(x[i])))
        })
    }
    #[inline(always)]
    fn keep_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vbslq_f32(first(count, i), x[i], vdupq_n_f32(fill)) })
    }
    #[inline(always)]
    fn drop_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vbslq_f32(first(count, i), vdupq_n_f32(fill), x[i]) })
    }
}

// SAFETY (of every `unsafe` below): as for `Lanes`.
impl Bytes for Neon {
    type B = uint8x16_t;

    #[inline(always)]
    fn load_bytes(self, from: &[u8; LANES]) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vld1q_u8(from.as_ptr()) }
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vdupq_n_u8(x) }
    }
    #[inline(always)]
    fn spread(self, pair: [u8; 2]) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vcombine_u8(vdup_n_u8(pair[0]), vdup_n_u8(pair[1])) }
    }
    #[inline(always)]
    fn low_nibbles(self, x: uint8x16_t) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vandq_u8(x, vdupq_n_u8(15)) }
    }
    #[inline(always)]
    fn high_nibbles(self, x: uint8x16_t) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vshrq_n_u8::<4>(x) }
    }
    #[inline(always)]
    fn lookup(self, table: uint8x16_t, numbers: uint8x16_t) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vqtbl1q_u8(table, numbers) }
    }
    #[inline(always)]
    fn and(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vandq_u8(a, b) }
    }
    #[inline(always)]
    fn or(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vorrq_u8(a, b) }
    }
    #[inline(always)]
    fn equal(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: as above.
        unsafe { vceqq_u8(a, b) }
    }
}
