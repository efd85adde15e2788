//! The SIMD operations that kernels are written in.

use crate::q8::Q8Block;

/// Work to be run on the chosen instruction set.
pub trait Kernel {
    /// The result.
    type Output;

    /// Whether it uses [`Simd::dot`], itself or in a kernel that it runs by [`Simd::vectorize`]. If not, instruction sets that
    /// differ only in their int8 dot products share one compiled version of it.
    const USES_INT8_DOT: bool = false;

    /// Does the work. Must be `#[inline(always)]`, and so must all that it calls with `simd`: only what is inlined into the
    /// function of [`Simd::vectorize`] is compiled for the instruction set.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Vectors of [`LANES`](Self::LANES) lanes. A value is a capability token: it exists only if the CPU supports the instructions.
///
/// # Safety
/// For the functions that take a pointer: it must be valid for the elements read or written, [`LANES`](Self::LANES) of them
/// unless documented otherwise. No alignment is required.
pub trait Simd: Copy + 'static {
    /// Lanes of one vector: a divisor of 16.
    const LANES: usize;
    /// Maximum number of tokens of a matmul tile with quantised weights. The weights stay in registers for all tokens of a
    /// tile; accumulators that do not fit spill to L1.
    const TILE_TOKENS: usize;
    /// Accumulator vectors of a matmul with float weights that fit in registers beside the operands.
    const MATMUL_ACCUMULATORS: usize;
    /// Sixteen-lane accumulators of attention that fit in registers beside the keys or values.
    const ATTENTION_ACCUMULATORS: usize;

    /// One f32 per lane.
    type Floats: Copy;
    /// Four bytes per lane. For a matmul these are four neighbouring columns of the lane's row; some operations interpret them
    /// as one little-endian u32.
    type Bytes: Copy;
    /// Sixteen bytes, whatever `LANES` is.
    type Bytes16: Copy;
    /// An array of `16 / LANES` elements: one for each vector of sixteen lanes.
    type X16<T: Copy>: Copy + AsRef<[T]> + AsMut<[T]>;

    /// The array of `make(i)` for each index. Unrolled, because a loop would keep the vectors in memory.
    fn x16<T: Copy>(make: impl FnMut(usize) -> T) -> Self::X16<T>;

    /// Runs a kernel in a separate function that is compiled for this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// Prefetches the cache line of an address, which need not be valid.
    fn prefetch(self, address: *const u8);

    /// The same value in all lanes.
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
    fn neg_mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger; b if either is a NaN.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// The smaller; b if either is a NaN.
    fn min(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// To the nearest integer, ties to even. |x| is below 2^31.
    fn round(self, x: Self::Floats) -> Self::Floats;
    /// Two to the power of integers from -126 to 127.
    fn pow2(self, n: Self::Floats) -> Self::Floats;
    /// x where a >= b, else 0 (also where a or b is a NaN).
    fn select_ge_or_zero(self, a: Self::Floats, b: Self::Floats, x: Self::Floats) -> Self::Floats;
    /// a in the lanes before `count`, which may be negative or past the last one; b in the others.
    fn select_first(self, count: i32, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// # Safety
    /// See [`Simd`].
    unsafe fn load_f32(self, values: *const u8) -> Self::Floats;
    /// f16, widened exactly.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn load_f16(self, values: *const u8) -> Self::Floats;
    /// bf16, widened exactly.
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
    /// The same byte in every position.
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

    /// A byte per lane, as u32.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn widen_u8(self, values: *const u8) -> Self::Bytes;
    /// Two bytes per lane, as u32.
    ///
    /// # Safety
    /// See [`Simd`].
    unsafe fn widen_u16(self, values: *const u8) -> Self::Bytes;
    /// `count` bits of each u32, starting at bit `from`, moved to bit `to`.
    fn bits(self, a: Self::Bytes, from: u32, count: u32, to: u32) -> Self::Bytes;
    /// The four bytes at `table + STRIDE * index` for each lane; `STRIDE` is 4 or 8.
    ///
    /// # Safety
    /// All of them must be readable.
    unsafe fn gather<const STRIDE: i32>(self, table: *const u8, indices: Self::Bytes) -> Self::Bytes;
    /// Each u32 as f32; all are below 2^24.
    fn to_floats(self, ints: Self::Bytes) -> Self::Floats;

    /// The exact value of Σ (weight − offset) · activation over `4 * N` columns, where `sum` is the exact sum of the
    /// activations, which are from −127 to 127, and no weight is above `weight_max`. Every partial sum is below 2^24 and
    /// therefore exact in f32, in any order.
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
    fn widen16(self, bytes: Self::Bytes16) -> Self::X16<Self::Floats>;

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
                // SAFETY: the token exists only if the CPU supports the instructions.
                unsafe { $body }
            }
        )*
    };
    ($(unsafe fn $name:ident($self:ident $(, $argument:ident: $kind:ty)*) -> $output:ty { $body:expr })*) => {
        $(
            #[inline(always)]
            unsafe fn $name($self $(, $argument: $kind)*) -> $output {
                // SAFETY: as above, and the caller guarantees that the pointer is valid; loads and stores are unaligned.
                unsafe { $body }
            }
        )*
    };
}
#[allow(unused_imports)]
pub(crate) use intrinsics;
