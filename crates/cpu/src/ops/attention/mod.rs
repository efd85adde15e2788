//! Attention of one row's query heads over the pages of its sequence.
//!
//! The order is fixed by absolute position: a query visits the blocks of [`PAGE_CELLS`] positions from that of the first
//! position it sees to its own, and merges each into a running maximum, sum and result (online softmax, arXiv
//! 1805.02867). A window leaves the blocks where they are; it only hides keys of the first of them. Within a block
//! a score is summed over the elements of a head in ascending order, the sum of the weights is a fixed tree over the
//! block's lanes, and values are added in ascending position. Lanes are keys for the scores and elements for the
//! values, so nothing depends on which other queries are computed beside this one. Which cells the positions lie in does
//! not matter either: those of a path are brought together first.

mod paths;
mod stored;

pub(crate) use paths::{Path, Scratch};

use crate::isa::Isa;
use crate::kv::{Block, KvLayer, KvType, PAGE_CELLS};
use crate::vector::{Kernel, LANES, Lanes, dispatch, larger};
use std::ops::Range;
use stored::{Bf16, Blocks, F16, F32, Stored};

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
    fn block(&self, start: usize) -> (Block<'a>, Block<'a>) {
        match &self.path {
            Some(path) if start + PAGE_CELLS > path.base => path.gather(self, start),
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
pub(crate) fn attend(isa: Isa, span: &Span<'_>, scores: &Scores<'_>, q: &[f32], out: &mut [f32]) {
    let head_dim = span.layer.spec().head_dim;
    let tiles = q.chunks(head_dim * MAX_TILE).zip(out.chunks_mut(head_dim * MAX_TILE));
    for (tile, (q, out)) in tiles.enumerate() {
        let sinks = scores.sinks.map(|sinks| &sinks[tile * MAX_TILE..]);
        let scores = &Scores { sinks, ..*scores };
        match q.len() / head_dim {
            1 => dispatch(isa, Attend::<1> { span, scores, q, out }),
            2 => dispatch(isa, Attend::<2> { span, scores, q, out }),
            3 => dispatch(isa, Attend::<3> { span, scores, q, out }),
            _ => dispatch(isa, Attend::<4> { span, scores, q, out }),
        }
    }
}

struct Attend<'a, const T: usize> {
    span: &'a Span<'a>,
    scores: &'a Scores<'a>,
    q: &'a [f32],
    out: &'a mut [f32],
}

/// Calls a function that is generic over the stored form with the form of a block.
macro_rules! with_form {
    ($block:expr, |$page:ident, $form:ident| $call:expr) => {
        match $block {
            Block::F32($page) => with_form!(@ $form = F32, $call),
            Block::F16($page) => with_form!(@ $form = F16, $call),
            Block::Bf16($page) => with_form!(@ $form = Bf16, $call),
            Block::Quantized($page) => match $page.kind {
                KvType::Q8_0 => with_form!(@ $form = Blocks<8, 1>, $call),
                KvType::Q5_1 => with_form!(@ $form = Blocks<5, 2>, $call),
                KvType::Q5_0 => with_form!(@ $form = Blocks<5, 1>, $call),
                KvType::Q4_1 => with_form!(@ $form = Blocks<4, 2>, $call),
                KvType::Q4_0 | KvType::Iq4Nl => with_form!(@ $form = Blocks<4, 1>, $call),
                KvType::F32 | KvType::F16 | KvType::Bf16 => unreachable!("not quantised"),
            },
        }
    };
    (@ $form:ident = $type:ty, $call:expr) => {{
        type $form = $type;
        $call
    }};
}

impl<const T: usize> Kernel for Attend<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Span { layer, first, position, .. } = *self.span;
        let Scores { scale, softcap, sinks } = *self.scores;
        let head_dim = layer.spec().head_dim;
        let (mut largest, mut total) = match sinks {
            None => ([f32::NEG_INFINITY; T], [0f32; T]),
            // A sink is a key before all others: its weight relative to itself is 1.
            Some(sinks) => (std::array::from_fn(|t| sinks[t]), [1f32; T]),
        };
        self.out.fill(0.0);
        for start in (first / PAGE_CELLS..=position / PAGE_CELLS).map(|block| block * PAGE_CELLS) {
            let (k, v) = self.span.block(start);
            let keys = first.saturating_sub(start)..(position + 1 - start).min(PAGE_CELLS);
            let mut weights = [[0f32; PAGE_CELLS]; T];
            with_form!(k, |page, S| scores::<L, S, T>(l, self.q, page, head_dim, scale, &mut weights));
            if let Some(cap) = softcap {
                weights.iter_mut().for_each(|scores| cap_scores(l, cap, scores));
            }
            let mut rescale = [1f32; T];
            for t in 0..T {
                rescale[t] = softmax_step(l, &keys, &mut weights[t], &mut largest[t], &mut total[t]);
            }
            let weights = Weights { weights, keys, rescale };
            with_form!(v, |page, S| add_values::<L, S, T>(l, &weights, page, head_dim, self.out));
        }
        for (out, total) in self.out.chunks_exact_mut(head_dim).zip(total) {
            for x in out {
                *x /= total;
            }
        }
    }
}

