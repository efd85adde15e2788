//! Batch invariance, over random graphs: a step returns the same bits as its rows one at a time, or in any chunks.

mod common;

use common::{encoded, random_values};
use verbatim_backend::{
    Backend, BindError, FilledInput, InputBinding, KvSpec, KvType, Outputs, PAGE_CELLS, RecurrentSpec,
    StateLayers, StateStore, WeightKind, WeightSource,
};
use verbatim_graph::random::{self, Random, tags};
use verbatim_graph::{Extent, Graph, Lifetime, Op, RowCounts, Tag, ValueId};
use verbatim_quant::DType;
use verbatim_reference::{Arena, Program, Reference, State, Weights};

/// The pages of the page table are read only, those after them written only: what a row writes no other row of the step reads.
const READ_PAGES: usize = 4;
const WRITE_PAGES: usize = 2;

#[test]
fn rows_in_one_batch_and_one_at_a_time_give_the_same_bits() {
    let mut arena = Arena::default();
    for seed in 0..1000 {
        let graph = random::graph(seed);
        let weights = weights(&graph, seed);
        let program = Reference.prepare(&graph, &weights).expect("weights that fit");
        let step = Step { graph: &graph, program: &program, weights: &weights, seed };
        let rows = graph.bounds().rows;
        let together = step.run(&mut arena, &[rows]);
        let alone: Vec<usize> = (1..=rows).collect();
        assert_eq!(step.run(&mut arena, &alone), together, "seed {seed}, one at a time");
        let middle = 1 + seed as usize % rows;
        assert_eq!(step.run(&mut arena, &[middle, rows]), together, "seed {seed}, at {middle}");
    }
}

/// The rows of a graph, whose values depend on the seed.
struct Step<'a> {
    graph: &'a Graph,
    program: &'a Program,
    weights: &'a Weights,
    seed: u64,
}

impl Step<'_> {
    /// The bits of each output's rows, and the bytes of the states, after the step in chunks that end at these rows.
    fn run(&self, arena: &mut Arena, ends: &[usize]) -> (Vec<Vec<u32>>, Vec<u8>) {
        let mut state = self.state();
        let mut outputs = vec![Vec::new(); self.graph.outputs().len()];
        // The output rows are the first ones.
        let most = self.graph.bounds().output_rows;
        let starts = std::iter::once(&0).chain(ends);
        for (&start, &end) in starts.zip(ends) {
            let output_rows = end.min(most).saturating_sub(start);
            let rows = RowCounts { rows: end - start, output_rows };
            let fill = |input: InputBinding<'_>| self.fill(input, start);
            let run = Reference.run(self.program, arena, rows, self.weights, &mut state, fill);
            let run = run.expect("a run");
            for ((tag, _), bits) in self.graph.outputs().iter().zip(&mut outputs) {
                let rows = 0..run.rows(*tag).expect("an output");
                let rows = rows.flat_map(|row| run.row(*tag, row).expect("a row"));
                bits.extend(rows.map(|x| x.to_bits()));
            }
        }
        (outputs, bytes(self.graph, &state))
    }

    /// The values of an input, for the rows starting at `first`.
    fn fill(&self, input: InputBinding<'_>, first: usize) -> Result<FilledInput, BindError> {
        let (tag, count) = (input.tag(), input.count());
        let (_, id) = self.graph.leaves(Lifetime::Input).find(|(other, _)| *other == tag).expect("a leaf");
        let shape = self.graph.value(id).shape;
        let first = if shape.rows == Extent::Rows { first } else { 0 };
        let skipped = first * shape.cols;
        let mut random = Random(self.seed ^ u64::from(tag.index) << 32);
        let mut below = |limit: usize| {
            let all: Vec<i32> = (0..skipped + count).map(|_| random.below(limit) as i32).collect();
            all[skipped..].to_vec()
        };
        // Each row writes to its own cells.
        let own_cell =
            |row: usize| (READ_PAGES * PAGE_CELLS + (first + row) * 16 + tag.index as usize % 16) as i32;
        match tag.name {
            tags::TOKENS => input.i32(&below(random::VOCABULARY)),
            tags::POSITIONS => input.i32(&below(random::POSITIONS)),
            tags::TREE_STARTS => input.i32(&below(random::POSITIONS + 10)),
            tags::PATHS => input.i32(&below(READ_PAGES * PAGE_CELLS)),
            tags::VALID_FROM => input.i32(&below(random::POSITIONS)),
            tags::READ_CELLS => {
                let cells: Vec<i32> =
                    below(READ_PAGES * PAGE_CELLS + 1).iter().map(|cell| cell - 1).collect();
                input.i32(&cells)
            }
            tags::IDS => input.i32_from((0..count as i32).rev()),
            tags::SEQUENCES => input.i32(&below(2)),
            tags::PAGES => input.i32(&below(READ_PAGES)),
            tags::OUTPUT_ROWS => input.i32_from(0..count as i32),
            tags::WRITE_SLOTS => input.i32(&below(random::SLOTS)),
            tags::READ_SLOTS => {
                let slots: Vec<i32> = below(random::SLOTS + 1).iter().map(|slot| slot - 1).collect();
                input.i32(&slots)
            }
            tags::CELLS => input.i32_from((0..count).map(own_cell)),
            tags::X => input.f32(&random_values(&mut random, skipped + count)[skipped..]),
            _ => input.no_data(),
        }
    }

    /// The states of the graph's layers, with random values in all cells that may be read.
    fn state(&self) -> State {
        let kind = |choice: u64| KvType::ALL[(self.seed >> choice) as usize % KvType::ALL.len()];
        let spec = KvSpec { kv_heads: random::KV_HEADS, head_dim: random::HEAD_DIM, k: kind(0), v: kind(2) };
        let [channels, kernel] = random::CONV;
        let recurrent = RecurrentSpec { kernel, channels, heads: random::DELTA };
        let kv_layers = layers(self.graph, &[tags::STATE]);
        let layers = StateLayers {
            kv: vec![(spec, READ_PAGES + WRITE_PAGES); kv_layers],
            recurrent: vec![recurrent; layers(self.graph, &[tags::CONV, tags::DELTA])],
            slots: random::SLOTS,
        };
        let mut state = Reference.new_state();
        state.append(&layers).expect("small");
        let mut random = Random(self.seed ^ 5);
        for layer in 0..kv_layers {
            let head = |random: &mut Random, kind: KvType| {
                let mut x = random_values(random, random::HEAD_DIM);
                x.resize(random::HEAD_DIM.next_multiple_of(kind.dtype().block_len()), 0.0);
                encoded(kind.dtype(), &x)
            };
            let mut cell = || {
                let heads = [spec.k, spec.v].into_iter().flat_map(|kind| [kind; random::KV_HEADS]);
                heads.flat_map(|kind| head(&mut random, kind)).collect::<Vec<u8>>()
            };
            let cells = READ_PAGES * PAGE_CELLS;
            let bytes: Vec<u8> = (0..cells).flat_map(|_| cell()).collect();
            state.write_cells(layer, &mut (0..cells), &bytes);
        }
        state
    }
}

