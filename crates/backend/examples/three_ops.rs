//! A backend that runs `Embed`, `Add` and `Linear`, one row after the other, and rejects all other ops: the start of a new
//! backend. `docs/adding-a-backend.md` continues from here.
//!
//! Weights are decoded to f32, each value has its own buffer, and there is no sequence state yet.

#![forbid(unsafe_code)]

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use verbatim_backend::{
    Backend, BindError, FilledInput, InputBinding, KShift, PackError, PrepareError, RunError, StateLayers,
    StateMemoryError, StateStore, WeightKind, WeightSource,
};
use verbatim_graph::{Def, Graph, Lifetime, Node, Op, OpRules, Placement, RowCounts, Shape, Tag, ValueId};
use verbatim_quant::{DType, dequantize};

/// The backend.
pub struct ThreeOps;

/// A growing table of weights, all decoded.
pub struct Weights {
    id: u64,
    items: Vec<Weight>,
}

struct Weight {
    kind: WeightKind,
    /// The type in graphs: that of the file, and F32 for a vector.
    dtype: DType,
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

/// A graph whose ops and weights were checked.
pub struct Program {
    graph: Graph,
    weights_id: u64,
}

/// The values of a run, by [`ValueId::index`]: each in its own buffer, row by row.
#[derive(Default)]
pub struct Arena {
    floats: Vec<Vec<f32>>,
    integers: Vec<Vec<i32>>,
}

/// The outputs of a run.
pub struct Outputs<'a> {
    program: &'a Program,
    arena: &'a Arena,
    rows: RowCounts,
}

impl Backend for ThreeOps {
    type Weights = Weights;
    type Program = Program;
    type Arena = Arena;
    type State = NoState;
    type Outputs<'a> = Outputs<'a>;

    fn describe(&self) -> String {
        "three ops".into()
    }

    fn new_weights(&self) -> Weights {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Weights { id: NEXT.fetch_add(1, Ordering::Relaxed), items: Vec::new() }
    }

    fn append_weight(&mut self, weights: &mut Weights, weight: WeightSource<'_>) -> Result<(), PackError> {
        let WeightSource { kind, dtype, rows, cols, .. } = weight;
        if rows == 0 || cols == 0 {
            return Err(PackError::Empty { rows, cols });
        }
        if !cols.is_multiple_of(dtype.block_len()) {
            return Err(PackError::PartialBlock { dtype, cols, block: dtype.block_len() });
        }
        let count = rows.saturating_mul(cols);
        let no_memory = PackError::OutOfMemory { bytes: count.saturating_mul(size_of::<f32>()) };
        let mut values = zeros(count).ok_or(no_memory)?;
        dequantize(dtype, &weight.read_all()?, &mut values)?;
        let dtype = if kind == WeightKind::Vector { DType::F32 } else { dtype };
        weights.items.push(Weight { kind, dtype, rows, cols, values });
        Ok(())
    }

    fn weight_bytes(&self, weights: &Weights) -> usize {
        weights.items.iter().map(|weight| size_of_val(&weight.values[..])).sum()
    }

    fn new_state(&self) -> NoState {
        NoState
    }

    fn prepare(&mut self, graph: &Graph, weights: &Weights) -> Result<Program, PrepareError> {
        if let Some(value) = graph.values().iter().find(|value| value.placement != Placement::Host) {
            return Err(PrepareError::Placement(value.placement));
        }
        for node in graph.nodes() {
            if !matches!(node.op, Op::Embed { .. } | Op::Add | Op::Linear { .. }) {
                return Err(PrepareError::Op(node.op.name()));
            }
            for operand in 0..node.operands.len() {
                check_weight(graph, node, operand, weights)?;
            }
        }
        Ok(Program { graph: graph.clone(), weights_id: weights.id })
    }

    fn run<'a>(
        &mut self,
        program: &'a Program,
        arena: &'a mut Arena,
        rows: RowCounts,
        weights: &Weights,
        _state: &mut NoState,
        mut fill: impl FnMut(InputBinding<'_>) -> Result<FilledInput, BindError>,
    ) -> Result<Outputs<'a>, RunError> {
        let graph = &program.graph;
        if program.weights_id != weights.id {
            return Err(RunError::WeightsMismatch);
        }
        let max = graph.bounds();
        if rows.rows > max.rows || rows.output_rows > max.output_rows {
            return Err(BindError::TooManyRows { given: rows, max }.into());
        }
        arena.floats = vec![Vec::new(); graph.values().len()];
        arena.integers = vec![Vec::new(); graph.values().len()];
        for (tag, id) in graph.leaves(Lifetime::Input) {
            let (dtype, count) = (graph.value(id).dtype, elements(graph, id, rows));
            let mut bytes = zeros(4 * count).ok_or(BindError::NoMemory(4 * count))?;
            fill(InputBinding::new(tag, dtype, count, &mut bytes))?;
            let words = bytes.as_chunks::<4>().0.iter().copied();
            match dtype {
                DType::I32 => arena.integers[id.index()].extend(words.map(i32::from_ne_bytes)),
                _ => arena.floats[id.index()].extend(words.map(f32::from_ne_bytes)),
            }
        }
        for node in graph.nodes() {
            let count = elements(graph, node.output, rows);
            let mut out = zeros(count).ok_or(BindError::NoMemory(4 * count))?;
            // Indices come from the caller: one that is out of range ends the run, not the process.
            let work = AssertUnwindSafe(|| arena.compute(graph, node, rows, weights, &mut out));
            catch_unwind(work).map_err(|panic| RunError::Panicked(message(&*panic)))?;
            arena.floats[node.output.index()] = out;
        }
        Ok(Outputs { program, arena, rows })
    }
}

