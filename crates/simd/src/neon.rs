//! NEON: eight lanes in two registers. Int8 dot products use `usdot` if the CPU supports it, or `sdot`, or else
//! 16-bit multiplications with pairwise sums; everything else is baseline AArch64.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array;
use std::marker::PhantomData;

use crate::q8::{Q8Block, neon::quantize};
use crate::simd::{Kernel, Simd, intrinsics};

pub(crate) type Neon = EightLanes<Widening>;
pub(crate) type DotProd = EightLanes<Sdot>;
pub(crate) type I8mm = EightLanes<Usdot>;

/// Registers of four lanes: the weights of this many rows and the accumulators of four tokens fit in the 32 registers.
const R: usize = 2;

/// Eight lanes, with the int8 dot product of `P`.
#[derive(Clone, Copy)]
pub(crate) struct EightLanes<P>(PhantomData<P>);

impl<P> EightLanes<P> {
    /// # Safety
    /// The CPU supports the instructions of `P`.
    pub(crate) const unsafe fn new_unchecked() -> Self {
        EightLanes(PhantomData)
    }
}

/// How int8 dot products are computed.
pub(crate) trait ByteProducts: Copy + 'static {
    /// The largest weight that is multiplied directly. If weights can be larger, 128 is subtracted first.
    const WEIGHT_MAX: u8;

    /// Adds to each lane the products of its row's weights, in four columns of each of four registers, with sixteen
    /// activations.
    ///
    /// # Safety
    /// The CPU supports the instructions.
    unsafe fn add(total: int32x4_t, weights: [uint8x16_t; 4], activations: int8x16_t) -> int32x4_t;

    /// [`Simd::vectorize`] of a kernel with int8 dot products.
    ///
    /// # Safety
    /// The CPU supports the instructions.
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Output;
}

/// 16-bit multiplications.
#[derive(Clone, Copy)]
pub(crate) struct Widening;

#[target_feature(enable = "neon")]
#[inline(never)]
fn on_neon<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(EightLanes::<Widening>(PhantomData))
}

// SAFETY (of every `unsafe` here and below): a token exists only if the CPU supports the instructions; the callers of `Simd`
// guarantee that the pointers are valid, and loads and stores have no alignment.
impl ByteProducts for Widening {
    const WEIGHT_MAX: u8 = 127;

    #[inline(always)]
    unsafe fn add(total: int32x4_t, weights: [uint8x16_t; 4], activations: int8x16_t) -> int32x4_t {
        // SAFETY: as above.
        unsafe {
            let four = vreinterpretq_s32_s8(activations);
            let total = add_widened(total, weights[0], vdupq_laneq_s32::<0>(four));
            let total = add_widened(total, weights[1], vdupq_laneq_s32::<1>(four));
            let total = add_widened(total, weights[2], vdupq_laneq_s32::<2>(four));
            add_widened(total, weights[3], vdupq_laneq_s32::<3>(four))
        }
    }

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: as above.
        unsafe { on_neon(kernel) }
    }
}

/// Adds to each lane the products of its four bytes. The sum of two products is at most 2 · 128 · 127 < 2^15.
#[inline(always)]
unsafe fn add_widened(total: int32x4_t, weights: uint8x16_t, activations: int32x4_t) -> int32x4_t {
    // SAFETY: as above.
    unsafe {
        let (weights, activations) = (vreinterpretq_s8_u8(weights), vreinterpretq_s8_s32(activations));
        let low = vmull_s8(vget_low_s8(weights), vget_low_s8(activations));
        let high = vmull_high_s8(weights, activations);
        vpadalq_s16(total, vpaddq_s16(low, high))
    }
}

