//! The parameters of attention: the query heads of some rows, how scores are scaled, and the splits that a row overlaps.

use std::ops::Range;
use verbatim_backend::PAGE_CELLS;

/// Positions of a split: a multiple of [`PAGE_CELLS`].
pub(crate) const SPLIT: usize = 256;
/// Maximum head size.
pub(crate) const MAX_HEAD_DIM: usize = 512;
/// Maximum number of rows that share a pass over K and V.
pub(crate) const MAX_ROWS: usize = 8;
/// Maximum number of query heads, summed over rows, that share a pass.
pub(crate) const MAX_QUERIES: usize = 32;
/// Elements of a partial after the `head_dim` elements of its result: the running max, and the sum of the softmax
/// weights relative to it.
pub(crate) const PARTIAL_EXTRA: usize = 2;

/// Elements of one head of a block of positions.
pub(super) const ELEMENTS: usize = MAX_HEAD_DIM * PAGE_CELLS;
/// Bytes of one head of a block of positions, K or V, as they are stored. No type needs more than f32.
pub(super) const STORED_BYTES: usize = ELEMENTS * size_of::<f32>();

/// How q · k becomes a score.
#[derive(Clone, Copy)]
pub(crate) struct Scores<'a> {
    /// The factor of q · k.
    pub(crate) scale: f32,
    /// If set, a score s then becomes softcap * tanh(s / softcap).
    pub(crate) softcap: Option<f32>,
    /// For each query head, a score without a value.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Query heads of one row, all of one KV head, and their output.
#[derive(Default)]
pub(crate) struct Row<'a> {
    /// `head_dim` elements of each query head.
    pub(crate) q: &'a [f32],
    /// The first position attended to: at most `position`.
    pub(crate) first: usize,
    /// The last position attended to.
    pub(crate) position: usize,
    /// For each query head `head_dim` elements, plus [`PARTIAL_EXTRA`] for partials.
    pub(crate) out: &'a mut [f32],
}

impl Row<'_> {
    /// The splits that the row overlaps.
    pub(super) fn splits(&self) -> Range<usize> {
        splits((self.first, self.position))
    }
}

/// The splits of the positions `first..=last`.
pub(crate) fn splits((first, last): (usize, usize)) -> Range<usize> {
    first / SPLIT..last / SPLIT + 1
}

/// Maximum number of splits that a row can overlap, with positions below `positions`.
pub(crate) fn max_splits(positions: usize, window: Option<usize>) -> usize {
    let all = positions.div_ceil(SPLIT).max(1);
    // A window may begin and end in the middle of a split.
    window.map_or(all, |window| all.min(window.div_ceil(SPLIT).saturating_add(1)))
}

/// The number of rows that share a pass, for `heads` query heads per KV head.
pub(crate) fn rows_of_pass(heads: usize) -> usize {
    (MAX_QUERIES / heads).clamp(1, MAX_ROWS)
}
