//! Attention of one row's query heads over the pages of its sequence.
//!
//! The order is fixed by absolute position: a query visits the blocks of [`PAGE_CELLS`] positions from that of the first
//! position it sees to its own, and merges each into a running maximum, sum and result (online softmax, arXiv
//! 1805.02867). A window leaves the blocks where they are; it only hides keys of the first of them. Within a block
//! a score is summed over the elements of a head in ascending order, the sum of the weights is a fixed tree over the
//! block's lanes, and values are added in ascending position. Lanes are keys for the scores and elements for the
//! values, so nothing depends on which other queries are computed beside this one. Which cells the positions lie in does
//! not matter either: those of a path are brought together first.

mod decode;
mod scratch;

pub(crate) use scratch::{Path, Scratch};

use crate::isa::Isa;
use crate::kv::{Block, KvLayer, PAGE_CELLS};
use crate::memory::AlignedBytes;
use crate::vector::{Kernel, LANES, Lanes, dispatch, larger};
use decode::Numbers;
use std::ops::Range;

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
    /// The positions that are not in the pages.
    pub(crate) path: Option<Path<'a>>,
    /// The first position attended to: at most `position`.
    pub(crate) first: usize,
    /// The last position attended to.
    pub(crate) position: usize,
}

impl<'a> Span<'a> {
    /// The page of a position.
    fn page(&self, position: usize) -> usize {
        usize::try_from(self.pages[position / PAGE_CELLS]).expect("a page of the sequence")
    }

    /// K and V of the block of positions that begins at `start`.
    fn block<'g>(&self, start: usize, gathered: &'g AlignedBytes) -> (Block<'g>, Block<'g>)
    where
        'a: 'g,
    {
        match &self.path {
            Some(path) if start + PAGE_CELLS > path.base => path.gather(self, start, gathered),
            _ => {
                let (page, layer) = (self.page(start), self.layer);
                (layer.k().block(page, self.kv_head), layer.v().block(page, self.kv_head))
            }
        }
    }
}

/// What becomes of the products of q and k.
pub(crate) struct Scores<'a> {
    /// Factor on them.
    pub(crate) scale: f32,
    /// Then s becomes softcap * tanh(s / softcap).
    pub(crate) softcap: Option<f32>,
    /// For each query head a score without a value.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Attends with all query heads of one K/V head; `q` and `out` hold `head_dim` elements of each.
pub(crate) fn attend(
    isa: Isa,
    span: &Span<'_>,
    scores: &Scores<'_>,
    scratch: &mut Scratch,
    q: &[f32],
    out: &mut [f32],
) {
    let head_dim = span.layer.spec().head_dim;
    let tiles = q.chunks(head_dim * MAX_TILE).zip(out.chunks_mut(head_dim * MAX_TILE));
    for (tile, (q, out)) in tiles.enumerate() {
        let sinks = scores.sinks.map(|sinks| &sinks[tile * MAX_TILE..]);
        let scores = &Scores { sinks, ..*scores };
        match q.len() / head_dim {
            1 => dispatch(isa, Attend::<1> { isa, span, scores, scratch, q, out }),
            2 => dispatch(isa, Attend::<2> { isa, span, scores, scratch, q, out }),
            3 => dispatch(isa, Attend::<3> { isa, span, scores, scratch, q, out }),
            _ => dispatch(isa, Attend::<4> { isa, span, scores, scratch, q, out }),
        }
    }
}

struct Attend<'a, const T: usize> {
    isa: Isa,
    span: &'a Span<'a>,
    scores: &'a Scores<'a>,
    scratch: &'a mut Scratch,
    q: &'a [f32],
    out: &'a mut [f32],
}

