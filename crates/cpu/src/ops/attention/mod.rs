//! Attention of the query heads of some rows over the pages of their sequence.
//!
//! The order is fixed by absolute position. Positions are cut into splits of [`SPLIT`], and splits into blocks of
//! [`PAGE_CELLS`]. A query visits the blocks of a split from that of the first position it sees there to that of the last,
//! and merges each into a running maximum, sum and result (online softmax, arXiv 1805.02867), which begin anew with every
//! split: its *partial*. The partials are then merged in ascending order, by the formula in [`merge`]. So the partials of one row
//! can be made by several threads (Flash-Decoding, 2023). A split that a query sees nothing of is passed over.
//!
//! A window leaves splits and blocks where they are; it only hides keys. Within a block a score is summed over the
//! elements of a head in ascending order, the sum of the weights is a fixed tree over the block's lanes, and values are
//! added in ascending position. Lanes are keys for the scores and elements for the values, so nothing depends on which
//! other queries are computed beside this one. Which cells the positions lie in does not matter either: those of a path
//! are brought together first.

mod block;
mod decode;
mod merge;
mod pass;
mod scratch;

pub(crate) use merge::merge;
pub(crate) use pass::attend_split;
pub(crate) use scratch::{Path, Scratch};

use crate::kv::{Block, KvLayer};
use merge::Sum;
use std::ops::Range;
use verbatim_backend::PAGE_CELLS;
use verbatim_simd::Isa;
use verbatim_team::AlignedBytes;

/// Positions of a split: a multiple of [`PAGE_CELLS`].
pub(crate) const SPLIT: usize = 256;
/// The most elements of a head.
pub(crate) const MAX_HEAD_DIM: usize = 512;
/// The most rows that share a pass over K and V.
pub(crate) const MAX_ROWS: usize = 8;
/// The most query heads, those of all rows together, that share a pass.
pub(crate) const MAX_QUERIES: usize = 32;
/// What a query head's partial holds after the `head_dim` elements of its result: the largest score, and the sum of the weights
/// relative to it.
pub(crate) const PARTIAL_EXTRA: usize = 2;

/// The K and V of one K/V head that some rows attend to.
pub(crate) struct KvView<'a> {
    pub(crate) layer: &'a KvLayer,
    pub(crate) kv_head: usize,
    /// The sequence's pages, by block of positions.
    pub(crate) pages: &'a [i32],
    /// The positions that are not in the pages.
    pub(crate) path: Option<Path<'a>>,
}

impl<'a> KvView<'a> {
    fn head_dim(&self) -> usize {
        self.layer.spec().head_dim
    }

    /// The page of a position.
    fn page(&self, position: usize) -> usize {
        usize::try_from(self.pages[position / PAGE_CELLS]).expect("a page of the sequence")
    }

    /// K and V of the block of positions that begins at `start`, of which `seen` are needed.
    fn block<'g>(
        &self,
        start: usize,
        seen: &Range<usize>,
        gathered: &'g mut AlignedBytes,
    ) -> (Block<'g>, Block<'g>)
    where
        'a: 'g,
    {
        match &self.path {
            Some(path) if start + PAGE_CELLS > path.base => path.gather(self, start, seen, gathered),
            _ => {
                let (page, layer) = (self.page(start), self.layer);
                (layer.k().block(page, self.kv_head), layer.v().block(page, self.kv_head))
            }
        }
    }

    /// The keys of the block that begins at `start`, if they lie in a page.
    fn keys_in_page(&self, start: usize) -> Option<Block<'a>> {
        let page = usize::try_from(*self.pages.get(start / PAGE_CELLS)?).ok()?;
        self.path.is_none().then(|| self.layer.k().block(page, self.kv_head))
    }
}

/// What becomes of the products of q and k.
#[derive(Clone, Copy)]
pub(crate) struct Scores<'a> {
    /// Factor on them.
    pub(crate) scale: f32,
    /// Then s becomes softcap * tanh(s / softcap).
    pub(crate) softcap: Option<f32>,
    /// For each query head a score without a value.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Query heads of one row, all of one K/V head, and the place of what they give.
#[derive(Default)]
pub(crate) struct Row<'a> {
    /// `head_dim` elements of each query head.
    pub(crate) q: &'a [f32],
    /// The first position attended to: at most `position`.
    pub(crate) first: usize,
    /// The last position attended to.
    pub(crate) position: usize,
    /// Of each query head `head_dim` elements, and [`PARTIAL_EXTRA`] more where a partial is asked for.
    pub(crate) out: &'a mut [f32],
}

impl Row<'_> {
    /// The splits that the row sees something of.
    fn splits(&self) -> Range<usize> {
        splits((self.first, self.position))
    }
}

/// The splits that the positions from the first to the last lie in.
pub(crate) fn splits((first, last): (usize, usize)) -> Range<usize> {
    first / SPLIT..last / SPLIT + 1
}

/// The most splits that a row can see something of, with positions below `positions`.
pub(crate) fn most_splits(positions: usize, window: Option<usize>) -> usize {
    let all = positions.div_ceil(SPLIT).max(1);
    // A window's first and last position may both lie at an end of a split.
    window.map_or(all, |window| all.min(window.div_ceil(SPLIT).saturating_add(1)))
}

/// How many rows share a pass where each has so many query heads to a K/V head.
pub(crate) fn rows_of_pass(heads: usize) -> usize {
    (MAX_QUERIES / heads).clamp(1, MAX_ROWS)
}

/// Attends with rows that have at most [`MAX_QUERIES`] query heads together: as many as one another.
pub(crate) fn attend(
    isa: Isa,
    keys: &KvView<'_>,
    scores: &Scores<'_>,
    scratch: &mut Scratch,
    rows: &mut [Row<'_>],
) {
    let head_dim = keys.head_dim();
    let Scratch { pass, partials } = scratch;
    let heads = rows.first().map_or(1, |row| row.q.len() / head_dim);
    let mut sums: [Sum; MAX_QUERIES] =
        std::array::from_fn(|query| Sum::new(scores.sinks.map(|sinks| sinks[query % heads])));
    rows.iter_mut().for_each(|row| row.out.fill(0.0));
    let first = rows.iter().map(|row| row.splits().start).min().unwrap_or(0);
    let end = rows.iter().map(|row| row.splits().end).max().unwrap_or(0);
    for split in first..end {
        let mut seeing: [Row<'_>; MAX_ROWS] = Default::default();
        let mut count = 0;
        let rooms = partials.chunks_exact_mut(heads * (head_dim + PARTIAL_EXTRA));
        for (row, out) in rows.iter().filter(|row| row.splits().contains(&split)).zip(rooms) {
            seeing[count] = Row { q: row.q, first: row.first, position: row.position, out };
            count += 1;
        }
        attend_split(isa, keys, scores, pass, split, &mut seeing[..count]);
        let rows = rows.iter_mut().zip(sums.chunks_exact_mut(heads));
        for ((row, sums), partial) in rows.filter(|(row, _)| row.splits().contains(&split)).zip(&seeing) {
            let partials = partial.out.chunks_exact(head_dim + PARTIAL_EXTRA);
            for ((out, sum), partial) in row.out.chunks_exact_mut(head_dim).zip(sums).zip(partials) {
                sum.merge(isa, partial, out);
            }
        }
    }
    for (row, sums) in rows.iter_mut().zip(sums.chunks_exact(heads)) {
        row.out.chunks_exact_mut(head_dim).zip(sums).for_each(|(out, sum)| sum.normalize(out));
    }
}

#[cfg(test)]
mod tests;
