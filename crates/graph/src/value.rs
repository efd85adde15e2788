//! Values: element type, shape, lifetime, placement and where they come from.

use std::fmt;
use verbatim_quant::DType;

/// Names a value of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(u32);

impl ValueId {
    /// The value at this index of [`crate::Graph::values`].
    pub fn new(index: usize) -> Self {
        ValueId(u32::try_from(index).expect("a graph has fewer than 2^32 values"))
    }

    /// The index into [`crate::Graph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names a node of one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

impl NodeId {
    /// The node at this index of [`crate::Graph::nodes`].
    pub fn new(index: usize) -> Self {
        NodeId(u32::try_from(index).expect("a graph has fewer than 2^32 nodes"))
    }

    /// The index into [`crate::Graph::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The name by which code outside the graph refers to a leaf or an output, such as `layer[3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag {
    /// What it is.
    pub name: &'static str,
    /// Which one of them: a layer, a weight of the model's table.
    pub index: u32,
}

impl Tag {
    /// A tag for the only value of its name.
    pub const fn new(name: &'static str) -> Self {
        Tag { name, index: 0 }
    }

    /// A tag for one of several values of the same name.
    pub const fn indexed(name: &'static str, index: u32) -> Self {
        Tag { name, index }
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.name, self.index)
    }
}

/// Numbers of rows of each kind: the maximum that a graph is built for, or the actual ones of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowCounts {
    /// Rows of the step: tokens.
    pub rows: usize,
    /// Output rows: those that want logits or a token.
    pub output_rows: usize,
}

/// How a weight is used, which decides its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightKind {
    /// Right-hand side of a matmul, or an embedding table.
    Matrix,
    /// One matrix per expert, stacked by rows.
    Experts(usize),
    /// Norm weights, biases, RoPE frequency factors: decoded to f32.
    Vector,
}

/// The extent of a value's outer dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extent {
    /// Always this many.
    Fixed(usize),
    /// One per row of the step.
    Rows,
    /// One per output row.
    OutputRows,
}

impl Extent {
    /// The number of rows for these row counts.
    pub fn at(self, bounds: RowCounts) -> usize {
        match self {
            Extent::Fixed(rows) => rows,
            Extent::Rows => bounds.rows,
            Extent::OutputRows => bounds.output_rows,
        }
    }
}

/// A row-major matrix: `rows` times `cols` elements.
///
/// Two dimensions suffice: a head or expert axis is part of `cols` or `rows` and named by the op's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Outer dimension.
    pub rows: Extent,
    /// Inner dimension, in elements.
    pub cols: usize,
}

impl Shape {
    /// `rows` by `cols`, known in advance.
    pub const fn fixed(rows: usize, cols: usize) -> Self {
        Shape { rows: Extent::Fixed(rows), cols }
    }

    /// `cols` elements per row of the step.
    pub const fn per_row(cols: usize) -> Self {
        Shape { rows: Extent::Rows, cols }
    }

    /// `cols` elements per output row.
    pub const fn per_output_row(cols: usize) -> Self {
        Shape { rows: Extent::OutputRows, cols }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows {
            Extent::Fixed(rows) => write!(f, "[{rows}, {}]", self.cols),
            Extent::Rows => write!(f, "[rows, {}]", self.cols),
            Extent::OutputRows => write!(f, "[output rows, {}]", self.cols),
        }
    }
}

/// How long a value's contents must last, and who provides them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lifetime {
    /// Lives as long as the model; read only.
    Weight,
    /// Lives as long as its sequences; ops that write it return a new version in the same storage.
    State,
    /// Written by the caller before the run, lives until its last use.
    Input,
    /// Computed by an op, lives until its last use.
    Temp,
    /// Computed by an op, lives until the caller releases the arena.
    Output,
}

/// Which memory a value lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Placement {
    /// The machine's main memory.
    #[default]
    Host,
    /// The memory of the accelerator with this number.
    Device(u8),
}

/// The definition of a value, in the sense of SSA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Def {
    /// From outside: a weight, a state or an input.
    Leaf(Tag),
    /// From a node.
    Node(NodeId),
    /// A view of a value: its columns starting at `start`, in that value's storage.
    Columns {
        /// The value viewed.
        base: ValueId,
        /// The first column.
        start: usize,
    },
}

/// One value of a graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    /// Element type.
    pub dtype: DType,
    /// Rows and columns.
    pub shape: Shape,
    /// How long it lasts.
    pub lifetime: Lifetime,
    /// Which memory it lies in.
    pub placement: Placement,
    /// Its definition.
    pub def: Def,
}

/// A hashable f32: compared and hashed by its bits, so that graphs can be cache keys.
#[derive(Clone, Copy)]
pub struct F32Bits(pub f32);

impl PartialEq for F32Bits {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for F32Bits {}

impl std::hash::Hash for F32Bits {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl fmt::Debug for F32Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
