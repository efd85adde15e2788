//! Programs: a plan with its weights resolved, ready to run; and the typestate API for a run.
//!
//! The order of use is fixed by types. [`CpuProgram::bind`] passes every live input to the caller's function once, as an
//! [`InputBinding`]. Filling it is the only way to get a [`FilledInput`], so an unfilled input is a compile error, and an unused
//! input is never requested. [`crate::Cpu::run_bound`] takes the [`BoundProgram`] and returns [`CpuOutputs`], which borrow the
//! arena: starting the next run while outputs are borrowed does not compile.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use verbatim_backend::Outputs; use verbatim_cpu::*; use verbatim_graph::*; use verbatim_quant::DType;
//! # let mut b = Builder::new(RowCounts { rows: 1, output_rows: 1 });
//! # let x = b.input(Tag::new("x"), DType::F32, Shape::per_row(2))?;
//! # let y = b.apply(Op::Scale { factor: F32Bits(2.0) }, &[x])?;
//! # b.output(Tag::new("y"), y)?;
//! # let graph = b.finish();
//! # let (weights, mut state) = (Weights::new(vec![]), CpuState::default());
//! # let mut cpu = Cpu::new(1)?;
//! # let mut arena = CpuArena::default();
//! let program = cpu.prepare(&graph, &weights)?;
//! let rows = RowCounts { rows: 1, output_rows: 1 };
//! let first = cpu.run_bound(program.bind(&mut arena, rows, |input| input.f32(&[1.0, 2.0]))?, &weights, &mut state)?;
//! assert_eq!(first.row(Tag::new("y"), 0), Some(&[2.0, 4.0][..]));
//! let second = cpu.run_bound(program.bind(&mut arena, rows, |input| input.f32(&[5.0, 6.0]))?, &weights, &mut state)?;
//! assert_eq!(second.row(Tag::new("y"), 0), Some(&[10.0, 12.0][..]));
//! # Ok(()) }
//! ```
//!
//! Reading the first outputs after the second run does not compile:
//!
//! ```compile_fail,E0499
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use verbatim_backend::Outputs; use verbatim_cpu::*; use verbatim_graph::*; use verbatim_quant::DType;
//! # let mut b = Builder::new(RowCounts { rows: 1, output_rows: 1 });
//! # let x = b.input(Tag::new("x"), DType::F32, Shape::per_row(2))?;
//! # let y = b.apply(Op::Scale { factor: F32Bits(2.0) }, &[x])?;
//! # b.output(Tag::new("y"), y)?;
//! # let graph = b.finish();
//! # let (weights, mut state) = (Weights::new(vec![]), CpuState::default());
//! # let mut cpu = Cpu::new(1)?;
//! # let mut arena = CpuArena::default();
//! let program = cpu.prepare(&graph, &weights)?;
//! let rows = RowCounts { rows: 1, output_rows: 1 };
//! let first = cpu.run_bound(program.bind(&mut arena, rows, |input| input.f32(&[1.0, 2.0]))?, &weights, &mut state)?;
//! let second = cpu.run_bound(program.bind(&mut arena, rows, |input| input.f32(&[5.0, 6.0]))?, &weights, &mut state)?;
//! assert_eq!(first.row(Tag::new("y"), 0), Some(&[2.0, 4.0][..]));
//! # Ok(()) }
//! ```
//!
//! Nor does a run with a missing input, because only filling an input binding returns a [`FilledInput`]:
//!
//! ```compile_fail,E0423
//! # use verbatim_backend::Outputs; use verbatim_cpu::*; use verbatim_graph::*;
//! fn bind(program: &CpuProgram, arena: &mut CpuArena, rows: RowCounts) {
//!     let _ = program.bind(arena, rows, |_input| Ok(FilledInput(())));
//! }
//! ```
#![allow(unsafe_code)] // Input bindings borrow disjoint parts of the arena.

use crate::op::CpuOp::{self, Model};
use crate::ops::{attention, recurrence, rope};
use crate::partition;
use crate::weights::{Weight, Weights};
use std::ops::Range;
use std::sync::Arc;
use verbatim_backend::{BindError, FilledInput, InputBinding, Outputs, PrepareError};
use verbatim_graph::{
    Attention, Extent, Graph, Lifetime, Op, Placement, RowCounts, Shape, Tag, ValueId, WeightKind,
};
use verbatim_plan::Plan;
use verbatim_quant::DType;
use verbatim_team::{AlignedBytes, Pod, TaskCounter};

