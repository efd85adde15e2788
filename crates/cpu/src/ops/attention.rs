//! Attention of one row's query heads over the pages of its sequence.
//!
//! The order is fixed by absolute position: a query visits the blocks of [`PAGE_CELLS`] positions from the first to
//! its own, and merges each into a running maximum, sum and result (online softmax, arXiv 1805.02867). Within a block
//! a score is summed over the elements of a head in ascending order, the sum of the weights is a fixed tree over the
//! block's lanes, and values are added in ascending position. Lanes are keys for the scores and elements for the
//! values, so nothing depends on which other queries are computed beside this one.

use crate::isa::Isa;
use crate::kv::{Block, KvLayer, PAGE_CELLS};
use crate::vector::{Kernel, LANES, Lanes, dispatch, larger};

/// Vectors of keys in a block.
const KEY_VECTORS: usize = PAGE_CELLS / LANES;
/// Query heads that share one pass over a block's K and V.
const MAX_TILE: usize = 4;
/// The most elements of a head.
pub(crate) const MAX_HEAD_DIM: usize = 512;

/// What the query heads of one K/V head attend to.
pub(crate) struct Span<'a> {
    pub(crate) layer: &'a KvLayer,
    pub(crate) kv_head: usize,
    /// The sequence's pages, by block of positions.
    pub(crate) pages: &'a [i32],
    /// The last position attended to.
    pub(crate) position: usize,
}

/// Attends with all query heads of one K/V head; `q` and `out` hold `head_dim` elements of each.
pub(crate) fn attend(isa: Isa, span: &Span<'_>, scale: f32, q: &[f32], out: &mut [f32]) {
    let head_dim = span.layer.spec().head_dim;
    let tiles = q.chunks(head_dim * MAX_TILE).zip(out.chunks_mut(head_dim * MAX_TILE));
    for (q, out) in tiles {
        match q.len() / head_dim {
            1 => dispatch(isa, Attend::<1> { span, scale, q, out }),
            2 => dispatch(isa, Attend::<2> { span, scale, q, out }),
            3 => dispatch(isa, Attend::<3> { span, scale, q, out }),
            _ => dispatch(isa, Attend::<4> { span, scale, q, out }),
        }
    }
}

struct Attend<'a, const T: usize> {
    span: &'a Span<'a>,
    scale: f32,
    q: &'a [f32],
    out: &'a mut [f32],
}

impl<const T: usize> Kernel for Attend<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Span { layer, kv_head, pages, position } = *self.span;
        let head_dim = layer.spec().head_dim;
        let mut largest = [f32::NEG_INFINITY; T];
        let mut total = [0f32; T];
        self.out.fill(0.0);
        for (block, &page) in pages[..=position / PAGE_CELLS].iter().enumerate() {
            let page = usize::try_from(page).expect("a page of the sequence");
            let keys = (position + 1 - block * PAGE_CELLS).min(PAGE_CELLS);
            let mut weights = [[0f32; PAGE_CELLS]; T];
            match layer.k_block(page, kv_head) {
                Block::F32(k) => scores::<L, F32, T>(l, self.q, k, head_dim, self.scale, &mut weights),
                Block::F16(k) => scores::<L, F16, T>(l, self.q, k, head_dim, self.scale, &mut weights),
            }
            let mut rescale = [1f32; T];
            for t in 0..T {
                rescale[t] = softmax_step(l, keys, &mut weights[t], &mut largest[t], &mut total[t]);
            }
            match layer.v_block(page, kv_head) {
                Block::F32(v) => add_values::<L, F32, T>(l, &weights, keys, v, head_dim, rescale, self.out),
                Block::F16(v) => add_values::<L, F16, T>(l, &weights, keys, v, head_dim, rescale, self.out),
            }
        }
        for (out, total) in self.out.chunks_exact_mut(head_dim).zip(total) {
            for x in out {
                *x /= total;
            }
        }
    }
}

/// How stored elements become f32.
trait Stored {
    type Element;
    fn load<L: Lanes>(l: L, from: &[Self::Element; LANES]) -> L::F;
    fn one(element: &Self::Element) -> f32;
}

struct F32;
struct F16;

impl Stored for F32 {
    type Element = f32;
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[f32; LANES]) -> L::F {
        l.load(from)
    }
    #[inline(always)]
    fn one(element: &f32) -> f32 {
        *element
    }
}

impl Stored for F16 {
    type Element = u16;
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[u16; LANES]) -> L::F {
        l.load_f16(from)
    }
    #[inline(always)]
    fn one(element: &u16) -> f32 {
        half::f16::from_bits(*element).to_f32()
    }
}

