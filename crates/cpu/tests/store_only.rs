//! A pass that stores K and V without attending, as draft models do that fill their cache from a prompt: inputs that only
//! attention reads are not requested, and what is stored equals what a pass that attends would have stored.

use verbatim_backend::{KvSpec, KvType, Outputs, PAGE_CELLS, StateLayers};
use verbatim_cpu::{Cpu, CpuArena, CpuState, Weights};
use verbatim_graph::random::Random;
use verbatim_graph::{Attention, Builder, F32Bits, Graph, Lifetime, Op, RowCounts, Shape, Tag, ValueId};
use verbatim_quant::DType;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 24;
const ROWS: usize = 32;
const POSITIONS: usize = 8192;
const WIDTH: usize = KV_HEADS * HEAD_DIM;

fn input(builder: &mut Builder, name: &'static str, shape: Shape) -> ValueId {
    let dtype = if ["q", "k", "v"].contains(&name) { DType::F32 } else { DType::I32 };
    builder.input(Tag::new(name), dtype, shape).expect("a fresh name")
}

fn hadamard(builder: &mut Builder, heads: usize, x: ValueId) -> ValueId {
    builder.apply(Op::Hadamard { heads, head_dim: HEAD_DIM }, &[x]).expect("fits")
}

/// Stores, attends, or both; K and V rotated.
fn graph(stores: bool, attends: bool) -> Graph {
    let mut b = Builder::new(RowCounts { rows: ROWS, output_rows: 1 });
    let mut state = b.state(Tag::new("kv")).expect("a fresh name");
    let positions = input(&mut b, "positions", Shape::per_row(1));
    let sequences = input(&mut b, "sequences", Shape::per_row(1));
    let pages = input(&mut b, "pages", Shape::fixed(1, POSITIONS / PAGE_CELLS));
    let q = input(&mut b, "q", Shape::per_row(HEADS * HEAD_DIM));
    let q = hadamard(&mut b, HEADS, q);
    if stores {
        let [k, v] = ["k", "v"].map(|name| input(&mut b, name, Shape::per_row(WIDTH)));
        let [k, v] = [k, v].map(|x| hadamard(&mut b, KV_HEADS, x));
        let cells = input(&mut b, "cells", Shape::per_row(1));
        let write = Op::KvWrite { kv_heads: KV_HEADS, head_dim: HEAD_DIM };
        state = b.apply(write, &[state, k, v, cells]).expect("fits");
    }
    if attends {
        let attention = Attention {
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            scale: F32Bits(0.2),
            window: None,
            softcap: None,
            sinks: false,
            paths: false,
            valid_from: false,
        };
        let out = b.apply(Op::Attention(attention), &[q, state, positions, sequences, pages]).expect("fits");
        let out = hadamard(&mut b, HEADS, out);
        b.output(Tag::new("out"), out).expect("computed");
    }
    b.finish()
}

fn live(graph: &Graph) -> Vec<&'static str> {
    let mut names: Vec<_> = graph.leaves(Lifetime::Input).map(|(tag, _)| tag.name).collect();
    names.sort_unstable();
    names
}

/// Values of a position: the same in every pass.
fn row(name: &str, position: usize, width: usize) -> Vec<f32> {
    let mut random = Random(position as u64 * 3 + name.len() as u64 + u64::from(name.as_bytes()[0]) * 99_991);
    (0..width).map(|_| random.unit()).collect()
}

/// Runs rows of these positions; the bits of the results of attention.
fn run(executor: &mut Cpu, graph: &Graph, state: &mut CpuState, positions: &[usize]) -> Vec<u32> {
    let weights = Weights::new(Vec::new());
    let program = executor.prepare(graph, &weights).expect("valid");
    let mut arena = CpuArena::default();
    let mut bits = Vec::new();
    for positions in positions.chunks(ROWS) {
        let rows = RowCounts { rows: positions.len(), output_rows: 1 };
        let bound = program
            .bind(&mut arena, rows, |input| match input.tag().name {
                "positions" | "cells" => input.i32_from(positions.iter().map(|&position| position as i32)),
                "sequences" => input.i32_from(positions.iter().map(|_| 0)),
                "pages" => input.i32_from((0..POSITIONS / PAGE_CELLS).map(|page| page as i32)),
                name => {
                    let width = input.count() / positions.len();
                    let elements: Vec<f32> =
                        positions.iter().flat_map(|&position| row(name, position, width)).collect();
                    input.f32(&elements)
                }
            })
            .expect("every input is known");
        let outputs = executor.run_bound(bound, &weights, state).expect("no thread panics");
        for row in 0..outputs.rows(Tag::new("out")).unwrap_or(0) {
            let out = outputs.row(Tag::new("out"), row).expect("a row");
            assert!(out.iter().all(|x| x.is_finite()));
            bits.extend(out.iter().map(|x| x.to_bits()));
        }
    }
    bits
}

#[test]
fn a_pass_attends_to_what_an_earlier_store_only_pass_stored() {
    let (store, attend, both) = (graph(true, false), graph(false, true), graph(true, true));
    assert_eq!(live(&store), ["cells", "k", "v"]);
    assert_eq!(live(&attend), ["pages", "positions", "q", "sequences"]);
    assert_eq!(live(&both), ["cells", "k", "pages", "positions", "q", "sequences", "v"]);
    let mut executor = Cpu::new(2).expect("an executor");
    for (i, k) in KvType::ALL.into_iter().enumerate() {
        let spec = KvSpec { kv_heads: KV_HEADS, head_dim: HEAD_DIM, k, v: KvType::ALL[(i * 2 + 3) % 9] };
        let memory = || {
            CpuState::new(&StateLayers { kv: vec![(spec, POSITIONS / PAGE_CELLS)], ..StateLayers::default() })
                .expect("small")
        };
        let (mut apart, mut together) = (memory(), memory());
        let first: Vec<usize> = (0..POSITIONS - ROWS).collect();
        let last: Vec<usize> = (POSITIONS - ROWS..POSITIONS).collect();
        run(&mut executor, &store, &mut apart, &first);
        run(&mut executor, &store, &mut apart, &last);
        run(&mut executor, &store, &mut together, &first);
        let wanted = run(&mut executor, &both, &mut together, &last);
        assert_eq!(wanted.len(), ROWS * HEADS * HEAD_DIM);
        assert_eq!(run(&mut executor, &attend, &mut apart, &last), wanted, "{spec:?}");
        // Short contexts, from the same memory.
        let early = [0, 1, 62, 63, 64, 100, 4095];
        let wanted = run(&mut executor, &both, &mut together, &early);
        assert_eq!(run(&mut executor, &attend, &mut apart, &early), wanted, "{spec:?}");
    }
}
