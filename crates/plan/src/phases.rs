//! Grouping nodes into phases: runs of nodes between which no barrier is needed.

use crate::PhaseRules;
use std::ops::Range;
use verbatim_graph::{Graph, Node};

/// Greedy and in order: a node joins the current phase if nothing in that phase has to be finished by all threads
/// before it.
pub(crate) fn phases<O: PhaseRules>(graph: &Graph<O>) -> Vec<Range<usize>> {
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

fn joins<O: PhaseRules>(graph: &Graph<O>, earlier: &Node<O>, node: &Node<O>) -> bool {
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
fn same_thread<O: PhaseRules>(graph: &Graph<O>, earlier: &Node<O>, node: &Node<O>, operand: usize) -> bool {
    earlier.op.splits_rows()
        && node.op.splits_rows()
        && node.op.reads_own_row_only(operand)
        && graph.value(earlier.output).shape.rows == graph.rows(node)
        && earlier.op.writes_state().is_none()
}
