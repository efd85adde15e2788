//! The kernels, on operands of fixed shapes and contents.

use std::hint::black_box;

use verbatim_backend::{KvSpec, KvType, PAGE_CELLS, StateLayers};
use verbatim_cpu::{Cpu, CpuArena, CpuState, Weight, Weights};
use verbatim_graph::{
    Activation, Attention, Builder, F32Bits, Gating, Graph, Op, RopeLayout, Router, RowCounts, Shape, Tag,
    ValueId,
};
use verbatim_matrix::{Epilogue, Input, PackedMatrix, activation_row_bytes, matmul, quantize_row};
use verbatim_quant::DType;
use verbatim_sample::{SampleInput, SampleScratch, Sampler, Sampling};
use verbatim_simd::Isa;
use verbatim_team::Team;

use crate::callgrind::measured;

const PRODUCT_FORMATS: [DType; 10] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q8_0,
    DType::Q2_K,
    DType::Q4_K,
    DType::Q6_K,
    DType::IQ2_XS,
    DType::IQ3_S,
    DType::IQ4_XS,
    DType::F16,
];
const WIDTHS: [usize; 3] = [1, 8, 64];
const PRODUCT_ROWS: usize = 64;
const COLS: usize = 1024;

/// Rows of the row-wise kernels.
const ROWS: usize = 64;

const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
/// Positions that attention covers.
const KEYS: usize = 1024;

const VOCABULARY: usize = 32_768;

/// Runs every kernel and prints their names.
pub(crate) fn run_all() {
    let isa = Isa::from_environment().expect("the parent has checked it");
    for dtype in PRODUCT_FORMATS {
        for width in WIDTHS {
            product(isa, dtype, width);
        }
    }
    let (row, mut quantized) = (values(ROWS * COLS), vec![0; activation_row_bytes(ROWS * COLS)]);
    count("quantize activations", &mut || quantize_row(isa, black_box(&row), black_box(&mut quantized)));
    for kv in [KvType::F16, KvType::Q8_0, KvType::Q4_0] {
        attention(kv);
    }
    along_rows();
    let logits = values(VOCABULARY);
    let chains = [
        ("sample greedily", Sampling::greedy()),
        ("sample unfiltered", Sampling::unfiltered(0.8, 1)),
        ("sample by the default chain", Sampling::default()),
    ];
    let mut scratch = SampleScratch::default();
    for (name, settings) in chains {
        let sampler = Sampler::new(settings, 1).expect("in range");
        let input =
            SampleInput { logits: &logits, position: 7, history: &[], mask: None, state: sampler.start() };
        count(name, &mut || {
            black_box(sampler.sample(black_box(&input), &mut scratch));
        });
    }
}

/// The first call is a warm-up for one-time work.
fn count(name: &str, kernel: &mut dyn FnMut()) {
    kernel();
    measured(kernel);
    println!("{name}");
}

fn product(isa: Isa, dtype: DType, tokens: usize) {
    let bytes = weights(dtype, PRODUCT_ROWS * dtype.row_bytes(COLS).expect("whole blocks"));
    let matrix = PackedMatrix::pack(dtype, PRODUCT_ROWS, COLS, &bytes).expect("weights");
    let values = values(tokens * COLS);
    let stride_bytes = activation_row_bytes(COLS);
    let mut quantized = vec![0; tokens * stride_bytes];
    for (row, out) in values.chunks_exact(COLS).zip(quantized.chunks_exact_mut(stride_bytes)) {
        quantize_row(isa, row, out);
    }
    let input = if matrix.takes_quantized() {
        Input::Quantized { bytes: &quantized, stride_bytes, tokens, terms: 1 }
    } else {
        Input::Floats { values: &values, stride: COLS, tokens }
    };
    let mut team = Team::single_threaded();
    let mut output = vec![0.0; tokens * PRODUCT_ROWS];
    count(&format!("product {} x{tokens}", dtype.name()), &mut || {
        let output = black_box(&mut output);
        matmul(&mut team, isa, &matrix, input, output, PRODUCT_ROWS, Epilogue::default());
    });
}

/// K and V of all positions are stored, which counts for the quantisation of K and V; then the last position attends.
fn attention(kv: KvType) {
    let spec = KvSpec { kv_heads: KV_HEADS, head_dim: HEAD_DIM, k: kv, v: kv };
    let mut state =
        CpuState::new(&StateLayers { kv: vec![(spec, KEYS / PAGE_CELLS)], ..StateLayers::default() })
            .expect("small");

    let mut builder = Builder::new(RowCounts { rows: KEYS, output_rows: 1 });
    let cache = builder.state(Tag::new("kv")).expect("a fresh name");
    let [k, v] = ["k", "v"].map(|name| floats(&mut builder, name, KV_HEADS * HEAD_DIM));
    let cells = integers(&mut builder, "cells", Shape::per_row(1));
    let write = Op::KvWrite { kv_heads: KV_HEADS, head_dim: HEAD_DIM };
    builder.apply(write, &[cache, k, v, cells]).expect("fits");
    run(&format!("store K and V {}", kv.name()), &builder.finish(), KEYS, &mut state, Vec::new());

    let mut builder = Builder::new(RowCounts { rows: 1, output_rows: 1 });
    let cache = builder.state(Tag::new("kv")).expect("a fresh name");
    let q = floats(&mut builder, "q", HEADS * HEAD_DIM);
    let positions = integers(&mut builder, "last position", Shape::per_row(1));
    let sequences = integers(&mut builder, "sequences", Shape::per_row(1));
    let pages = integers(&mut builder, "pages", Shape::fixed(1, KEYS / PAGE_CELLS));
    let attention = Attention {
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        scale: F32Bits(0.125),
        window: None,
        softcap: None,
        sinks: false,
        paths: false,
        valid_from: false,
    };
    let operands = [q, cache, positions, sequences, pages];
    let out = builder.apply(Op::Attention(attention), &operands).expect("fits");
    let graph = finish(builder, out);
    run(&format!("attention {}", kv.name()), &graph, 1, &mut state, Vec::new());
}

