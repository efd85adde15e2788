//! The graph IR of a step: SSA values produced by ops.
//!
//! A [`Graph`] is built by a model's architecture file through a [`Builder`], is pure data, and knows nothing of
//! memory, threads or kernels. Two graphs are the same exactly when they are equal: every op with its parameters,
//! every edge, view, shape, lifetime and placement takes part in `Eq` and `Hash`, because a memory plan may only be
//! reused for a graph that is the same in all of these.

mod builder;
mod op;
#[cfg(feature = "random")]
pub mod random;
mod rule;
mod value;

pub use builder::Builder;
pub use op::{
    Activation, Attention, DeltaHeads, Gating, MAX_EXPERTS_USED, Op, RopeLayout, RopeScaling, RopeTable,
    Router,
};
pub use rule::{OpRules, Operands};
pub use value::{
    Def, Extent, F32Bits, Lifetime, NodeId, Placement, RowCounts, Shape, Tag, Value, ValueId, WeightKind,
};

/// Why a graph could not be built.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GraphError {
    /// An op was given operands that it cannot work on.
    #[error("{op}: {problem}")]
    Operands {
        /// The op's name.
        op: &'static str,
        /// What does not fit, with the shapes.
        problem: String,
    },
    /// A value's size in bytes, at the graph's bounds, does not fit in memory.
    #[error("a value of {rows} x {cols} elements of {dtype} exceeds the address space")]
    TooLarge {
        /// Rows at the bound.
        rows: usize,
        /// Columns.
        cols: usize,
        /// Element type.
        dtype: verbatim_quant::DType,
    },
    /// Only values that the step computes can be outputs.
    #[error("{tag}: a {lifetime:?} value cannot be an output; only a computed one can")]
    NotComputed {
        /// The output's name.
        tag: Tag,
        /// The value's lifetime.
        lifetime: Lifetime,
    },
    /// An op reads a state whose storage a later version has already overwritten.
    #[error("{op} reads a version of {state} that has been overwritten")]
    StaleState {
        /// The op's name.
        op: &'static str,
        /// The state.
        state: Tag,
    },
    /// Two leaves of one lifetime, or two outputs, carry the same tag.
    #[error("{0} is declared twice")]
    DuplicateTag(Tag),
}

/// One op applied to its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node<O = Op> {
    /// What is computed.
    pub op: O,
    /// The operands, in the order of the op's documentation.
    pub operands: Vec<ValueId>,
    /// The value that this node computes.
    pub output: ValueId,
}

/// A step's computation: nodes in execution order over values. Built by [`Builder::finish`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Graph<O = Op> {
    bounds: RowCounts,
    values: Vec<Value>,
    nodes: Vec<Node<O>>,
    outputs: Vec<(Tag, ValueId)>,
}

impl<O: OpRules> Graph<O> {
    /// Replaces every op by another with the same operands and result.
    pub fn map_ops<P: OpRules>(&self, op: impl Fn(O) -> P) -> Graph<P> {
        let nodes = self.nodes.iter().map(|node| Node {
            op: op(node.op),
            operands: node.operands.clone(),
            output: node.output,
        });
        Graph {
            bounds: self.bounds,
            values: self.values.clone(),
            nodes: nodes.collect(),
            outputs: self.outputs.clone(),
        }
    }

    /// The maximum row counts of a run.
    pub fn bounds(&self) -> RowCounts {
        self.bounds
    }

    /// All values; a [`ValueId`] is an index into them.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// One value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// All nodes, in topological order.
    pub fn nodes(&self) -> &[Node<O>] {
        &self.nodes
    }

    /// What the caller may read after a run.
    pub fn outputs(&self) -> &[(Tag, ValueId)] {
        &self.outputs
    }

    /// The value whose storage `id` lies in, and the first column of `id` within it. A value that is not a view is
    /// its own root.
    pub fn root(&self, mut id: ValueId) -> (ValueId, usize) {
        let mut column = 0;
        while let Def::Columns { base, start } = self.value(id).def {
            column += start;
            id = base;
        }
        (id, column)
    }

    /// The tag of the state that `id` is a version of; `None` if it is not a version of a state.
    pub fn state(&self, mut id: ValueId) -> Option<Tag> {
        loop {
            match self.value(id).def {
                Def::Leaf(tag) => return (self.value(id).lifetime == Lifetime::State).then_some(tag),
                Def::Columns { .. } => return None,
                Def::Node(node) => {
                    let node = &self.nodes[node.index()];
                    let written = node.op.writes_state().filter(|_| node.op.returns_state())?;
                    id = node.operands[written];
                }
            }
        }
    }

    /// The rows that a node's work is split over: those of its result, or, if its result is a state, those that it stores.
    pub fn rows(&self, node: &Node<O>) -> Extent {
        let split = if node.op.returns_state() { node.operands[1] } else { node.output };
        self.value(split).shape.rows
    }

    /// Bytes of a value at the graph's bounds. For a view, of the viewed columns only.
    pub fn bytes(&self, id: ValueId) -> usize {
        let value = self.value(id);
        bytes_at(value, self.bounds).expect("sizes are checked when the graph is built")
    }

    /// All leaves of one lifetime with their tags, in order of declaration.
    pub fn leaves(&self, lifetime: Lifetime) -> impl Iterator<Item = (Tag, ValueId)> + '_ {
        self.values.iter().enumerate().filter_map(move |(index, value)| match value.def {
            Def::Leaf(tag) if value.lifetime == lifetime => Some((tag, ValueId::new(index))),
            _ => None,
        })
    }
}

fn bytes_at(value: &Value, bounds: RowCounts) -> Option<usize> {
    let rows = value.shape.rows.at(bounds);
    // The extra bound leaves room for alignment and for sums over a step's values.
    value.dtype.row_bytes(value.shape.cols)?.checked_mul(rows).filter(|&bytes| bytes <= isize::MAX as usize)
}
