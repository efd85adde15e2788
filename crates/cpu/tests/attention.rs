//! Attention over long sequences: a row has the same bits alone and in a batch, with and without split-KV, on any number
//! of threads and every instruction set.

use verbatim_backend::{KvSpec, KvType, Outputs, PAGE_CELLS, StateLayers};
use verbatim_cpu::{Cpu, CpuArena, CpuState, Weight, Weights};
use verbatim_graph::random::Random;
use verbatim_graph::{Attention, Builder, F32Bits, Graph, Op, RowCounts, Shape, Tag};
use verbatim_quant::DType;
use verbatim_simd::Isa;

const HEAD_DIM: usize = 24;
/// Pages of a sequence: several splits of positions, the last one partial.
const PAGES: usize = 19;
const POSITIONS: usize = PAGES * PAGE_CELLS;
const SEQUENCES: usize = 2;
const OUT: Tag = Tag::new("out");

/// Query heads, KV heads and a window.
#[derive(Clone, Copy)]
struct Layer {
    heads: usize,
    kv_heads: usize,
    window: Option<usize>,
    sinks: bool,
    /// Rows attend to this many positions at most, by `valid_from` rather than by a window.
    valid: Option<usize>,
    kind: KvType,
}

/// Stores K and V.
fn store(layer: Layer) -> Graph {
    let mut b = Builder::new(RowCounts { rows: PAGE_CELLS, output_rows: 1 });
    let state = b.state(Tag::new("kv")).expect("a fresh name");
    let width = Shape::per_row(layer.kv_heads * HEAD_DIM);
    let [k, v] = ["k", "v"].map(|name| b.input(Tag::new(name), DType::F32, width).expect("a fresh name"));
    let cells = b.input(Tag::new("cells"), DType::I32, Shape::per_row(1)).expect("a fresh name");
    let write = Op::KvWrite { kv_heads: layer.kv_heads, head_dim: HEAD_DIM };
    b.apply(write, &[state, k, v, cells]).expect("fits");
    b.finish()
}

/// Attends with at most `rows` rows.
fn attend(layer: Layer, rows: usize) -> Graph {
    let Layer { heads, kv_heads, window, sinks, valid, .. } = layer;
    let mut b = Builder::new(RowCounts { rows, output_rows: 1 });
    let state = b.state(Tag::new("kv")).expect("a fresh name");
    let mut input = |name: &'static str, dtype: DType, shape: Shape| {
        b.input(Tag::new(name), dtype, shape).expect("a fresh name")
    };
    let q = input("q", DType::F32, Shape::per_row(heads * HEAD_DIM));
    let [positions, sequences] =
        ["positions", "sequences"].map(|name| input(name, DType::I32, Shape::per_row(1)));
    let pages = input("pages", DType::I32, Shape::fixed(SEQUENCES, PAGES));
    let mut operands = vec![q, state, positions, sequences, pages];
    if valid.is_some() {
        operands.push(b.input(Tag::new("valid_from"), DType::I32, Shape::per_row(1)).expect("a fresh name"));
    }
    if sinks {
        let tag = Tag::indexed("sinks", 0);
        operands.push(b.weight(tag, DType::F32, Shape::fixed(1, heads)).expect("a fresh name"));
    }
    let (scale, softcap) = (F32Bits(0.7), window.map(|_| F32Bits(3.0)));
    let valid_from = valid.is_some();
    let attention = Attention {
        heads,
        kv_heads,
        head_dim: HEAD_DIM,
        scale,
        window,
        softcap,
        sinks,
        paths: false,
        valid_from,
    };
    let out = b.apply(Op::Attention(attention), &operands).expect("fits");
    b.output(OUT, out).expect("computed");
    b.finish()
}

/// The page of a block of a sequence: those of two sequences are interleaved.
fn page(sequence: usize, block: usize) -> usize {
    (PAGES - 1 - block) * SEQUENCES + sequence
}

/// Values of one row of an input: the same in every step.
fn row_values(name: &str, (sequence, position): (usize, usize), width: usize) -> Vec<f32> {
    let name = name.bytes().fold(7u64, |hash, byte| hash * 31 + u64::from(byte));
    let mut random = Random(name + ((sequence * POSITIONS + position) as u64) * 1_000_003);
    (0..width).map(|_| random.unit() * 2.0).collect()
}

/// The first valid position of a row.
fn valid_from(layer: Layer, position: usize) -> usize {
    (position + 1).saturating_sub(layer.valid.unwrap_or(usize::MAX))
}

struct Machine {
    executor: Cpu,
    arena: CpuArena,
    weights: Weights,
}

impl Machine {
    fn new(threads: usize, isa: Isa, layer: Layer) -> Machine {
        let sinks = (0..layer.heads).map(|head| head as f32 - 2.0).collect();
        Machine {
            executor: Cpu::with_isa(threads, isa).expect("an executor"),
            arena: CpuArena::default(),
            weights: Weights::new(if layer.sinks { vec![Weight::Vector(sinks)] } else { Vec::new() }),
        }
    }

