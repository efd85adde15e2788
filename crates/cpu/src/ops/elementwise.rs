//! Elementwise ops.

use verbatim_graph::Activation;
use verbatim_simd::{F32x16, Isa, Kernel, LANES, Lanes, Simd, dispatch};

/// `out = activation(gate) * up`.
pub(crate) fn glu(isa: Isa, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match activation {
        Activation::Silu => dispatch(isa, Binary { a: gate, b: up, out, function: SiluTimes }),
        Activation::GeluTanh => dispatch(isa, Binary { a: gate, b: up, out, function: GeluTanhTimes }),
        Activation::Sigmoid => dispatch(isa, Binary { a: gate, b: up, out, function: SigmoidTimes }),
        Activation::ClampedSwiglu { alpha, limit } => {
            let function = ClampedSwiglu { alpha: alpha.0, limit: limit.0 };
            dispatch(isa, Binary { a: gate, b: up, out, function });
        }
    }
}

/// `out = a + b`.
pub(crate) fn add(isa: Isa, a: &[f32], b: &[f32], out: &mut [f32]) {
    dispatch(isa, Binary { a, b, out, function: Sum });
}

/// `out = a * b`.
pub(crate) fn mul(isa: Isa, a: &[f32], b: &[f32], out: &mut [f32]) {
    dispatch(isa, Binary { a, b, out, function: Multiply });
}

/// `out = x * factor`.
pub(crate) fn scale(isa: Isa, factor: f32, x: &[f32], out: &mut [f32]) {
    dispatch(isa, Binary { a: x, b: x, out, function: Times(factor) });
}

/// `out = cap * tanh(x / cap)`.
pub(crate) fn softcap(isa: Isa, cap: f32, x: &[f32], out: &mut [f32]) {
    dispatch(isa, Binary { a: x, b: x, out, function: Softcap(cap) });
}

/// An elementwise function of two operands.
trait Function: Copy {
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, b: F32x16<S>) -> F32x16<S>;
}

struct Binary<'a, F> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
    function: F,
}

impl<F: Function> Kernel for Binary<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let (a, a_rest) = self.a.as_chunks::<LANES>();
        let (b, b_rest) = self.b.as_chunks::<LANES>();
        let (out, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((a, b), out) in a.iter().zip(b).zip(out) {
            l.store(self.function.of(l, l.load(a), l.load(b)), out);
        }
        if !a_rest.is_empty() {
            l.store_part(self.function.of(l, l.load_part(a_rest), l.load_part(b_rest)), out_rest);
        }
    }
}

#[derive(Clone, Copy)]
struct Sum;

impl Function for Sum {
    #[inline(always)]
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        l.add(a, b)
    }
}

#[derive(Clone, Copy)]
struct Multiply;

impl Function for Multiply {
    #[inline(always)]
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        l.mul(a, b)
    }
}

#[derive(Clone, Copy)]
struct Times(f32);

impl Function for Times {
    #[inline(always)]
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, _: F32x16<S>) -> F32x16<S> {
        l.mul(a, l.splat(self.0))
    }
}

#[derive(Clone, Copy)]
struct Softcap(f32);

impl Function for Softcap {
    #[inline(always)]
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, _: F32x16<S>) -> F32x16<S> {
        l.softcap(a, self.0)
    }
}

/// silu(a) * b, with silu(a) = a / (1 + e^-a).
#[derive(Clone, Copy)]
struct SiluTimes;

impl Function for SiluTimes {
    #[inline(always)]
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        let e = l.exp(l.sub(l.splat(0.0), a));
        l.mul(l.div(a, l.add(l.splat(1.0), e)), b)
    }
}

/// gelu(a) * b in the tanh form: 0.5 a (1 + tanh(√(2/π) (a + 0.044715 a³))), which is a / (1 + e^-2y).
#[derive(Clone, Copy)]
struct GeluTanhTimes;

impl Function for GeluTanhTimes {
    #[inline(always)]
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        const SQRT_2_OVER_PI: f32 = 0.797_884_6;
        let inner = l.mul_add(l.mul(l.mul(a, a), l.splat(0.044_715)), a, a);
        let e = l.exp(l.mul(inner, l.splat(-2.0 * SQRT_2_OVER_PI)));
        l.mul(l.div(a, l.add(l.splat(1.0), e)), b)
    }
}

/// sigmoid(a) * b.
#[derive(Clone, Copy)]
struct SigmoidTimes;

impl Function for SigmoidTimes {
    #[inline(always)]
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        let e = l.exp(l.sub(l.splat(0.0), a));
        l.div(b, l.add(l.splat(1.0), e))
    }
}

/// a * sigmoid(alpha * a) * (b + 1), with a at most `limit` and b within it.
#[derive(Clone, Copy)]
struct ClampedSwiglu {
    alpha: f32,
    limit: f32,
}

