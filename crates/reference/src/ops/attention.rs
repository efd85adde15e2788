//! Attention of one row (arXiv 1706.03762), over cells of K and V.

use super::dot;
use super::elementwise::softcap;
use verbatim_backend::PAGE_CELLS;
use verbatim_graph::Attention;

/// The cells of the positions >= `tree_start`, instead of the pages.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    /// The position of the first cell.
    pub tree_start: i32,
    /// Cells.
    pub cells: &'a [i32],
}

/// The first position that a row attends to: of its window, and of what is valid.
pub fn first_visible(window: Option<usize>, valid_from: usize, position: usize) -> usize {
    window.map_or(0, |window| (position + 1).saturating_sub(window)).max(valid_from.min(position))
}

/// The cells of the positions `first..=position`.
pub fn cells(first: usize, position: usize, pages: &[i32], path: Option<Path<'_>>) -> Vec<usize> {
    let cell = |position: usize| match path {
        Some(Path { tree_start, cells }) if position as i64 >= i64::from(tree_start) => {
            index(cells[(position as i64 - i64::from(tree_start)) as usize])
        }
        Some(_) | None => index(pages[position / PAGE_CELLS]) * PAGE_CELLS + position % PAGE_CELLS,
    };
    (first..=position).map(cell).collect()
}

fn index(id: i32) -> usize {
    usize::try_from(id).expect("a page or cell of the sequence")
}

/// All query heads of a row. `key` and `value` return the i-th of `visible` keys and values of a KV head; query heads share
/// them in runs of heads / kv_heads (arXiv 2305.13245).
pub fn attention(
    attention: &Attention,
    q: &[f32],
    visible: usize,
    key: impl Fn(usize, usize) -> Vec<f32>,
    value: impl Fn(usize, usize) -> Vec<f32>,
    sinks: Option<&[f32]>,
) -> Vec<f32> {
    let group = attention.heads / attention.kv_heads;
    let mut out = Vec::with_capacity(q.len());
    for (kv_head, queries) in q.chunks_exact(group * attention.head_dim).enumerate() {
        let keys: Vec<Vec<f32>> = (0..visible).map(|i| key(i, kv_head)).collect();
        let values: Vec<Vec<f32>> = (0..visible).map(|i| value(i, kv_head)).collect();
        for (head, q) in (kv_head * group..).zip(queries.chunks_exact(attention.head_dim)) {
            let scores: Vec<f32> = keys.iter().map(|k| score(attention, q, k)).collect();
            let weights = softmax_with_sink(&scores, sinks.map(|sinks| sinks[head]));
            out.extend(weighted_sum(&weights, &values, attention.head_dim));
        }
    }
    out
}

/// q · k, scaled and then capped.
fn score(attention: &Attention, q: &[f32], k: &[f32]) -> f32 {
    let score = dot(q, k) * attention.scale.0;
    attention.softcap.map_or(score, |cap| softcap(score, cap.0))
}

/// exp(sᵢ) / (Σ exp(sⱼ) + exp(sink)): the sink has no value (gpt-oss, arXiv 2508.10925).
fn softmax_with_sink(scores: &[f32], sink: Option<f32>) -> Vec<f32> {
    let most = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = scores.iter().copied().chain(sink).map(|score| (score - most).exp()).sum();
    scores.iter().map(|score| (score - most).exp() / total).collect()
}

/// Σ weightᵢ · valueᵢ, in the order of the positions.
fn weighted_sum(weights: &[f32], values: &[Vec<f32>], head_dim: usize) -> Vec<f32> {
    let mut sum = vec![0.0; head_dim];
    for (weight, value) in weights.iter().zip(values) {
        sum.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight * v);
    }
    sum
}
