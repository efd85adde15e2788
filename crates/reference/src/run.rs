//! A run: inputs are filled, then each node is computed in order.

use crate::arena::{Arena, Buffer, Rows};
use crate::memory::zeros;
use crate::ops::attention::Path;
use crate::ops::recurrence::DeltaGates;
use crate::ops::{attention, elementwise, experts, hadamard, matmul, norm, recurrence, rope, sampling};
use crate::program::Program;
use crate::state::State;
use crate::weights::{Matrix, Weights};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use verbatim_backend::{BindError, FilledInput, InputBinding, RunError};
use verbatim_graph::{Attention, Def, DeltaHeads, Graph, Lifetime, Node, Op, RowCounts, Tag};

/// The outputs of a run.
pub struct Outputs<'a> {
    program: &'a Program,
    arena: &'a Arena,
    rows: RowCounts,
}

impl verbatim_backend::Outputs for Outputs<'_> {
    fn rows(&self, tag: Tag) -> Option<usize> {
        self.program.output(tag).map(|id| self.program.graph().value(id).shape.rows.at(self.rows))
    }

    fn row(&self, tag: Tag, row: usize) -> Option<&[f32]> {
        let rows = self.arena.f32(self.program.graph(), self.program.output(tag)?, self.rows)?;
        (row < rows.count()).then(|| rows.row(row))
    }

    fn row_i32(&self, tag: Tag, row: usize) -> Option<&[i32]> {
        let rows = self.arena.i32(self.program.graph(), self.program.output(tag)?, self.rows)?;
        (row < rows.count()).then(|| rows.row(row))
    }
}

pub(crate) fn run<'a>(
    program: &'a Program,
    arena: &'a mut Arena,
    rows: RowCounts,
    weights: &Weights,
    state: &mut State,
    fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
) -> Result<Outputs<'a>, RunError> {
    if program.weights_id() != weights.id() {
        return Err(RunError::WeightsMismatch);
    }
    let max = program.graph().bounds();
    if rows.rows > max.rows || rows.output_rows > max.output_rows {
        return Err(BindError::TooManyRows { given: rows, max }.into());
    }
    arena.reset(program.graph());
    bind(program.graph(), arena, rows, fill)?;
    // Ops panic on out-of-range indices, which come from the caller.
    let work = AssertUnwindSafe(|| compute_nodes(program, arena, rows, weights, state));
    catch_unwind(work).map_err(|panic| RunError::Panicked(message(&*panic)))??;
    Ok(Outputs { program, arena, rows })
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

fn bind(
    graph: &Graph,
    arena: &mut Arena,
    rows: RowCounts,
    mut fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
) -> Result<(), BindError> {
    for (tag, id) in graph.leaves(Lifetime::Input) {
        let value = graph.value(id);
        let mut buffer = Buffer::zeros(graph, id, rows)?;
        let count = value.shape.rows.at(rows) * value.shape.cols;
        let mut bytes = zeros(4 * count).ok_or(BindError::NoMemory(4 * count))?;
        fill(InputBinding::new(tag, value.dtype, count, &mut bytes))?;
        buffer.copy_from(&bytes);
        arena.put(id, buffer);
    }
    Ok(())
}

fn compute_nodes(
    program: &Program,
    arena: &mut Arena,
    rows: RowCounts,
    weights: &Weights,
    state: &mut State,
) -> Result<(), BindError> {
    let graph = program.graph();
    for (index, node) in graph.nodes().iter().enumerate() {
        let mut out = match graph.state(node.output) {
            Some(_) => Buffer::Empty,
            None => Buffer::zeros(graph, node.output, rows)?,
        };
        NodeContext { graph, node, arena, rows, weights }.compute(state, &mut out);
        arena.put(node.output, out);
        program.freed_after(index).iter().for_each(|&id| arena.free(id));
    }
    Ok(())
}

/// One node and its inputs.
struct NodeContext<'a> {
    graph: &'a Graph,
    node: &'a Node,
    arena: &'a Arena,
    rows: RowCounts,
    weights: &'a Weights,
}

