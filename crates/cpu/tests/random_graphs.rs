//! Planned execution, with freed memory poisoned, against execution with a separate buffer for every value: bit for bit
//! the same outputs and states, over many random graphs, on one thread and on several.

use verbatim_backend::{KvSpec, KvType, Outputs, PAGE_CELLS, RecurrentSpec, StateLayers};
use verbatim_cpu::{Cpu, CpuArena};
use verbatim_cpu::{CpuProgram, CpuState, Weight, Weights};
use verbatim_graph::random::{self, Random, tags};
use verbatim_graph::{Def, Graph, Lifetime, Op, RowCounts, Tag};
use verbatim_matrix::{PackedExperts, PackedMatrix};
use verbatim_quant::{DType, quantize};
use verbatim_team::Team;

/// The number of pages in the page table of random graphs.
const PAGES: usize = 4;

#[test]
fn random_graphs_run_the_same_with_and_without_memory_sharing() {
    let mut one = Cpu::new(1).expect("an executor");
    // Fewer threads than most graphs have rows, as many, and more.
    let mut several = [2, 3, 8].map(|threads| Cpu::new(threads).expect("an executor"));
    let mut arenas = [CpuArena::default(), CpuArena::default()];
    for seed in 0..10_000 {
        let graph = random::graph(seed);
        let weights = weights(&graph, seed);
        let rows = bounds(&graph, seed);
        let reference = one.prepare_disjoint(&graph, &weights).expect("valid");
        let wanted = run(&mut one, &reference, &mut arenas[0], &graph, &weights, rows, seed);
        let executor = &mut several[seed as usize % 3];
        let planned = executor.prepare(&graph, &weights).expect("valid");
        // The arena still holds what earlier graphs left there, and their poison.
        let given = run(executor, &planned, &mut arenas[1], &graph, &weights, rows, seed);
        assert_eq!(given, wanted, "seed {seed}");
    }
}

/// Fewer rows than the bounds, now and then.
fn bounds(graph: &Graph, seed: u64) -> RowCounts {
    let most = graph.bounds();
    let mut random = Random(seed ^ 1);
    let rows = 1 + random.below(most.rows);
    RowCounts { rows, output_rows: most.output_rows.min(rows) }
}

