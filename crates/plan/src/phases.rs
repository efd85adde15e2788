//! Grouping nodes into phases: runs of nodes between which no barrier is needed.

use std::ops::Range;
use verbatim_graph::{Graph, Node};

/// Greedy and in order: a node joins the current phase if nothing in that phase has to be finished by all threads
/// before it.
pub(crate) fn phases(graph: &Graph) -> Vec<Range<usize>> {
    let mut phases: Vec<Range<usize>> = Vec::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        match phases.last_mut() {
            Some(phase) if graph.nodes()[phase.clone()].iter().all(|earlier| joins(graph, earlier, node)) => {
                phase.end = index + 1;
            }
            _ => phases.push(index..index + 1),
        }
    }
    phases
}

fn joins(graph: &Graph, earlier: &Node, node: &Node) -> bool {
    let waits_for_operand = node.operands.iter().enumerate().any(|(i, &operand)| {
        let (root, _) = graph.root(operand);
        root == earlier.output && !same_thread(graph, earlier, node, i)
    });
    // A write in place waits for the readers and writers of the version before.
    let waits_for_state = node.op.writes_state().is_some_and(|i| {
        let written = graph.state(node.operands[i]);
        earlier.operands.iter().any(|&operand| graph.state(operand) == written)
    });
    !waits_for_operand && !waits_for_state
}

/// Whether what `node` reads of `earlier`'s result can be made by the thread that reads it.
fn same_thread(graph: &Graph, earlier: &Node, node: &Node, operand: usize) -> bool {
    earlier.op.splits_rows()
        && node.op.splits_rows()
        && node.op.reads_own_row_only(operand)
        && graph.value(earlier.output).shape.rows == graph.rows(node)
        && earlier.op.writes_state().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_graph::{Attention, Bounds, Builder, Op, Real, Shape, Tag};
    use verbatim_quant::DType;

    #[test]
    fn keys_are_stored_in_the_phase_that_makes_them_and_attended_to_in_the_next() {
        let mut b = Builder::new(Bounds { rows: 2, picked: 1 });
        let state = b.state(Tag::new("kv")).unwrap();
        let mut input = |name, dtype, shape| b.input(Tag::new(name), dtype, shape).unwrap();
        let [q, k, v] = ["q", "k", "v"].map(|name| input(name, DType::F32, Shape::per_row(8)));
        let [cells, positions, sequences] =
            ["cells", "positions", "sequences"].map(|name| input(name, DType::I32, Shape::per_row(1)));
        let pages = input("pages", DType::I32, Shape::fixed(1, 1));
        let k = b.apply(Op::Hadamard { heads: 1, head_dim: 8 }, &[k]).unwrap();
        let state = b.apply(Op::KvWrite { kv_heads: 1, head_dim: 8 }, &[state, k, v, cells]).unwrap();
        let q = b.apply(Op::Hadamard { heads: 1, head_dim: 8 }, &[q]).unwrap();
        let attention = Attention {
            heads: 1,
            kv_heads: 1,
            head_dim: 8,
            scale: Real(1.0),
            window: None,
            softcap: None,
            sinks: false,
            paths: false,
        };
        let out = b.apply(Op::Attention(attention), &[q, state, positions, sequences, pages]).unwrap();
        b.output(Tag::new("out"), out).unwrap();
        assert_eq!(phases(&b.finish()), [0..3, 3..4]);
    }
}