impl<'a> NodeContext<'a> {
    /// Computes the node's result into `out`, which holds zeros; states are updated in `state`.
    fn compute(&self, state: &mut State, out: &mut Buffer) {
        let [a, b] = [0, 1].map(|i| move |row: usize| self.f32(i).row(row));
        match self.node.op {
            Op::Embed { scale, has_embeddings } => {
                let table = self.matrix(0);
                let embed = |row| matmul::table_row(table, self.index(1, row));
                self.f32_rows(out, |row| match self.i32(1).row(row)[0] {
                    ..0 if has_embeddings => self.f32(2).row(row).to_vec(),
                    _ => elementwise::scale(&embed(row), scale.0),
                });
            }
            Op::RmsNorm { eps, groups } => {
                self.f32_rows(out, |row| norm::rms_norm(a(row), self.vector(1), groups, eps.0));
            }
            Op::Linear { bias, residual } => {
                let residual = residual.then(|| self.f32(2 + usize::from(bias)));
                let bias = bias.then(|| self.vector(2));
                matmul::linear(self.f32(0), self.matrix(1), bias, residual, out.f32_mut());
            }
            Op::LmHead => matmul::linear(self.f32(0), self.matrix(1), None, None, out.f32_mut()),
            Op::RopeTable(table) => {
                let freq_factors = (self.node.operands.len() == 2).then(|| self.vector(1));
                let frequencies = rope::frequencies(&table, freq_factors);
                let mscale = rope::mscale(table.scaling);
                self.f32_rows(out, |row| rope::angles(self.i32(0).row(row)[0], &frequencies, mscale));
            }
            Op::Rope { head_dim, layout, .. } => self.f32_rows(out, |row| {
                a(row).chunks_exact(head_dim).flat_map(|head| rope::rotate(layout, head, b(row))).collect()
            }),
            Op::Hadamard { head_dim, .. } => self
                .f32_rows(out, |row| a(row).chunks_exact(head_dim).flat_map(hadamard::transform).collect()),
            Op::KvWrite { .. } => self.kv_write(state),
            Op::KvRead { .. } | Op::Concat { .. } | Op::ScatterLogits { .. } => self.of_draft(state, out),
            Op::Attention(attention) => self.attention(&attention, state, out),
            Op::MoeTopK { used, gating, bias } => {
                let bias = bias.then(|| self.vector(1));
                self.i32_rows(out, |row| experts::top_k(used, gating, a(row), bias));
            }
            Op::MoeWeights(router) => {
                let chosen = self.i32(1);
                self.f32_rows(out, |row| experts::router_weights(&router, a(row), chosen.row(row)));
            }
            Op::MoeLinear { experts, bias } => {
                let (x, weight, chosen) = (self.f32(0), self.matrix(1), self.i32(2));
                let bias = bias.then(|| self.vector(3));
                matmul::expert_linear(experts, x, weight, chosen, bias, out.f32_mut());
            }
            Op::MoeCombine => self.f32_rows(out, |row| experts::combine(a(row), b(row))),
            Op::RowGate => {
                self.f32_rows(out, |row| elementwise::scale(b(row), elementwise::sigmoid(a(row)[0])));
            }
            Op::HeadColumns { heads, start, cols } => {
                self.f32_rows(out, |row| elementwise::head_columns(a(row), heads, start, cols));
            }
            Op::ShortConv { kernel } => self.short_conv(kernel, state, out),
            Op::GatedDelta(heads) => self.gated_delta(heads, state, out),
            Op::Glu { activation } => self.f32_rows(out, |row| elementwise::glu(activation, a(row), b(row))),
            Op::Add => self.f32_rows(out, |row| elementwise::add(a(row), b(row))),
            Op::Mul => self.f32_rows(out, |row| elementwise::mul(a(row), b(row))),
            Op::Scale { factor } => self.f32_rows(out, |row| elementwise::scale(a(row), factor.0)),
            Op::Softcap { cap } => {
                self.f32_rows(out, |row| a(row).iter().map(|&x| elementwise::softcap(x, cap.0)).collect())
            }
            Op::GatherRows => self.f32_rows(out, |row| a(self.index(1, row)).to_vec()),
            Op::SampleParts | Op::SampleMerge => self.sample(out),
        }
    }

    /// The ops that only draft models have.
    fn of_draft(&self, state: &State, out: &mut Buffer) {
        match self.node.op {
            Op::KvRead { kv_heads, .. } => self.kv_read(kv_heads, state, out),
            Op::ScatterLogits { vocabulary } => self.f32_rows(out, |row| {
                elementwise::scatter(self.f32(0).row(row), self.i32(1).row(0), vocabulary)
            }),
            _ => {
                let parts = 0..self.node.operands.len();
                self.f32_rows(out, |row| {
                    parts.clone().flat_map(|part| self.f32(part).row(row)).copied().collect()
                });
            }
        }
    }

    fn sample(&self, out: &mut Buffer) {
        let operand = |i: usize, row: usize| self.i32(i).row(row);
        self.i32_rows(out, |row| match self.node.op {
            Op::SampleParts => sampling::parts(self.f32(0).row(row), operand(1, row), operand(2, row)),
            _ => vec![sampling::merge(operand(0, row), operand(1, row))],
        });
    }

    /// Each row's K and V, into its cell.
    fn kv_write(&self, state: &mut State) {
        let (k, v) = (self.f32(1), self.f32(2));
        let layer = state.kv_mut(self.state(0));
        (0..k.count()).for_each(|row| layer.write(self.index(3, row), k.row(row), v.row(row)));
    }

    /// K and V of each row's cell.
    fn kv_read(&self, kv_heads: usize, state: &State, out: &mut Buffer) {
        let layer = state.kv(self.state(0));
        let cols = self.graph.value(self.node.output).shape.cols;
        self.f32_rows(out, |row| match self.slot(1, row) {
            None => vec![0.0; cols],
            Some(cell) => {
                let keys = (0..kv_heads).flat_map(|head| layer.key(cell, head));
                keys.chain((0..kv_heads).flat_map(|head| layer.value(cell, head))).collect()
            }
        });
    }

