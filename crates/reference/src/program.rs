//! Programs: a checked graph, and the last use of each of its values.

use crate::weights::{Weight, Weights};
use verbatim_backend::PrepareError;
use verbatim_graph::{Def, Extent, Graph, Lifetime, Node, Placement, Tag, ValueId};

/// A graph that can be run against one table of weights.
pub struct Program {
    graph: Graph,
    /// By node: the values that no later node reads.
    freed: Vec<Vec<ValueId>>,
    weights_id: u64,
}

impl Program {
    pub(crate) fn new(graph: &Graph, weights: &Weights) -> Result<Program, PrepareError> {
        if let Some(value) = graph.values().iter().find(|value| value.placement != Placement::Host) {
            return Err(PrepareError::Placement(value.placement));
        }
        for node in graph.nodes() {
            for operand in 0..node.operands.len() {
                check_weight(graph, node, operand, weights)?;
            }
        }
        Ok(Program { graph: graph.clone(), freed: freed(graph), weights_id: weights.id() })
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(crate) fn freed_after(&self, node: usize) -> &[ValueId] {
        &self.freed[node]
    }

    pub(crate) fn weights_id(&self) -> u64 {
        self.weights_id
    }

    pub(crate) fn output(&self, tag: Tag) -> Option<ValueId> {
        self.graph.outputs().iter().find(|(other, _)| *other == tag).map(|&(_, id)| id)
    }
}

/// By node: the values that are read there for the last time, and that the caller does not read.
fn freed(graph: &Graph) -> Vec<Vec<ValueId>> {
    let mut last_use = vec![None; graph.values().len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        for &operand in &node.operands {
            last_use[graph.root(operand).0.index()] = Some(index);
        }
    }
    let mut freed = vec![Vec::new(); graph.nodes().len()];
    for (index, reader) in last_use.into_iter().enumerate() {
        let is_free = matches!(graph.values()[index].lifetime, Lifetime::Input | Lifetime::Temp);
        if let Some(reader) = reader.filter(|_| is_free) {
            freed[reader].push(ValueId::new(index));
        }
    }
    freed
}

/// Checks that an operand that is a weight is in the table, with the kind, type and shape that its op reads.
fn check_weight(graph: &Graph, node: &Node, operand: usize, weights: &Weights) -> Result<(), PrepareError> {
    let value = graph.value(node.operands[operand]);
    let (Lifetime::Weight, Def::Leaf(tag), Extent::Fixed(rows)) =
        (value.lifetime, value.def, value.shape.rows)
    else {
        return Ok(());
    };
    let wanted = (node.op.weight_kind(operand), value.dtype, (rows, value.shape.cols));
    let weight = weights.get(tag.index as usize);
    if weight.is_some_and(|weight| (weight.kind(), weight.dtype(), weight.shape()) == wanted) {
        return Ok(());
    }
    let describe = |weight: &Weight| {
        let (rows, cols) = weight.shape();
        format!("[{rows}, {cols}] of {} as {:?}", weight.dtype(), weight.kind())
    };
    Err(PrepareError::Weight {
        tag,
        wanted: format!("{} of {} as {:?}", value.shape, value.dtype, wanted.0),
        found: weight.map_or("none".into(), describe),
    })
}
