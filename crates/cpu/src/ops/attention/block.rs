//! The two kernels over one head of a block of positions: QKᵀ with online softmax, and the accumulation of PV.

use super::decode::Floats;
use super::shape::{PARTIAL_EXTRA, Scores};
use crate::kv::HeadPage;
use std::ops::Range;
use verbatim_backend::PAGE_CELLS;
use verbatim_simd::{F32x16, Kernel, LANES, Lanes, Simd, larger};

/// Vectors of keys in a block.
const KEY_VECTORS: usize = PAGE_CELLS / LANES;

/// Prefetches bytes that are read next, a few cache lines at a time during other computations. The hardware prefetcher stops at
/// page boundaries, and one head of a block is at most a few memory pages.
#[derive(Clone)]
pub(super) struct Prefetcher {
    next: *const u8,
    end: *const u8,
}

impl Prefetcher {
    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// Prefetches a block; nothing if there is none.
    pub(super) fn new(block: Option<HeadPage<'_>>) -> Prefetcher {
        let Range { start, end } =
            block.map_or(std::ptr::null()..std::ptr::null(), |block| block.addresses());
        Prefetcher { next: start, end }
    }

    /// Prefetches the next lines: `WIDE / 2` in each iteration of a loop over `WIDE` vectors, which covers a block of f16.
    #[inline(always)]
    fn prefetch<S: Simd, const WIDE: usize>(&mut self, l: Lanes<S>) {
        for _ in 0..WIDE.div_ceil(2) {
            if self.next < self.end {
                l.prefetch(self.next);
                self.next = self.next.wrapping_add(Prefetcher::LINE);
            }
        }
    }
}

/// Query heads of a row, `rescale.len()` of them, and their results for a block.
pub(super) struct Tile<'a> {
    /// Keys of the block that the row attends to: at least one.
    pub(super) keys: Range<usize>,
    /// `head_dim` elements of each query head.
    pub(super) q: &'a [f32],
    /// The query heads' partials so far.
    pub(super) partials: &'a mut [f32],
    /// Unnormalised softmax weights of the block's keys, by query head; 0 for masked keys.
    pub(super) weights: &'a mut [[f32; PAGE_CELLS]],
    /// Factors on the results so far, by query head.
    pub(super) rescale: &'a mut [f32],
    /// Prefetches what is read after the block's keys, or values.
    pub(super) prefetcher: Prefetcher,
}

/// Computes exp(score - running max), the unnormalised softmax weights, for a block of keys and a tile of `T` query heads.
pub(super) struct ScoreAndSoftmax<'a, const T: usize> {
    pub(super) tile: Tile<'a>,
    /// The block's keys, transposed.
    pub(super) k: Floats<'a>,
    pub(super) head_dim: usize,
    pub(super) scores: &'a Scores<'a>,
}

impl<const T: usize> Kernel for ScoreAndSoftmax<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let ScoreAndSoftmax {
            tile: Tile { keys, q, partials, weights, rescale, prefetcher },
            k,
            head_dim,
            scores,
        } = self;
        let weights: &mut [_; T] = weights.first_chunk_mut().expect("a tile of T heads");
        match k {
            Floats::F32(k) => score::<S, F32, T>(l, q, k, scores.scale, &keys, prefetcher, weights),
            Floats::F16(k) => score::<S, F16, T>(l, q, k, scores.scale, &keys, prefetcher, weights),
        }
        if let Some(cap) = scores.softcap {
            weights.iter_mut().for_each(|scores| cap_scores(l, cap, scores));
        }
        let partials = partials.chunks_exact_mut(head_dim + PARTIAL_EXTRA);
        for ((partial, weights), rescale) in partials.zip(weights).zip(rescale) {
            let (_, [largest, total]) = partial.split_last_chunk_mut::<PARTIAL_EXTRA>().expect("longer");
            *rescale = softmax_step(l, &keys, weights, largest, total);
        }
    }
}

/// Adds a block's weighted values to the rescaled results of a tile of `T` query heads.
pub(super) struct AccumulateV<'a, const T: usize> {
    pub(super) tile: Tile<'a>,
    /// The block's values, row by row.
    pub(super) v: Floats<'a>,
    pub(super) head_dim: usize,
}

impl<const T: usize> Kernel for AccumulateV<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let Tile { keys, partials, weights, rescale, prefetcher, .. } = self.tile;
        let weights = weights.first_chunk().expect("a tile of T heads");
        let rescale = *rescale.first_chunk().expect("a tile of T heads");
        let weights: BlockWeights<'_, T> = BlockWeights { weights, keys, rescale };
        match self.v {
            Floats::F32(v) => accumulate_v::<S, F32, T>(l, &weights, v, self.head_dim, prefetcher, partials),
            Floats::F16(v) => accumulate_v::<S, F16, T>(l, &weights, v, self.head_dim, prefetcher, partials),
        }
    }
}

