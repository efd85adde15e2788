//! Attention of the query heads of some rows over the pages of their sequence.
//!
//! The order is fixed by absolute position. Positions are cut into splits of [`shape::SPLIT`], and splits into blocks of
//! [`PAGE_CELLS`](verbatim_backend::PAGE_CELLS). A query visits the blocks of a split from that of the first position it sees there to that of the last,
//! and merges each into a running maximum, sum and result (online softmax, arXiv 1805.02867), which begin anew with every
//! split: its *partial*. The partials are then merged in ascending order, by the formula in [`merge`]. So the partials of one row
//! can be made by several threads (Flash-Decoding, 2023). A split that a query sees nothing of is passed over.
//!
//! A window leaves splits and blocks where they are; it only hides keys. Within a block a score is summed over the
//! elements of a head in ascending order, the sum of the weights is a fixed tree over the block's lanes, and values are
//! added in ascending position. Lanes are keys for the scores and elements for the values, so nothing depends on which
//! other queries are computed beside this one. Which cells the positions lie in does not matter either: those of a path
//! are brought together first.

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
