//! What attention is asked for: some rows' query heads, what becomes of scores, and which splits of the positions a row sees.

use std::ops::Range;
use verbatim_backend::PAGE_CELLS;

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

/// Elements of one head of a block of positions.
pub(super) const ELEMENTS: usize = MAX_HEAD_DIM * PAGE_CELLS;
/// Bytes of one head of a block of positions, K or V, as they are stored. No type needs more than f32.
pub(super) const STORED_BYTES: usize = ELEMENTS * size_of::<f32>();

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

/// Query heads of one row, all of one KV head, and the place of what they give.
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
    pub(super) fn splits(&self) -> Range<usize> {
        splits((self.first, self.position))
    }
}

/// The splits that the positions from the first to the last lie in.
pub(crate) fn splits((first, last): (usize, usize)) -> Range<usize> {
    first / SPLIT..last / SPLIT + 1
}

/// The most splits that a row can see something of, with positions below `positions`.
pub(crate) fn max_splits(positions: usize, window: Option<usize>) -> usize {
    let all = positions.div_ceil(SPLIT).max(1);
    // A window's first and last position may both lie at an end of a split.
    window.map_or(all, |window| all.min(window.div_ceil(SPLIT).saturating_add(1)))
}

/// How many rows share a pass where each has so many query heads to a KV head.
pub(crate) fn rows_of_pass(heads: usize) -> usize {
    (MAX_QUERIES / heads).clamp(1, MAX_ROWS)
}
