//! Merges the split-KV partials of one query head.
//!
//! (M, S, O) starts as (-∞, 0, 0), or as (sink, 1, 0). Every partial (m, s, o), in ascending order of the splits, updates it:
//!
//! M' = max(m, M), a = exp(M - M'), b = exp(m - M'), S' = fma(S, a, s * b), O' = fma(o, b, O * a),
//!
//! where fma(x, y, z) is x * y + z, rounded once. The result is O / S.

use super::shape::PARTIAL_EXTRA;
use verbatim_simd::{Isa, Kernel, LANES, Lanes, Simd, dispatch, larger};

/// M and S of the splits so far; O is the result.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    /// M.
    largest: f32,
    /// S.
    total: f32,
}

impl Sum {
    /// Before the first split.
    pub(super) fn new(sink: Option<f32>) -> Sum {
        match sink {
            None => Sum { largest: f32::NEG_INFINITY, total: 0.0 },
            Some(sink) => Sum { largest: sink, total: 1.0 },
        }
    }

    /// Adds the partial of the next split to the result `out`, which was 0 before the first.
    pub(super) fn merge(&mut self, isa: Isa, partial: &[f32], out: &mut [f32]) {
        dispatch(isa, Merge { sum: self, partial, out });
    }

    /// Divides the result by S.
    pub(super) fn normalize(&self, out: &mut [f32]) {
        out.iter_mut().for_each(|x| *x /= self.total);
    }
}

/// The result of one query head from all its partials, in ascending order.
pub(crate) fn merge<'p>(
    isa: Isa,
    sink: Option<f32>,
    partials: impl Iterator<Item = &'p [f32]>,
    out: &mut [f32],
) {
    let mut sum = Sum::new(sink);
    out.fill(0.0);
    partials.for_each(|partial| sum.merge(isa, partial, out));
    sum.normalize(out);
}

struct Merge<'a> {
    sum: &'a mut Sum,
    partial: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let Merge { sum, partial, out } = self;
        let (values, &[largest, total]) =
            partial.split_last_chunk::<PARTIAL_EXTRA>().expect("a partial has its largest score and its sum");
        let before = sum.largest;
        sum.largest = larger(largest, before);
        let kept = l.exp(l.splat(before - sum.largest));
        let added = l.exp(l.splat(largest - sum.largest));
        sum.total = sum.total.mul_add(l.to_array(kept)[0], total * l.to_array(added)[0]);
        let (whole, rest) = out.as_chunks_mut::<LANES>();
        let (whole_values, rest_values) = values.as_chunks::<LANES>();
        for (out, values) in whole.iter_mut().zip(whole_values) {
            l.store(l.mul_add(l.load(values), added, l.mul(l.load(out), kept)), out);
        }
        let scaled = l.mul(l.load_part(rest), kept);
        l.store_part(l.mul_add(l.load_part(rest_values), added, scaled), rest);
    }
}
