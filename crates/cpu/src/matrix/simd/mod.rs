//! The few vector operations that the kernels are written in, and their form on each instruction set.
//!
//! A lane is one output row. A kernel never adds across lanes, so one lane of [`Scalar`], eight of AVX2 or
//! NEON and sixteen of AVX-512 run the same operations in the same order on the same numbers, and give the same bits.
//! (A NaN is only promised to be a NaN: its sign and payload are the machine's affair.)

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{Avx2, AvxVnni};
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::{DotProd, I8mm, Neon};
pub(super) use scalar::Scalar;

use super::activations::ActivationBlock;
use super::formats::BlockFormat;
use super::kernel::{DenseWeights, Tile};
use verbatim_backend::Products;

/// `LANES` output rows at a time.
///
/// # Safety
/// Every function may be called only on a machine that has the instruction set, and every pointer must be
/// valid for what the function reads or writes (`LANES` elements unless it says otherwise). No alignment is
/// asked for.
pub(super) trait Simd: Copy + 'static {
    /// Output rows in one vector: a divisor of 16.
    const LANES: usize;
    /// The most tokens of one tile of a block format. The weights stay in registers while they pass; sums that find no
    /// room there are in the first-level cache.
    const MAX_TOKENS: usize;
    /// Vectors of sums that registers have room for beside the operands of plain weights.
    const SUMS: usize;

    /// Four bytes per lane: four neighbouring columns of the lane's row.
    type Bytes: Copy;
    /// One f32 per lane.
    type Floats: Copy;
    /// An array with an element for every `LANES` rows of a row group.
    type PerLanes<T: Copy>: Copy + AsRef<[T]> + AsMut<[T]>;

    /// The array of equal elements.
    fn per_lanes<T: Copy>(element: T) -> Self::PerLanes<T>;

    /// Runs a tile of a block format; compiled for this instruction set.
    unsafe fn run_block_tile<F: BlockFormat, const M: usize>(tile: &Tile);
    /// Runs a tile of plain floating-point weights; compiled for this instruction set.
    unsafe fn run_dense_tile<W: DenseWeights, const M: usize>(tile: &Tile);
    /// Runs the loop that measures peaks; compiled for this instruction set.
    unsafe fn run_peak(products: Products, rounds: usize);
    /// Quantises 32 activations; every instruction set gives the same block.
    unsafe fn quantize_block(values: &[f32; 32]) -> ActivationBlock;

    /// Asks for the cache line of `address`, which need not be valid.
    unsafe fn prefetch(address: *const u8);
    unsafe fn load_bytes(bytes: *const u8) -> Self::Bytes;
    unsafe fn splat_byte(byte: u8) -> Self::Bytes;
    unsafe fn and(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts each byte right. Bits may cross from byte to byte: mask out the `count` highest afterwards.
    unsafe fn shift_right(a: Self::Bytes, count: u32) -> Self::Bytes;
    /// Shifts each byte left. Bits may cross from byte to byte: mask out the `count` lowest afterwards.
    unsafe fn shift_left(a: Self::Bytes, count: u32) -> Self::Bytes;
    /// `table[index]` for each byte; every index is below 16.
    unsafe fn look_up(table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes;
    /// The negative of each byte of `a` where the byte of `which` is 1, and the byte itself where that is 0.
    unsafe fn negate(a: Self::Bytes, which: Self::Bytes) -> Self::Bytes;

    // A lane's four bytes as one little-endian number.

    /// A byte per lane, as a number.
    unsafe fn widen_u8(values: *const u8) -> Self::Bytes;
    /// Two bytes per lane, as a number.
    unsafe fn widen_u16(values: *const u8) -> Self::Bytes;
    /// `count` bits of each number from bit `from` on, moved to bit `to`.
    unsafe fn bits(a: Self::Bytes, from: u32, count: u32, to: u32) -> Self::Bytes;
    /// The four bytes at `table + STRIDE * number` for each lane, all of which must be readable; `STRIDE` is 4 or 8.
    unsafe fn gather<const STRIDE: i32>(table: *const u8, numbers: Self::Bytes) -> Self::Bytes;
    /// Each number as f32; all are below 2^24.
    unsafe fn to_floats(numbers: Self::Bytes) -> Self::Floats;

    /// The exact value of Σ (weight − offset) · activation over `4 * N` columns, where `activations` points
    /// to as many signed bytes from −127 to 127, `sum` is their exact sum, and no weight is above
    /// `weight_max`. All of it stays below 2^24 and so is exact in f32, whatever the order.
    unsafe fn dot<const N: usize>(
        weights: [Self::Bytes; N],
        weight_max: u8,
        offset: u8,
        activations: *const u8,
        sum: f32,
    ) -> Self::Floats;

    unsafe fn splat(value: f32) -> Self::Floats;
    unsafe fn load_f32(values: *const u8) -> Self::Floats;
    unsafe fn load_f16(values: *const u8) -> Self::Floats;
    unsafe fn load_bf16(values: *const u8) -> Self::Floats;
    unsafe fn load_u8(values: *const u8) -> Self::Floats;
    unsafe fn load_i8(values: *const u8) -> Self::Floats;
    unsafe fn store(to: *mut f32, values: Self::Floats);
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c - a * b`, rounded once.
    unsafe fn mul_sub_from(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
}