/// Scaled scores of every key of a block, for `T` query heads.
#[inline(always)]
fn scores<L: Lanes, S: Stored, const T: usize>(
    l: L,
    q: &[f32],
    k: S::Page<'_>,
    head_dim: usize,
    scale: f32,
    scores: &mut [[f32; PAGE_CELLS]; T],
) {
    // As many vectors of keys at once as have sums in registers for all query heads.
    match L::SUMS / T {
        0 | 1 => score_keys::<L, S, T, 1>(l, q, k, head_dim, scale, scores),
        2 | 3 => score_keys::<L, S, T, 2>(l, q, k, head_dim, scale, scores),
        _ => score_keys::<L, S, T, 4>(l, q, k, head_dim, scale, scores),
    }
}

#[inline(always)]
fn score_keys<L: Lanes, S: Stored, const T: usize, const N: usize>(
    l: L,
    q: &[f32],
    k: S::Page<'_>,
    head_dim: usize,
    scale: f32,
    scores: &mut [[f32; PAGE_CELLS]; T],
) {
    for first in (0..KEY_VECTORS).step_by(N) {
        let mut sums = [[l.splat(0.0); N]; T];
        let mut start = 0;
        for block in 0.. {
            let block = S::block(k, block);
            let headers: [S::Headers<L::F>; N] = std::array::from_fn(|n| S::headers(l, block, first + n));
            let middle = start + S::HALF.min(head_dim - start);
            let end = middle + S::HALF.min(head_dim - middle);
            score_half::<L, S, T, N, false>(l, q, block, headers, head_dim, start..middle, first, &mut sums);
            // Plain numbers have no upper halves: no code for them.
            if S::HALF == usize::MAX {
                break;
            }
            score_half::<L, S, T, N, true>(l, q, block, headers, head_dim, middle..end, first, &mut sums);
            start = end;
            if start == head_dim {
                break;
            }
        }
        for (sums, scores) in sums.iter().zip(&mut *scores) {
            let scores = &mut scores.as_chunks_mut::<LANES>().0[first..];
            for (sum, out) in sums.iter().zip(scores) {
                l.store(l.mul(*sum, l.splat(scale)), out);
            }
        }
    }
}