impl verbatim_backend::Outputs for Outputs<'_> {
    fn rows(&self, tag: Tag) -> Option<usize> {
        let id = self.program.output(tag)?;
        Some(self.program.graph.value(id).shape.rows.at(self.rows))
    }

    fn row(&self, tag: Tag, row: usize) -> Option<&[f32]> {
        let id = self.program.output(tag)?;
        (row < self.rows(tag)?).then(|| row_of(&self.arena.floats, &self.program.graph, id, row))
    }

    fn row_i32(&self, _: Tag, _: usize) -> Option<&[i32]> {
        None // None of the three ops returns integers.
    }
}

impl Program {
    fn output(&self, tag: Tag) -> Option<ValueId> {
        self.graph.outputs().iter().find(|(other, _)| *other == tag).map(|&(_, id)| id)
    }
}

impl Arena {
    fn compute(&self, graph: &Graph, node: &Node, rows: RowCounts, weights: &Weights, out: &mut [f32]) {
        let cols = graph.value(node.output).shape.cols;
        let weight = |operand: usize| match graph.value(node.operands[operand]).def {
            Def::Leaf(tag) => &weights.items[tag.index as usize],
            Def::Node(_) | Def::Columns { .. } => panic!("operand {operand} is not a weight"),
        };
        for row in 0..graph.rows(node).at(rows) {
            let out = &mut out[row * cols..][..cols];
            let x = |operand: usize| row_of(&self.floats, graph, node.operands[operand], row);
            let integers = |operand: usize| row_of(&self.integers, graph, node.operands[operand], row);
            match node.op {
                Op::Embed { scale, has_embeddings } => match usize::try_from(integers(1)[0]) {
                    Err(_) if has_embeddings => out.copy_from_slice(x(2)),
                    id => {
                        let id = id.expect("token ids are not negative");
                        out.iter_mut().zip(weight(0).row(id)).for_each(|(out, w)| *out = w * scale.0);
                    }
                },
                Op::Add => out.iter_mut().zip(x(0)).zip(x(1)).for_each(|((out, a), b)| *out = a + b),
                Op::Linear { bias, residual } => {
                    for (column, out) in out.iter_mut().enumerate() {
                        let products = x(0).iter().zip(weight(1).row(column)).map(|(x, w)| x * w);
                        *out = products.sum();
                        if bias {
                            *out += weight(2).values[column];
                        }
                        if residual {
                            *out += x(2 + usize::from(bias))[column];
                        }
                    }
                }
                _ => unreachable!("rejected by prepare"),
            }
        }
    }
}

impl Weight {
    fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }
}

/// A row of a value. A view is some columns of its base value.
fn row_of<'a, T>(buffers: &'a [Vec<T>], graph: &Graph, id: ValueId, row: usize) -> &'a [T] {
    let (root, start) = graph.root(id);
    let stride = graph.value(root).shape.cols;
    &buffers[root.index()][row * stride + start..][..graph.value(id).shape.cols]
}

fn elements(graph: &Graph, id: ValueId, rows: RowCounts) -> usize {
    let Shape { rows: extent, cols } = graph.value(id).shape;
    extent.at(rows) * cols
}

/// `len` zeros; `None` if the allocation fails.
fn zeros<T: Copy + Default>(count: usize) -> Option<Vec<T>> {
    let mut zeros = Vec::new();
    zeros.try_reserve_exact(count).ok()?;
    zeros.resize(count, T::default());
    Some(zeros)
}

