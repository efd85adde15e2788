//! The partition of the rows of a phase's ops among threads.
//!
//! A step may have fewer rows than threads, so rows are split into *units* (equal column slices), each of which an op computes
//! independently. A thread takes a run of the units of all rows: mostly whole rows if there are many, and a part of the only
//! row in single-sequence decoding.
//!
//! There is no barrier between the ops of a phase, so what an op reads of another op's result must have been computed by the same
//! thread. Two ops with such a dependency have the same row count and are split into the same number of column slices, so that
//! their units go to the same threads: unit u of the one may read unit u of the other. If the second op needs more than that, both
//! have one unit, and a thread computes whole rows. Values of earlier phases are complete and may be read whole.

use crate::op::CpuOp;
use crate::work::{Division, Units, Work, gcd};
use std::ops::Range;
use verbatim_graph::{Graph, Node};

/// The number of units of a row, for each node of a phase.
pub(crate) fn units(graph: &Graph<CpuOp>, phase: &[Node<CpuOp>]) -> Vec<usize> {
    let mut units: Vec<usize> = phase.iter().map(|node| max_units(graph, node)).collect();
    // Every change replaces a number by a divisor, so this terminates.
    let mut is_fixpoint = false;
    while !is_fixpoint {
        is_fixpoint = true;
        for (reader, node) in phase.iter().enumerate() {
            for (i, &operand) in node.operands.iter().enumerate() {
                let (root, _) = graph.root(operand);
                let Some(producer) = phase[..reader].iter().position(|earlier| earlier.output == root) else {
                    continue;
                };
                // The units of a view differ from those of its base.
                let is_local = operand == root && Work::for_op(&node.op).unit_local.contain(i);
                let both = if is_local { gcd(units[producer], units[reader]) } else { 1 };
                is_fixpoint &= units[producer] == both && units[reader] == both;
                (units[producer], units[reader]) = (both, both);
            }
        }
    }
    units
}

/// Maximum number of units of a row of the result, each computed independently.
fn max_units(graph: &Graph<CpuOp>, node: &Node<CpuOp>) -> usize {
    let units = match Work::for_op(&node.op).division {
        Division::Rows(units) => units,
        Division::Chunks => Units::One,
    };
    let cols = |value| graph.value(value).shape.cols;
    units.count(cols(node.output), cols(node.operands[0]))
}

