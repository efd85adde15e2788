//! Attention of a step, dealt out in tasks. Which rows share a task, and who takes it, changes no bit of a result.
#![allow(unsafe_code)] // A task is handed its columns of its rows.

use super::Run;
use crate::ops::attention::{
    self, KvView, MAX_QUERIES, MAX_ROWS, PARTIAL_EXTRA, Path, Row, Scores, Scratch, rows_of_pass,
};
use crate::program::PreparedOp;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};
use verbatim_graph::Attention;
use verbatim_team::ThreadContext;

/// Tasks per thread that are enough for threads to finish together.
const TASKS_PER_THREAD: usize = 4;

impl Run<'_> {
    /// Each task is finished: some rows and one KV head, over all the positions they see.
    pub(super) fn attention(&self, prepared: &PreparedOp, attention: &Attention, thread: &ThreadContext<'_>) {
        let operands = Operands::new(self, prepared, attention);
        let rows = prepared.output.matrix().shape.rows.at(self.rows);
        let blocks = RowBlocks::new(&operands, rows, 1, thread.threads());
        let mut scratch = self.scratch(thread);
        let tasks = blocks.count() * attention.kv_heads;
        while let Some(taken) = prepared.tasks.take(1, tasks) {
            // Later rows see more positions: what takes longest comes first.
            let task = tasks - 1 - taken.start;
            let kv_head = task % attention.kv_heads;
            for run in blocks.runs(task / attention.kv_heads) {
                let keys = operands.keys(run.start, kv_head);
                for heads in operands.heads(kv_head, run.len()) {
                    let mut rows: [Row<'_>; MAX_ROWS] = Default::default();
                    for (place, row) in rows.iter_mut().zip(run.clone()) {
                        // SAFETY: one task makes these heads of this row, and the plan lets nobody else use their bytes.
                        *place = unsafe { operands.row(row, &heads, heads.start, 0) };
                    }
                    let scores = operands.scores(&heads);
                    attention::attend(self.isa, &keys, &scores, &mut scratch, &mut rows[..run.len()]);
                }
            }
        }
    }

    /// Each task is a partial: some rows and one KV head, over one split of positions.
    pub(super) fn attention_partials(
        &self,
        prepared: &PreparedOp,
        attention: &Attention,
        thread: &ThreadContext<'_>,
    ) {
        let operands = Operands::new(self, prepared, attention);
        let rows = prepared.output.matrix().shape.rows.at(self.rows);
        let splits = (0..rows).map(|row| operands.splits(row).len()).max().unwrap_or(0);
        let blocks = RowBlocks::new(&operands, rows, splits, thread.threads());
        // Rows that share K and V may begin in different splits, so together they may see more than each.
        let runs = (0..blocks.count()).flat_map(|block| blocks.runs(block));
        let splits = runs.map(|run| operands.splits_of(run).len()).max().unwrap_or(0);
        let slots =
            prepared.output.matrix().shape.cols / (attention.heads * (attention.head_dim + PARTIAL_EXTRA));
        let mut scratch = self.scratch(thread);
        let per_slot = blocks.count() * attention.kv_heads;
        let tasks = splits * per_slot;
        while let Some(taken) = prepared.tasks.take(1, tasks) {
            // The last split of a row is seldom full, so it comes last.
            let (slot, task) = (taken.start / per_slot, taken.start % per_slot);
            let kv_head = task % attention.kv_heads;
            for run in blocks.runs(task / attention.kv_heads) {
                let split = operands.splits_of(run.clone()).start + slot;
                let seeing = run.clone().filter(|&row| operands.splits(row).contains(&split));
                let keys = operands.keys(run.start, kv_head);
                for heads in operands.heads(kv_head, run.len()) {
                    let mut rows: [Row<'_>; MAX_ROWS] = Default::default();
                    let mut count = 0;
                    for row in seeing.clone() {
                        let slot = split - operands.splits(row).start;
                        assert!(slot < slots, "position beyond the page table");
                        let head = slot * attention.heads + heads.start;
                        // SAFETY: one task makes this partial of this row, and the plan lets nobody else use its bytes.
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

    /// Some heads of a row of the results that [`Run::attention_partials`] has left in partials.
    ///
    /// # Safety
    /// Nobody else may read or write these heads of the row meanwhile.
    pub(super) unsafe fn merge_attention(
        &self,
        prepared: &PreparedOp,
        attention: &Attention,
        row: usize,
        merged: Range<usize>,
    ) {
        let &Attention { heads, head_dim, window, .. } = attention;
        let partials: &[f32] = prepared.operands[0].matrix().row(self.arena, row);
        let splits = attention::splits(seen(window, self.index(prepared.operands[1].matrix(), row)));
        let sinks = prepared.operands.get(2).map(|sinks| self.weights.vector(sinks.weight()));
        let cols = merged.start * head_dim..merged.end * head_dim;
        // SAFETY: the caller's promise.
        let out: &mut [f32] = unsafe { prepared.output.matrix().columns_mut(self.arena, row, cols) };
        let partial_len = head_dim + PARTIAL_EXTRA;
        for (head, out) in merged.zip(out.chunks_exact_mut(head_dim)) {
            let slots = partials.chunks_exact(heads * partial_len).take(splits.len());
            let partials = slots.map(|slot| &slot[head * partial_len..][..partial_len]);
            attention::merge(self.isa, sinks.map(|sinks| sinks[head]), partials, out);
        }
    }

    fn scratch(&self, thread: &ThreadContext<'_>) -> MutexGuard<'_, Scratch> {
        // What a thread that has panicked left in its scratch is never read.
        self.scratch[thread.index()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first and the last position that a row sees.
fn seen(window: Option<usize>, position: usize) -> (usize, usize) {
    (window.map_or(0, |window| (position + 1).saturating_sub(window)), position)
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
        self.run.index(self.prepared.operands[operand].matrix(), row)
    }

    fn sequence(&self, row: usize) -> usize {
        self.index(3, row)
    }

    fn seen(&self, row: usize) -> (usize, usize) {
        seen(self.attention.window, self.index(2, row))
    }

    fn splits(&self, row: usize) -> Range<usize> {
        attention::splits(self.seen(row))
    }

    /// From the first split that one of these rows sees something of to the last.
    fn splits_of(&self, rows: Range<usize>) -> Range<usize> {
        let splits = rows.map(|row| self.splits(row));
        splits.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    fn path(&self, row: usize) -> Option<Path<'a>> {
        if !self.attention.paths {
            return None;
        }
        let base = self.index(5, row);
        let cells = self.prepared.operands[6].matrix().row(self.run.arena, row);
        (base <= self.index(2, row)).then_some(Path { base, cells })
    }

    /// What a row's query heads of one KV head attend to.
    fn keys(&self, row: usize, kv_head: usize) -> KvView<'a> {
        let layer = &self.run.state.kv.layers()[self.prepared.operands[1].state()];
        let pages = self.prepared.operands[4].matrix().row(self.run.arena, self.sequence(row));
        KvView { layer, kv_head, pages, path: self.path(row) }
    }

    /// The query heads of one KV head, in runs of so many as can share a pass with those of so many rows.
    fn heads(&self, kv_head: usize, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let group = self.attention.heads / self.attention.kv_heads;
        let (start, end, most) = (kv_head * group, (kv_head + 1) * group, MAX_QUERIES / rows);
        (start..end).step_by(most).map(move |head| head..end.min(head + most))
    }

    fn scores(&self, heads: &Range<usize>) -> Scores<'a> {
        let &Attention { scale, softcap, sinks, paths, .. } = self.attention;
        let sinks = sinks.then(|| {
            let weight = self.prepared.operands[if paths { 7 } else { 5 }].weight();
            &self.run.weights.vector(weight)[heads.clone()]
        });
        Scores { scale: scale.0, softcap: softcap.map(|cap| cap.0), sinks }
    }

    /// Some query heads of a row, and where their results go: to the output's columns from `head` heads on, each of
    /// `extra` elements more than a head.
    ///
    /// # Safety
    /// While the result lives, nobody else may read or write these columns of the row, which are the output's.
    unsafe fn row(&self, row: usize, heads: &Range<usize>, head: usize, extra: usize) -> Row<'a> {
        let head_dim = self.attention.head_dim;
        let q: &[f32] = self.prepared.operands[0].matrix().row(self.run.arena, row);
        let (column, cols) = (head * (head_dim + extra), heads.len() * (head_dim + extra));
        // SAFETY: the caller's promise.
        let out =
            unsafe { self.prepared.output.matrix().columns_mut(self.run.arena, row, column..column + cols) };
        let (first, position) = self.seen(row);
        Row { q: &q[heads.start * head_dim..heads.end * head_dim], first, position, out }
    }
}

/// The rows of a step in blocks of so many as a task takes.
struct RowBlocks<'a> {
    operands: &'a Operands<'a>,
    rows: usize,
    len: usize,
}

impl<'a> RowBlocks<'a> {
    /// Blocks as long as K and V can be shared, but so short that every thread has something to do where each block makes
    /// `splits` tasks of a KV head.
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

    /// Runs of rows of a block that attend to the same K and V: those of one sequence, none with a path of its own.
    fn runs(&self, block: usize) -> impl Iterator<Item = Range<usize>> {
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
