//! Attention of a step, split into tasks. Neither which rows share a task nor which thread takes it changes a bit of a result.
#![allow(unsafe_code)] // Each task writes its own columns of its rows.

use super::Run;
use crate::ops::attention::{
    self, KvView, MAX_QUERIES, MAX_ROWS, PARTIAL_EXTRA, Path, Row, Scores, Scratch, rows_of_pass,
};
use crate::program::PreparedOp;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};
use verbatim_graph::Attention;
use verbatim_team::ThreadContext;

/// Minimum number of tasks per thread, so that threads finish together.
const TASKS_PER_THREAD: usize = 4;

impl Run<'_> {
    /// Each task computes final results: some rows and one KV head, over all positions that they attend to.
    pub(super) fn attention(&self, prepared: &PreparedOp, attention: &Attention, thread: &ThreadContext<'_>) {
        let operands = Operands::new(self, prepared, attention);
        let rows = prepared.output.view().shape.rows.at(self.rows);
        let blocks = RowBlocks::new(&operands, rows, 1, thread.threads());
        let mut scratch = self.scratch(thread);
        let tasks = blocks.count() * attention.kv_heads;
        while let Some(taken) = prepared.tasks.take(1, tasks) {
            // Later rows attend to more positions: the longest tasks come first.
            let task = tasks - 1 - taken.start;
            let kv_head = task % attention.kv_heads;
            for range in blocks.row_ranges(task / attention.kv_heads) {
                let keys = operands.keys(range.start, kv_head);
                for heads in operands.heads(kv_head, range.len()) {
                    let mut rows: [Row<'_>; MAX_ROWS] = Default::default();
                    for (entry, row) in rows.iter_mut().zip(range.clone()) {
                        // SAFETY: one task computes these heads of this row, and by the plan no other value uses their bytes.
                        *entry = unsafe { operands.row(row, &heads, heads.start, 0) };
                    }
                    let scores = operands.scores(&heads);
                    attention::attend(self.isa, &keys, &scores, &mut scratch, &mut rows[..range.len()]);
                }
            }
        }
    }

    /// Each task computes partials: some rows and one KV head, over one split of positions.
    pub(super) fn attention_partials(
        &self,
        prepared: &PreparedOp,
        attention: &Attention,
        thread: &ThreadContext<'_>,
    ) {
        let operands = Operands::new(self, prepared, attention);
        let rows = prepared.output.view().shape.rows.at(self.rows);
        let splits = (0..rows).map(|row| operands.splits(row).len()).max().unwrap_or(0);
        let blocks = RowBlocks::new(&operands, rows, splits, thread.threads());
        // Rows that share K and V may begin in different splits, so together they may cover more splits than each.
        let ranges = (0..blocks.count()).flat_map(|block| blocks.row_ranges(block));
        let splits = ranges.map(|range| operands.splits_of(range).len()).max().unwrap_or(0);
        let max_splits =
            prepared.output.view().shape.cols / (attention.heads * (attention.head_dim + PARTIAL_EXTRA));
        let mut scratch = self.scratch(thread);
        let tasks_per_split = blocks.count() * attention.kv_heads;
        let tasks = splits * tasks_per_split;
        while let Some(taken) = prepared.tasks.take(1, tasks) {
            // The last split of a row is rarely full, so it comes last.
            let (nth, task) = (taken.start / tasks_per_split, taken.start % tasks_per_split);
            let kv_head = task % attention.kv_heads;
            for range in blocks.row_ranges(task / attention.kv_heads) {
                let split = operands.splits_of(range.clone()).start + nth;
                let visible_to = range.clone().filter(|&row| operands.splits(row).contains(&split));
                let keys = operands.keys(range.start, kv_head);
                for heads in operands.heads(kv_head, range.len()) {
                    let mut rows: [Row<'_>; MAX_ROWS] = Default::default();
                    let mut count = 0;
                    for row in visible_to.clone() {
                        let nth = split - operands.splits(row).start;
                        assert!(nth < max_splits, "position beyond the page table");
                        let head = nth * attention.heads + heads.start;
                        // SAFETY: one task computes this partial of this row, and by the plan no other value uses its bytes.
                        rows[count] = unsafe { operands.row(row, &heads, head, PARTIAL_EXTRA) };
                        count += 1;
                    }
                    let scores = operands.scores(&heads);
                    let rows = &mut rows[..count];
                    attention::attend_split(self.isa, &keys, &scores, &mut scratch.pass, split, rows);
                }
            }
        }
    }

    /// Merges the partials of [`Run::attention_partials`], for some heads of a row.
    ///
    /// # Safety
    /// No other thread may read or write these heads of the row during the call.
    pub(super) unsafe fn merge_attention(
        &self,
        prepared: &PreparedOp,
        attention: &Attention,
        row: usize,
        merged: Range<usize>,
    ) {
        let &Attention { heads, head_dim, window, sinks, valid_from, .. } = attention;
        let partials: &[f32] = prepared.operands[0].view().row(self.arena, row);
        let index = |operand: usize| self.index(prepared.operands[operand].view(), row);
        let valid_from = if valid_from { index(2) } else { 0 };
        let splits = attention::splits(visible(window, valid_from, index(1)));
        let sinks = prepared.operands.last().filter(|_| sinks);
        let sinks = sinks.map(|sinks| self.weights.vector(sinks.weight()));
        let cols = merged.start * head_dim..merged.end * head_dim;
        // SAFETY: the contract of this function.
        let out: &mut [f32] = unsafe { prepared.output.view().columns_mut(self.arena, row, cols) };
        let partial_len = head_dim + PARTIAL_EXTRA;
        for (head, out) in merged.zip(out.chunks_exact_mut(head_dim)) {
            let of_splits = partials.chunks_exact(heads * partial_len).take(splits.len());
            let partials = of_splits.map(|partials| &partials[head * partial_len..][..partial_len]);
            attention::merge(self.isa, sinks.map(|sinks| sinks[head]), partials, out);
        }
    }

    fn scratch(&self, thread: &ThreadContext<'_>) -> MutexGuard<'_, Scratch> {
        // The contents that a panicked thread has left in its scratch are never read.
        self.scratch[thread.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first and the last position that a row attends to.
fn visible(window: Option<usize>, valid_from: usize, position: usize) -> (usize, usize) {
    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
    (first.max(valid_from.min(position)), position)
}

/// The operands of an attention, by row.
struct Operands<'a> {
    run: &'a Run<'a>,
    prepared: &'a PreparedOp,
    attention: &'a Attention,
}

impl<'a> Operands<'a> {
    fn new(run: &'a Run<'a>, prepared: &'a PreparedOp, attention: &'a Attention) -> Operands<'a> {
        Operands { run, prepared, attention }
    }

    fn index(&self, operand: usize, row: usize) -> usize {
        self.run.index(self.prepared.operands[operand].view(), row)
    }

    fn sequence(&self, row: usize) -> usize {
        self.index(3, row)
    }

    fn visible(&self, row: usize) -> (usize, usize) {
        let valid_from = match self.attention.valid_from {
            true => self.index(self.attention.valid_from_operand(), row),
            false => 0,
        };
        visible(self.attention.window, valid_from, self.index(2, row))
    }

    fn splits(&self, row: usize) -> Range<usize> {
        attention::splits(self.visible(row))
    }

    /// From the first split that one of these rows overlaps to the last.
    fn splits_of(&self, rows: Range<usize>) -> Range<usize> {
        let splits = rows.map(|row| self.splits(row));
        splits.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    fn path(&self, row: usize) -> Option<Path<'a>> {
        if !self.attention.paths {
            return None;
        }
        let tree_start = self.index(5, row);
        let cells = self.prepared.operands[6].view().row(self.run.arena, row);
        (tree_start <= self.index(2, row)).then_some(Path { tree_start, cells })
    }

    /// The K and V that a row's query heads of one KV head attend to.
    fn keys(&self, row: usize, kv_head: usize) -> KvView<'a> {
        let layer = &self.run.state.kv.layers()[self.prepared.operands[1].state()];
        let pages = self.prepared.operands[4].view().row(self.run.arena, self.sequence(row));
        KvView { layer, kv_head, pages, path: self.path(row) }
    }

    /// The query heads of one KV head, in ranges that can share a pass for `rows` rows.
    fn heads(&self, kv_head: usize, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let group = self.attention.heads / self.attention.kv_heads;
        let (start, end, max) = (kv_head * group, (kv_head + 1) * group, MAX_QUERIES / rows);
        (start..end).step_by(max).map(move |head| head..end.min(head + max))
    }

    fn scores(&self, heads: &Range<usize>) -> Scores<'a> {
        let &Attention { scale, softcap, sinks, .. } = self.attention;
        let sinks = sinks.then(|| {
            let weight = self.prepared.operands[self.attention.sinks_operand()].weight();
            &self.run.weights.vector(weight)[heads.clone()]
        });
        Scores { scale: scale.0, softcap: softcap.map(|cap| cap.0), sinks }
    }

    /// Some query heads of a row, and their results: the output's columns starting at head `head`, where a head has
    /// `extra` elements more than `head_dim`.
    ///
    /// # Safety
    /// While the result lives, no other thread may read or write these columns of the output's row.
    unsafe fn row(&self, row: usize, heads: &Range<usize>, head: usize, extra: usize) -> Row<'a> {
        let head_dim = self.attention.head_dim;
        let q: &[f32] = self.prepared.operands[0].view().row(self.run.arena, row);
        let (column, cols) = (head * (head_dim + extra), heads.len() * (head_dim + extra));
        // SAFETY: the contract of this function.
        let out =
            unsafe { self.prepared.output.view().columns_mut(self.run.arena, row, column..column + cols) };
        let (first, position) = self.visible(row);
        Row { q: &q[heads.start * head_dim..heads.end * head_dim], first, position, out }
    }
}

