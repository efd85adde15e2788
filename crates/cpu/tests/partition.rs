//! Steps of few rows on several threads, which share the columns of a row: bit for bit what one thread computes, for
//! every op whose rows can be split, at widths that are and are not multiples of the thread and vector counts.

use verbatim_backend::{KvSpec, KvType, Outputs, StateLayers};
use verbatim_cpu::{Cpu, CpuArena, CpuState};
use verbatim_cpu::{Weight, Weights};
use verbatim_graph::random::Random;
use verbatim_graph::{Activation, Attention, Builder, F32Bits, Gating, Graph, Op, RopeLayout, RowCounts};
use verbatim_graph::{OpRules, RopeScaling, RopeTable, Router, Shape, Tag, ValueId};
use verbatim_matrix::{PackedExperts, PackedMatrix};
use verbatim_quant::{DType, quantize};
use verbatim_team::Team;

const ROWS: usize = 4;
const HEADS: usize = 6;
const KV_HEADS: usize = 3;
const HEAD_DIM: usize = 24;

/// A graph with its weights; every computed value is an output.
struct Net {
    builder: Builder,
    weights: Vec<Weight>,
    outputs: u32,
    random: Random,
}

impl Net {
    fn new() -> Net {
        let builder = Builder::new(RowCounts { rows: ROWS, output_rows: ROWS });
        Net { builder, weights: Vec::new(), outputs: 0, random: Random(11) }
    }

    fn input(&mut self, name: &'static str, dtype: DType, shape: Shape) -> ValueId {
        self.builder.input(Tag::new(name), dtype, shape).expect("a fresh name")
    }

    fn floats(&mut self, name: &'static str, cols: usize) -> ValueId {
        self.input(name, DType::F32, Shape::per_row(cols))
    }

    fn random_values(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.random.unit()).collect()
    }

    fn weight(&mut self, dtype: DType, rows: usize, cols: usize, weight: Weight) -> ValueId {
        let tag = Tag::indexed("weight", self.weights.len() as u32);
        self.weights.push(weight);
        self.builder.weight(tag, dtype, Shape::fixed(rows, cols)).expect("a fresh name")
    }

    fn vector(&mut self, cols: usize) -> ValueId {
        let elements = self.random_values(cols);
        self.weight(DType::F32, 1, cols, Weight::Vector(elements))
    }

    fn bytes(&mut self, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
        let elements = self.random_values(rows * cols);
        let mut bytes = vec![0; rows * dtype.row_bytes(cols).expect("whole blocks")];
        match dtype {
            DType::F32 => {
                bytes.copy_from_slice(&elements.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
            }
            dtype => quantize(dtype, &elements, &mut bytes).expect("finite"),
        }
        bytes
    }

    fn matrix(&mut self, dtype: DType, rows: usize, cols: usize) -> ValueId {
        let packed =
            PackedMatrix::pack(dtype, rows, cols, &self.bytes(dtype, rows, cols)).expect("whole blocks");
        self.weight(dtype, rows, cols, Weight::Matrix(packed))
    }

    fn experts(&mut self, experts: usize, rows: usize, cols: usize) -> ValueId {
        let dtype = DType::Q8_0;
        let bytes = self.bytes(dtype, experts * rows, cols);
        let packed =
            PackedExperts::pack_with(&mut Team::single_threaded(), dtype, experts, rows, cols, &bytes);
        self.weight(dtype, experts * rows, cols, Weight::Experts(packed.expect("whole blocks")))
    }

    fn apply(&mut self, op: Op, operands: &[ValueId]) -> ValueId {
        let value = self.builder.apply(op, operands).expect("fits");
        if op.writes_state().is_none() && !matches!(op, Op::MoeTopK { .. }) {
            self.builder.output(Tag::indexed("out", self.outputs), value).expect("computed");
            self.outputs += 1;
        }
        value
    }

    fn norm(&mut self, x: ValueId, groups: usize) -> ValueId {
        let weight = self.vector(self.builder.shape(x).cols / groups);
        self.apply(Op::RmsNorm { eps: F32Bits(1e-5), groups }, &[x, weight])
    }

    /// A matmul with weights that take quantised activations, if the row length is a multiple of the block size.
    fn linear(&mut self, x: ValueId, rows: usize) -> ValueId {
        let cols = self.builder.shape(x).cols;
        let dtype = if cols.is_multiple_of(32) { DType::Q8_0 } else { DType::F32 };
        let weight = self.matrix(dtype, rows, cols);
        self.apply(Op::Linear { bias: false, residual: false }, &[x, weight])
    }

    fn finish(self) -> (Graph, Weights) {
        (self.builder.finish(), Weights::new(self.weights))
    }
}