/// Adds the products of some elements that lie in one half of a block.
#[allow(clippy::too_many_arguments)] // One loop nest, split by where elements lie.
#[inline(always)]
fn score_half<L: Lanes, S: Stored, const T: usize, const N: usize, const UPPER: bool>(
    l: L,
    q: &[f32],
    block: S::Block<'_>,
    headers: [S::Headers<L::F>; N],
    head_dim: usize,
    elements: Range<usize>,
    first: usize,
    sums: &mut [[L::F; N]; T],
) {
    let q: [&[f32]; T] = std::array::from_fn(|t| &q[t * head_dim..][elements.clone()]);
    for i in 0..elements.len() {
        let keys: [L::F; N] =
            std::array::from_fn(|n| S::keys::<L, UPPER>(l, block, headers[n], i, first + n));
        for (sums, q) in sums.iter_mut().zip(q) {
            let q = l.splat(q[i]);
            for (sum, keys) in sums.iter_mut().zip(keys) {
                *sum = l.mul_add(q, keys, *sum);
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
struct Weights<const T: usize> {
    weights: [[f32; PAGE_CELLS]; T],
    /// Keys that are seen.
    keys: Range<usize>,
    /// Factors on what was accumulated before.
    rescale: [f32; T],
}

/// Adds a block's weighted values to the rescaled results.
#[inline(always)]
fn add_values<L: Lanes, S: Stored, const T: usize>(
    l: L,
    weights: &Weights<T>,
    v: S::Page<'_>,
    head_dim: usize,
    out: &mut [f32],
) {
    // As many vectors of a head at once as have sums in registers for all query heads.
    match L::SUMS / T {
        0 | 1 => add_vectors::<L, S, T, 1>(l, weights, v, head_dim, out),
        2 | 3 => add_vectors::<L, S, T, 2>(l, weights, v, head_dim, out),
        _ => add_vectors::<L, S, T, 4>(l, weights, v, head_dim, out),
    }
}

#[inline(always)]
fn add_vectors<L: Lanes, S: Stored, const T: usize, const N: usize>(
    l: L,
    weights: &Weights<T>,
    v: S::Page<'_>,
    head_dim: usize,
    out: &mut [f32],
) {
    let vectors = head_dim / LANES;
    let wide = vectors / N * N;
    for first in (0..wide).step_by(N) {
        add_columns::<L, S, T, N, true>(l, weights, v, head_dim, first, out);
    }
    for first in wide..vectors {
        add_columns::<L, S, T, 1, true>(l, weights, v, head_dim, first, out);
    }
    if !head_dim.is_multiple_of(LANES) {
        add_columns::<L, S, T, 1, false>(l, weights, v, head_dim, vectors, out);
    }
}

/// Adds `N` vectors of every value, from the `first` on; `WHOLE` unless the head ends among them.
#[inline(always)]
fn add_columns<L: Lanes, S: Stored, const T: usize, const N: usize, const WHOLE: bool>(
    l: L,
    weights: &Weights<T>,
    v: S::Page<'_>,
    head_dim: usize,
    first: usize,
    out: &mut [f32],
) {
    let Weights { weights, keys, rescale } = weights;
    let columns = |t: usize, n: usize| {
        let start = (first + n) * LANES;
        t * head_dim + start..t * head_dim + if WHOLE { start + LANES } else { head_dim }
    };
    let mut sums = [[l.splat(0.0); N]; T];
    for t in 0..T {
        for n in 0..N {
            sums[t][n] = l.mul(l.load_part(&out[columns(t, n)]), l.splat(rescale[t]));
        }
    }
    let blocks: [S::Block<'_>; N] = std::array::from_fn(|n| S::block(v, (first + n) / 2));
    for cells in keys.start / LANES..keys.end.div_ceil(LANES) {
        let headers: [S::Headers<[f32; LANES]>; N] =
            std::array::from_fn(|n| S::spilled_headers(l, blocks[n], cells));
        let some = keys.start.max(cells * LANES)..keys.end.min((cells + 1) * LANES);
        for key in some {
            for n in 0..N {
                let value = S::values::<L, WHOLE>(l, blocks[n], &headers[n], head_dim, key, first + n);
                for t in 0..T {
                    sums[t][n] = l.mul_add(l.splat(weights[t][key]), value, sums[t][n]);
                }
            }
        }
    }
    for t in 0..T {
        for n in 0..N {
            l.store_part(sums[t][n], &mut out[columns(t, n)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{KvMemory, KvSpec};
    use verbatim_graph::random::Random;

    fn memory(
        spec: KvSpec,
        positions: usize,
        random: &mut Random,
    ) -> (KvMemory, Vec<Vec<f32>>, Vec<Vec<f32>>) {
        let memory = KvMemory::new(&[(spec, positions.div_ceil(PAGE_CELLS) + 1)]).expect("small");
        let (mut ks, mut vs) = (vec![], vec![]);
        let row = |random: &mut Random| -> Vec<f32> {
            (0..spec.kv_heads * spec.head_dim).map(|_| random.unit()).collect()
        };
        for position in 0..positions {
            ks.push(row(random));
            vs.push(row(random));
            // Pages in reverse order, to show that placement does not matter.
            let page = memory.layers()[0].pages() - 1 - position / PAGE_CELLS;
            memory.layers()[0].write(page * PAGE_CELLS + position % PAGE_CELLS, &ks[position], &vs[position]);
        }
        (memory, ks, vs)
    }

    const PLAIN: Scores<'static> = Scores { scale: 0.3, softcap: None, sinks: None };

    /// Attention of one query head over the given keys, in f64.
    fn exact(
        q: &[f32],
        ks: &[Vec<f32>],
        vs: &[Vec<f32>],
        kv_head: usize,
        head: usize,
        scores: &Scores<'_>,
    ) -> Vec<f64> {
        let dim = q.len();
        let at = |row: &Vec<f32>, i: usize| f64::from(row[kv_head * dim + i]);
        let score = |k: &Vec<f32>| {
            let score = (0..dim).map(|i| f64::from(q[i]) * at(k, i)).sum::<f64>() * f64::from(scores.scale);
            scores.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let weights: Vec<f64> = ks.iter().map(|k| score(k).exp()).collect();
        let sink = scores.sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let total = weights.iter().sum::<f64>() + sink;
        (0..dim).map(|i| weights.iter().zip(vs).map(|(w, v)| w * at(v, i)).sum::<f64>() / total).collect()
    }

    #[test]
    fn agrees_with_f64_and_on_every_instruction_set_and_tile() {
        let mut random = Random(11);
        let sinks = [-1.0, 2.0, 0.5, -40.0, 6.0, 0.0, 1.0];
        let capped = Scores { softcap: Some(2.0), ..PLAIN };
        let sunk = Scores { sinks: Some(&sinks), ..PLAIN };
        let both = Scores { softcap: Some(1.0), sinks: Some(&sinks), ..PLAIN };
        for (head_dim, k, v) in [
            (16, KvType::F32, KvType::F32),
            (64, KvType::F32, KvType::F16),
            (24, KvType::F16, KvType::F32),
            (128, KvType::F16, KvType::F16),
        ] {
            let spec = KvSpec { kv_heads: 2, head_dim, k, v };
            let (memory, ks, vs) = memory(spec, 150, &mut random);
            let q: Vec<f32> = (0..7 * head_dim).map(|_| random.unit() * 3.0).collect();
            for (first, position) in
                [(0, 0), (0, 1), (0, 63), (0, 64), (0, 149), (149, 149), (20, 70), (64, 127)]
            {
                let layer = &memory.layers()[0];
                let span = Span { layer, kv_head: 1, pages: &[3, 2, 1], path: None, first, position };
                for scores in [&PLAIN, &capped, &sunk, &both] {
                    let mut reference = vec![0.0; q.len()];
                    attend(Isa::scalar(), &span, scores, &q, &mut reference);
                    for (head, out) in reference.chunks(head_dim).enumerate() {
                        let q = &q[head * head_dim..][..head_dim];
                        let wanted = exact(q, &ks[first..=position], &vs[first..=position], 1, head, scores);
                        let half = k == KvType::F16 || v == KvType::F16;
                        let tolerance = if half { 3e-3 } else { 3e-6 };
                        assert!(out.iter().zip(wanted).all(|(a, b)| (f64::from(*a) - b).abs() < tolerance));
                    }
                    for isa in Isa::supported() {
                        for heads in 1..=7 {
                            let mut out = vec![0.0; heads * head_dim];
                            attend(isa, &span, scores, &q[..heads * head_dim], &mut out);
                            let name = isa.name();
                            assert_eq!(out, reference[..heads * head_dim], "{name}: {heads} of {head_dim}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn cells_that_a_query_does_not_see_do_not_matter_even_when_they_hold_nan() {
        let spec = KvSpec { kv_heads: 1, head_dim: 16, k: KvType::F16, v: KvType::F32 };
        let (memory, ..) = memory(spec, 100, &mut Random(5));
        let layer = &memory.layers()[0];
        let q = [1.0; 32];
        for scores in [&PLAIN, &Scores { softcap: Some(2.0), ..PLAIN }] {
            let run = || {
                let span = Span { layer, kv_head: 0, pages: &[2, 1], path: None, first: 70, position: 90 };
                let mut out = [0.0; 32];
                attend(Isa::best(), &span, scores, &q, &mut out);
                out
            };
            let clean = run();
            for unseen in (0..70).chain(91..128) {
                let page = 2 - unseen / PAGE_CELLS;
                let cell = page * PAGE_CELLS + unseen % PAGE_CELLS;
                layer.write(cell, &[f32::NAN; 16], &[f32::INFINITY; 16]);
            }
            assert_eq!(run(), clean);
        }
    }

    #[test]
    fn a_window_keeps_the_blocks_where_they_are() {
        let spec = KvSpec { kv_heads: 1, head_dim: 16, k: KvType::F32, v: KvType::F32 };
        let (memory, ..) = memory(spec, 150, &mut Random(9));
        let q: Vec<f32> = (0..16).map(|i| i as f32 - 8.0).collect();
        // Keys of weight exactly 0 and no keys at all give the same bits, if blocks begin at the same positions.
        let far = Span {
            layer: &memory.layers()[0],
            kv_head: 0,
            pages: &[3, 2, 1],
            path: None,
            first: 64,
            position: 149,
        };
        let mut windowed = [0.0; 16];
        attend(Isa::best(), &far, &PLAIN, &q, &mut windowed);
        for position in 0..64 {
            let hidden: Vec<f32> = q.iter().map(|q| -1e4 * q).collect();
            memory.layers()[0].write(3 * PAGE_CELLS + position, &hidden, &[1.0; 16]);
        }
        let mut all = [0.0; 16];
        attend(Isa::best(), &Span { first: 0, ..far }, &PLAIN, &q, &mut all);
        assert_eq!(all, windowed);
    }
}
