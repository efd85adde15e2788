//! Sixteen f32 lanes on every instruction set, for the ops that work along a row.
//!
//! A kernel is written once over [`Lanes`] and runs on whatever the machine has. All forms have sixteen lanes, fused
//! multiply-adds and one reduction tree, so the bits are the same on all of them, and the scalar form is the
//! reference for the others. (Of a NaN only that it is one is promised.)
#![allow(unsafe_code)] // Vector instructions.

mod bytes;

pub(crate) use bytes::Bytes;

use crate::isa::{Isa, Level};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;

/// Work to be run on the chosen instruction set. `run` must be `#[inline(always)]` to be compiled for it.
pub(crate) trait Kernel {
    type Output;
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs a kernel on an instruction set.
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.level() {
        Level::Scalar => kernel.run(Scalar),
        // SAFETY: an `Isa` of this level exists only where the machine has been found to support it.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => unsafe { on_avx2(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { on_avx512(kernel) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn on_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn on_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// Sixteen-lane arithmetic. A value of an implementing type is the proof that the machine has its instructions.
pub(crate) trait Lanes: Bytes {
    /// Sixteen f32.
    type F: Copy;
    /// Vectors of sums that stay in registers beside what is added to them.
    const SUMS: usize;

    /// Calls for the cache line at an address, wherever it points.
    fn prefetch(self, address: *const u8);
    fn splat(self, x: f32) -> Self::F;
    fn load(self, from: &[f32; LANES]) -> Self::F;
    fn store(self, x: Self::F, to: &mut [f32; LANES]);
    /// Sixteen half-precision floats, widened exactly.
    fn load_f16(self, from: &[u16; LANES]) -> Self::F;
    /// Sixteen upper halves of f32.
    fn load_bf16(self, from: &[u16; LANES]) -> Self::F;
    /// Signed bytes as numbers.
    fn widen(self, bytes: Self::B) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, rounded once.
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; b if either is a NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; b if either is a NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest whole number, ties to even. |x| is below 2^31.
    fn round(self, x: Self::F) -> Self::F;
    /// Two to the power of whole numbers from -126 to 127.
    fn pow2(self, n: Self::F) -> Self::F;
    /// x where a >= b, else 0 (also where a or b is a NaN, unless x is taken there).
    fn keep_if_ge(self, a: Self::F, b: Self::F, x: Self::F) -> Self::F;
    /// x in the first `count` lanes, `fill` in the others.
    fn keep_first(self, count: usize, x: Self::F, fill: f32) -> Self::F;
    /// `fill` in the first `count` lanes, x in the others.
    fn drop_first(self, count: usize, x: Self::F, fill: f32) -> Self::F;

    /// Up to sixteen elements, the missing ones 0.
    #[inline(always)]
    fn load_part(self, from: &[f32]) -> Self::F {
        if let Ok(whole) = from.try_into() {
            return self.load(whole);
        }
        let mut whole = [0.0; LANES];
        whole[..from.len()].copy_from_slice(from);
        self.load(&whole)
    }

    /// The first lanes, as many as `to` has.
    #[inline(always)]
    fn store_part(self, x: Self::F, to: &mut [f32]) {
        if let Ok(whole) = to.try_into() {
            return self.store(x, whole);
        }
        let whole = self.to_array(x);
        to.copy_from_slice(&whole[..to.len()]);
    }

    #[inline(always)]
    fn to_array(self, x: Self::F) -> [f32; LANES] {
        let mut whole = [0.0; LANES];
        self.store(x, &mut whole);
        whole
    }

    /// The sum of all lanes: halves are added onto each other until one is left.
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        let mut whole = self.to_array(x);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                whole[i] += whole[i + half];
            }
        }
        whole[0]
    }

    /// The largest lane.
    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        let mut whole = self.to_array(x);
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                whole[i] = larger(whole[i], whole[i + half]);
            }
        }
        whole[0]
    }

    /// e^x to about 1e-7 relative; 0 below -87.3, infinite above 88.7, NaN for NaN.
    #[inline(always)]
    fn exp(self, x: Self::F) -> Self::F {
        // Range reduction by multiples of ln 2 (in two parts), then the Taylor polynomial of e^r on |r| <= ln(2)/2.
        let clamped = self.min(self.splat(89.0), self.max(self.splat(-88.0), x));
        let n = self.round(self.mul(clamped, self.splat(std::f32::consts::LOG2_E)));
        let r = self.mul_add(n, self.splat(-0.693_359_4), clamped);
        let r = self.mul_add(n, self.splat(2.121_944_4e-4), r);
        let mut p = self.splat(1.0 / 5040.0);
        for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = self.mul_add(p, r, self.splat(coefficient));
        }
        // 2^n in two steps, since n can be 128.
        let half = self.round(self.mul(n, self.splat(0.5)));
        let y = self.mul(self.mul(p, self.pow2(half)), self.pow2(self.sub(n, half)));
        let y = self.keep_if_ge(x, self.splat(-87.3), y);
        // keep_if_ge gives 0 for a NaN: put it back.
        self.add(y, self.sub(clamped, clamped))
    }

    /// tanh(x) to about 3e-7 relative, never beyond ±1; NaN for NaN.
    #[inline(always)]
    fn tanh(self, x: Self::F) -> Self::F {
        // A quotient of odd and even polynomials in x (coefficients: Eigen, generic_fast_tanh_float), beyond whose
        // range the result is 1 in f32.
        let x = self.min(self.splat(7.905_311), self.max(self.splat(-7.905_311), x));
        let square = self.mul(x, x);
        let mut odd = self.splat(-2.760_768_5e-16);
        for coefficient in
            [2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619e-4, 4.893_524_6e-3]
        {
            odd = self.mul_add(odd, square, self.splat(coefficient));
        }
        let mut even = self.splat(1.198_258_4e-6);
        for coefficient in [1.185_347e-4, 2.268_434_6e-3, 4.893_525e-3] {
            even = self.mul_add(even, square, self.splat(coefficient));
        }
        let y = self.div(self.mul(x, odd), even);
        self.min(self.splat(1.0), self.max(self.splat(-1.0), y))
    }

    /// cap * tanh(x / cap).
    #[inline(always)]
    fn softcap(self, x: Self::F, cap: f32) -> Self::F {
        let cap = self.splat(cap);
        self.mul(cap, self.tanh(self.div(x, cap)))
    }
}

