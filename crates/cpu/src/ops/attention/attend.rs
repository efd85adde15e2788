//! Attention of some rows over all positions that they attend to.

use super::merge::Sum;
use super::pass::attend_split;
use super::scratch::Scratch;
use super::shape::{MAX_QUERIES, MAX_ROWS, PARTIAL_EXTRA, Row, Scores};
use super::view::KvView;
use verbatim_simd::Isa;

/// Attends with some rows, which all have the same number of query heads: together at most [`MAX_QUERIES`].
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
        let mut in_split: [Row<'_>; MAX_ROWS] = Default::default();
        let mut count = 0;
        let buffers = partials.chunks_exact_mut(heads * (head_dim + PARTIAL_EXTRA));
        for (row, out) in rows.iter().filter(|row| row.splits().contains(&split)).zip(buffers) {
            in_split[count] = Row { q: row.q, first: row.first, position: row.position, out };
            count += 1;
        }
        attend_split(isa, keys, scores, pass, split, &mut in_split[..count]);
        let rows = rows.iter_mut().zip(sums.chunks_exact_mut(heads));
        for ((row, sums), partial) in rows.filter(|(row, _)| row.splits().contains(&split)).zip(&in_split) {
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
