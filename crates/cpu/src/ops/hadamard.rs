//! The orthonormal Walsh-Hadamard transform of heads.

use verbatim_simd::{Isa, Kernel, LANES, Lanes, Simd, dispatch};

/// Multiplies each run of each head with the Walsh-Hadamard matrix; a run is the largest power of two that divides
/// `head_dim`.
///
/// Stages go from neighbours to halves of a run, each a sum and a difference; the factor comes last.
pub(crate) fn transform(isa: Isa, head_dim: usize, x: &[f32], out: &mut [f32]) {
    let run = 1 << head_dim.trailing_zeros();
    dispatch(isa, Transform { run, x, out });
}

struct Transform<'a> {
    run: usize,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Transform<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        self.out.copy_from_slice(self.x);
        let factor = (1.0 / (self.run as f64).sqrt()) as f32;
        for run in self.out.chunks_exact_mut(self.run) {
            for distance in (0..).map(|stage| 1 << stage).take_while(|&distance| distance < self.run) {
                for pair in run.chunks_exact_mut(2 * distance) {
                    let (a, b) = pair.split_at_mut(distance);
                    butterflies(l, a, b);
                }
            }
            for x in run {
                *x *= factor;
            }
        }
    }
}

/// Sums into `a`, differences into `b`.
#[inline(always)]
fn butterflies<S: Simd>(l: Lanes<S>, a: &mut [f32], b: &mut [f32]) {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks_mut::<LANES>(), b.as_chunks_mut::<LANES>());
    for (a, b) in a.iter_mut().zip(b) {
        let (x, y) = (l.load(a), l.load(b));
        l.store(l.add(x, y), a);
        l.store(l.sub(x, y), b);
    }
    for (a, b) in a_rest.iter_mut().zip(b_rest) {
        (*a, *b) = (*a + *b, *a - *b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_graph::random::Random;

    /// Sylvester's matrix: the sign is that of the bits that row and column share.
    fn exact(run: usize, x: &[f32]) -> Vec<f64> {
        let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let element = |x: &[f32], i: usize| {
            let sum: f64 = x.iter().enumerate().map(|(j, &x)| sign(i, j) * f64::from(x)).sum();
            sum / (run as f64).sqrt()
        };
        x.chunks(run).flat_map(|x| (0..run).map(|i| element(x, i)).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn agrees_with_the_matrix_and_is_its_own_inverse_on_every_instruction_set() {
        let mut random = Random(2);
        for (head_dim, run) in
            [(1, 1), (7, 1), (2, 2), (24, 8), (16, 16), (80, 16), (96, 32), (64, 64), (128, 128), (512, 512)]
        {
            let x: Vec<f32> = (0..3 * head_dim).map(|_| random.unit()).collect();
            let mut reference = vec![0.0; x.len()];
            transform(Isa::scalar(), head_dim, &x, &mut reference);
            for (given, wanted) in reference.iter().zip(exact(run, &x)) {
                assert!((f64::from(*given) - wanted).abs() < 2e-6, "{head_dim}");
            }
            for isa in Isa::supported() {
                let (mut out, mut back) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                transform(isa, head_dim, &x, &mut out);
                assert_eq!(out, reference, "{} {head_dim}", isa.name());
                transform(isa, head_dim, &out, &mut back);
                assert!(back.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-6));
            }
        }
    }
}