/// Four dot products to each lane, by `sdot` or `usdot`.
///
/// In assembler, because the intrinsics are not stable; and in one piece, because the compiler takes each piece for a call
/// and unrolls no loop with many.
macro_rules! four_dots {
    ($instruction:literal, $total:ident, $weights:ident, $activations:ident) => {{
        let mut total = $total;
        asm!(
            concat!($instruction, " {0:v}.4s, {2:v}.16b, {1:v}.4b[0]"),
            concat!($instruction, " {0:v}.4s, {3:v}.16b, {1:v}.4b[1]"),
            concat!($instruction, " {0:v}.4s, {4:v}.16b, {1:v}.4b[2]"),
            concat!($instruction, " {0:v}.4s, {5:v}.16b, {1:v}.4b[3]"),
            inout(vreg) total,
            in(vreg) $activations,
            in(vreg) $weights[0],
            in(vreg) $weights[1],
            in(vreg) $weights[2],
            in(vreg) $weights[3],
            options(pure, nomem, nostack, preserves_flags)
        );
        total
    }};
}

/// `sdot`, both operands signed: FEAT_DotProd.
#[derive(Clone, Copy)]
pub(crate) struct Sdot;

#[target_feature(enable = "neon,dotprod")]
#[inline(never)]
fn on_dotprod<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(EightLanes::<Sdot>(PhantomData))
}

impl ByteProducts for Sdot {
    const WEIGHT_MAX: u8 = 127;

    #[inline(always)]
    unsafe fn add(total: int32x4_t, weights: [uint8x16_t; 4], activations: int8x16_t) -> int32x4_t {
        // SAFETY: as above.
        unsafe { four_dots!("sdot", total, weights, activations) }
    }

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: as above.
        unsafe { on_dotprod(kernel) }
    }
}

/// `usdot`, unsigned weights and signed activations: FEAT_I8MM.
#[derive(Clone, Copy)]
pub(crate) struct Usdot;

#[target_feature(enable = "neon,i8mm")]
#[inline(never)]
fn on_i8mm<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(EightLanes::<Usdot>(PhantomData))
}

impl ByteProducts for Usdot {
    const WEIGHT_MAX: u8 = u8::MAX;

    #[inline(always)]
    unsafe fn add(total: int32x4_t, weights: [uint8x16_t; 4], activations: int8x16_t) -> int32x4_t {
        // SAFETY: as above.
        unsafe { four_dots!("usdot", total, weights, activations) }
    }

    #[inline(always)]
    unsafe fn vectorize<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: as above.
        unsafe { on_i8mm(kernel) }
    }
}

type Floats = [float32x4_t; R];
type Bytes = [uint8x16_t; R];

impl<P: ByteProducts> Simd for EightLanes<P> {
    const LANES: usize = 4 * R;
    const TILE_TOKENS: usize = 4;
    const MATMUL_ACCUMULATORS: usize = 24 / R;
    // Sixteen of the 32 registers: with 24, keys and factors do not fit beside them.
    const ATTENTION_ACCUMULATORS: usize = 4;
    type Floats = Floats;
    type Bytes = Bytes;
    type Bytes16 = uint8x16_t;
    type X16<T: Copy> = [T; 16 / (4 * R)];

