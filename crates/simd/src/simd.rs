//! The operations that kernels are written in.

use crate::q8::Q8Block;

/// Work to be run on the chosen instruction set.
pub trait Kernel {
    /// What it gives.
    type Output;

    /// Whether it uses [`Simd::dot`], itself or in a kernel that it runs by [`Simd::vectorize`]. If not, instruction sets that
    /// differ in the products of bytes alone share one compiled form of it.
    const HAS_DOTS: bool = false;

    /// Does the work. Must be `#[inline(always)]`, and so must all that it calls with `simd`: only what is inlined into the
    /// function of [`Simd::vectorize`] is compiled for the instruction set.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Vectors of [`LANES`](Self::LANES) lanes. A value is the proof that the machine has the instructions.
///
/// # Safety
/// Of the functions that take a pointer: it must be valid for what is read or written, [`LANES`](Self::LANES) elements unless
/// the function says otherwise. No alignment is asked for.
pub trait Simd: Copy + 'static {
    /// Lanes of one vector: a divisor of 16.
    const LANES: usize;
    /// The most tokens of one tile of a matrix product with quantised weights. The weights stay in registers while they
    /// pass; sums that find no room there are in the first-level cache.
    const TILE_TOKENS: usize;
    /// Vectors of sums that registers have room for beside the operands of floating-point weights.
    const DENSE_SUMS: usize;
    /// Sums of sixteen lanes that stay in registers beside the keys or values that are added to them.
    const ATTENTION_SUMS: usize;

    /// One f32 per lane.
    type Floats: Copy;
    /// Four bytes per lane. For a matrix product these are four neighbouring columns of the lane's row; the operations that
    /// say so take them as one little-endian number.
    type Bytes: Copy;
    /// Sixteen bytes, whatever `LANES` is.
    type Bytes16: Copy;
    /// An array with an element for every `LANES` of sixteen lanes.
    type Sixteen<T: Copy>: Copy + AsRef<[T]> + AsMut<[T]>;

    /// The array of what `make` gives for each index. Not a loop, which would keep vectors in memory.
    fn sixteen<T: Copy>(make: impl FnMut(usize) -> T) -> Self::Sixteen<T>;

    /// Runs a kernel in a function of its own that is compiled for this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// Prefetches the cache line of an address, which need not be valid.
    fn prefetch(self, address: *const u8);

