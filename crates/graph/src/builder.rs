//! Building graphs: leaves, ops with their shape rules, views, outputs; and pruning of unused values.

use crate::value::{Def, Lifetime, NodeId, Placement, RowCounts, Shape, Tag, Value, ValueId};
use crate::{Graph, GraphError, Node, Op, OpRules, bytes_at};
use verbatim_quant::DType;

/// Builds a [`Graph`], node by node.
pub struct Builder<O = Op> {
    graph: Graph<O>,
    placement: Placement,
}

impl<O: OpRules> Builder<O> {
    /// A builder of a graph for at most these numbers of rows.
    pub fn new(bounds: RowCounts) -> Self {
        let graph = Graph { bounds, values: Vec::new(), nodes: Vec::new(), outputs: Vec::new() };
        Builder { graph, placement: Placement::Host }
    }

    /// Places the values declared from here on.
    pub fn place(&mut self, placement: Placement) {
        self.placement = placement;
    }

    /// A weight of the model.
    pub fn weight(&mut self, tag: Tag, dtype: DType, shape: Shape) -> Result<ValueId, GraphError> {
        self.leaf(Lifetime::Weight, tag, dtype, shape)
    }

    /// The current version of a state, such as one layer's K and V. The backend manages its memory.
    pub fn state(&mut self, tag: Tag) -> Result<ValueId, GraphError> {
        self.leaf(Lifetime::State, tag, DType::I8, Shape::fixed(0, 0))
    }

    /// A value that the caller writes before each run.
    pub fn input(&mut self, tag: Tag, dtype: DType, shape: Shape) -> Result<ValueId, GraphError> {
        self.leaf(Lifetime::Input, tag, dtype, shape)
    }

    fn leaf(
        &mut self,
        lifetime: Lifetime,
        tag: Tag,
        dtype: DType,
        shape: Shape,
    ) -> Result<ValueId, GraphError> {
        if self.graph.leaves(lifetime).any(|(other, _)| other == tag) {
            return Err(GraphError::DuplicateTag(tag));
        }
        self.add(Value { dtype, shape, lifetime, placement: self.placement, def: Def::Leaf(tag) })
    }

    /// Applies an op. The operands' types and shapes are checked against the op's rule.
    pub fn apply(&mut self, op: O, operands: &[ValueId]) -> Result<ValueId, GraphError> {
        let values: Vec<&Value> = operands.iter().map(|&id| self.graph.value(id)).collect();
        let wrong = |problem| GraphError::Operands { op: op.name(), problem };
        let (dtype, shape) = op.infer(&values).map_err(wrong)?;
        for &operand in operands {
            if let Some(state) = self.graph.state(operand)
                && self
                    .graph
                    .nodes
                    .iter()
                    .any(|n| n.op.writes_state().map(|i| n.operands[i]) == Some(operand))
            {
                return Err(GraphError::StaleState { op: op.name(), state });
            }
        }
        let lifetime = match op.writes_state() {
            Some(i) if values[i].lifetime != Lifetime::State => {
                return Err(wrong(format!("operand {i} is not a state")));
            }
            Some(_) if op.returns_state() => Lifetime::State,
            _ => Lifetime::Temp,
        };
        let def = Def::Node(NodeId::new(self.graph.nodes.len()));
        let output = self.add(Value { dtype, shape, lifetime, placement: self.placement, def })?;
        self.graph.nodes.push(Node { op, operands: operands.to_vec(), output });
        Ok(output)
    }

    /// The columns `start..start + cols` of a value, in its storage.
    pub fn columns(&mut self, base: ValueId, start: usize, cols: usize) -> Result<ValueId, GraphError> {
        let value = self.graph.value(base);
        let in_arena = matches!(value.lifetime, Lifetime::Input | Lifetime::Temp | Lifetime::Output);
        if !in_arena || start.checked_add(cols).is_none_or(|end| end > value.shape.cols) {
            let Value { lifetime, shape, .. } = value;
            let problem = format!(
                "columns {start} to {start}+{cols} of a {lifetime:?} value {shape} cannot be viewed: only columns of an input \
                 or a computed value, within it"
            );
            return Err(GraphError::Operands { op: "Columns", problem });
        }
        let shape = Shape { rows: value.shape.rows, cols };
        self.add(Value { shape, def: Def::Columns { base, start }, ..value.clone() })
    }