/// Memory for the values of a run. Any number of programs can share one arena, one run at a time.
#[derive(Default)]
pub struct CpuArena {
    bytes: Option<AlignedBytes>,
}

impl CpuArena {
    /// Bytes allocated.
    pub fn len(&self) -> usize {
        self.bytes.as_ref().map_or(0, AlignedBytes::len)
    }

    /// Whether no program has run yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn at_least(&mut self, bytes: usize) -> Result<&AlignedBytes, BindError> {
        if self.bytes.as_ref().is_none_or(|held| held.len() < bytes) {
            self.bytes = None;
            self.bytes = AlignedBytes::zeroed(bytes);
        }
        self.bytes.as_ref().ok_or(BindError::NoMemory(bytes))
    }
}

/// The location of a value, or of a view of one, in the arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArenaView {
    offset: usize,
    stride_bytes: usize,
    element_bytes: usize,
    pub(crate) shape: Shape,
}

impl ArenaView {
    pub(crate) fn row<'a, T: Pod>(&self, arena: &'a AlignedBytes, row: usize) -> &'a [T] {
        arena.slice_at(self.offset + row * self.stride_bytes, self.shape.cols)
    }

    /// Some columns of a row. The rest of the row may be written concurrently.
    pub(crate) fn columns<'a, T: Pod>(
        &self,
        arena: &'a AlignedBytes,
        row: usize,
        cols: Range<usize>,
    ) -> &'a [T] {
        arena.slice_at(self.column_offset(row, &cols), cols.len())
    }

    /// # Safety
    /// While the slice lives, no other thread may read or write these columns of the row.
    #[allow(clippy::mut_from_ref)] // See `AlignedBytes`.
    pub(crate) unsafe fn columns_mut<'a, T: Pod>(
        &self,
        arena: &'a AlignedBytes,
        row: usize,
        cols: Range<usize>,
    ) -> &'a mut [T] {
        // SAFETY: the contract of this function.
        unsafe { arena.slice_at_mut(self.column_offset(row, &cols), cols.len()) }
    }

    fn column_offset(&self, row: usize, cols: &Range<usize>) -> usize {
        debug_assert!(cols.end <= self.shape.cols, "{cols:?} of {}", self.shape);
        self.offset + row * self.stride_bytes + cols.start * self.element_bytes
    }

    /// All elements from the first of row 0 to the last of row `rows - 1`, including those between the rows.
    pub(crate) fn rows<'a, T: Pod>(&self, arena: &'a AlignedBytes, rows: usize) -> &'a [T] {
        debug_assert_eq!(size_of::<T>(), self.element_bytes);
        arena.slice_at(self.offset, self.span(rows))
    }

    /// Row stride in elements.
    pub(crate) fn stride(&self) -> usize {
        self.stride_bytes / self.element_bytes
    }

    /// Elements from the first of row 0 to the last of row `rows - 1`; `rows` is at least 1.
    pub(crate) fn span(&self, rows: usize) -> usize {
        (rows - 1) * self.stride() + self.shape.cols
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn stride_bytes(&self) -> usize {
        self.stride_bytes
    }
}

/// Where an operand is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Arena(ArenaView),
    Weight(usize),
    State(usize),
}

impl Source {
    pub(crate) fn view(&self) -> &ArenaView {
        match self {
            Source::Arena(view) => view,
            other => unreachable!("{other:?} is not in the arena: the shape rules forbid it"),
        }
    }

    pub(crate) fn weight(&self) -> usize {
        match self {
            Source::Weight(index) => *index,
            other => unreachable!("{other:?} is not a weight: checked when the program was compiled"),
        }
    }

    pub(crate) fn state(&self) -> usize {
        match self {
            Source::State(index) => *index,
            other => unreachable!("{other:?} is not a state: the shape rules forbid it"),
        }
    }
}

/// One op, ready to run.
pub(crate) struct PreparedOp {
    pub(crate) op: CpuOp,
    pub(crate) operands: Vec<Source>,
    pub(crate) output: Source,
    /// The rows that the work is split over.
    pub(crate) rows: Extent,
    /// Units of a row, if the op is split by rows.
    pub(crate) units: usize,
    /// Frequencies and mscale, of [`Op::RopeTable`].
    pub(crate) frequencies: (Vec<f32>, f32),
    /// Assigns the tasks of ops that are not split by rows to threads.
    pub(crate) tasks: TaskCounter,
}

struct Input {
    tag: Tag,
    dtype: DType,
    view: ArenaView,
}