/// The kind of each weight follows from its readers: the right-hand side of matmuls and embedding tables are matrices.
fn weights(graph: &Graph, seed: u64) -> Weights {
    let leaves: Vec<(Tag, verbatim_graph::ValueId)> = graph.leaves(Lifetime::Weight).collect();
    let last = leaves.iter().map(|(tag, _)| tag.index as usize).max().unwrap_or(0);
    let mut items: Vec<Weight> = (0..=last).map(|_| Weight::Vector(Vec::new())).collect();
    let mut random = Random(seed ^ 2);
    for (tag, id) in leaves {
        let value = graph.value(id);
        let (rows, cols) = (value.shape.rows.at(graph.bounds()), value.shape.cols);
        let elements: Vec<f32> = (0..rows * cols).map(|_| random.unit() * 0.3).collect();
        let reader = graph.nodes().iter().find_map(|node| {
            let index = node.operands.iter().position(|&operand| operand == id)?;
            Some((node.op, index))
        });
        let packed = || {
            let bytes_of_row = value.dtype.row_bytes(cols).expect("whole blocks");
            let mut bytes = vec![0; rows * bytes_of_row];
            match value.dtype {
                DType::F32 => {
                    bytes.copy_from_slice(&elements.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
                }
                dtype => quantize(dtype, &elements, &mut bytes).expect("finite"),
            }
            bytes
        };
        items[tag.index as usize] = match reader {
            Some((Op::Embed { .. }, 0) | (Op::Linear { .. }, 1)) => {
                Weight::Matrix(PackedMatrix::pack(value.dtype, rows, cols, &packed()).expect("fits"))
            }
            Some((Op::MoeLinear { experts, .. }, 1)) => {
                let (team, rows) = (&mut Team::single_threaded(), rows / experts);
                let experts = PackedExperts::pack_with(team, value.dtype, experts, rows, cols, &packed());
                Weight::Experts(experts.expect("fits"))
            }
            _ => Weight::Vector(elements),
        };
    }
    Weights::new(items)
}

/// The bits of all outputs, and of everything that attention would read of the states.
fn run(
    executor: &mut Cpu,
    program: &CpuProgram,
    arena: &mut CpuArena,
    graph: &Graph,
    weights: &Weights,
    rows: RowCounts,
    seed: u64,
) -> Vec<Vec<u32>> {
    let layers = |names: &[&str]| {
        let states = graph.values().iter().filter_map(|value| match value.def {
            Def::Leaf(tag) if value.lifetime == Lifetime::State && names.contains(&tag.name) => {
                Some(tag.index as usize + 1)
            }
            _ => None,
        });
        states.max().unwrap_or(0)
    };
    let spec = |index: usize| {
        let kind = |choice: u64| KvType::ALL[((seed >> choice) as usize + index) % KvType::ALL.len()];
        KvSpec { kv_heads: random::KV_HEADS, head_dim: random::HEAD_DIM, k: kind(0), v: kind(2) }
    };
    let specs: Vec<KvSpec> = (0..layers(&[tags::STATE])).map(spec).collect();
    let [channels, kernel] = random::CONV;
    let recurrent =
        vec![RecurrentSpec { kernel, channels, heads: random::DELTA }; layers(&[tags::CONV, tags::DELTA])];
    let kv = specs.iter().map(|&spec| (spec, PAGES)).collect();
    let mut state = CpuState::new(&StateLayers { kv, recurrent, slots: random::SLOTS }).expect("small");
    let mut random = Random(seed ^ 3);
    let mut results = Vec::new();
    // The second run starts from the states that the first has left.
    for _ in 0..2 {
        let bound = program
            .bind(arena, rows, |input| {
                let count = input.count();
                let mut below =
                    |limit: usize| -> Vec<i32> { (0..count).map(|_| random.below(limit) as i32).collect() };
                match input.tag().name {
                    tags::TOKENS => input.i32(&below(random::VOCABULARY)),
                    tags::POSITIONS => input.i32(&below(random::POSITIONS)),
                    tags::TREE_STARTS => input.i32(&below(random::POSITIONS + 10)),
                    tags::PATHS => input.i32(&below(PAGES * PAGE_CELLS)),
                    tags::VALID_FROM => input.i32(&below(random::POSITIONS)),
                    tags::READ_CELLS => {
                        let cells: Vec<i32> =
                            below(PAGES * PAGE_CELLS + 1).iter().map(|cell| cell - 1).collect();
                        input.i32(&cells)
                    }
                    tags::IDS => input.i32_from((0..count as i32).rev()),
                    tags::SEQUENCES => input.i32(&below(2)),
                    tags::PAGES => input.i32(&below(PAGES)),
                    tags::OUTPUT_ROWS => input.i32(&below(rows.rows)),
                    tags::WRITE_SLOTS => input.i32(&below(random::SLOTS)),
                    tags::READ_SLOTS => {
                        input.i32(&below(random::SLOTS + 1).iter().map(|slot| slot - 1).collect::<Vec<_>>())
                    }
                    // Each row its own cell, as from the sequence state.
                    tags::CELLS => input.i32_from((0..count as i32).map(|row| (row * 37 + 5) % 256)),
                    tags::X => input.f32(&(0..count).map(|_| random.unit()).collect::<Vec<_>>()),
                    _ => input.no_data(),
                }
            })
            .expect("every input is known");
        let outputs = executor.run_bound(bound, weights, &mut state).expect("no thread panics");
        let tags = graph.outputs().iter().map(|(tag, _)| *tag);
        results.extend(tags.map(|tag| {
            let rows = 0..outputs.rows(tag).expect("an output");
            rows.flat_map(|row| outputs.row(tag, row).expect("a row")).map(|x| x.to_bits()).collect()
        }));
    }
    results
}