/// A stored float type, and its conversion to f32.
trait FloatType {
    type Element;
    fn load<S: Simd>(l: Lanes<S>, from: &[Self::Element; LANES]) -> F32x16<S>;
    fn one(element: &Self::Element) -> f32;
}

struct F32;
struct F16;

impl FloatType for F32 {
    type Element = f32;
    #[inline(always)]
    fn load<S: Simd>(l: Lanes<S>, from: &[f32; LANES]) -> F32x16<S> {
        l.load(from)
    }
    #[inline(always)]
    fn one(element: &f32) -> f32 {
        *element
    }
}

impl FloatType for F16 {
    type Element = u16;
    #[inline(always)]
    fn load<S: Simd>(l: Lanes<S>, from: &[u16; LANES]) -> F32x16<S> {
        l.load_f16(from)
    }
    #[inline(always)]
    fn one(element: &u16) -> f32 {
        half::f16::from_bits(*element).to_f32()
    }
}

/// Computes the scaled scores of the `visible` keys, in whole vectors, for `T` query heads. Other scores are not written.
#[inline(always)]
fn score<S: Simd, N: FloatType, const T: usize>(
    l: Lanes<S>,
    q: &[f32],
    k: &[N::Element],
    scale: f32,
    visible: &Range<usize>,
    prefetcher: Prefetcher,
    scores: &mut [[f32; PAGE_CELLS]; T],
) {
    // As many vectors of keys at once as have accumulators in registers for all query heads.
    match const { S::ATTENTION_ACCUMULATORS / T } {
        0 | 1 => score_keys::<S, N, T, 1>(l, q, k, scale, visible, prefetcher, scores),
        2 | 3 => score_keys::<S, N, T, 2>(l, q, k, scale, visible, prefetcher, scores),
        _ => score_keys::<S, N, T, 4>(l, q, k, scale, visible, prefetcher, scores),
    }
}