fn along_rows() {
    let bounds = RowCounts { rows: ROWS, output_rows: 1 };
    let run = |name, graph, weights| run(name, &graph, ROWS, &mut CpuState::default(), weights);

    let mut builder = Builder::new(bounds);
    let x = floats(&mut builder, "x", COLS);
    let weight = builder.weight(Tag::new("norm"), DType::F32, Shape::fixed(1, COLS)).expect("a fresh name");
    let out = builder.apply(Op::RmsNorm { eps: F32Bits(1e-5), groups: 1 }, &[x, weight]).expect("fits");
    run("rms norm", finish(builder, out), vec![Weight::Vector(values(COLS))]);

    for (name, layout) in [("rope halves", RopeLayout::NeoX), ("rope pairs", RopeLayout::Interleaved)] {
        let mut builder = Builder::new(bounds);
        let [x, table] = [("x", COLS), ("table", HEAD_DIM)].map(|(n, cols)| floats(&mut builder, n, cols));
        let rope = Op::Rope { heads: COLS / HEAD_DIM, head_dim: HEAD_DIM, layout };
        let out = builder.apply(rope, &[x, table]).expect("fits");
        run(name, finish(builder, out), Vec::new());
    }

    let mut builder = Builder::new(bounds);
    let x = floats(&mut builder, "x", COLS);
    let hadamard = Op::Hadamard { heads: COLS / HEAD_DIM, head_dim: HEAD_DIM };
    let out = builder.apply(hadamard, &[x]).expect("fits");
    run("hadamard", finish(builder, out), Vec::new());

    for (name, activation) in [("silu gate", Activation::Silu), ("gelu gate", Activation::GeluTanh)] {
        let mut builder = Builder::new(bounds);
        let operands = ["gate", "up"].map(|name| floats(&mut builder, name, COLS));
        let out = builder.apply(Op::Glu { activation }, &operands).expect("fits");
        run(name, finish(builder, out), Vec::new());
    }

    let mut builder = Builder::new(bounds);
    let logits = floats(&mut builder, "logits", 128);
    let top = Op::MoeTopK { used: 8, gating: Gating::Softmax, bias: false };
    let chosen = builder.apply(top, &[logits]).expect("fits");
    let router = Router { gating: Gating::Softmax, normalize: true, scale: F32Bits(1.0) };
    let out = builder.apply(Op::MoeWeights(router), &[logits, chosen]).expect("fits");
    run("choice of experts", finish(builder, out), Vec::new());
}

fn floats(builder: &mut Builder, name: &'static str, cols: usize) -> ValueId {
    builder.input(Tag::new(name), DType::F32, Shape::per_row(cols)).expect("a fresh name")
}

fn integers(builder: &mut Builder, name: &'static str, shape: Shape) -> ValueId {
    builder.input(Tag::new(name), DType::I32, shape).expect("a fresh name")
}

fn finish(mut builder: Builder, out: ValueId) -> Graph {
    builder.output(Tag::new("out"), out).expect("computed");
    builder.finish()
}

/// Counts a run of a graph, without preparing it and filling its inputs.
fn run(name: &str, graph: &Graph, rows: usize, state: &mut CpuState, weights: Vec<Weight>) {
    let mut executor = Cpu::new(1).expect("an executor");
    let weights = Weights::new(weights);
    let program = executor.prepare(graph, &weights).expect("a valid graph");
    let mut arenas = [CpuArena::default(), CpuArena::default()];
    let rows = RowCounts { rows, output_rows: 1 };
    let mut bound: Vec<_> = arenas
        .iter_mut()
        .map(|arena| {
            let bound = program.bind(arena, rows, |input| match input.tag().name {
                "last position" => input.i32(&[KEYS as i32 - 1]),
                "sequences" => input.i32(&[0]),
                "pages" | "cells" => {
                    let count = input.count() as i32;
                    input.i32_from(0..count)
                }
                _ => {
                    let values = values(input.count());
                    input.f32(&values)
                }
            });
            bound.expect("every input is known")
        })
        .collect();
    count(name, &mut || {
        let bound = bound.pop().expect("bound for both calls");
        executor.run_bound(bound, &weights, state).expect("no thread panics");
    });
}

/// Arbitrary weights, with scales that are ordinary floats.
fn weights(dtype: DType, bytes: usize) -> Vec<u8> {
    let mask = if dtype == DType::F16 { 0x3b } else { 0x2f };
    (0..bytes).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8 & mask).collect()
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i.wrapping_mul(0x9e37_79b9) >> 7) % 2001) as f32 / 1000.0 - 1.0).collect()
}