/// Scaled scores of every key of a block, for `T` query heads.
#[inline(always)]
fn scores<L: Lanes, S: Stored, const T: usize>(
    l: L,
    q: &[f32],
    k: &[S::Element],
    head_dim: usize,
    scale: f32,
    scores: &mut [[f32; PAGE_CELLS]; T],
) {
    let mut sums = [[l.splat(0.0); KEY_VECTORS]; T];
    let (k, _) = k.as_chunks::<LANES>();
    for (i, keys) in k.chunks_exact(KEY_VECTORS).enumerate() {
        let mut loaded = [l.splat(0.0); KEY_VECTORS];
        for (vector, keys) in loaded.iter_mut().zip(keys) {
            *vector = S::load(l, keys);
        }
        for (t, sums) in sums.iter_mut().enumerate() {
            let q = l.splat(q[t * head_dim + i]);
            for (sum, keys) in sums.iter_mut().zip(loaded) {
                *sum = l.mul_add(q, keys, *sum);
            }
        }
    }
    for (sums, scores) in sums.iter().zip(scores) {
        for (sum, out) in sums.iter().zip(scores.as_chunks_mut::<LANES>().0) {
            l.store(l.mul(*sum, l.splat(scale)), out);
        }
    }
}

/// Turns a block's scores into weights relative to the new running maximum; returns the factor on what was
/// accumulated before.
#[inline(always)]
fn softmax_step<L: Lanes>(
    l: L,
    keys: usize,
    scores: &mut [f32; PAGE_CELLS],
    largest: &mut f32,
    total: &mut f32,
) -> f32 {
    let vectors = scores.as_chunks_mut::<LANES>().0;
    let mut most = l.splat(f32::NEG_INFINITY);
    for (i, scores) in vectors.iter_mut().enumerate() {
        // What lies in cells past the query's own position must not matter, not even as a NaN.
        let masked = l.keep_first(keys.saturating_sub(i * LANES), l.load(scores), f32::NEG_INFINITY);
        most = l.max(masked, most);
        l.store(masked, scores);
    }
    let before = *largest;
    *largest = larger(l.largest(most), before);
    let shift = l.splat(*largest);
    let mut sum = l.splat(0.0);
    for scores in vectors {
        let weights = l.exp(l.sub(l.load(scores), shift));
        sum = l.add(sum, weights);
        l.store(weights, scores);
    }
    let rescale = l.to_array(l.exp(l.splat(before - *largest)))[0];
    *total = total.mul_add(rescale, l.sum(sum));
    rescale
}

/// Adds a block's weighted values to the rescaled results.
#[inline(always)]
fn add_values<L: Lanes, S: Stored, const T: usize>(
    l: L,
    weights: &[[f32; PAGE_CELLS]; T],
    keys: usize,
    v: &[S::Element],
    head_dim: usize,
    rescale: [f32; T],
    out: &mut [f32],
) {
    // As many vectors of a head as stay in registers for all query heads.
    const WIDE: usize = 4;
    let whole = head_dim / (WIDE * LANES) * (WIDE * LANES);
    for start in (0..whole).step_by(WIDE * LANES) {
        add_columns::<L, S, T, WIDE>(l, weights, keys, v, head_dim, start, rescale, out);
    }
    let vectors = head_dim / LANES * LANES;
    for start in (whole..vectors).step_by(LANES) {
        add_columns::<L, S, T, 1>(l, weights, keys, v, head_dim, start, rescale, out);
    }
    for t in 0..T {
        for i in vectors..head_dim {
            let mut sum = out[t * head_dim + i] * rescale[t];
            for key in 0..keys {
                sum = weights[t][key].mul_add(S::one(&v[key * head_dim + i]), sum);
            }
            out[t * head_dim + i] = sum;
        }
    }
}