/// A graph, planned and compiled against one model's weights.
pub struct CpuProgram {
    plan: Arc<Plan<CpuOp>>,
    ops: Vec<PreparedOp>,
    inputs: Vec<Input>,
    outputs: Vec<(Tag, ArenaView)>,
    /// By phase: (byte offset, bytes) that are free after it. Empty unless poisoning.
    poison: Vec<Vec<(usize, usize)>>,
    weights_id: u64,
}

impl CpuProgram {
    pub(crate) fn new(
        plan: Arc<Plan<CpuOp>>,
        weights: &Weights,
        poison: bool,
    ) -> Result<CpuProgram, PrepareError> {
        let graph = plan.graph();
        if let Some(arena) = plan.arenas().iter().find(|arena| arena.placement != Placement::Host) {
            return Err(PrepareError::Placement(arena.placement));
        }
        check_weights(graph, weights)?;
        let units =
            plan.phases().iter().flat_map(|phase| partition::units(graph, &graph.nodes()[phase.clone()]));
        let ops = graph.nodes().iter().zip(units).map(|(node, units)| {
            let operands: Vec<Source> = node.operands.iter().map(|&id| source(&plan, id)).collect();
            let frequencies = match node.op {
                Model(Op::RopeTable(table)) => {
                    rope::frequencies(&table, operands.get(1).map(|o| weights.vector(o.weight())))
                }
                Model(Op::Attention(Attention { head_dim, .. }))
                | CpuOp::AttentionPartials { attention: Attention { head_dim, .. }, .. }
                    if head_dim > attention::MAX_HEAD_DIM =>
                {
                    return Err(PrepareError::HeadDim { head_dim, max: attention::MAX_HEAD_DIM });
                }
                Model(Op::GatedDelta(heads)) if heads.key_dim > recurrence::MAX_KEY_DIM => {
                    let (head_dim, max) = (heads.key_dim, recurrence::MAX_KEY_DIM);
                    return Err(PrepareError::HeadDim { head_dim, max });
                }
                Model(Op::ShortConv { kernel }) if kernel > recurrence::MAX_KERNEL => {
                    return Err(PrepareError::ConvKernel { kernel, max: recurrence::MAX_KERNEL });
                }
                _ => (Vec::new(), 1.0),
            };
            let output = source(&plan, node.output);
            let (rows, tasks) = (graph.rows(node), TaskCounter::new());
            Ok(PreparedOp { op: node.op, operands, output, rows, units, frequencies, tasks })
        });
        let ops = ops.collect::<Result<_, _>>()?;
        let inputs = graph.leaves(Lifetime::Input).map(|(tag, id)| Input {
            tag,
            dtype: graph.value(id).dtype,
            view: *source(&plan, id).view(),
        });
        let inputs = inputs.collect();
        let outputs = graph.outputs().iter().map(|&(tag, id)| (tag, *source(&plan, id).view())).collect();
        let freed = |phase| {
            plan.freed_after(phase).map(|(_, allocation)| (allocation.offset, allocation.bytes)).collect()
        };
        let poison = if poison { (0..plan.phases().len()).map(freed).collect() } else { Vec::new() };
        Ok(CpuProgram { ops, inputs, outputs, poison, weights_id: weights.id(), plan })
    }

    /// The plan, with the lowered graph.
    pub fn plan(&self) -> &Arc<Plan<CpuOp>> {
        &self.plan
    }

    pub(crate) fn ops(&self) -> &[PreparedOp] {
        &self.ops
    }

    pub(crate) fn phases(&self) -> &[Range<usize>] {
        self.plan.phases()
    }

    /// The memory to poison after a phase; empty in release builds.
    pub(crate) fn poison_after(&self, phase: usize) -> &[(usize, usize)] {
        self.poison.get(phase).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn weights_id(&self) -> u64 {
        self.weights_id
    }

    /// Grows the arena if needed for a run of `rows` rows and lets `fill` fill each live input, in place.
    ///
    /// # Errors
    /// If there are more rows than the program was compiled for, an allocation fails, or `fill` returns an error.
    pub fn bind<'a>(
        &'a self,
        arena: &'a mut CpuArena,
        rows: RowCounts,
        mut fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
    ) -> Result<BoundProgram<'a>, BindError> {
        let max = self.plan.graph().bounds();
        if rows.rows > max.rows || rows.output_rows > max.output_rows {
            return Err(BindError::TooManyRows { given: rows, max });
        }
        let arena = arena.at_least(self.plan.arena_bytes(Placement::Host))?;
        for input in &self.inputs {
            let count = input.view.shape.rows.at(rows) * input.view.shape.cols;
            let bytes = input.dtype.row_bytes(count).expect("inputs are not quantised");
            // SAFETY: the arena is borrowed mutably, and inputs have overlapping lifetimes, so their allocations are disjoint.
            let bytes = unsafe { arena.slice_at_mut(input.view.offset, bytes) };
            let _: FilledInput = fill(InputBinding::new(input.tag, input.dtype, count, bytes))?;
        }
        Ok(BoundProgram { program: self, arena, rows })
    }
}

