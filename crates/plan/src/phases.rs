//! Grouping nodes into phases: runs of nodes between which no barrier is needed.

use std::ops::Range;
use verbatim_graph::{Graph, Node, Op, OpRules};

/// Which nodes may share a phase, that is, run without a barrier. By default dependent nodes may not, which is right for a
/// backend that runs one op at a time.
pub trait PhaseRules: OpRules {
    /// Whether threads divide the op by rows: a thread computes whole rows, or slices of columns of rows (*units*) that only it
    /// reads in the same phase.
    fn splits_rows(&self) -> bool {
        false
    }

    /// Whether this operand is row-local: row i of the result reads only row i of it. Only such an operand may be computed in the
    /// same phase, by the same thread, without a barrier in between.
    fn is_row_local(&self, operand: usize) -> bool {
        let _ = operand;
        false
    }
}

impl PhaseRules for Op {}

/// Greedy and in order: a node joins the current phase unless it depends on a result of that phase computed by another thread.
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
    // A write in place waits for the readers and writers of the previous version.
    let waits_for_state = node.op.writes_state().is_some_and(|i| {
        let written = graph.state(node.operands[i]);
        earlier.operands.iter().any(|&operand| graph.state(operand) == written)
    });
    !waits_for_operand && !waits_for_state
}

/// Whether the thread that computes `node` itself computed what it reads of `earlier`'s result.
fn same_thread<O: PhaseRules>(graph: &Graph<O>, earlier: &Node<O>, node: &Node<O>, operand: usize) -> bool {
    earlier.op.splits_rows()
        && node.op.splits_rows()
        && node.op.is_row_local(operand)
        && graph.value(earlier.output).shape.rows == graph.rows(node)
        && earlier.op.writes_state().is_none()
}
