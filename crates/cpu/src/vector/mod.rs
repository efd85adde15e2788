//! Sixteen f32 lanes on every instruction set, for the ops that work along a row.
//!
//! A kernel is written once over [`Lanes`] and runs on whatever the machine has. All forms have sixteen lanes, fused
//! multiply-adds and one reduction tree, so the bits are the same on all of them, and the scalar form is the
//! reference for the others. (Of a NaN only that it is one is promised.)
#![allow(unsafe_code)] // Vector instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bytes;
#[cfg(target_arch = "aarch64")]
mod neon;

pub(crate) use bytes::Bytes;

#[cfg(target_arch = "x86_64")]
use self::{avx2::Avx2, avx512::Avx512};
use crate::isa::{Isa, Level};
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
        #[cfg(target_arch = "aarch64")]
        Level::Neon | Level::DotProd | Level::I8mm => kernel.run(neon::Neon),
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

    struct Operations<'a>([&'a [f32; LANES]; 3]);

    impl Kernel for Operations<'_> {
        type Output = [[f32; LANES]; 9];
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> [[f32; LANES]; 9] {
            let [a, b, c] = self.0.map(|x| l.load(x));
            [
                l.add(a, b),
                l.sub(a, b),
                l.mul(a, b),
                l.div(a, b),
                l.mul_add(a, b, c),
                l.max(a, b),
                l.min(a, b),
                l.round(a),
                l.keep_if_ge(a, b, c),
            ]
            .map(|x| l.to_array(x))
        }
    }

    /// Asserts equal bits, or a NaN on both sides.
    fn assert_same(got: &[f32; LANES], expected: &[f32; LANES], what: &str) {
        for (got, expected) in got.iter().zip(expected) {
            assert!(
                got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(),
                "{what}: {got:?} for {expected:?}"
            );
        }
    }

    #[test]
    fn operations_are_the_same_everywhere_even_on_extremes() {
        let numbers = [
            0.0,
            -0.0,
            0.5,
            1.5,
            -2.5,
            0.1,
            -3e6,
            1e-40,
            1e-38,
            3e38,
            -3e38,
            f32::MIN,
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            8_388_609.0,
        ];
        for (first, second) in (0..LANES * LANES).map(|i| (i / LANES, i % LANES)) {
            // Every number meets every other.
            let turned = |by: usize| array::from_fn(|i| numbers[(i + by) % LANES]);
            let (b, c) = (turned(first), turned(second));
            let reference = dispatch(Isa::scalar(), Operations([&numbers, &b, &c]));
            for isa in Isa::supported() {
                let results = dispatch(isa, Operations([&numbers, &b, &c]));
                for (operation, (got, expected)) in results.iter().zip(&reference).enumerate() {
                    assert_same(got, expected, &format!("operation {operation} on {}", isa.name()));
                }
            }
        }
    }

    struct Halves<'a>(&'a [u16; LANES]);

    impl Kernel for Halves<'_> {
        type Output = [[f32; LANES]; 2];
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> [[f32; LANES]; 2] {
            [l.to_array(l.load_f16(self.0)), l.to_array(l.load_bf16(self.0))]
        }
    }

    #[test]
    fn every_number_of_sixteen_bits_is_widened_the_same_everywhere() {
        for start in (0..=u16::MAX).step_by(LANES) {
            let numbers = array::from_fn(|i| start + i as u16);
            let reference = dispatch(Isa::scalar(), Halves(&numbers));
            for isa in Isa::supported() {
                for (got, expected) in dispatch(isa, Halves(&numbers)).iter().zip(&reference) {
                    assert_same(got, expected, isa.name());
                }
            }
        }
    }

    struct Powers<'a>(&'a [f32; LANES]);

    impl Kernel for Powers<'_> {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> [f32; LANES] {
            l.to_array(l.pow2(l.load(self.0)))
        }
    }

    #[test]
    fn powers_of_two_are_exact() {
        for start in (-126..=112).step_by(14) {
            let exponents: [i32; LANES] = array::from_fn(|i| start + i as i32);
            for isa in Isa::supported() {
                let powers = dispatch(isa, Powers(&exponents.map(|n| n as f32)));
                assert_eq!(powers, exponents.map(|n| 2f32.powi(n)), "{}", isa.name());
            }
        }
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