impl Function for ClampedSwiglu {
    #[inline(always)]
    fn of<S: Simd>(self, l: Lanes<S>, a: F32x16<S>, b: F32x16<S>) -> F32x16<S> {
        // The bound is the first operand: if either is NaN, `min` and `max` return the second.
        let (upper, lower) = (l.splat(self.limit), l.splat(-self.limit));
        let a = l.min(upper, a);
        let b = l.max(lower, l.min(upper, b));
        let e = l.exp(l.mul(a, l.splat(-self.alpha)));
        l.mul(l.div(a, l.add(l.splat(1.0), e)), l.add(b, l.splat(1.0)))
    }
}

/// The logits in the columns of their tokens, and -∞ in all others.
pub(crate) fn scatter(logits: &[f32], ids: &[i32], out: &mut [f32]) {
    out.fill(f32::NEG_INFINITY);
    for (logit, id) in logits.iter().zip(ids) {
        out[usize::try_from(*id).expect("a token of the vocabulary")] = *logit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_graph::F32Bits;

    fn inputs(n: usize) -> (Vec<f32>, Vec<f32>) {
        let a = (0..n).map(|i| (i as f32 - n as f32 / 2.0) * 0.37).collect();
        let b = (0..n).map(|i| ((i * 7919 % 97) as f32 - 48.0) / 11.0).collect();
        (a, b)
    }

    #[test]
    fn activations_agree_with_f64_and_on_every_instruction_set() {
        let exact_silu = |a: f64| a / (1.0 + (-a).exp());
        let exact_gelu = |a: f64| {
            0.5 * a * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (a + 0.044715 * a * a * a)).tanh())
        };
        let sigmoid = |a: f64| 1.0 / (1.0 + (-a).exp());
        type Exact<'a> = &'a dyn Fn(f64, f64) -> f64;
        let clamped = Activation::ClampedSwiglu { alpha: F32Bits(1.702), limit: F32Bits(3.0) };
        let cases: [(Activation, Exact); 4] = [
            (Activation::Silu, &|a, b| exact_silu(a) * b),
            (Activation::GeluTanh, &|a, b| exact_gelu(a) * b),
            (Activation::Sigmoid, &|a, b| sigmoid(a) * b),
            (clamped, &|a, b| {
                let (a, b) = (a.min(3.0), b.clamp(-3.0, 3.0));
                a * sigmoid(f64::from(1.702f32) * a) * (b + 1.0)
            }),
        ];
        let (a, b) = inputs(131);
        for (activation, exact) in cases {
            let mut reference = vec![0.0; a.len()];
            glu(Isa::scalar(), activation, &a, &b, &mut reference);
            for i in 0..a.len() {
                let wanted = exact(f64::from(a[i]), f64::from(b[i]));
                let error = (f64::from(reference[i]) - wanted).abs();
                assert!(error <= 2e-6 * wanted.abs() + 1e-7, "{activation:?}({}): {error:e}", a[i]);
            }
            for isa in Isa::supported() {
                let mut out = vec![0.0; a.len()];
                glu(isa, activation, &a, &b, &mut out);
                assert_eq!(out, reference, "{activation:?} {}", isa.name());
            }
        }
    }

    #[test]
    fn softcap_agrees_with_f64_and_on_every_instruction_set() {
        for cap in [0.5, 30.0, 50.0] {
            let (mut x, _) = inputs(131);
            x.extend([0.0, 1e-6, -1e-6, 1e6, f32::INFINITY, f32::NEG_INFINITY]);
            let mut reference = vec![0.0; x.len()];
            softcap(Isa::scalar(), cap, &x, &mut reference);
            for (x, given) in x.iter().zip(&reference) {
                let exact = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
                assert!(
                    (f64::from(*given) - exact).abs() <= 5e-7 * exact.abs(),
                    "{cap} {x}: {given} {exact}"
                );
                assert!(given.abs() <= cap);
            }
            for isa in Isa::supported() {
                let mut out = vec![0.0; x.len()];
                softcap(isa, cap, &x, &mut out);
                assert_eq!(out, reference, "{}", isa.name());
            }
        }
    }

    #[test]
    fn arithmetic_is_that_of_f32() {
        let (a, b) = inputs(37);
        let mut out = vec![0.0; 37];
        for isa in Isa::supported() {
            add(isa, &a, &b, &mut out);
            assert!((0..37).all(|i| out[i] == a[i] + b[i]));
            mul(isa, &a, &b, &mut out);
            assert!((0..37).all(|i| out[i] == a[i] * b[i]));
            scale(isa, 1.7, &a, &mut out);
            assert!((0..37).all(|i| out[i] == a[i] * 1.7));
        }
    }
}