    /// Lets the caller read `value` after the run.
    pub fn output(&mut self, tag: Tag, value: ValueId) -> Result<(), GraphError> {
        if self.graph.outputs.iter().any(|&(other, _)| other == tag) {
            return Err(GraphError::DuplicateTag(tag));
        }
        let (root, _) = self.graph.root(value);
        match self.graph.value(root).lifetime {
            Lifetime::Temp | Lifetime::Output => {}
            lifetime => return Err(GraphError::NotComputed { tag, lifetime }),
        }
        for id in [value, root] {
            self.graph.values[id.index()].lifetime = Lifetime::Output;
        }
        self.graph.outputs.push((tag, value));
        Ok(())
    }

    /// The shape of a value.
    pub fn shape(&self, id: ValueId) -> Shape {
        self.graph.value(id).shape
    }

    /// The element type of a value.
    pub fn dtype(&self, id: ValueId) -> DType {
        self.graph.value(id).dtype
    }

    fn add(&mut self, value: Value) -> Result<ValueId, GraphError> {
        let Value { dtype, shape, .. } = value;
        if bytes_at(&value, self.graph.bounds).is_none() {
            let rows = shape.rows.at(self.graph.bounds);
            return Err(GraphError::TooLarge { rows, cols: shape.cols, dtype });
        }
        self.graph.values.push(value);
        Ok(ValueId::new(self.graph.values.len() - 1))
    }

    /// The graph, without the nodes and leaves from which no output and no state can be reached.
    pub fn finish(self) -> Graph<O> {
        prune(self.graph)
    }
}

fn prune<O: OpRules>(graph: Graph<O>) -> Graph<O> {
    let mut live = vec![false; graph.values.len()];
    for &(_, id) in &graph.outputs {
        live[id.index()] = true;
    }
    // A state's new version outlives the step: the next step reads it.
    for node in graph.nodes.iter().filter(|node| node.op.writes_state().is_some()) {
        live[node.output.index()] = true;
    }
    // Values are in topological order, so one backward pass reaches everything.
    for index in (0..graph.values.len()).rev().filter(|&i| live[i]).collect::<Vec<_>>() {
        mark(&graph, ValueId::new(index), &mut live);
    }
    renumber(&graph, &live)
}

fn mark<O: OpRules>(graph: &Graph<O>, root: ValueId, live: &mut [bool]) {
    let mut pending = vec![root];
    while let Some(id) = pending.pop() {
        live[id.index()] = true;
        let sources: &[ValueId] = match &graph.value(id).def {
            Def::Leaf(_) => &[],
            Def::Columns { base, .. } => std::slice::from_ref(base),
            Def::Node(node) => &graph.nodes[node.index()].operands,
        };
        pending.extend(sources.iter().filter(|source| !live[source.index()]));
    }
}