impl<const T: usize> Kernel for Attend<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Span { layer, first, position, .. } = *self.span;
        let Scores { scale, softcap, sinks } = *self.scores;
        let Scratch { gathered, numbers } = self.scratch;
        let head_dim = layer.spec().head_dim;
        let (mut largest, mut total) = match sinks {
            None => ([f32::NEG_INFINITY; T], [0f32; T]),
            // A sink is a key before all others: its weight relative to itself is 1.
            Some(sinks) => (std::array::from_fn(|t| sinks[t]), [1f32; T]),
        };
        self.out.fill(0.0);
        for start in (first / PAGE_CELLS..=position / PAGE_CELLS).map(|block| block * PAGE_CELLS) {
            let (k, v) = self.span.block(start, gathered);
            let keys = first.saturating_sub(start)..(position + 1 - start).min(PAGE_CELLS);
            let mut weights = [[0f32; PAGE_CELLS]; T];
            match decode::keys(self.isa, k, head_dim, &keys, numbers) {
                Numbers::F32(k) => scores::<L, F32, T>(l, self.q, k, head_dim, scale, &mut weights),
                Numbers::F16(k) => scores::<L, F16, T>(l, self.q, k, head_dim, scale, &mut weights),
            }
            if let Some(cap) = softcap {
                weights.iter_mut().for_each(|scores| cap_scores(l, cap, scores));
            }
            let mut rescale = [1f32; T];
            for t in 0..T {
                rescale[t] = softmax_step(l, &keys, &mut weights[t], &mut largest[t], &mut total[t]);
            }
            let weights = BlockWeights { weights, keys, rescale };
            match decode::values(self.isa, v, head_dim, &weights.keys, numbers) {
                Numbers::F32(v) => add_values::<L, F32, T>(l, &weights, v, head_dim, self.out),
                Numbers::F16(v) => add_values::<L, F16, T>(l, &weights, v, head_dim, self.out),
            }
        }
        for (out, total) in self.out.chunks_exact_mut(head_dim).zip(total) {
            for x in out {
                *x /= total;
            }
        }
    }
}

/// How elements become f32.
trait Number {
    type Element;
    fn load<L: Lanes>(l: L, from: &[Self::Element; LANES]) -> L::F;
    fn one(element: &Self::Element) -> f32;
}

struct F32;
struct F16;

