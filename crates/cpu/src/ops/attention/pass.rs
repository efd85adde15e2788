//! One pass over the blocks of a split, shared by the query heads of several rows.

use super::block::{AccumulateV, Prefetcher, ScoreAndSoftmax, Tile};
use super::decode;
use super::scratch::PassScratch;
use super::shape::{MAX_QUERIES, PARTIAL_EXTRA, Row, SPLIT, Scores};
use super::view::KvView;
use std::ops::Range;
use verbatim_backend::PAGE_CELLS;
use verbatim_simd::{Isa, dispatch};

/// Maximum number of query heads of a row per kernel call.
const MAX_TILE: usize = 4;

/// Computes the partials of one split, without sinks, for rows that overlap it. All rows have the same number of query heads,
/// together at most [`MAX_QUERIES`].
pub(crate) fn attend_split(
    isa: Isa,
    keys: &KvView<'_>,
    scores: &Scores<'_>,
    scratch: &mut PassScratch,
    split: usize,
    rows: &mut [Row<'_>],
) {
    let head_dim = keys.head_dim();
    let PassScratch { gathered, decoded, weights } = scratch;
    let mut rescale = [1f32; MAX_QUERIES];
    for partial in rows.iter_mut().flat_map(|row| row.out.chunks_exact_mut(head_dim + PARTIAL_EXTRA)) {
        partial.fill(0.0);
        partial[head_dim] = f32::NEG_INFINITY;
    }
    let end = rows.iter().map(|row| row.position + 1).max().unwrap_or(0).min((split + 1) * SPLIT);
    for start in (split * SPLIT..end).step_by(PAGE_CELLS) {
        let visible_keys = rows.iter().map(|row| visible(row, start)).filter(|keys| !keys.is_empty());
        let Some(visible_keys) = visible_keys.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else {
            continue;
        };
        let (k, v) = keys.block(start, &visible_keys, gathered);
        let k = decode::keys(isa, k, head_dim, &visible_keys, decoded);
        let prefetcher = Prefetcher::new(Some(v));
        tiles(rows, start, head_dim, weights, &mut rescale, prefetcher, |tile| match tile.rescale.len() {
            1 => dispatch(isa, ScoreAndSoftmax::<1> { tile, k, head_dim, scores }),
            2 => dispatch(isa, ScoreAndSoftmax::<2> { tile, k, head_dim, scores }),
            3 => dispatch(isa, ScoreAndSoftmax::<3> { tile, k, head_dim, scores }),
            _ => dispatch(isa, ScoreAndSoftmax::<MAX_TILE> { tile, k, head_dim, scores }),
        });
        let v = decode::values(isa, v, head_dim, &visible_keys, decoded);
        let next = Some(start + PAGE_CELLS).filter(|&next| next < end);
        let prefetcher = Prefetcher::new(next.and_then(|next| keys.keys_in_page(next)));
        tiles(rows, start, head_dim, weights, &mut rescale, prefetcher, |tile| match tile.rescale.len() {
            1 => dispatch(isa, AccumulateV::<1> { tile, v, head_dim }),
            2 => dispatch(isa, AccumulateV::<2> { tile, v, head_dim }),
            3 => dispatch(isa, AccumulateV::<3> { tile, v, head_dim }),
            _ => dispatch(isa, AccumulateV::<MAX_TILE> { tile, v, head_dim }),
        });
    }
}

/// The keys of the block at `start` that a row attends to.
fn visible(row: &Row<'_>, start: usize) -> Range<usize> {
    row.first.max(start) - start..(row.position + 1).clamp(start, start + PAGE_CELLS) - start
}

/// Calls `take` with the query heads of every row that overlaps a block, up to [`MAX_TILE`] at a time.
fn tiles(
    rows: &mut [Row<'_>],
    start: usize,
    head_dim: usize,
    weights: &mut [[f32; PAGE_CELLS]],
    rescale: &mut [f32],
    mut prefetcher: Prefetcher,
    mut take: impl FnMut(Tile<'_>),
) {
    let heads = rows[0].q.len() / head_dim;
    let buffers = weights.chunks_mut(heads).zip(rescale.chunks_mut(heads));
    for (row, (weights, rescale)) in rows.iter_mut().zip(buffers) {
        let keys = visible(row, start);
        if keys.is_empty() {
            continue;
        }
        let tiles =
            row.q.chunks(MAX_TILE * head_dim).zip(row.out.chunks_mut(MAX_TILE * (head_dim + PARTIAL_EXTRA)));
        let buffers = weights.chunks_mut(MAX_TILE).zip(rescale.chunks_mut(MAX_TILE));
        for ((q, partials), (weights, rescale)) in tiles.zip(buffers) {
            // The first tile prefetches for all.
            let prefetcher = std::mem::replace(&mut prefetcher, Prefetcher::new(None));
            take(Tile { keys: keys.clone(), q, partials, weights, rescale, prefetcher });
        }
    }
}