/// The larger; b if either is a NaN. What [`Lanes::max`] does in each lane.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The reference form.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Lanes for Scalar {
    type F = [f32; LANES];
    const SUMS: usize = 4;

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        *to = x;
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        from.map(|bits| half::f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Self::F {
        from.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    fn widen(self, bytes: Self::B) -> Self::F {
        bytes.map(|byte| f32::from(byte.cast_signed()))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        array::from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        array::from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        array::from_fn(|i| larger(a[i], b[i]))
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        array::from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        x.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        n.map(|n| f32::from_bits(((n as i32).wrapping_add(127) << 23) as u32))
    }
    #[inline(always)]
    fn keep_if_ge(self, a: Self::F, b: Self::F, x: Self::F) -> Self::F {
        array::from_fn(|i| if a[i] >= b[i] { x[i] } else { 0.0 })
    }
    #[inline(always)]
    fn keep_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        array::from_fn(|i| if i < count { x[i] } else { fill })
    }
    #[inline(always)]
    fn drop_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        array::from_fn(|i| if i < count { fill } else { x[i] })
    }
}

/// AVX2 with FMA and F16C: two vectors of eight.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

// SAFETY (of every `unsafe` in the two implementations below): a value of the type exists only inside the functions
// that `dispatch` enters after the machine was found to have the instructions; loads and stores are unaligned and
// stay within the arrays referred to.
#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    type F = [__m256; 2];
    // Twelve of the sixteen registers.
    const SUMS: usize = 6;

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch does not fault, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let halves = from.as_ptr().cast::<__m128i>();
            [_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves.add(1)))]
        }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let halves = from.as_ptr().cast::<__m128i>();
            [_mm_loadu_si128(halves), _mm_loadu_si128(halves.add(1))]
                .map(|x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x))))
        }
    }
    #[inline(always)]
    fn widen(self, bytes: __m128i) -> Self::F {
        // SAFETY: as above.
        unsafe {
            [bytes, _mm_unpackhi_epi64(bytes, bytes)].map(|x| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)))
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: as above.
        unsafe { [_mm256_round_ps::<NEAREST>(x[0]), _mm256_round_ps::<NEAREST>(x[1])] }
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            n.map(|n| {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), bias);
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            })
        }
    }
    #[inline(always)]
    fn keep_if_ge(self, a: Self::F, b: Self::F, x: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { array::from_fn(|i| _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(a[i], b[i]), x[i])) }
    }
    #[inline(always)]
    fn keep_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        // SAFETY: as above.
        unsafe {
            array::from_fn(|i| {
                let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let left = _mm256_set1_epi32(count as i32 - 8 * i as i32);
                let keep = _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, lane));
                _mm256_blendv_ps(_mm256_set1_ps(fill), x[i], keep)
            })
        }
    }
    #[inline(always)]
    fn drop_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        let fill = self.splat(fill);
        // SAFETY: as above.
        unsafe {
            array::from_fn(|i| {
                let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let left = _mm256_set1_epi32(count as i32 - 8 * i as i32);
                let drop = _mm256_castsi256_ps(_mm256_cmpgt_epi32(left, lane));
                _mm256_blendv_ps(x[i], fill[i], drop)
            })
        }
    }
}