/// Checks that an operand that is a weight is in the table, with the kind, type and shape that its op reads.
fn check_weight(graph: &Graph, node: &Node, operand: usize, weights: &Weights) -> Result<(), PrepareError> {
    let value = graph.value(node.operands[operand]);
    let (Lifetime::Weight, Def::Leaf(tag)) = (value.lifetime, value.def) else {
        return Ok(());
    };
    let kind = node.op.weight_kind(operand);
    let describe = |kind: WeightKind, dtype: DType, shape: Shape| format!("{shape} of {dtype} as {kind:?}");
    let wanted = describe(kind, value.dtype, value.shape);
    let found = weights.items.get(tag.index as usize).map_or("none".into(), |weight| {
        describe(weight.kind, weight.dtype, Shape::fixed(weight.rows, weight.cols))
    });
    if wanted == found { Ok(()) } else { Err(PrepareError::Weight { tag, wanted, found }) }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// Sequence state of a backend without layers.
pub struct NoState;

impl StateStore for NoState {
    /// The letters "TO", and the numerics version.
    fn numerics_version(&self) -> u32 {
        0x544f_0001
    }

    fn append(&mut self, layers: &StateLayers) -> Result<(), StateMemoryError> {
        match (layers.kv.first(), layers.recurrent.len()) {
            (Some(&(_, pages)), _) => Err(StateMemoryError::Kv { pages, layers: layers.kv.len() }),
            (None, 0) => Ok(()),
            (None, count) => Err(StateMemoryError::Recurrent { slots: layers.slots, layers: count }),
        }
    }

    fn copy_page(&mut self, _layers: &[usize], _from: usize, _to: usize) {}

    fn move_cells(&mut self, _layers: &[usize], _moves: &[(usize, usize)], _shift: Option<&KShift>) {}

    fn read_cells(&self, _layer: usize, _cells: &mut dyn Iterator<Item = usize>, _out: &mut Vec<u8>) {}

    fn write_cells(&mut self, _layer: usize, _cells: &mut dyn Iterator<Item = usize>, _from: &[u8]) {}

    fn slot_bytes(&self, _layers: Range<usize>) -> usize {
        0
    }

    fn read_slot(&self, _layers: Range<usize>, _slot: usize, _out: &mut Vec<u8>) {}

    fn write_slot(&mut self, _layers: Range<usize>, _slot: usize, _from: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_backend::Outputs as _;
    use verbatim_graph::{Builder, F32Bits, GraphError};

    const SUM: Tag = Tag::new("sum");

    /// Twice the dot products of a token's row with all rows of the table. The token's id is the second of two integers.
    fn graph() -> Result<Graph, GraphError> {
        let mut b = Builder::new(RowCounts { rows: 4, output_rows: 0 });
        let pairs = b.input(Tag::new("pairs"), DType::I32, Shape::per_row(2))?;
        let tokens = b.columns(pairs, 1, 1)?;
        let table = b.weight(Tag::indexed("weight", 0), DType::F32, Shape::fixed(3, 2))?;
        let x = b.apply(Op::Embed { scale: F32Bits(1.0), has_embeddings: false }, &[table, tokens])?;
        let product = b.apply(Op::Linear { bias: false, residual: false }, &[x, table])?;
        let sum = b.apply(Op::Add, &[product, product])?;
        b.output(SUM, sum)?;
        Ok(b.finish())
    }

    fn weights(kind: WeightKind) -> Result<Weights, PackError> {
        let mut weights = ThreeOps.new_weights();
        let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let source = WeightSource { kind, dtype: DType::F32, rows: 3, cols: 2, bytes: &bytes };
        ThreeOps.append_weight(&mut weights, source)?;
        Ok(weights)
    }

    #[test]
    fn a_row_has_the_same_bits_whatever_the_other_rows_are() -> Result<(), Box<dyn std::error::Error>> {
        let weights = weights(WeightKind::Matrix)?;
        let program = ThreeOps.prepare(&graph()?, &weights)?;
        let mut arena = Arena::default();
        let mut sums = |tokens: &[i32]| -> Result<Vec<Vec<f32>>, RunError> {
            let rows = RowCounts { rows: tokens.len(), output_rows: 0 };
            let fill = |input: InputBinding<'_>| input.i32_from(tokens.iter().flat_map(|&token| [9, token]));
            let outputs = ThreeOps.run(&program, &mut arena, rows, &weights, &mut NoState, fill)?;
            let rows = (0..tokens.len()).filter_map(|row| outputs.row(SUM, row));
            Ok(rows.map(<[f32]>::to_vec).collect())
        };
        let together = sums(&[2, 0, 1])?;
        assert_eq!(together, [sums(&[2])?, sums(&[0])?, sums(&[1])?].concat());
        assert_eq!(together[1], [10.0, 22.0, 34.0]);
        assert!(sums(&[])?.is_empty());
        assert!(matches!(sums(&[3]), Err(RunError::Panicked(_))));
        assert!(matches!(sums(&[-1]), Err(RunError::Panicked(why)) if why.contains("not negative")));
        assert!(matches!(sums(&[0; 5]), Err(RunError::Bind(BindError::TooManyRows { .. }))));
        assert_eq!(sums(&[2, 0, 1])?, together);
        Ok(())
    }

    #[test]
    fn unsupported_graphs_are_rejected() -> Result<(), Box<dyn std::error::Error>> {
        let rejected = ThreeOps.prepare(&graph()?, &weights(WeightKind::Vector)?);
        assert!(matches!(rejected, Err(PrepareError::Weight { .. })));

        let mut b = Builder::new(RowCounts { rows: 1, output_rows: 0 });
        let x = b.input(Tag::new("x"), DType::F32, Shape::per_row(2))?;
        let product = b.apply(Op::Mul, &[x, x])?;
        b.output(Tag::new("product"), product)?;
        let rejected = ThreeOps.prepare(&b.finish(), &ThreeOps.new_weights());
        assert!(matches!(rejected, Err(PrepareError::Op("Mul"))));
        Ok(())
    }
}