    /// The same number in all lanes.
    fn splat(self, value: f32) -> Self::Floats;
    /// a + b.
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a - b.
    fn sub(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a * b.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a / b.
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// a * b + c, rounded once.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// c - a * b, rounded once.
    fn mul_sub_from(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger; b if either is a NaN.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The smaller; b if either is a NaN.
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// To the nearest whole number, ties to even. |x| is below 2^31.
    fn round(self, x: Self::Floats) -> Self::Floats;
    /// Two to the power of whole numbers from -126 to 127.
    fn pow2(self, n: Self::Floats) -> Self::Floats;
    /// x where a >= b, else 0 (also where a or b is a NaN).
    fn keep_if_ge(self, a: Self::Floats, b: Self::Floats, x: Self::Floats) -> Self::Floats;
    /// a in the first `count` lanes, b in the others.
    fn select_first(self, count: usize, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// # Safety
    /// See [`Simd`].
    unsafe fn load_f32(self, values: *const u8) -> Self::Floats;
    /// Half-precision floats, widened exactly.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn load_f16(self, values: *const u8) -> Self::Floats;
    /// Upper halves of f32.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn load_bf16(self, values: *const u8) -> Self::Floats;
    /// Unsigned bytes, as f32.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn load_u8(self, values: *const u8) -> Self::Floats;
    /// Signed bytes, as f32.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn load_i8(self, values: *const u8) -> Self::Floats;
    /// # Safety
    /// See [`Simd`].
    unsafe fn store(self, to: *mut f32, values: Self::Floats);

    /// # Safety
    /// See [`Simd`]: `4 * LANES` bytes.
    unsafe fn load_bytes(self, bytes: *const u8) -> Self::Bytes;
    /// The same byte everywhere.
    fn splat_byte(self, byte: u8) -> Self::Bytes;
    /// a & b.
    fn and(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// a | b.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Shifts each byte right. Bits may cross from byte to byte: mask out the `count` highest afterwards.
    fn shift_right(self, a: Self::Bytes, count: u32) -> Self::Bytes;
    /// Shifts each byte left. Bits may cross from byte to byte: mask out the `count` lowest afterwards.
    fn shift_left(self, a: Self::Bytes, count: u32) -> Self::Bytes;
    /// `table[index]` for each byte; every index is below 16.
    fn look_up(self, table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes;
    /// The negative of each byte of `a` where the byte of `which` is 1, and the byte itself where that is 0.
    fn negate(self, a: Self::Bytes, which: Self::Bytes) -> Self::Bytes;

    /// A byte per lane, as a number.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn widen_u8(self, values: *const u8) -> Self::Bytes;
    /// Two bytes per lane, as a number.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn widen_u16(self, values: *const u8) -> Self::Bytes;
    /// `count` bits of each number from bit `from` on, moved to bit `to`.
    fn bits(self, a: Self::Bytes, from: u32, count: u32, to: u32) -> Self::Bytes;
    /// The four bytes at `table + STRIDE * number` for each lane; `STRIDE` is 4 or 8.
    ///
    /// # Safety
    /// All of them must be readable.
    unsafe fn gather<const STRIDE: i32>(self, table: *const u8, numbers: Self::Bytes) -> Self::Bytes;
    /// Each number as f32; all are below 2^24.
    fn to_floats(self, numbers: Self::Bytes) -> Self::Floats;

    /// The exact value of Σ (weight − offset) · activation over `4 * N` columns, where `sum` is the exact sum of the
    /// activations, which are from −127 to 127, and no weight is above `weight_max`. All of it stays below 2^24 and so is
    /// exact in f32, whatever the order.
    ///
    /// # Safety
    /// `activations` points to `4 * N` signed bytes.
    unsafe fn dot<const N: usize>(
        self,
        weights: [Self::Bytes; N],
        weight_max: u8,
        offset: u8,
        activations: *const u8,
        sum: f32,
    ) -> Self::Floats;

    /// Sixteen bytes from memory.
    fn load16(self, from: &[u8; 16]) -> Self::Bytes16;
    /// The same byte sixteen times.
    fn splat16(self, byte: u8) -> Self::Bytes16;
    /// `pair[0]` in the first eight bytes, `pair[1]` in the last eight.
    fn spread16(self, pair: [u8; 2]) -> Self::Bytes16;
    /// The lower four bits of each byte.
    fn low_nibbles16(self, x: Self::Bytes16) -> Self::Bytes16;
    /// The upper four bits of each byte.
    fn high_nibbles16(self, x: Self::Bytes16) -> Self::Bytes16;
    /// The elements of `table` with these indices, which are below 16.
    fn look_up16(self, table: Self::Bytes16, indices: Self::Bytes16) -> Self::Bytes16;
    /// a & b.
    fn and16(self, a: Self::Bytes16, b: Self::Bytes16) -> Self::Bytes16;
    /// a | b.
    fn or16(self, a: Self::Bytes16, b: Self::Bytes16) -> Self::Bytes16;
    /// All bits where a and b are equal, none elsewhere.
    fn equal16(self, a: Self::Bytes16, b: Self::Bytes16) -> Self::Bytes16;
    /// Sixteen signed bytes, as f32.
    fn widen16(self, bytes: Self::Bytes16) -> Self::Sixteen<Self::Floats>;

    /// Quantises 32 activations.
    fn quantize_q8(self, values: &[f32; 32]) -> Q8Block;
}

/// Functions whose body is one expression of intrinsics.
#[allow(unused_macros)] // The scalar form needs none.
macro_rules! intrinsics {
    ($(fn $name:ident($self:ident $(, $argument:ident: $kind:ty)*) -> $output:ty { $body:expr })*) => {
        $(
            #[inline(always)]
            fn $name($self $(, $argument: $kind)*) -> $output {
                // SAFETY: a token exists only where the machine has been found to have its instructions.
                unsafe { $body }
            }
        )*
    };
    ($(unsafe fn $name:ident($self:ident $(, $argument:ident: $kind:ty)*) -> $output:ty { $body:expr })*) => {
        $(
            #[inline(always)]
            unsafe fn $name($self $(, $argument: $kind)*) -> $output {
                // SAFETY: as above, and the caller vouches for the pointer; loads and stores are unaligned ones.
                unsafe { $body }
            }
        )*
    };
}
#[allow(unused_imports)]
pub(crate) use intrinsics;
