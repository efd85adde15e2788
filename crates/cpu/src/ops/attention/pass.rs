//! One pass over the blocks of a range, shared by the query heads of several rows.

use super::block::{AddValues, Ahead, Tile, Weigh};
use super::scratch::PassScratch;
use super::{KvView, MAX_QUERIES, PARTIAL_EXTRA, RANGE, Row, Scores, decode};
use std::ops::Range;
use verbatim_backend::PAGE_CELLS;
use verbatim_simd::{Isa, dispatch};

/// Query heads of a row that a kernel takes at once.
const MAX_TILE: usize = 4;

/// The parts of one range, for rows that see something of it and have at most [`MAX_QUERIES`] query heads together, each
/// as many as the others. Sinks take no part.
pub(crate) fn attend_range(
    isa: Isa,
    keys: &KvView<'_>,
    scores: &Scores<'_>,
    scratch: &mut PassScratch,
    range: usize,
    rows: &mut [Row<'_>],
) {
    let head_dim = keys.head_dim();
    let PassScratch { gathered, numbers, weights } = scratch;
    let mut rescale = [1f32; MAX_QUERIES];
    for part in rows.iter_mut().flat_map(|row| row.out.chunks_exact_mut(head_dim + PARTIAL_EXTRA)) {
        part.fill(0.0);
        part[head_dim] = f32::NEG_INFINITY;
    }
    let end = rows.iter().map(|row| row.position + 1).max().unwrap_or(0).min((range + 1) * RANGE);
    for start in (range * RANGE..end).step_by(PAGE_CELLS) {
        let seen = rows.iter().map(|row| seen(row, start)).filter(|keys| !keys.is_empty());
        let Some(seen) = seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { continue };
        let (k, v) = keys.block(start, &seen, gathered);
        let k = decode::keys(isa, k, head_dim, &seen, numbers);
        let ahead = Ahead::new(Some(v));
        tiles(rows, start, head_dim, weights, &mut rescale, ahead, |tile| match tile.rescale.len() {
            1 => dispatch(isa, Weigh::<1> { tile, k, head_dim, scores }),
            2 => dispatch(isa, Weigh::<2> { tile, k, head_dim, scores }),
            3 => dispatch(isa, Weigh::<3> { tile, k, head_dim, scores }),
            _ => dispatch(isa, Weigh::<MAX_TILE> { tile, k, head_dim, scores }),
        });
        let v = decode::values(isa, v, head_dim, &seen, numbers);
        let next = Some(start + PAGE_CELLS).filter(|&next| next < end);
        let ahead = Ahead::new(next.and_then(|next| keys.keys_in_page(next)));
        tiles(rows, start, head_dim, weights, &mut rescale, ahead, |tile| match tile.rescale.len() {
            1 => dispatch(isa, AddValues::<1> { tile, v, head_dim }),
            2 => dispatch(isa, AddValues::<2> { tile, v, head_dim }),
            3 => dispatch(isa, AddValues::<3> { tile, v, head_dim }),
            _ => dispatch(isa, AddValues::<MAX_TILE> { tile, v, head_dim }),
        });
    }
}

/// The keys that a row sees of the block that begins at `start`.
fn seen(row: &Row<'_>, start: usize) -> Range<usize> {
    row.first.max(start) - start..(row.position + 1).clamp(start, start + PAGE_CELLS) - start
}

/// Calls `take` with the query heads of every row that sees something of a block, a few at a time.
fn tiles(
    rows: &mut [Row<'_>],
    start: usize,
    head_dim: usize,
    weights: &mut [[f32; PAGE_CELLS]],
    rescale: &mut [f32],
    mut ahead: Ahead,
    mut take: impl FnMut(Tile<'_>),
) {
    let heads = rows[0].q.len() / head_dim;
    let made = weights.chunks_mut(heads).zip(rescale.chunks_mut(heads));
    for (row, (weights, rescale)) in rows.iter_mut().zip(made) {
        let keys = seen(row, start);
        if keys.is_empty() {
            continue;
        }
        let tiles =
            row.q.chunks(MAX_TILE * head_dim).zip(row.out.chunks_mut(MAX_TILE * (head_dim + PARTIAL_EXTRA)));
        let made = weights.chunks_mut(MAX_TILE).zip(rescale.chunks_mut(MAX_TILE));
        for ((q, parts), (weights, rescale)) in tiles.zip(made) {
            // The first tile calls for all.
            let ahead = std::mem::replace(&mut ahead, Ahead::new(None));
            take(Tile { keys: keys.clone(), q, parts, weights, rescale, ahead });
        }
    }
}