fn renumber<O: OpRules>(graph: &Graph<O>, live: &[bool]) -> Graph<O> {
    let mut mapped = vec![ValueId::new(0); live.len()];
    let mut kept = Graph { bounds: graph.bounds, values: vec![], nodes: vec![], outputs: vec![] };
    for (index, value) in graph.values.iter().enumerate().filter(|&(index, _)| live[index]) {
        let id = ValueId::new(kept.values.len());
        mapped[index] = id;
        let def = match value.def {
            Def::Leaf(tag) => Def::Leaf(tag),
            Def::Columns { base, start } => Def::Columns { base: mapped[base.index()], start },
            Def::Node(node) => {
                let node = &graph.nodes[node.index()];
                let operands = node.operands.iter().map(|operand| mapped[operand.index()]).collect();
                kept.nodes.push(Node { op: node.op, operands, output: id });
                Def::Node(NodeId::new(kept.nodes.len() - 1))
            }
        };
        kept.values.push(Value { def, ..value.clone() });
    }
    kept.outputs = graph.outputs.iter().map(|&(tag, id)| (tag, mapped[id.index()])).collect();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::F32Bits;

    const X: Tag = Tag::new("x");
    const Y: Tag = Tag::new("y");

    fn builder() -> Builder {
        Builder::new(RowCounts { rows: 4, output_rows: 2 })
    }

    #[test]
    fn unused_values_are_pruned_inputs_included() {
        let mut b = builder();
        let x = b.input(X, DType::F32, Shape::per_row(8)).unwrap();
        let dead = b.input(Y, DType::F32, Shape::per_row(8)).unwrap();
        let read = b.apply(Op::Scale { factor: F32Bits(2.0) }, &[x]).unwrap();
        b.apply(Op::Add, &[read, dead]).unwrap();
        b.output(Tag::new("out"), read).unwrap();
        let graph = b.finish();
        assert_eq!(graph.nodes().len(), 1);
        assert_eq!(graph.leaves(Lifetime::Input).map(|(tag, _)| tag).collect::<Vec<_>>(), [X]);
    }

    #[test]
    fn a_write_to_state_is_kept_without_attention() {
        let mut b = builder();
        let state = b.state(Tag::new("kv")).unwrap();
        let k = b.input(X, DType::F32, Shape::per_row(8)).unwrap();
        let cells = b.input(Tag::new("cells"), DType::I32, Shape::per_row(1)).unwrap();
        b.input(Tag::new("positions"), DType::I32, Shape::per_row(1)).unwrap();
        b.apply(Op::KvWrite { kv_heads: 1, head_dim: 8 }, &[state, k, k, cells]).unwrap();
        let graph = b.finish();
        assert_eq!(graph.nodes().len(), 1);
        assert_eq!(graph.leaves(Lifetime::Input).count(), 2);
    }

    #[test]
    fn an_overwritten_version_of_a_state_cannot_be_read() {
        let mut b = builder();
        let tag = Tag::new("kv");
        let state = b.state(tag).unwrap();
        let k = b.input(X, DType::F32, Shape::per_row(8)).unwrap();
        let cells = b.input(Tag::new("cells"), DType::I32, Shape::per_row(1)).unwrap();
        let op = Op::KvWrite { kv_heads: 1, head_dim: 8 };
        let next = b.apply(op, &[state, k, k, cells]).unwrap();
        let stale = Err(GraphError::StaleState { op: "KvWrite", state: tag });
        assert_eq!(b.apply(op, &[state, k, k, cells]), stale);
        let last = b.apply(op, &[next, k, k, cells]).unwrap();
        assert_eq!(b.finish().state(last), Some(tag));
    }

    #[test]
    fn shape_mismatches_are_described() {
        let mut b = builder();
        let x = b.input(X, DType::F32, Shape::per_row(8)).unwrap();
        let w = b.weight(Tag::new("w"), DType::Q4_0, Shape::fixed(16, 32)).unwrap();
        let error = b.apply(Op::Linear { bias: false, residual: false }, &[x, w]).unwrap_err();
        assert_eq!(error.to_string(), "Linear: the weight is [16, 32] but x has 8 columns");
        assert!(b.apply(Op::Add, &[x]).is_err());
        assert!(b.columns(x, 4, 5).is_err());
        assert!(b.columns(x, usize::MAX, 5).is_err());
        assert_eq!(b.output(Y, x), Err(GraphError::NotComputed { tag: Y, lifetime: Lifetime::Input }));
        assert_eq!(b.input(X, DType::I32, Shape::per_row(1)), Err(GraphError::DuplicateTag(X)));
    }

    #[test]
    fn sizes_near_the_maximum_of_usize_are_refused() {
        let mut b = builder();
        for cols in [usize::MAX, usize::MAX / 4, usize::MAX / 16, isize::MAX as usize / 16 + 1] {
            let error = b.input(X, DType::F32, Shape::per_row(cols)).unwrap_err();
            assert!(matches!(error, GraphError::TooLarge { .. }), "{error}");
        }
        b.input(X, DType::F32, Shape::per_row(isize::MAX as usize / 16)).unwrap();
    }

    #[test]
    fn views_of_views_find_their_root() {
        let mut b = builder();
        let x = b.input(X, DType::F32, Shape::per_row(16)).unwrap();
        let middle = b.columns(x, 4, 8).unwrap();
        let inner = b.columns(middle, 2, 4).unwrap();
        let y = b.apply(Op::Scale { factor: F32Bits(1.0) }, &[inner]).unwrap();
        b.output(Y, y).unwrap();
        let graph = b.finish();
        let read = graph.nodes()[0].operands[0];
        assert_eq!(graph.root(read), (ValueId::new(0), 6));
        assert_eq!(graph.value(y).shape, Shape::per_row(4));
    }
}