fn source(plan: &Plan<CpuOp>, id: ValueId) -> Source {
    let graph = plan.graph();
    let value = graph.value(id);
    match value.lifetime {
        Lifetime::State => Source::State(graph.state(id).expect("a state has a tag").index as usize),
        Lifetime::Weight => match value.def {
            verbatim_graph::Def::Leaf(tag) => Source::Weight(tag.index as usize),
            other => unreachable!("a weight is a leaf, not {other:?}"),
        },
        Lifetime::Input | Lifetime::Temp | Lifetime::Output => {
            let (root, column) = graph.root(id);
            let allocation = plan.allocations()[root.index()]
                .expect("the checker has verified an allocation for every root");
            let bytes_of = |cols| value.dtype.row_bytes(cols).expect("no quantised types in the arena");
            let stride_bytes = bytes_of(graph.value(root).shape.cols);
            let offset = allocation.offset + bytes_of(column);
            let element_bytes = value.dtype.block_bytes();
            Source::Arena(ArenaView { offset, stride_bytes, element_bytes, shape: value.shape })
        }
    }
}

/// Checks that every weight that the graph reads is in the table, of the kind that its op reads.
fn check_weights(graph: &Graph<CpuOp>, weights: &Weights) -> Result<(), PrepareError> {
    for node in graph.nodes() {
        for (i, &operand) in node.operands.iter().enumerate() {
            let value = graph.value(operand);
            let (Lifetime::Weight, verbatim_graph::Def::Leaf(tag)) = (value.lifetime, value.def) else {
                continue;
            };
            let kind = node.op.weight_kind(i);
            let Extent::Fixed(rows) = value.shape.rows else { continue };
            let weight = weights.items().get(tag.index as usize);
            let fits = weight.is_some_and(|weight| match (kind, weight) {
                (WeightKind::Matrix, Weight::Matrix(matrix)) => matrix.dtype() == value.dtype,
                (WeightKind::Experts(count), Weight::Experts(experts)) => {
                    experts.dtype() == value.dtype && experts.matrices().len() == count
                }
                (WeightKind::Vector, Weight::Vector(_)) => value.dtype == DType::F32,
                _ => false,
            });
            let found = weight.map(Weight::shape);
            if !fits || found != Some((rows, value.shape.cols)) {
                let wanted = format!("{} of {}", value.shape, value.dtype);
                let found =
                    found.map_or("none".into(), |(rows, cols)| format!("[{rows}, {cols}] of another kind"));
                return Err(PrepareError::Weight { tag, wanted, found });
            }
        }
    }
    Ok(())
}

/// A program bound to its arena, with all inputs filled.
#[must_use]
pub struct BoundProgram<'a> {
    pub(crate) program: &'a CpuProgram,
    pub(crate) arena: &'a AlignedBytes,
    pub(crate) rows: RowCounts,
}

/// The outputs of a run. They borrow the arena.
pub struct CpuOutputs<'a> {
    program: &'a CpuProgram,
    arena: &'a AlignedBytes,
    rows: RowCounts,
}

impl<'a> CpuOutputs<'a> {
    pub(crate) fn new(bound: BoundProgram<'a>) -> CpuOutputs<'a> {
        CpuOutputs { program: bound.program, arena: bound.arena, rows: bound.rows }
    }

    fn find(&self, tag: Tag) -> Option<&ArenaView> {
        self.program.outputs.iter().find(|(other, _)| *other == tag).map(|(_, view)| view)
    }
}

impl Outputs for CpuOutputs<'_> {
    fn rows(&self, tag: Tag) -> Option<usize> {
        self.find(tag).map(|view| view.shape.rows.at(self.rows))
    }

    fn row(&self, tag: Tag, row: usize) -> Option<&[f32]> {
        let view = self.find(tag)?;
        (row < view.shape.rows.at(self.rows)).then(|| view.row(self.arena, row))
    }

    fn row_i32(&self, tag: Tag, row: usize) -> Option<&[i32]> {
        let matrix = self.find(tag)?;
        (row < matrix.shape.rows.at(self.rows)).then(|| matrix.row(self.arena, row))
    }
}