/// Elementwise ops, after a norm and before matmuls with one and with two int8 terms.
fn elements(cols: usize) -> (Graph, Weights) {
    let mut net = Net::new();
    let [x, y] = ["x", "y"].map(|name| net.floats(name, cols));
    let gate = net.floats("gate", 1);
    let normed = net.norm(x, 1);
    net.linear(normed, 5);
    let x = net.apply(Op::Glu { activation: Activation::Silu }, &[x, y]);
    let x = net.apply(Op::Add, &[x, y]);
    let x = net.apply(Op::Mul, &[y, x]);
    let x = net.apply(Op::Scale { factor: F32Bits(1.7) }, &[x]);
    let x = net.apply(Op::Softcap { cap: F32Bits(0.8) }, &[x]);
    let x = net.apply(Op::RowGate, &[gate, x]);
    let dtype = if cols.is_multiple_of(32) { DType::Q8_0 } else { DType::F32 };
    let head = net.matrix(dtype, 7, cols);
    net.apply(Op::LmHead, &[x, head]);
    net.finish()
}

/// Ops on each head: six heads of queries, three of K and V.
fn heads() -> (Graph, Weights) {
    let mut net = Net::new();
    let x = net.floats("x", 96);
    let mut index = |name| net.input(name, DType::I32, Shape::per_row(1));
    let [positions, sequences, cells] = ["positions", "sequences", "cells"].map(&mut index);
    let pages = net.input("pages", DType::I32, Shape::fixed(1, 2));
    let scaling = RopeScaling::Linear { factor: F32Bits(1.0) };
    let table = Op::RopeTable(RopeTable { rotary_dim: 16, base: F32Bits(1e4), scaling });
    let table = net.apply(table, &[positions]);
    let rotated = |net: &mut Net, heads: usize, layout| {
        let x = net.linear(x, heads * HEAD_DIM);
        let x = net.norm(x, heads);
        let x = net.apply(Op::Rope { heads, head_dim: HEAD_DIM, layout }, &[x, table]);
        net.apply(Op::Hadamard { heads, head_dim: HEAD_DIM }, &[x])
    };
    let q = rotated(&mut net, HEADS, RopeLayout::NeoX);
    let k = rotated(&mut net, KV_HEADS, RopeLayout::Interleaved);
    let v = net.linear(x, KV_HEADS * HEAD_DIM);
    let state = net.builder.state(Tag::new("kv")).expect("a fresh name");
    let state = net.apply(Op::KvWrite { kv_heads: KV_HEADS, head_dim: HEAD_DIM }, &[state, k, v, cells]);
    let sinks = net.vector(HEADS);
    let attention = Attention {
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        scale: F32Bits(0.2),
        window: None,
        softcap: None,
        sinks: true,
        paths: false,
        valid_from: false,
    };
    let x = net.apply(Op::Attention(attention), &[q, state, positions, sequences, pages, sinks]);
    let x = net.apply(Op::HeadColumns { heads: HEADS, start: 3, cols: 16 }, &[x]);
    net.linear(x, 40);
    net.finish()
}