/// The rows of a step, in blocks of `len` rows: those of one task.
struct RowBlocks<'a> {
    operands: &'a Operands<'a>,
    rows: usize,
    len: usize,
}

impl<'a> RowBlocks<'a> {
    /// Blocks as long as rows can share a pass, but short enough that every thread gets tasks; a block has `splits` tasks for each
    /// KV head.
    fn new(operands: &'a Operands<'a>, rows: usize, splits: usize, threads: usize) -> RowBlocks<'a> {
        let &Attention { heads, kv_heads, .. } = operands.attention;
        let mut len = rows_of_pass(heads / kv_heads);
        while len > 1 && rows.div_ceil(len) * splits * kv_heads < threads * TASKS_PER_THREAD {
            len /= 2;
        }
        RowBlocks { operands, rows, len }
    }

    fn count(&self) -> usize {
        self.rows.div_ceil(self.len)
    }

    /// Ranges of rows of a block that attend to the same K and V: those of one sequence, without tree paths.
    fn row_ranges(&self, block: usize) -> impl Iterator<Item = Range<usize>> {
        let mut row = block * self.len;
        let end = self.rows.min(row + self.len);
        std::iter::from_fn(move || {
            let start = row;
            let shares = |row: usize| {
                self.operands.path(start).is_none()
                    && self.operands.path(row).is_none()
                    && self.operands.sequence(row) == self.operands.sequence(start)
            };
            row = (start < end).then(|| (start + 1..end).find(|&row| !shares(row)).unwrap_or(end))?;
            Some(start..row)
        })
    }
}
