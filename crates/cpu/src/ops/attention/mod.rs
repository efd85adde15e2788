//! Attention of the query heads of some rows over the pages of their sequence.
//!
//! The order is fixed by absolute position. Positions are split into ranges of [`shape::SPLIT`] (*splits*), and splits into
//! blocks of [`PAGE_CELLS`](verbatim_backend::PAGE_CELLS) positions: those of one page. A query visits the blocks of a split in
//! ascending order, from the one with the first position that it attends to to the one with the last. It merges each into a running
//! max, sum and weighted V (online softmax, arXiv 1805.02867), which are reset at each split; their final values are the split's
//! *partial*. The partials are then merged in ascending order, by the formula in [`merge`], so several threads can compute the
//! partials of one row (Flash-Decoding, 2023). Splits without visible positions are skipped.
//!
//! A window does not move splits and blocks; it only masks keys. Within a block a score is summed over the elements of a head in
//! ascending order, the sum of the softmax weights is a fixed tree over the block's lanes, and values are added in ascending
//! position. Lanes are keys for the scores and elements for the values, so nothing depends on the other queries of the step. Nor
//! does it depend on which cells the positions are in: the cells of a tree path are gathered first.

mod attend;
mod block;
mod decode;
mod merge;
mod pass;
mod scratch;
mod shape;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use attend::attend;
pub(crate) use merge::merge;
pub(crate) use pass::attend_split;
pub(crate) use scratch::Scratch;
pub(crate) use shape::{
    MAX_HEAD_DIM, MAX_QUERIES, MAX_ROWS, PARTIAL_EXTRA, Row, Scores, max_splits, rows_of_pass, splits,
};
pub(crate) use view::{KvView, Path};