/// MoE.
fn experts(cols: usize) -> (Graph, Weights) {
    let mut net = Net::new();
    let x = net.floats("x", 96);
    let logits = net.linear(x, 5);
    let chosen = net.apply(Op::MoeTopK { used: 3, gating: Gating::Softmax, bias: false }, &[logits]);
    let router = Router { gating: Gating::Softmax, normalize: true, scale: F32Bits(1.0) };
    let weights = net.apply(Op::MoeWeights(router), &[logits, chosen]);
    let stacked = net.experts(5, cols, 96);
    let x = net.apply(Op::MoeLinear { experts: 5, bias: false }, &[x, stacked, chosen]);
    let x = net.apply(Op::MoeCombine, &[x, weights]);
    let y = net.floats("y", cols);
    net.apply(Op::Add, &[x, y]);
    net.finish()
}

/// Values that are read whole, or through a view, in the phase that computes them.
fn across(cols: usize) -> (Graph, Weights) {
    let mut net = Net::new();
    let [x, y] = ["x", "y"].map(|name| net.floats(name, cols));
    let normed = net.norm(x, 1);
    let sum = net.apply(Op::Add, &[normed, y]);
    let normed = net.norm(sum, 1);
    net.linear(normed, 9);
    let sum = net.apply(Op::Mul, &[x, y]);
    let half = net.builder.columns(sum, cols / 2, cols / 2).expect("inside");
    net.apply(Op::Scale { factor: F32Bits(0.5) }, &[half]);
    net.finish()
}

/// The bits of all outputs of two runs; the second attends to what the first has stored.
fn run(executor: &mut Cpu, (graph, weights): &(Graph, Weights), rows: usize) -> Vec<u32> {
    let program = executor.prepare(graph, weights).expect("valid");
    let spec = KvSpec { kv_heads: KV_HEADS, head_dim: HEAD_DIM, k: KvType::Q8_0, v: KvType::F16 };
    let mut state =
        CpuState::new(&StateLayers { kv: vec![(spec, 2)], ..StateLayers::default() }).expect("small");
    let mut arena = CpuArena::default();
    let mut random = Random(rows as u64);
    let mut bits = Vec::new();
    for first in [0, rows as i32] {
        let bounds = RowCounts { rows, output_rows: rows };
        let bound = program.bind(&mut arena, bounds, |input| match input.tag().name {
            "positions" | "cells" => input.i32_from((first..).take(rows)),
            "sequences" => input.i32_from((0..rows).map(|_| 0)),
            "pages" => input.i32(&[0, 1]),
            _ => {
                let elements: Vec<f32> = (0..input.count()).map(|_| random.unit()).collect();
                input.f32(&elements)
            }
        });
        let outputs =
            executor.run_bound(bound.expect("every input is known"), weights, &mut state).expect("no panic");
        for (tag, _) in graph.outputs() {
            for row in 0..rows {
                let row = outputs.row(*tag, row).expect("a row");
                assert!(row.iter().all(|x| x.is_finite()), "{tag}");
                bits.extend(row.iter().map(|x| x.to_bits()));
            }
        }
    }
    bits
}

#[test]
fn threads_that_share_a_row_compute_the_same_bits_as_one() {
    let mut graphs = vec![heads()];
    for cols in [1, 7, 32, 40, 96, 160, 576] {
        graphs.extend([elements(cols), experts(cols), across(2 * cols)]);
    }
    let mut one = Cpu::new(1).expect("an executor");
    for threads in [2, 3, 8] {
        let mut several = Cpu::new(threads).expect("an executor");
        for (index, graph) in graphs.iter().enumerate() {
            for rows in 1..=ROWS {
                let wanted = run(&mut one, graph, rows);
                assert!(wanted.iter().any(|&bits| bits != 0));
                let given = run(&mut several, graph, rows);
                assert!(given == wanted, "graph {index}, {rows} rows, {threads} threads");
            }
        }
    }
}
