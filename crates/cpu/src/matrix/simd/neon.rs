//! NEON: four rows to a register. The byte products are `usdot` where the machine has it, or `sdot`, or else 16-bit
//! products that are added in pairs; all else is what every 64-bit Arm has.

use std::arch::aarch64::*;
use std::arch::asm;
use std::array;
use std::marker::PhantomData;

use super::Simd;
use crate::matrix::activations::{self, ActivationBlock};
use crate::matrix::formats::BlockFormat;
use crate::matrix::kernel::{self, DenseWeights, Tile};
use crate::matrix::layout::GROUP_ROWS;
use crate::matrix::peak;
use verbatim_backend::Products;

pub(in crate::matrix) type Neon = EightLanes<Widening>;
pub(in crate::matrix) type DotProd = EightLanes<Sdot>;
pub(in crate::matrix) type I8mm = EightLanes<Usdot>;

/// Registers of four lanes: the weights of so many rows and the sums of four tokens fit the 32 that there are.
const R: usize = 2;

/// Eight lanes, with the byte products of `P`.
#[derive(Clone, Copy)]
pub(in crate::matrix) struct EightLanes<P>(PhantomData<P>);

/// How bytes are multiplied.
///
/// # Safety
/// The functions may be called only on a machine that has the instructions.
pub(in crate::matrix) trait ByteProducts: Copy + 'static {
    /// The largest weight that is multiplied as it is. From larger ones, 128 is taken first.
    const WEIGHT_MAX: u8;

    /// Adds to each lane the products of its row's weights, in four columns of each of four registers, with sixteen
    /// activations.
    unsafe fn add(total: int32x4_t, weights: [uint8x16_t; 4], activations: int8x16_t) -> int32x4_t;

    /// [`kernel::block_tile`], compiled for the instructions.
    unsafe fn block_tile<F: BlockFormat, const M: usize>(tile: &Tile);
    /// [`peak::run`], compiled for the instructions.
    unsafe fn peak(products: Products, rounds: usize);
}

/// Products of 16 bits.
#[derive(Clone, Copy)]
pub(in crate::matrix) struct Widening;

// SAFETY (of every `unsafe` here and below): the callers vouch for the instruction set and the pointers, and loads and
// stores have no alignment. The small functions are inlined into the `target_feature` ones.
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

    #[target_feature(enable = "neon")]
    unsafe fn block_tile<F: BlockFormat, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { kernel::block_tile::<EightLanes<Self>, F, M>(tile) }
    }

    #[target_feature(enable = "neon")]
    unsafe fn peak(products: Products, rounds: usize) {
        // SAFETY: as above.
        unsafe { peak::run::<EightLanes<Self>>(products, rounds) }
    }
}

/// Each lane and the products of its four bytes. The sum of two is at most 2 · 128 · 127 < 2^15.
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

/// Both signed: FEAT_DotProd.
#[derive(Clone, Copy)]
pub(in crate::matrix) struct Sdot;

impl ByteProducts for Sdot {
    const WEIGHT_MAX: u8 = 127;

    #[inline(always)]
    unsafe fn add(total: int32x4_t, weights: [uint8x16_t; 4], activations: int8x16_t) -> int32x4_t {
        // SAFETY: as above.
        unsafe { four_dots!("sdot", total, weights, activations) }
    }

    #[target_feature(enable = "dotprod")]
    unsafe fn block_tile<F: BlockFormat, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { kernel::block_tile::<EightLanes<Self>, F, M>(tile) }
    }

    #[target_feature(enable = "dotprod")]
    unsafe fn peak(products: Products, rounds: usize) {
        // SAFETY: as above.
        unsafe { peak::run::<EightLanes<Self>>(products, rounds) }
    }
}

/// Unsigned weights and signed activations: FEAT_I8MM.
#[derive(Clone, Copy)]
pub(in crate::matrix) struct Usdot;

impl ByteProducts for Usdot {
    const WEIGHT_MAX: u8 = u8::MAX;

    #[inline(always)]
    unsafe fn add(total: int32x4_t, weights: [uint8x16_t; 4], activations: int8x16_t) -> int32x4_t {
        // SAFETY: as above.
        unsafe { four_dots!("usdot", total, weights, activations) }
    }