/// Layers of these kinds of state.
fn layers(graph: &Graph, names: &[&str]) -> usize {
    let states = graph.leaves(Lifetime::State).filter(|(tag, _)| names.contains(&tag.name));
    states.map(|(tag, _)| tag.index as usize + 1).max().unwrap_or(0)
}

/// All that the states hold.
fn bytes(graph: &Graph, state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    for layer in 0..layers(graph, &[tags::STATE]) {
        let mut cells = 0..(READ_PAGES + WRITE_PAGES) * PAGE_CELLS;
        state.read_cells(layer, &mut cells, &mut bytes);
    }
    let recurrent = 0..layers(graph, &[tags::CONV, tags::DELTA]);
    (0..random::SLOTS).for_each(|slot| state.read_slot(recurrent.clone(), slot, &mut bytes));
    bytes
}

/// The kind of each weight follows from its reader: the right-hand side of matmuls and embedding tables are matrices.
fn weights(graph: &Graph, seed: u64) -> Weights {
    let leaves: Vec<(Tag, ValueId)> = graph.leaves(Lifetime::Weight).collect();
    let last = leaves.iter().map(|(tag, _)| tag.index).max().unwrap_or(0);
    let mut random = Random(seed ^ 2);
    let mut weights = Reference.new_weights();
    for index in 0..=last {
        let leaf = leaves.iter().find(|(tag, _)| tag.index == index);
        let (kind, dtype, [rows, cols]) = match leaf {
            // A weight that was pruned.
            None => (WeightKind::Vector, DType::F32, [1, 1]),
            Some(&(_, id)) => {
                let value = graph.value(id);
                (kind(graph, id), value.dtype, [value.shape.rows.at(graph.bounds()), value.shape.cols])
            }
        };
        let elements: Vec<f32> = (0..rows * cols).map(|_| random.unit() * 0.3).collect();
        let bytes = encoded(dtype, &elements);
        let source = WeightSource { kind, dtype, rows, cols, bytes: &bytes };
        Reference.append_weight(&mut weights, source).expect("fits");
    }
    weights
}

fn kind(graph: &Graph, id: ValueId) -> WeightKind {
    let reader = graph
        .nodes()
        .iter()
        .find_map(|node| Some((node.op, node.operands.iter().position(|&operand| operand == id)?)));
    match reader {
        Some((Op::Embed { .. }, 0) | (Op::Linear { .. }, 1)) => WeightKind::Matrix,
        Some((Op::MoeLinear { experts, .. }, 1)) => WeightKind::Experts(experts),
        Some(_) | None => WeightKind::Vector,
    }
}