#[inline(always)]
fn score_keys<S: Simd, N: FloatType, const T: usize, const WIDE: usize>(
    l: Lanes<S>,
    q: &[f32],
    k: &[N::Element],
    scale: f32,
    visible: &Range<usize>,
    mut prefetcher: Prefetcher,
    scores: &mut [[f32; PAGE_CELLS]; T],
) {
    let (k, _) = k.as_chunks::<LANES>();
    let head_dim = q.len() / T;
    let q: [&[f32]; T] = std::array::from_fn(|t| &q[t * head_dim..][..head_dim]);
    let vectors = visible.start / LANES / WIDE * WIDE..visible.end.div_ceil(LANES);
    for first in vectors.step_by(WIDE) {
        let k = &k[first..][..(head_dim - 1) * KEY_VECTORS + WIDE];
        let mut sums = [[l.splat(0.0); WIDE]; T];
        for i in 0..head_dim {
            prefetcher.prefetch::<S, WIDE>(l);
            let keys = k[i * KEY_VECTORS..].first_chunk::<WIDE>().expect("vectors of every element");
            let keys: [F32x16<S>; WIDE] = std::array::from_fn(|n| N::load(l, &keys[n]));
            for (sums, q) in sums.iter_mut().zip(q) {
                let q = l.splat(q[i]);
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
fn cap_scores<S: Simd>(l: Lanes<S>, cap: f32, scores: &mut [f32; PAGE_CELLS]) {
    for scores in scores.as_chunks_mut::<LANES>().0 {
        l.store(l.softcap(l.load(scores), cap), scores);
    }
}

/// Replaces a block's scores by exp(score - new running max); returns the factor on what was accumulated before.
#[inline(always)]
fn softmax_step<S: Simd>(
    l: Lanes<S>,
    keys: &Range<usize>,
    scores: &mut [f32; PAGE_CELLS],
    largest: &mut f32,
    total: &mut f32,
) -> f32 {
    let vectors = scores.as_chunks_mut::<LANES>().0;
    let mut max = l.splat(f32::NEG_INFINITY);
    for (i, scores) in vectors.iter_mut().enumerate() {
        let (first, end) = (i * LANES, (i + 1) * LANES);
        let mut x = l.load(scores);
        if first < keys.start || keys.end < end {
            // The contents of masked cells must have no effect, not even a NaN.
            x = l.keep_first(keys.end as i32 - first as i32, x, f32::NEG_INFINITY);
            x = l.fill_first(keys.start as i32 - first as i32, x, f32::NEG_INFINITY);
            l.store(x, scores);
        }
        max = l.max(x, max);
    }
    let before = *largest;
    *largest = larger(l.reduce_max(max), before);
    let shift = l.splat(*largest);
    let mut sum = l.splat(0.0);
    for scores in vectors {
        let weights = l.exp(l.sub(l.load(scores), shift));
        sum = l.add(sum, weights);
        l.store(weights, scores);
    }
    let rescale = l.to_array(l.exp(l.splat(before - *largest)))[0];
    *total = total.mul_add(rescale, l.reduce_sum(sum));
    rescale
}

/// The softmax weights of a block's values.
struct BlockWeights<'a, const T: usize> {
    weights: &'a [[f32; PAGE_CELLS]; T],
    /// Keys that are not masked.
    keys: Range<usize>,
    /// Factors on what was accumulated before.
    rescale: [f32; T],
}

#[inline(always)]
fn accumulate_v<S: Simd, N: FloatType, const T: usize>(
    l: Lanes<S>,
    weights: &BlockWeights<'_, T>,
    v: &[N::Element],
    head_dim: usize,
    prefetcher: Prefetcher,
    partials: &mut [f32],
) {
    // As many vectors of a head at once as have accumulators in registers for all query heads.
    match const { S::ATTENTION_ACCUMULATORS / T } {
        0 | 1 => add_vectors::<S, N, T, 1>(l, weights, v, head_dim, prefetcher, partials),
        2 | 3 => add_vectors::<S, N, T, 2>(l, weights, v, head_dim, prefetcher, partials),
        _ => add_vectors::<S, N, T, 4>(l, weights, v, head_dim, prefetcher, partials),
    }
}

#[inline(always)]
fn add_vectors<S: Simd, N: FloatType, const T: usize, const WIDE: usize>(
    l: Lanes<S>,
    weights: &BlockWeights<'_, T>,
    v: &[N::Element],
    head_dim: usize,
    mut prefetcher: Prefetcher,
    partials: &mut [f32],
) {
    let whole = head_dim / (WIDE * LANES) * (WIDE * LANES);
    for start in (0..whole).step_by(WIDE * LANES) {
        add_columns::<S, N, T, WIDE>(l, weights, v, head_dim, start, &mut prefetcher, partials);
    }
    let vectors = head_dim / LANES * LANES;
    for start in (whole..vectors).step_by(LANES) {
        add_columns::<S, N, T, 1>(l, weights, v, head_dim, start, &mut prefetcher, partials);
    }
    for (t, partial) in partials.chunks_exact_mut(head_dim + PARTIAL_EXTRA).enumerate() {
        for i in vectors..head_dim {
            let mut sum = partial[i] * weights.rescale[t];
            for key in weights.keys.clone() {
                sum = weights.weights[t][key].mul_add(N::one(&v[key * head_dim + i]), sum);
            }
            partial[i] = sum;
        }
    }
}

#[inline(always)]
fn add_columns<S: Simd, N: FloatType, const T: usize, const WIDE: usize>(
    l: Lanes<S>,
    weights: &BlockWeights<'_, T>,
    v: &[N::Element],
    head_dim: usize,
    start: usize,
    prefetcher: &mut Prefetcher,
    partials: &mut [f32],
) {
    let BlockWeights { weights, keys, rescale } = weights;
    let offset = |t: usize| t * (head_dim + PARTIAL_EXTRA) + start;
    let mut sums = [[l.splat(0.0); WIDE]; T];
    for t in 0..T {
        let out = partials[offset(t)..][..WIDE * LANES].as_chunks::<LANES>().0;
        for n in 0..WIDE {
            sums[t][n] = l.mul(l.load(&out[n]), l.splat(rescale[t]));
        }
    }
    let weights: [&[f32]; T] = std::array::from_fn(|t| &weights[t][keys.clone()]);
    let v = &v[keys.start * head_dim + start..];
    for i in 0..keys.len() {
        prefetcher.prefetch::<S, WIDE>(l);
        let row = v[i * head_dim..][..WIDE * LANES].as_chunks::<LANES>().0;
        for n in 0..WIDE {
            let value = N::load(l, &row[n]);
            for t in 0..T {
                sums[t][n] = l.mul_add(l.splat(weights[t][i]), value, sums[t][n]);
            }
        }
    }
    for t in 0..T {
        let out = partials[offset(t)..][..WIDE * LANES].as_chunks_mut::<LANES>().0;
        for n in 0..WIDE {
            l.store(sums[t][n], &mut out[n]);
        }
    }
}