#[allow(clippy::too_many_arguments)] // One loop nest, split by its register block.
#[inline(always)]
fn add_columns<L: Lanes, S: Stored, const T: usize, const N: usize>(
    l: L,
    weights: &[[f32; PAGE_CELLS]; T],
    keys: usize,
    v: &[S::Element],
    head_dim: usize,
    start: usize,
    rescale: [f32; T],
    out: &mut [f32],
) {
    let mut sums = [[l.splat(0.0); N]; T];
    for t in 0..T {
        let out = out[t * head_dim + start..][..N * LANES].as_chunks::<LANES>().0;
        for n in 0..N {
            sums[t][n] = l.mul(l.load(&out[n]), l.splat(rescale[t]));
        }
    }
    for key in 0..keys {
        let row = v[key * head_dim + start..][..N * LANES].as_chunks::<LANES>().0;
        for n in 0..N {
            let value = S::load(l, &row[n]);
            for t in 0..T {
                sums[t][n] = l.mul_add(l.splat(weights[t][key]), value, sums[t][n]);
            }
        }
    }
    for t in 0..T {
        let out = out[t * head_dim + start..][..N * LANES].as_chunks_mut::<LANES>().0;
        for n in 0..N {
            l.store(sums[t][n], &mut out[n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{KvMemory, KvSpec, KvType};
    use verbatim_graph::random::Random;

    fn memory(
        spec: KvSpec,
        positions: usize,
        random: &mut Random,
    ) -> (KvMemory, Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let memory = KvMemory::new(&[spec], positions.div_ceil(PAGE_CELLS) + 1).expect("small");
        let (mut ks, mut vs) = (vec![], vec![]);
        let row = |random: &mut Random| -> Vec<f32> {
            (0..spec.kv_heads * spec.head_dim).map(|_| random.unit()).collect()
        };
        for position in 0..positions {
            ks.push(row(random));
            vs.push(row(random));
            // Pages in reverse order, to show that placement does not matter.
            let page = memory.pages() - 1 - position / PAGE_CELLS;
            memory.layers()[0].write(page * PAGE_CELLS + position % PAGE_CELLS, &ks[position], &vs[position]);
        }
        (memory, ks, vs)
    }

    fn exact(q: &[f32], ks: &[Vec<f32>], vs: &[Vec<f32>], head: usize, scale: f32) -> Vec<f64> {
        let dim = q.len();
        let at = |row: &Vec<f32>, i: usize| f64::from(row[head * dim + i]);
        let scores: Vec<f64> = ks
            .iter()
            .map(|k| (0..dim).map(|i| f64::from(q[i]) * at(k, i)).sum::<f64>() * f64::from(scale))
            .collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
        (0..dim)
            .map(|i| scores.iter().zip(vs).map(|(s, v)| (s - most).exp() * at(v, i)).sum::<f64>() / total)
            .collect()
    }

    #[test]
    fn agrees_with_f64_and_on_every_instruction_set_and_tile() {
        let mut random = Random(11);
        for (head_dim, k, v) in [
            (16, KvType::F32, KvType::F32),
            (64, KvType::F32, KvType::F16),
            (24, KvType::F16, KvType::F32),
            (128, KvType::F16, KvType::F16),
        ] {
            let spec = KvSpec { kv_heads: 2, head_dim, k, v };
            let (memory, ks, vs) = memory(spec, 150, &mut random);
            let pages = [3, 2, 1];
            let q: Vec<f32> = (0..7 * head_dim).map(|_| random.unit() * 3.0).collect();
            for position in [0, 1, 63, 64, 149] {
                let span = Span { layer: &memory.layers()[0], kv_head: 1, pages: &pages, position };
                let mut reference = vec![0.0; q.len()];
                attend(Isa::scalar(), &span, 0.3, &q, &mut reference);
                for (head, out) in reference.chunks(head_dim).enumerate() {
                    let q = &q[head * head_dim..][..head_dim];
                    let wanted = exact(q, &ks[..=position], &vs[..=position], 1, 0.3);
                    let half = k == KvType::F16 || v == KvType::F16;
                    let tolerance = if half { 3e-3 } else { 3e-6 };
                    assert!(out.iter().zip(wanted).all(|(a, b)| (f64::from(*a) - b).abs() < tolerance));
                }
                for isa in Isa::supported() {
                    for heads in 1..=7 {
                        let mut out = vec![0.0; heads * head_dim];
                        attend(isa, &span, 0.3, &q[..heads * head_dim], &mut out);
                        assert_eq!(
                            out,
                            reference[..heads * head_dim],
                            "{} {heads} heads of {head_dim}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn cells_past_the_query_do_not_matter_even_when_they_hold_nan() {
        let spec = KvSpec { kv_heads: 1, head_dim: 16, k: KvType::F16, v: KvType::F32 };
        let (memory, ..) = memory(spec, 10, &mut Random(5));
        let q = [1.0; 32];
        let run = || {
            let span = Span { layer: &memory.layers()[0], kv_head: 0, pages: &[1], position: 9 };
            let mut out = [0.0; 32];
            attend(Isa::best(), &span, 1.0, &q, &mut out);
            out
        };
        let clean = run();
        for cell in 10..PAGE_CELLS {
            memory.layers()[0].write(PAGE_CELLS + cell, &[f32::NAN; 16], &[f32::INFINITY; 16]);
        }
        assert_eq!(run(), clean);
    }
}