    /// The bits of some rows, each a sequence and a position; none where the graph only stores.
    fn run(
        &mut self,
        layer: Layer,
        graph: &Graph,
        state: &mut CpuState,
        rows: &[(usize, usize)],
    ) -> Vec<Vec<u32>> {
        let program = self.executor.prepare(graph, &self.weights).expect("valid");
        let bounds = RowCounts { rows: rows.len(), output_rows: 1 };
        let bound = program.bind(&mut self.arena, bounds, |input| match input.tag().name {
            "positions" => input.i32_from(rows.iter().map(|row| row.1 as i32)),
            "valid_from" => input.i32_from(rows.iter().map(|row| valid_from(layer, row.1) as i32)),
            "sequences" => input.i32_from(rows.iter().map(|row| row.0 as i32)),
            "pages" => input
                .i32_from((0..SEQUENCES).flat_map(|s| (0..PAGES).map(move |block| page(s, block) as i32))),
            "cells" => input.i32_from(rows.iter().map(|&(sequence, position)| {
                (page(sequence, position / PAGE_CELLS) * PAGE_CELLS + position % PAGE_CELLS) as i32
            })),
            name => {
                let width = if name == "q" { layer.heads } else { layer.kv_heads } * HEAD_DIM;
                input.f32(&rows.iter().flat_map(|&row| row_values(name, row, width)).collect::<Vec<_>>())
            }
        });
        let bound = bound.expect("every input is known");
        let outputs = self.executor.run_bound(bound, &self.weights, state).expect("no thread panics");
        let rows = (0..rows.len()).filter_map(|row| outputs.row(OUT, row));
        rows.map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
    }
}

#[test]
fn a_row_has_the_same_bits_at_every_batch_size_thread_count_and_instruction_set() {
    for layer in [
        Layer { heads: 9, kv_heads: 3, window: None, sinks: false, valid: None, kind: KvType::F16 },
        Layer { heads: 4, kv_heads: 1, window: Some(300), sinks: true, valid: None, kind: KvType::Q8_0 },
        Layer { heads: 40, kv_heads: 1, window: Some(64), sinks: false, valid: None, kind: KvType::F32 },
        Layer { heads: 14, kv_heads: 2, window: None, sinks: true, valid: None, kind: KvType::Q4_0 },
        Layer { heads: 4, kv_heads: 2, window: None, sinks: true, valid: Some(300), kind: KvType::F16 },
        Layer { heads: 4, kv_heads: 2, window: Some(70), sinks: false, valid: Some(1), kind: KvType::Q8_0 },
    ] {
        let spec = KvSpec { kv_heads: layer.kv_heads, head_dim: HEAD_DIM, k: layer.kind, v: layer.kind };
        let mut state =
            CpuState::new(&StateLayers { kv: vec![(spec, SEQUENCES * PAGES)], ..StateLayers::default() })
                .expect("small");
        let mut scalar = Machine::new(1, Isa::scalar(), layer);
        let store = store(layer);
        let all: Vec<(usize, usize)> =
            (0..SEQUENCES).flat_map(|s| (0..POSITIONS).map(move |position| (s, position))).collect();
        for rows in all.chunks(PAGE_CELLS) {
            scalar.run(layer, &store, &mut state, rows);
        }
        // Rows of two sequences in turn, rows in order across the ends of blocks and splits, and rows far apart.
        let alternating: Vec<_> = (0..12).map(|i| (i % 2, 700 + i)).collect();
        let steps: Vec<Vec<(usize, usize)>> = vec![
            vec![(0, 0)],
            vec![(1, 255)],
            vec![(0, POSITIONS - 1)],
            (505..521).map(|position| (1, position)).collect(),
            vec![(0, 3), (0, 1100), (0, 256), (0, 255), (1, 900)],
            alternating,
            (480..520).map(|position| (0, position)).collect(),
            (750..814).map(|position| (position % 3 / 2, position)).collect(),
        ];
        let mut machines: Vec<Machine> = Isa::supported().map(|isa| Machine::new(1, isa, layer)).collect();
        machines.extend([2, 3].map(|threads| Machine::new(threads, Isa::best(), layer)));
        let one = attend(layer, 1);
        for rows in steps {
            let wanted: Vec<Vec<u32>> = rows
                .iter()
                .map(|row| scalar.run(layer, &one, &mut state, std::slice::from_ref(row)).remove(0))
                .collect();
            for bound in [16, 64].into_iter().filter(|&bound| bound >= rows.len()) {
                let graph = attend(layer, bound);
                for machine in &mut machines {
                    let given = machine.run(layer, &graph, &mut state, &rows);
                    assert!(
                        given == wanted && !given.is_empty(),
                        "{} heads, {bound} rows at max: {rows:?}",
                        layer.heads
                    );
                }
            }
        }
    }
}

#[test]
fn positions_before_valid_from_are_outside_like_those_before_a_window() {
    let windowed =
        Layer { heads: 6, kv_heads: 2, window: Some(130), sinks: true, valid: None, kind: KvType::F16 };
    let bits = |layer: Layer, threads: usize| {
        let spec = KvSpec { kv_heads: layer.kv_heads, head_dim: HEAD_DIM, k: layer.kind, v: layer.kind };
        let kv = vec![(spec, SEQUENCES * PAGES)];
        let mut state = CpuState::new(&StateLayers { kv, ..StateLayers::default() }).expect("small");
        let mut machine = Machine::new(threads, Isa::best(), layer);
        let all: Vec<(usize, usize)> = (0..POSITIONS).map(|position| (1, position)).collect();
        // What is not valid may be anything, NaN too: other tests see it as poison.
        for rows in all.chunks(PAGE_CELLS) {
            machine.run(layer, &store(layer), &mut state, rows);
        }
        let rows: Vec<(usize, usize)> = [0, 63, 64, 129, 130, 255, 256, 390, 1000].map(|at| (1, at)).into();
        [16, 64].map(|bound| machine.run(layer, &attend(layer, bound), &mut state, &rows))
    };
    // The softcap of the windowed layer is that of a window of all positions.
    let valid = Layer { window: Some(POSITIONS), valid: windowed.window, ..windowed };
    let wanted = bits(windowed, 1);
    assert_eq!(wanted[0], wanted[1]);
    for threads in [1, 3] {
        assert_eq!(bits(valid, threads), wanted, "{threads} threads");
    }
}