    #[inline(always)]
    fn x16<T: Copy>(mut make: impl FnMut(usize) -> T) -> Self::X16<T> {
        [make(0), make(1)]
    }

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: as above.
        unsafe { if K::USES_INT8_DOT { P::vectorize(kernel) } else { on_neon(kernel) } }
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch does not fault, whatever the address.
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) address.addr(), options(nomem, nostack, preserves_flags))
        };
    }

    intrinsics! {
        fn splat(self, value: f32) -> Floats { [vdupq_n_f32(value); R] }
        fn add(self, a: Floats, b: Floats) -> Floats { array::from_fn(|i| vaddq_f32(a[i], b[i])) }
        fn sub(self, a: Floats, b: Floats) -> Floats { array::from_fn(|i| vsubq_f32(a[i], b[i])) }
        fn mul(self, a: Floats, b: Floats) -> Floats { array::from_fn(|i| vmulq_f32(a[i], b[i])) }
        fn div(self, a: Floats, b: Floats) -> Floats { array::from_fn(|i| vdivq_f32(a[i], b[i])) }
        fn mul_add(self, a: Floats, b: Floats, c: Floats) -> Floats {
            array::from_fn(|i| vfmaq_f32(c[i], a[i], b[i]))
        }
        fn neg_mul_add(self, a: Floats, b: Floats, c: Floats) -> Floats {
            array::from_fn(|i| vfmsq_f32(c[i], a[i], b[i]))
        }
        // `fmax` and `fmin` return NaN if either operand is NaN; the trait requires b.
        fn max(self, a: Floats, b: Floats) -> Floats {
            array::from_fn(|i| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]))
        }
        fn min(self, a: Floats, b: Floats) -> Floats {
            array::from_fn(|i| vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]))
        }
        fn round(self, x: Floats) -> Floats { x.map(|x| vrndnq_f32(x)) }
        fn pow2(self, n: Floats) -> Floats {
            n.map(|n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)))))
        }
        fn select_ge_or_zero(self, a: Floats, b: Floats, x: Floats) -> Floats {
            array::from_fn(|i| {
                vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(a[i], b[i]), vreinterpretq_u32_f32(x[i])))
            })
        }
        fn select_first(self, count: i32, a: Floats, b: Floats) -> Floats {
            array::from_fn(|i| {
                let count = vdupq_n_s32(count - 4 * i as i32);
                vbslq_f32(vcltq_s32(vld1q_s32([0, 1, 2, 3].as_ptr()), count), a[i], b[i])
            })
        }

        fn splat_byte(self, byte: u8) -> Bytes { [vdupq_n_u8(byte); R] }
        fn and(self, a: Bytes, b: Bytes) -> Bytes { array::from_fn(|i| vandq_u8(a[i], b[i])) }
        fn or(self, a: Bytes, b: Bytes) -> Bytes { array::from_fn(|i| vorrq_u8(a[i], b[i])) }
        fn shift_right(self, a: Bytes, count: u32) -> Bytes {
            a.map(|a| vshlq_u8(a, vdupq_n_s8(-(count as i8))))
        }
        fn shift_left(self, a: Bytes, count: u32) -> Bytes { a.map(|a| vshlq_u8(a, vdupq_n_s8(count as i8))) }
        fn look_up(self, table: &[u8; 16], indices: Bytes) -> Bytes {
            indices.map(|indices| vqtbl1q_u8(vld1q_u8(table.as_ptr()), indices))
        }
        fn negate(self, a: Bytes, which: Bytes) -> Bytes {
            array::from_fn(|i| {
                let mask = vsubq_u8(vdupq_n_u8(0), which[i]);
                vsubq_u8(veorq_u8(a[i], mask), mask)
            })
        }
        fn bits(self, a: Bytes, from: u32, count: u32, to: u32) -> Bytes {
            a.map(|a| {
                let moved = vshlq_u32(vreinterpretq_u32_u8(a), vdupq_n_s32(-from.cast_signed()));
                let low = vandq_u32(moved, vdupq_n_u32(!(u32::MAX << count)));
                vreinterpretq_u8_u32(vshlq_u32(low, vdupq_n_s32(to.cast_signed())))
            })
        }
        fn to_floats(self, ints: Bytes) -> Floats {
            ints.map(|ints| vcvtq_f32_u32(vreinterpretq_u32_u8(ints)))
        }

        fn load16(self, from: &[u8; 16]) -> uint8x16_t { vld1q_u8(from.as_ptr()) }
        fn splat16(self, byte: u8) -> uint8x16_t { vdupq_n_u8(byte) }
        fn spread16(self, pair: [u8; 2]) -> uint8x16_t { vcombine_u8(vdup_n_u8(pair[0]), vdup_n_u8(pair[1])) }
        fn low_nibbles16(self, x: uint8x16_t) -> uint8x16_t { vandq_u8(x, vdupq_n_u8(15)) }
        fn high_nibbles16(self, x: uint8x16_t) -> uint8x16_t { vshrq_n_u8::<4>(x) }
        fn look_up16(self, table: uint8x16_t, indices: uint8x16_t) -> uint8x16_t { vqtbl1q_u8(table, indices) }
        fn and16(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t { vandq_u8(a, b) }
        fn or16(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t { vorrq_u8(a, b) }
        fn equal16(self, a: uint8x16_t, b: uint8x16_t) -> uint8x16_t { vceqq_u8(a, b) }
        fn widen16(self, bytes: uint8x16_t) -> [Floats; 16 / (4 * R)] {{
            let bytes = vreinterpretq_s8_u8(bytes);
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [low, high].map(|x| [vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_high_s16(x))])
        }}
        fn quantize_q8(self, values: &[f32; 32]) -> Q8Block { quantize(values) }
    }

    intrinsics! {
        unsafe fn load_f32(self, values: *const u8) -> Floats {
            array::from_fn(|i| vreinterpretq_f32_u8(vld1q_u8(values.add(16 * i))))
        }
        unsafe fn load_f16(self, values: *const u8) -> Floats {
            array::from_fn(|i| vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(values.add(8 * i)))))
        }
        unsafe fn load_bf16(self, values: *const u8) -> Floats {
            array::from_fn(|i| {
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(values.add(8 * i)))))
            })
        }
        unsafe fn load_u8(self, values: *const u8) -> Floats { self.to_floats(self.widen_u8(values)) }
        unsafe fn load_i8(self, values: *const u8) -> Floats {
            array::from_fn(|i| {
                let wide = vmovl_s8(vreinterpret_s8_u8(four_bytes(values.add(4 * i))));
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)))
            })
        }
        unsafe fn store(self, to: *mut f32, values: Floats) -> () {
            for (i, values) in values.into_iter().enumerate() {
                vst1q_u8(to.add(4 * i).cast(), vreinterpretq_u8_f32(values));
            }
        }
        unsafe fn load_bytes(self, bytes: *const u8) -> Bytes {
            array::from_fn(|i| vld1q_u8(bytes.add(16 * i)))
        }
        unsafe fn widen_u8(self, values: *const u8) -> Bytes {
            array::from_fn(|i| {
                let wide = vmovl_u8(four_bytes(values.add(4 * i)));
                vreinterpretq_u8_u32(vmovl_u16(vget_low_u16(wide)))
            })
        }
        unsafe fn widen_u16(self, values: *const u8) -> Bytes {
            array::from_fn(|i| {
                vreinterpretq_u8_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(values.add(8 * i)))))
            })
        }
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE: i32>(self, table: *const u8, ints: Bytes) -> Bytes {
        // SAFETY: as above.
        ints.map(|ints| unsafe {
            let mut words = [0; 4];
            vst1q_u32(words.as_mut_ptr(), vreinterpretq_u32_u8(ints));
            let words =
                words.map(|index| table.add(index as usize * STRIDE as usize).cast::<u32>().read_unaligned());
            vreinterpretq_u8_u32(vld1q_u32(words.as_ptr()))
        })
    }

    #[inline(always)]
    unsafe fn dot<const N: usize>(
        self,
        weights: [Bytes; N],
        weight_max: u8,
        offset: u8,
        activations: *const u8,
        sum: f32,
    ) -> Floats {
        let centred = weight_max > P::WEIGHT_MAX;
        debug_assert!(!centred || offset == 128, "wide weights are centred ones");
        // SAFETY: as above.
        unsafe {
            let mut totals = [vdupq_n_s32(0); R];
            for (sixteen, weights) in weights.as_chunks::<4>().0.iter().enumerate() {
                let activations = vld1q_s8(activations.add(16 * sixteen).cast());
                for (i, total) in totals.iter_mut().enumerate() {
                    let mut weights = weights.map(|weights| weights[i]);
                    if centred {
                        weights = weights.map(|weights| veorq_u8(weights, vdupq_n_u8(128)));
                    }
                    *total = P::add(*total, weights, activations);
                }
            }
            let totals = totals.map(|total| vcvtq_f32_s32(total));
            if centred || offset == 0 {
                totals
            } else {
                self.neg_mul_add(self.splat(f32::from(offset)), self.splat(sum), totals)
            }
        }
    }
}

/// Four bytes in the lowest lanes.
#[inline(always)]
unsafe fn four_bytes(values: *const u8) -> uint8x8_t {
    // SAFETY: as above.
    unsafe {
        let four = values.cast::<u32>().read_unaligned();
        vreinterpret_u8_u32(vset_lane_u32::<0>(four, vdup_n_u32(0)))
    }
}
