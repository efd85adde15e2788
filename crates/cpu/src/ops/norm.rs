//! Norms over a row.

use std::ops::Range;
use verbatim_simd::{Isa, Kernel, LANES, Lanes, Simd, dispatch};

/// Some columns of the root-mean-square norm (arXiv 1910.07467) of one group: `x / sqrt(mean(x²) + eps) * weight`.
/// `x` and `weight` have the same length; `out` takes `cols` of them.
pub(crate) fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], eps: f32, cols: Range<usize>, out: &mut [f32]) {
    dispatch(isa, RmsNorm { x, normalized: &x[cols.clone()], weight: &weight[cols], eps, out });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    /// The columns of `x` to normalise.
    normalized: &'a [f32],
    /// Their weights.
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let (chunks, rest) = self.x.as_chunks::<LANES>();
        let mut squares = l.splat(0.0);
        for chunk in chunks {
            let x = l.load(chunk);
            squares = l.mul_add(x, x, squares);
        }
        if !rest.is_empty() {
            let x = l.load_part(rest);
            squares = l.mul_add(x, x, squares);
        }
        let mean = l.reduce_sum(squares) / self.x.len() as f32;
        let scale = l.splat(1.0 / (mean + self.eps).sqrt());

        let (chunks, rest) = self.normalized.as_chunks::<LANES>();
        let (weights, weight_rest) = self.weight.as_chunks::<LANES>();
        let (outs, out_rest) = self.out.as_chunks_mut::<LANES>();
        for ((chunk, weight), out) in chunks.iter().zip(weights).zip(outs) {
            l.store(l.mul(l.mul(l.load(chunk), scale), l.load(weight)), out);
        }
        if !rest.is_empty() {
            l.store_part(l.mul(l.mul(l.load_part(rest), scale), l.load_part(weight_rest)), out_rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_f64_and_on_every_instruction_set() {
        for n in [1, 7, 16, 33, 576] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
            let weight: Vec<f32> = (0..n).map(|i| 0.5 + (i % 5) as f32).collect();
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n as f64;
            let mut reference = vec![0.0; n];
            rms_norm(Isa::scalar(), &x, &weight, 1e-5, 0..n, &mut reference);
            for i in 0..n {
                let exact = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                assert!((f64::from(reference[i]) - exact).abs() <= 1e-6 * exact.abs().max(1e-3));
            }
            for isa in Isa::supported() {
                let mut out = vec![0.0; n];
                rms_norm(isa, &x, &weight, 1e-5, 0..n, &mut out);
                assert_eq!(out, reference, "{} {n}", isa.name());
                for cols in [0..n / 3, n / 3..n] {
                    let mut out = vec![0.0; cols.len()];
                    rms_norm(isa, &x, &weight, 1e-5, cols.clone(), &mut out);
                    assert_eq!(out, reference[cols.clone()], "{} {n} {cols:?}", isa.name());
                }
            }
        }
    }
}