    #[target_feature(enable = "i8mm")]
    unsafe fn block_tile<F: BlockFormat, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { kernel::block_tile::<EightLanes<Self>, F, M>(tile) }
    }

    #[target_feature(enable = "i8mm")]
    unsafe fn peak(products: Products, rounds: usize) {
        // SAFETY: as above.
        unsafe { peak::run::<EightLanes<Self>>(products, rounds) }
    }
}

impl<P: ByteProducts> Simd for EightLanes<P> {
    const LANES: usize = 4 * R;
    const MAX_TOKENS: usize = 4;
    const SUMS: usize = 24 / R;
    type Bytes = [uint8x16_t; R];
    type Floats = [float32x4_t; R];
    type PerLanes<T: Copy> = [T; GROUP_ROWS / (4 * R)];

    #[inline(always)]
    fn per_lanes<T: Copy>(element: T) -> Self::PerLanes<T> {
        [element; GROUP_ROWS / (4 * R)]
    }

    unsafe fn run_block_tile<F: BlockFormat, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { P::block_tile::<F, M>(tile) }
    }

    unsafe fn run_dense_tile<W: DenseWeights, const M: usize>(tile: &Tile) {
        // SAFETY: as above.
        unsafe { dense_tile::<W, M>(tile) }
    }

    unsafe fn run_peak(products: Products, rounds: usize) {
        // SAFETY: as above.
        unsafe { P::peak(products, rounds) }
    }

    unsafe fn quantize_block(values: &[f32; 32]) -> ActivationBlock {
        // SAFETY: as above.
        unsafe { activations::quantize_block_neon(values) }
    }

    #[inline(always)]
    unsafe fn prefetch(address: *const u8) {
        // SAFETY: as above.
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) address.addr(), options(nomem, nostack, preserves_flags))
        };
    }

    #[inline(always)]
    unsafe fn load_bytes(bytes: *const u8) -> [uint8x16_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vld1q_u8(bytes.add(16 * i)) })
    }

    #[inline(always)]
    unsafe fn splat_byte(byte: u8) -> [uint8x16_t; R] {
        // SAFETY: as above.
        unsafe { [vdupq_n_u8(byte); R] }
    }

    #[inline(always)]
    unsafe fn and(a: [uint8x16_t; R], b: [uint8x16_t; R]) -> [uint8x16_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vandq_u8(a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn or(a: [uint8x16_t; R], b: [uint8x16_t; R]) -> [uint8x16_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vorrq_u8(a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn shift_right(a: [uint8x16_t; R], count: u32) -> [uint8x16_t; R] {
        // SAFETY: as above.
        a.map(|a| unsafe { vshlq_u8(a, vdupq_n_s8(-(count as i8))) })
    }

    #[inline(always)]
    unsafe fn shift_left(a: [uint8x16_t; R], count: u32) -> [uint8x16_t; R] {
        // SAFETY: as above.
        a.map(|a| unsafe { vshlq_u8(a, vdupq_n_s8(count as i8)) })
    }

    #[inline(always)]
    unsafe fn look_up(table: &[u8; 16], indices: [uint8x16_t; R]) -> [uint8x16_t; R] {
        // SAFETY: as above.
        indices.map(|indices| unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), indices) })
    }

    #[inline(always)]
    unsafe fn negate(a: [uint8x16_t; R], which: [uint8x16_t; R]) -> [uint8x16_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe {
            let mask = vsubq_u8(vdupq_n_u8(0), which[i]);
            vsubq_u8(veorq_u8(a[i], mask), mask)
        })
    }

    #[inline(always)]
    unsafe fn widen_u8(values: *const u8) -> [uint8x16_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe {
            let wide = vmovl_u8(four_bytes(values.add(4 * i)));
            vreinterpretq_u8_u32(vmovl_u16(vget_low_u16(wide)))
        })
    }

    #[inline(always)]
    unsafe fn widen_u16(values: *const u8) -> [uint8x16_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe {
            vreinterpretq_u8_u32(vmovl_u16(vreinterpret_u16_u8(vld1_u8(values.add(8 * i)))))
        })
    }

    #[inline(always)]
    unsafe fn bits(a: [uint8x16_t; R], from: u32, count: u32, to: u32) -> [uint8x16_t; R] {
        // SAFETY: as above.
        a.map(|a| unsafe {
            let moved = vshlq_u32(vreinterpretq_u32_u8(a), vdupq_n_s32(-from.cast_signed()));
            let low = vandq_u32(moved, vdupq_n_u32(!(u32::MAX << count)));
            vreinterpretq_u8_u32(vshlq_u32(low, vdupq_n_s32(to.cast_signed())))
        })
    }

    #[inline(always)]
    unsafe fn gather<const STRIDE: i32>(table: *const u8, numbers: [uint8x16_t; R]) -> [uint8x16_t; R] {
        // SAFETY: as above.
        numbers.map(|numbers| unsafe {
            let mut words = [0; 4];
            vst1q_u32(words.as_mut_ptr(), vreinterpretq_u32_u8(numbers));
            let words = words
                .map(|number| table.add(number as usize * STRIDE as usize).cast::<u32>().read_unaligned());
            vreinterpretq_u8_u32(vld1q_u32(words.as_ptr()))
        })
    }

    #[inline(always)]
    unsafe fn to_floats(numbers: [uint8x16_t; R]) -> [float32x4_t; R] {
        // SAFETY: as above.
        numbers.map(|numbers| unsafe { vcvtq_f32_u32(vreinterpretq_u32_u8(numbers)) })
    }

    #[inline(always)]
    unsafe fn dot<const N: usize>(
        weights: [[uint8x16_t; R]; N],
        weight_max: u8,
        offset: u8,
        activations: *const u8,
        sum: f32,
    ) -> [float32x4_t; R] {
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
                Self::mul_sub_from(Self::splat(f32::from(offset)), Self::splat(sum), totals)
            }
        }
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> [float32x4_t; R] {
        // SAFETY: as above.
        unsafe { [vdupq_n_f32(value); R] }
    }

    #[inline(always)]
    unsafe fn load_f32(values: *const u8) -> [float32x4_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vreinterpretq_f32_u8(vld1q_u8(values.add(16 * i))) })
    }

    #[inline(always)]
    unsafe fn load_f16(values: *const u8) -> [float32x4_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(values.add(8 * i)))) })
    }

    #[inline(always)]
    unsafe fn load_bf16(values: *const u8) -> [float32x4_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe {
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(values.add(8 * i)))))
        })
    }

    #[inline(always)]
    unsafe fn load_u8(values: *const u8) -> [float32x4_t; R] {
        // SAFETY: as above.
        unsafe { Self::to_floats(Self::widen_u8(values)) }
    }

    #[inline(always)]
    unsafe fn load_i8(values: *const u8) -> [float32x4_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe {
            let wide = vmovl_s8(vreinterpret_s8_u8(four_bytes(values.add(4 * i))));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)))
        })
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, values: [float32x4_t; R]) {
        for (i, values) in values.into_iter().enumerate() {
            // SAFETY: as above.
            unsafe { vst1q_u8(to.add(4 * i).cast(), vreinterpretq_u8_f32(values)) };
        }
    }

    #[inline(always)]
    unsafe fn add(a: [float32x4_t; R], b: [float32x4_t; R]) -> [float32x4_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vaddq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn mul(a: [float32x4_t; R], b: [float32x4_t; R]) -> [float32x4_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vmulq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn mul_add(a: [float32x4_t; R], b: [float32x4_t; R], c: [float32x4_t; R]) -> [float32x4_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }

    #[inline(always)]
    unsafe fn mul_sub_from(
        a: [float32x4_t; R],
        b: [float32x4_t; R],
        c: [float32x4_t; R],
    ) -> [float32x4_t; R] {
        // SAFETY: as above.
        array::from_fn(|i| unsafe { vfmsq_f32(c[i], a[i], b[i]) })
    }
}

/// There are no byte products, so one form serves all.
#[target_feature(enable = "neon")]
unsafe fn dense_tile<W: DenseWeights, const M: usize>(tile: &Tile) {
    // SAFETY: as above.
    unsafe { kernel::dense_tile::<EightLanes<Widening>, W, M>(tile) }
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