    fn attention(&self, attention: &Attention, state: &State, out: &mut Buffer) {
        let layer = state.kv(self.state(1));
        let (q, pages) = (self.f32(0), self.i32(4));
        let path = |row| Path { tree_start: self.i32(5).row(row)[0], cells: self.i32(6).row(row) };
        let sinks = attention.sinks.then(|| self.vector(attention.sinks_operand()));
        let valid_from = |row| match attention.valid_from {
            true => self.index(attention.valid_from_operand(), row),
            false => 0,
        };
        self.f32_rows(out, |row| {
            let path = attention.paths.then(|| path(row));
            let pages = pages.row(self.index(3, row));
            let position = self.index(2, row);
            let first = attention::first_visible(attention.window, valid_from(row), position);
            let cells = attention::cells(first, position, pages, path);
            let key = |i: usize, head| layer.key(cells[i], head);
            let value = |i: usize, head| layer.value(cells[i], head);
            attention::attention(attention, q.row(row), cells.len(), key, value, sinks)
        });
    }

    /// Rows in order: one may read the slot that the one before it has written.
    fn short_conv(&self, kernel: usize, state: &mut State, out: &mut Buffer) {
        let layer = state.recurrent_mut(self.state(2));
        self.f32_rows(out, |row| {
            let mut history = match self.slot(3, row) {
                Some(slot) => layer.history(slot).to_vec(),
                None => vec![0.0; layer.history_len()],
            };
            let y = recurrence::short_conv(kernel, self.vector(1), &mut history, self.f32(0).row(row));
            layer.history_mut(self.index(4, row)).copy_from_slice(&history);
            y
        });
    }

    /// Rows in order: one may read the slot that the one before it has written.
    fn gated_delta(&self, heads: DeltaHeads, state: &mut State, out: &mut Buffer) {
        let layer = state.recurrent_mut(self.state(5));
        let (qkv, alpha, beta) = (self.f32(0), self.f32(1), self.f32(2));
        let (bias, rate) = (self.vector(3), self.vector(4));
        self.f32_rows(out, |row| {
            let mut states = match self.slot(6, row) {
                Some(slot) => layer.delta(slot).to_vec(),
                None => vec![0.0; layer.delta_len()],
            };
            let gates = DeltaGates { alpha: alpha.row(row), beta: beta.row(row), bias, rate };
            let y = recurrence::gated_delta(heads, qkv.row(row), gates, &mut states);
            layer.delta_mut(self.index(7, row)).copy_from_slice(&states);
            y
        });
    }

    fn f32(&self, operand: usize) -> Rows<'a, f32> {
        let rows = self.arena.f32(self.graph, self.node.operands[operand], self.rows);
        rows.expect("the shape rules require floats, computed by an earlier node")
    }

    fn i32(&self, operand: usize) -> Rows<'a, i32> {
        let rows = self.arena.i32(self.graph, self.node.operands[operand], self.rows);
        rows.expect("the shape rules require integers, computed by an earlier node")
    }

    /// A row's index, such as its cell; never negative.
    fn index(&self, operand: usize, row: usize) -> usize {
        usize::try_from(self.i32(operand).row(row)[0]).expect("indices are not negative")
    }

    /// A row's slot or cell; `None` if there is none before the row.
    fn slot(&self, operand: usize, row: usize) -> Option<usize> {
        usize::try_from(self.i32(operand).row(row)[0]).ok()
    }

    fn matrix(&self, operand: usize) -> &'a Matrix {
        self.weights.matrix(self.weight(operand))
    }

    fn vector(&self, operand: usize) -> &'a [f32] {
        self.weights.vector(self.weight(operand))
    }

    fn weight(&self, operand: usize) -> usize {
        match self.graph.value(self.node.operands[operand]).def {
            Def::Leaf(tag) => tag.index as usize,
            Def::Node(_) | Def::Columns { .. } => panic!("operand {operand} is computed, and not a weight"),
        }
    }

    fn state(&self, operand: usize) -> usize {
        let tag = self.graph.state(self.node.operands[operand]);
        tag.expect("the builder requires a state").index as usize
    }

    /// Fills the result row by row.
    fn f32_rows(&self, out: &mut Buffer, row: impl FnMut(usize) -> Vec<f32>) {
        by_row(self.graph.value(self.node.output).shape.cols, out.f32_mut(), row);
    }

    fn i32_rows(&self, out: &mut Buffer, row: impl FnMut(usize) -> Vec<i32>) {
        by_row(self.graph.value(self.node.output).shape.cols, out.i32_mut(), row);
    }
}

fn by_row<T: Copy>(cols: usize, out: &mut [T], mut compute: impl FnMut(usize) -> Vec<T>) {
    for (row, out) in out.chunks_exact_mut(cols.max(1)).enumerate() {
        out.copy_from_slice(&compute(row));
    }
}