impl Number for F32 {
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

impl Number for F16 {
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
fn scores<L: Lanes, N: Number, const T: usize>(
    l: L,
    q: &[f32],
    k: &[N::Element],
    head_dim: usize,
    scale: f32,
    scores: &mut [[f32; PAGE_CELLS]; T],
) {
    // As many vectors of keys at once as have sums in registers for all query heads.
    match const { L::SUMS / T } {
        0 | 1 => score_keys::<L, N, T, 1>(l, q, k, head_dim, scale, scores),
        2 | 3 => score_keys::<L, N, T, 2>(l, q, k, head_dim, scale, scores),
        _ => score_keys::<L, N, T, 4>(l, q, k, head_dim, scale, scores),
    }
}

#[inline(always)]
fn score_keys<L: Lanes, N: Number, const T: usize, const WIDE: usize>(
    l: L,
    q: &[f32],
    k: &[N::Element],
    head_dim: usize,
    scale: f32,
    scores: &mut [[f32; PAGE_CELLS]; T],
) {
    let (k, _) = k.as_chunks::<LANES>();
    for first in (0..KEY_VECTORS).step_by(WIDE) {
        let mut sums = [[l.splat(0.0); WIDE]; T];
        for (i, keys) in k.chunks_exact(KEY_VECTORS).enumerate() {
            let keys: [L::F; WIDE] = std::array::from_fn(|n| N::load(l, &keys[first + n]));
            for (t, sums) in sums.iter_mut().enumerate() {
                let q = l.splat(q[t * head_dim + i]);
                for (sum, keys) in sums.iter_mut().zip(keys) {
                    *sum = l.mul_add(q, keys, *sum);
                }
            }
        }
        for (sums, scores) in sums.iter().zip(&mut *scores) {
            for (sum, out) in sums.iter().zip(&mut scores.as_chunks_mut::<LANES>().0[first..]) {
                l.store(l.mul(*sum, l.splat(scale)), out);
            }
        }
    }
}

#[inline(always)]
fn cap_scores<L: Lanes>(l: L, cap: f32, scores: &mut [f32; PAGE_CELLS]) {
    for scores in scores.as_chunks_mut::<LANES>().0 {
        l.store(l.softcap(l.load(scores), cap), scores);
    }
}

/// Turns a block's scores into weights relative to the new running maximum; returns the factor on what was
/// accumulated before.
#[inline(always)]
fn softmax_step<L: Lanes>(
    l: L,
    keys: &Range<usize>,
    scores: &mut [f32; PAGE_CELLS],
    largest: &mut f32,
    total: &mut f32,
) -> f32 {
    let vectors = scores.as_chunks_mut::<LANES>().0;
    let mut most = l.splat(f32::NEG_INFINITY);
    for (i, scores) in vectors.iter_mut().enumerate() {
        // What lies in cells that the query does not see must not matter, not even as a NaN.
        let masked = l.keep_first(keys.end.saturating_sub(i * LANES), l.load(scores), f32::NEG_INFINITY);
        let masked = l.drop_first(keys.start.saturating_sub(i * LANES), masked, f32::NEG_INFINITY);
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

/// What a block's values are added with.
struct BlockWeights<const T: usize> {
    weights: [[f32; PAGE_CELLS]; T],
    /// Keys that are seen.
    keys: Range<usize>,
    /// Factors on what was accumulated before.
    rescale: [f32; T],
}

/// Adds a block's weighted values to the rescaled results.
#[inline(always)]
fn add_values<L: Lanes, N: Number, const T: usize>(
    l: L,
    weights: &BlockWeights<T>,
    v: &[N::Element],
    head_dim: usize,
    out: &mut [f32],
) {
    // As many vectors of a head at once as have sums in registers for all query heads.
    match const { L::SUMS / T } {
        0 | 1 => add_vectors::<L, N, T, 1>(l, weights, v, head_dim, out),
        2 | 3 => add_vectors::<L, N, T, 2>(l, weights, v, head_dim, out),
        _ => add_vectors::<L, N, T, 4>(l, weights, v, head_dim, out),
    }
}

#[inline(always)]
fn add_vectors<L: Lanes, N: Number, const T: usize, const WIDE: usize>(
    l: L,
    weights: &BlockWeights<T>,
    v: &[N::Element],
    head_dim: usize,
    out: &mut [f32],
) {
    let whole = head_dim / (WIDE * LANES) * (WIDE * LANES);
    for start in (0..whole).step_by(WIDE * LANES) {
        add_columns::<L, N, T, WIDE>(l, weights, v, head_dim, start, out);
    }
    let vectors = head_dim / LANES * LANES;
    for start in (whole..vectors).step_by(LANES) {
        add_columns::<L, N, T, 1>(l, weights, v, head_dim, start, out);
    }
    for t in 0..T {
        for i in vectors..head_dim {
            let mut sum = out[t * head_dim + i] * weights.rescale[t];
            for key in weights.keys.clone() {
                sum = weights.weights[t][key].mul_add(N::one(&v[key * head_dim + i]), sum);
            }
            out[t * head_dim + i] = sum;
        }
    }
}

#[inline(always)]
fn add_columns<L: Lanes, N: Number, const T: usize, const WIDE: usize>(
    l: L,
    weights: &BlockWeights<T>,
    v: &[N::Element],
    head_dim: usize,
    start: usize,
    out: &mut [f32],
) {
    let BlockWeights { weights, keys, rescale } = weights;
    let mut sums = [[l.splat(0.0); WIDE]; T];
    for t in 0..T {
        let out = out[t * head_dim + start..][..WIDE * LANES].as_chunks::<LANES>().0;
        for n in 0..WIDE {
            sums[t][n] = l.mul(l.load(&out[n]), l.splat(rescale[t]));
        }
    }
    for key in keys.clone() {
        let row = v[key * head_dim + start..][..WIDE * LANES].as_chunks::<LANES>().0;
        for n in 0..WIDE {
            let value = N::load(l, &row[n]);
            for t in 0..T {
                sums[t][n] = l.mul_add(l.splat(weights[t][key]), value, sums[t][n]);
            }
        }
    }
    for t in 0..T {
        let out = out[t * head_dim + start..][..WIDE * LANES].as_chunks_mut::<LANES>().0;
        for n in 0..WIDE {
            l.store(sums[t][n], &mut out[n]);
        }
    }
}

#[cfg(test)]
mod tests;