/// AVX-512: one vector of sixteen.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    type F = __m512;
    const SUMS: usize = 16;

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        // SAFETY: a prefetch does not fault, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) }
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    fn widen(self, bytes: __m128i) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: as above.
        unsafe { _mm512_roundscale_ps::<NEAREST>(x) }
    }
    #[inline(always)]
    fn pow2(self, n: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    fn keep_if_ge(self, a: Self::F, b: Self::F, x: Self::F) -> Self::F {
        // SAFETY: as above.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b), x) }
    }
    #[inline(always)]
    fn keep_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        let mask = if count >= LANES { u16::MAX } else { (1 << count) - 1 };
        // SAFETY: as above.
        unsafe { _mm512_mask_blend_ps(mask, _mm512_set1_ps(fill), x) }
    }
    #[inline(always)]
    fn drop_first(self, count: usize, x: Self::F, fill: f32) -> Self::F {
        let mask = if count >= LANES { u16::MAX } else { (1 << count) - 1 };
        // SAFETY: as above.
        unsafe { _mm512_mask_blend_ps(mask, x, _mm512_set1_ps(fill)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp<'a>(&'a [f32; LANES]);

    impl Kernel for Exp<'_> {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> [f32; LANES] {
            l.to_array(l.exp(l.load(self.0)))
        }
    }

    fn exp(isa: Isa, x: &[f32; LANES]) -> [f32; LANES] {
        dispatch(isa, Exp(x))
    }

    #[test]
    fn exp_is_accurate_and_the_same_everywhere() {
        let mut worst = 0f64;
        for step in 0..12_000 {
            let x: [f32; LANES] = array::from_fn(|i| -88.0 + (step * LANES + i) as f32 * (177.0 / 192_000.0));
            let reference = exp(Isa::scalar(), &x);
            for (x, y) in x.iter().zip(reference) {
                let exact = f64::from(*x).exp();
                if *x >= -87.3 && exact < f64::from(f32::MAX) {
                    worst = worst.max((f64::from(y) / exact - 1.0).abs());
                }
            }
            for isa in Isa::supported() {
                assert_eq!(exp(isa, &x).map(f32::to_bits), reference.map(f32::to_bits), "{}", isa.name());
            }
        }
        assert!(worst < 2.5e-7, "worst relative error {worst:e}");
    }

    struct Masks<'a>(&'a [f32; LANES], usize);

    impl Kernel for Masks<'_> {
        type Output = [[f32; LANES]; 2];
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> [[f32; LANES]; 2] {
            let x = l.load(self.0);
            [l.to_array(l.keep_first(self.1, x, -7.0)), l.to_array(l.drop_first(self.1, x, -7.0))]
        }
    }

    #[test]
    fn lanes_are_kept_and_dropped_by_their_number() {
        let x: [f32; LANES] = array::from_fn(|i| if i % 3 == 0 { f32::NAN } else { i as f32 });
        for isa in Isa::supported() {
            for count in 0..=20 {
                let [kept, dropped] = dispatch(isa, Masks(&x, count));
                for i in 0..LANES {
                    let (first, last) = if i < count { (x[i], -7.0) } else { (-7.0, x[i]) };
                    assert!(kept[i] == first || kept[i].is_nan() && first.is_nan(), "{} {count}", isa.name());
                    assert!(
                        dropped[i] == last || dropped[i].is_nan() && last.is_nan(),
                        "{} {count}",
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn exp_of_the_extremes() {
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1e30, 1e30, -0.0]);
        for isa in Isa::supported() {
            let y = exp(isa, &x);
            assert_eq!((y[0], y[3], y[5]), (0.0, 0.0, 1.0), "{}", isa.name());
            assert!(y[1] == f32::INFINITY && y[4] == f32::INFINITY && y[2].is_nan(), "{}: {y:?}", isa.name());
        }
    }
}
