//! Sixteen f32 lanes on every instruction set, for row-wise kernels (norm, RoPE, elementwise), with the functions they need.

use crate::simd::Simd;

/// Lanes of [`F32x16`].
pub const LANES: usize = 16;

/// Sixteen f32.
pub type F32x16<S> = <S as Simd>::X16<<S as Simd>::Floats>;

/// Arithmetic on sixteen lanes, in `16 / LANES` vectors.
#[derive(Clone, Copy, Debug)]
pub struct Lanes<S>(pub S);

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn map(self, x: F32x16<S>, operation: impl Fn(S::Floats) -> S::Floats) -> F32x16<S> {
        S::x16(|i| operation(x.as_ref()[i]))
    }

    #[inline(always)]
    fn map2(
        self,
        a: F32x16<S>,
        b: F32x16<S>,
        operation: impl Fn(S::Floats, S::Floats) -> S::Floats,
    ) -> F32x16<S> {
        S::x16(|i| operation(a.as_ref()[i], b.as_ref()[i]))
    }

    #[inline(always)]
    fn map3(
        self,
        a: F32x16<S>,
        b: F32x16<S>,
        c: F32x16<S>,
        operation: impl Fn(S::Floats, S::Floats, S::Floats) -> S::Floats,
    ) -> F32x16<S> {
        S::x16(|i| operation(a.as_ref()[i], b.as_ref()[i], c.as_ref()[i]))
    }

    /// Prefetches the cache line of an address, which need not be valid.
    #[inline(always)]
    pub fn prefetch(self, address: *const u8) {
        self.0.prefetch(address);
    }

    /// The same value in all lanes.
    #[inline(always)]
    pub fn splat(self, x: f32) -> F32x16<S> {
        S::x16(|_| self.0.splat(x))
    }

    /// Loads sixteen f32.
    #[inline(always)]
    pub fn load(self, from: &[f32; LANES]) -> F32x16<S> {
        // SAFETY: the vectors cover exactly the sixteen elements.
        S::x16(|i| unsafe { self.0.load_f32(from.as_ptr().add(i * S::LANES).cast()) })
    }

    /// Loads sixteen f16, widened exactly.
    #[inline(always)]
    pub fn load_f16(self, from: &[u16; LANES]) -> F32x16<S> {
        // SAFETY: the vectors cover exactly the sixteen elements.
        S::x16(|i| unsafe { self.0.load_f16(from.as_ptr().add(i * S::LANES).cast()) })
    }

    /// Loads sixteen bf16, widened exactly.
    #[inline(always)]
    pub fn load_bf16(self, from: &[u16; LANES]) -> F32x16<S> {
        // SAFETY: the vectors cover exactly the sixteen elements.
        S::x16(|i| unsafe { self.0.load_bf16(from.as_ptr().add(i * S::LANES).cast()) })
    }

    /// Signed bytes as f32.
    #[inline(always)]
    pub fn widen(self, bytes: S::Bytes16) -> F32x16<S> {
        self.0.widen16(bytes)
    }

    /// Stores sixteen f32.
    #[inline(always)]
    pub fn store(self, x: F32x16<S>, to: &mut [f32; LANES]) {
        // SAFETY: the vectors cover exactly the sixteen elements.
        S::x16(|i| unsafe { self.0.store(to.as_mut_ptr().add(i * S::LANES), x.as_ref()[i]) });
    }

    /// a + b.
    #[inline(always)]
    pub fn add(self, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        self.map2(a, b, |a, b| self.0.add(a, b))
    }

    /// a - b.
    #[inline(always)]
    pub fn sub(self, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        self.map2(a, b, |a, b| self.0.sub(a, b))
    }

    /// a * b.
    #[inline(always)]
    pub fn mul(self, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        self.map2(a, b, |a, b| self.0.mul(a, b))
    }

    /// a / b.
    #[inline(always)]
    pub fn div(self, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        self.map2(a, b, |a, b| self.0.div(a, b))
    }

    /// a * b + c, rounded once.
    #[inline(always)]
    pub fn mul_add(self, a: F32x16<S>, b: F32x16<S>, c: F32x16<S>) -> F32x16<S> {
        self.map3(a, b, c, |a, b, c| self.0.mul_add(a, b, c))
    }

    /// The larger; b if either is a NaN.
    #[inline(always)]
    pub fn max(self, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        self.map2(a, b, |a, b| self.0.max(a, b))
    }

    /// The smaller; b if either is a NaN.
    #[inline(always)]
    pub fn min(self, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        self.map2(a, b, |a, b| self.0.min(a, b))
    }

    /// To the nearest integer, ties to even. |x| is below 2^31.
    #[inline(always)]
    pub fn round(self, x: F32x16<S>) -> F32x16<S> {
        self.map(x, |x| self.0.round(x))
    }

    /// Two to the power of integers from -126 to 127.
    #[inline(always)]
    pub fn pow2(self, n: F32x16<S>) -> F32x16<S> {
        self.map(n, |n| self.0.pow2(n))
    }

    /// x where a >= b, else 0 (also where a or b is a NaN).
    #[inline(always)]
    pub fn select_ge_or_zero(self, a: F32x16<S>, b: F32x16<S>, x: F32x16<S>) -> F32x16<S> {
        self.map3(a, b, x, |a, b, x| self.0.select_ge_or_zero(a, b, x))
    }

    /// x in the lanes before `count`, which may be negative or past the last one; `fill` in the others.
    #[inline(always)]
    pub fn keep_first(self, count: i32, x: F32x16<S>, fill: f32) -> F32x16<S> {
        self.select_first(count, x, self.splat(fill))
    }

    /// `fill` in the lanes before `count`, which may be negative or past the last one; x in the others.
    #[inline(always)]
    pub fn fill_first(self, count: i32, x: F32x16<S>, fill: f32) -> F32x16<S> {
        self.select_first(count, self.splat(fill), x)
    }

    #[inline(always)]
    fn select_first(self, count: i32, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        S::x16(|i| self.0.select_first(count - (i * S::LANES) as i32, a.as_ref()[i], b.as_ref()[i]))
    }

    /// Loads up to sixteen elements; the missing ones are 0.
    #[inline(always)]
    pub fn load_part(self, from: &[f32]) -> F32x16<S> {
        if let Ok(whole) = from.try_into() {
            return self.load(whole);
        }
        let mut whole = [0.0; LANES];
        whole[..from.len()].copy_from_slice(from);
        self.load(&whole)
    }

    /// Stores the first `to.len()` lanes.
    #[inline(always)]
    pub fn store_part(self, x: F32x16<S>, to: &mut [f32]) {
        if let Ok(whole) = to.try_into() {
            return self.store(x, whole);
        }
        let whole = self.to_array(x);
        to.copy_from_slice(&whole[..to.len()]);
    }

    /// All lanes.
    #[inline(always)]
    pub fn to_array(self, x: F32x16<S>) -> [f32; LANES] {
        let mut whole = [0.0; LANES];
        self.store(x, &mut whole);
        whole
    }

    /// The sum of all lanes: halves are added onto each other until one is left.
    #[inline(always)]
    pub fn reduce_sum(self, x: F32x16<S>) -> f32 {
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
    pub fn reduce_max(self, x: F32x16<S>) -> f32 {
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
    pub fn exp(self, x: F32x16<S>) -> F32x16<S> {
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
        let y = self.select_ge_or_zero(x, self.splat(-87.3), y);
        // select_ge_or_zero returns 0 for a NaN: put it back.
        self.add(y, self.sub(clamped, clamped))
    }

    /// tanh(x) to about 3e-7 relative, never beyond ±1; NaN for NaN.
    #[inline(always)]
    pub fn tanh(self, x: F32x16<S>) -> F32x16<S> {
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
    pub fn softcap(self, x: F32x16<S>, cap: f32) -> F32x16<S> {
        let cap = self.splat(cap);
        self.mul(cap, self.tanh(self.div(x, cap)))
    }
}

/// The larger; b if either is a NaN. The same as [`Lanes::max`] in each lane.
#[inline(always)]
pub fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use std::array;

    use super::*;
    use crate::{Isa, Kernel, dispatch};
    use verbatim_graph::random::Random;

    struct Exp<'a>(&'a [f32; LANES]);

    impl Kernel for Exp<'_> {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; LANES] {
            let l = Lanes(simd);
            l.to_array(l.exp(l.load(self.0)))
        }
    }

    fn exp(isa: Isa, x: &[f32; LANES]) -> [f32; LANES] {
        dispatch(isa, Exp(x))
    }

    #[test]
    fn exp_is_accurate_and_the_same_on_every_instruction_set() {
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
        fn run<S: Simd>(self, simd: S) -> [[f32; LANES]; 9] {
            let l = Lanes(simd);
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
                l.select_ge_or_zero(a, b, c),
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
    fn operations_are_the_same_on_every_instruction_set() {
        let values = [
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
            // All pairs of values.
            let turned = |by: usize| array::from_fn(|i| values[(i + by) % LANES]);
            let (b, c) = (turned(first), turned(second));
            let reference = dispatch(Isa::scalar(), Operations([&values, &b, &c]));
            for isa in Isa::supported() {
                let results = dispatch(isa, Operations([&values, &b, &c]));
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
        fn run<S: Simd>(self, simd: S) -> [[f32; LANES]; 2] {
            let l = Lanes(simd);
            [l.to_array(l.load_f16(self.0)), l.to_array(l.load_bf16(self.0))]
        }
    }

    #[test]
    fn every_f16_and_bf16_is_widened_the_same_on_every_instruction_set() {
        for start in (0..=u16::MAX).step_by(LANES) {
            let values = array::from_fn(|i| start + i as u16);
            let reference = dispatch(Isa::scalar(), Halves(&values));
            for isa in Isa::supported() {
                for (got, expected) in dispatch(isa, Halves(&values)).iter().zip(&reference) {
                    assert_same(got, expected, isa.name());
                }
            }
        }
    }

    struct Powers<'a>(&'a [f32; LANES]);

    impl Kernel for Powers<'_> {
        type Output = [f32; LANES];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [f32; LANES] {
            let l = Lanes(simd);
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

    struct Masks<'a>(&'a [f32; LANES], i32);

    impl Kernel for Masks<'_> {
        type Output = [[f32; LANES]; 2];
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [[f32; LANES]; 2] {
            let l = Lanes(simd);
            let x = l.load(self.0);
            [l.to_array(l.keep_first(self.1, x, -7.0)), l.to_array(l.fill_first(self.1, x, -7.0))]
        }
    }

    #[test]
    fn keep_first_and_fill_first_split_at_count() {
        let x: [f32; LANES] = array::from_fn(|i| if i % 3 == 0 { f32::NAN } else { i as f32 });
        for isa in Isa::supported() {
            for count in -20..=20 {
                let [kept, filled] = dispatch(isa, Masks(&x, count));
                for i in 0..LANES {
                    let (first, last) = if (i as i32) < count { (x[i], -7.0) } else { (-7.0, x[i]) };
                    assert!(kept[i] == first || kept[i].is_nan() && first.is_nan(), "{} {count}", isa.name());
                    assert!(
                        filled[i] == last || filled[i].is_nan() && last.is_nan(),
                        "{} {count}",
                        isa.name()
                    );
                }
            }
        }
    }

    #[test]
    fn exp_of_extreme_values() {
        let mut x = [0.0; LANES];
        x[..6].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1e30, 1e30, -0.0]);
        for isa in Isa::supported() {
            let y = exp(isa, &x);
            assert_eq!((y[0], y[3], y[5]), (0.0, 0.0, 1.0), "{}", isa.name());
            assert!(y[1] == f32::INFINITY && y[4] == f32::INFINITY && y[2].is_nan(), "{}: {y:?}", isa.name());
        }
    }

    struct Bytes<'a>(&'a [[u8; LANES]; 2]);

    impl Kernel for Bytes<'_> {
        type Output = [[f32; LANES]; 8];

        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> [[f32; LANES]; 8] {
            let [a, b] = self.0.map(|x| simd.load16(&x));
            [
                a,
                simd.low_nibbles16(a),
                simd.high_nibbles16(a),
                simd.look_up16(b, simd.low_nibbles16(a)),
                simd.and16(a, simd.splat16(self.0[0][0])),
                simd.or16(a, b),
                simd.equal16(simd.and16(a, b), b),
                simd.spread16([self.0[0][3], self.0[1][5]]),
            ]
            .map(|bytes| Lanes(simd).to_array(simd.widen16(bytes)))
        }
    }

    #[test]
    fn byte_operations_are_the_same_on_every_instruction_set() {
        let mut random = Random(12);
        for _ in 0..1000 {
            let [x, mask] = [0, 1].map(|_| array::from_fn(|_| random.bits() as u8));
            let bytes = [x, array::from_fn(|i| if i % 2 == 0 { mask[i] } else { mask[i] & x[i] })];
            let reference = dispatch(Isa::scalar(), Bytes(&bytes));
            assert_eq!(reference[0], x.map(|x| f32::from(x.cast_signed())));
            for isa in Isa::supported() {
                assert_eq!(dispatch(isa, Bytes(&bytes)), reference, "{}", isa.name());
            }
        }
    }
}