/// The units that a thread computes: rows, and the units of each row. Together the threads cover all units of all rows exactly
/// once.
pub(crate) fn thread_units(
    rows: usize,
    units: usize,
    thread: usize,
    threads: usize,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let all = rows * units;
    let (start, end) = (all * thread / threads, all * (thread + 1) / threads);
    let touched = if start < end { start / units..end.div_ceil(units) } else { 0..0 };
    touched.map(move |row| {
        let first = row * units;
        (row, start.max(first) - first..end.min(first + units) - first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_graph::{Activation, Builder, F32Bits, Op, RopeLayout, RowCounts, Shape, Tag, ValueId};
    use verbatim_quant::DType;

    fn builder() -> Builder<CpuOp> {
        Builder::<CpuOp>::new(RowCounts { rows: 4, output_rows: 4 })
    }

    fn input(b: &mut Builder<CpuOp>, name: &'static str, dtype: DType, cols: usize) -> ValueId {
        b.input(Tag::new(name), dtype, Shape::per_row(cols)).unwrap()
    }

    fn floats<const N: usize>(b: &mut Builder<CpuOp>, names: [&'static str; N], cols: usize) -> [ValueId; N] {
        names.map(|name| input(b, name, DType::F32, cols))
    }

    fn norm(b: &mut Builder<CpuOp>, x: ValueId, groups: usize) -> ValueId {
        let cols = b.shape(x).cols / groups;
        let tag = Tag::indexed("norm", x.index() as u32);
        let weight = b.weight(tag, DType::F32, Shape::fixed(1, cols)).unwrap();
        b.apply(Op::RmsNorm { eps: F32Bits(1e-5), groups }.into(), &[x, weight]).unwrap()
    }

    fn quantize(b: &mut Builder<CpuOp>, x: ValueId, terms: usize) -> ValueId {
        let row_bytes = terms * verbatim_matrix::activation_row_bytes(b.shape(x).cols);
        b.apply(CpuOp::Quantize { row_bytes, terms }, &[x]).unwrap()
    }

    /// The units of all nodes, as one phase. `kept` are outputs, so that no node is pruned.
    fn units_of(mut b: Builder<CpuOp>, kept: &[ValueId]) -> Vec<usize> {
        for (index, &value) in kept.iter().enumerate() {
            b.output(Tag::indexed("out", index as u32), value).unwrap();
        }
        let graph = b.finish();
        units(&graph, graph.nodes())
    }

    #[test]
    fn parts_cover_every_unit_of_every_row_once_and_evenly() {
        for (rows, units, threads) in
            (0..5).flat_map(|r| (1..8).flat_map(move |u| (1..10).map(move |t| (r, u, t))))
        {
            let all: Vec<(usize, usize)> = (0..threads)
                .flat_map(|thread| thread_units(rows, units, thread, threads))
                .flat_map(|(row, units)| units.map(move |unit| (row, unit)))
                .collect();
            let wanted: Vec<_> = (0..rows).flat_map(|row| (0..units).map(move |unit| (row, unit))).collect();
            assert_eq!(all, wanted, "{threads} threads");
            let most = (0..threads)
                .map(|thread| thread_units(rows, units, thread, threads).map(|(_, u)| u.len()).sum());
            assert_eq!(most.max(), Some((rows * units).div_ceil(threads)));
        }
    }

    #[test]
    fn dependent_ops_have_equal_units_and_others_their_own() {
        let mut b = builder();
        let [x, gate, up] = floats(&mut b, ["x", "gate", "up"], 1536);
        let normed = norm(&mut b, x, 1);
        let normed = quantize(&mut b, normed, 2);
        let glu = b.apply(Op::Glu { activation: Activation::Silu }.into(), &[gate, up]).unwrap();
        let sum = b.apply(Op::Add.into(), &[gate, up]).unwrap();
        let glu = quantize(&mut b, glu, 1);
        assert_eq!(units_of(b, &[normed, glu, sum]), [48, 48, 48, 96, 48]);
    }

    #[test]
    fn heads_have_the_units_of_their_keys_and_values() {
        let mut b = builder();
        let [q] = floats(&mut b, ["q"], 9 * 64);
        let [k, v] = floats(&mut b, ["k", "v"], 3 * 64);
        let [table] = floats(&mut b, ["table"], 64);
        let cells = input(&mut b, "cells", DType::I32, 1);
        let state = b.state(Tag::new("kv")).unwrap();
        let rope = |heads| CpuOp::Model(Op::Rope { heads, head_dim: 64, layout: RopeLayout::NeoX });
        let q = b.apply(rope(9), &[q, table]).unwrap();
        let k = norm(&mut b, k, 3);
        let k = b.apply(rope(3), &[k, table]).unwrap();
        b.apply(Op::KvWrite { kv_heads: 3, head_dim: 64 }.into(), &[state, k, v, cells]).unwrap();
        assert_eq!(units_of(b, &[q]), [9, 3, 3, 3]);
    }

    #[test]
    fn a_row_that_is_read_whole_in_its_phase_is_computed_by_one_thread() {
        // A root mean square is that of all columns.
        let mut b = builder();
        let [x, y, z] = floats(&mut b, ["x", "y", "z"], 96);
        let sum = b.apply(Op::Add.into(), &[x, y]).unwrap();
        let normed = norm(&mut b, sum, 1);
        let quantized = quantize(&mut b, normed, 1);
        let other = b.apply(Op::Mul.into(), &[y, z]).unwrap();
        assert_eq!(units_of(b, &[quantized, other]), [1, 1, 1, 6]);

        // A view has a different first column.
        let mut b = builder();
        let [x, y] = floats(&mut b, ["x", "y"], 96);
        let sum = b.apply(Op::Add.into(), &[x, y]).unwrap();
        let half = b.columns(sum, 48, 48).unwrap();
        let half = b.apply(Op::Scale { factor: F32Bits(2.0) }.into(), &[half]).unwrap();
        assert_eq!(units_of(b, &[half]), [1, 1]);

        // A gate is read by all columns.
        let mut b = builder();
        let [x] = floats(&mut b, ["x"], 96);
        let [gate] = floats(&mut b, ["gate"], 1);
        let gate = b.apply(Op::Scale { factor: F32Bits(2.0) }.into(), &[gate]).unwrap();
        let gated = b.apply(Op::RowGate.into(), &[gate, x]).unwrap();
        assert_eq!(units_of(b, &[gated]), [1, 1]);
    }
}
