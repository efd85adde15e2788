//! Steps over trees of rows: every row has the bits of its root-to-row path run separately, one row at a time and in the
//! cells and slots that a plain sequence uses.

use verbatim_backend::{KvSpec, KvType, Outputs, PAGE_CELLS, RecurrentSpec, StateLayers};
use verbatim_cpu::{Cpu, CpuArena, CpuProgram};
use verbatim_cpu::{CpuState, Weight, Weights};
use verbatim_graph::random::Random;
use verbatim_graph::{Attention, Builder, DeltaHeads, F32Bits, Graph, Op, RowCounts, Shape, Tag, ValueId};
use verbatim_quant::DType;
use verbatim_simd::Isa;

/// Maximum number of rows of a step, and of cells of a path.
const ROWS: usize = 12;
const OUT: Tag = Tag::new("out");

/// A tree: the parent of each row, which is an earlier row, and its depth.
struct Tree {
    parents: Vec<Option<usize>>,
}

impl Tree {
    /// Several roots, chains and siblings.
    fn random(random: &mut Random) -> Tree {
        let rows = 1 + random.below(ROWS);
        let parent = |random: &mut Random, row: usize| match random.below(4) {
            0 => None,
            1 => row.checked_sub(1),
            _ => (row > 0).then(|| random.below(row)),
        };
        Tree { parents: (0..rows).map(|row| parent(random, row)).collect() }
    }

    fn rows(&self) -> usize {
        self.parents.len()
    }

    /// The rows on the path from the root to a row, itself last.
    fn path(&self, row: usize) -> Vec<usize> {
        let mut row_path: Vec<usize> = std::iter::successors(Some(row), |&row| self.parents[row]).collect();
        row_path.reverse();
        row_path
    }
}

fn random_values(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.unit()).collect()
}

fn bits(row: Option<&[f32]>) -> Vec<u32> {
    row.expect("a row").iter().map(|x| x.to_bits()).collect()
}

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 24;
/// Pages of a layer: three for the sequence, and one for cells of the tree.
const PAGES: usize = 4;

fn attention_graph(paths: bool, window: Option<usize>) -> Graph {
    let mut b = Builder::new(RowCounts { rows: ROWS, output_rows: 1 });
    let state = b.state(Tag::new("kv")).expect("a fresh name");
    let mut input = |name: &'static str, dtype: DType, shape: Shape| {
        b.input(Tag::new(name), dtype, shape).expect("a fresh name")
    };
    let q = input("q", DType::F32, Shape::per_row(HEADS * HEAD_DIM));
    let [k, v] = ["k", "v"].map(|name| input(name, DType::F32, Shape::per_row(KV_HEADS * HEAD_DIM)));
    let [cells, positions, sequences, tree_starts] = ["cells", "positions", "sequences", "tree_starts"]
        .map(|name| input(name, DType::I32, Shape::per_row(1)));
    let pages = input("pages", DType::I32, Shape::fixed(1, PAGES - 1));
    let path = input("paths", DType::I32, Shape::per_row(ROWS));
    let write = Op::KvWrite { kv_heads: KV_HEADS, head_dim: HEAD_DIM };
    let state = b.apply(write, &[state, k, v, cells]).expect("fits");
    let attention = Attention {
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        scale: F32Bits(0.2),
        window,
        softcap: None,
        sinks: true,
        paths,
        valid_from: false,
    };
    let sinks = b.weight(Tag::indexed("sinks", 0), DType::F32, Shape::fixed(1, HEADS)).expect("a fresh name");
    let mut operands = vec![q, state, positions, sequences, pages];
    if paths {
        operands.extend([tree_starts, path]);
    }
    operands.push(sinks);
    let out = b.apply(Op::Attention(attention), &operands).expect("fits");
    b.output(OUT, out).expect("computed");
    b.finish()
}

/// The inputs of a step's rows.
struct Rows {
    /// q, k, v of each row.
    values: Vec<[Vec<f32>; 3]>,
    positions: Vec<usize>,
    cells: Vec<usize>,
    tree_starts: Vec<usize>,
    paths: Vec<Vec<usize>>,
}

fn attend(
    executor: &mut Cpu,
    program: &CpuProgram,
    weights: &Weights,
    state: &mut CpuState,
    rows: &Rows,
) -> Vec<Vec<u32>> {
    let count = rows.positions.len();
    let number = |values: &[usize]| values.iter().map(|&value| value as i32).collect::<Vec<_>>();
    let mut arena = CpuArena::default();
    let bound = program
        .bind(&mut arena, RowCounts { rows: count, output_rows: 1 }, |input| {
            let value = |i: usize| rows.values.iter().flat_map(|row| row[i].clone()).collect::<Vec<_>>();
            match input.tag().name {
                "q" => input.f32(&value(0)),
                "k" => input.f32(&value(1)),
                "v" => input.f32(&value(2)),
                "cells" => input.i32(&number(&rows.cells)),
                "positions" => input.i32(&number(&rows.positions)),
                "sequences" => input.i32(&vec![0; count]),
                "pages" => input.i32(&[2, 0, 1]),
                "tree_starts" => input.i32(&number(&rows.tree_starts)),
                "paths" => {
                    // Cells after the row's own are never read.
                    let padded = rows.paths.iter().flat_map(|path| {
                        number(path).into_iter().chain(std::iter::repeat(-1)).take(ROWS).collect::<Vec<_>>()
                    });
                    input.i32_from(padded)
                }
                _ => input.no_data(),
            }
        })
        .expect("every input is known");
    let outputs = executor.run_bound(bound, weights, state).expect("no thread panics");
    (0..count).map(|row| bits(outputs.row(OUT, row))).collect()
}

/// The cell of a position in the sequence's pages.
fn natural(position: usize) -> usize {
    [2, 0, 1][position / PAGE_CELLS] * PAGE_CELLS + position % PAGE_CELLS
}

#[test]
fn every_row_of_a_tree_attends_to_its_own_path() {
    let mut random = Random(31);
    let weights = Weights::new(vec![Weight::Vector(random_values(&mut random, HEADS))]);
    let mut executors: Vec<Cpu> =
        Isa::supported().map(|isa| Cpu::with_isa(2, isa).expect("an executor")).collect();
    let executors_count = executors.len();
    for round in 0..120 {
        let executor = &mut executors[round % executors_count];
        let window = [None, Some(1), Some(5), Some(70)][random.below(4)];
        let [plain, tree_program] = [false, true]
            .map(|paths| executor.prepare(&attention_graph(paths, window), &weights).expect("valid"));
        let [k, v] = [0, 0].map(|_| KvType::ALL[random.below(KvType::ALL.len())]);
        let spec = KvSpec { kv_heads: KV_HEADS, head_dim: HEAD_DIM, k, v };
        let memory = || {
            CpuState::new(&StateLayers { kv: vec![(spec, PAGES)], ..StateLayers::default() }).expect("small")
        };
        let mut values =
            |_: usize| [HEADS, KV_HEADS, KV_HEADS].map(|heads| random_values(&mut random, heads * HEAD_DIM));
        // Committed positions, up to and across the edges of pages.
        let committed = [0, 1, 60, 63, 64, 100, 127, 128][round / 2 % 8];
        let prefix: Vec<[Vec<f32>; 3]> = (0..committed).map(&mut values).collect();
        let chain = |values: &[[Vec<f32>; 3]], start: usize| Rows {
            positions: (start..start + values.len()).collect(),
            cells: (start..start + values.len()).map(natural).collect(),
            tree_starts: vec![1000; values.len()],
            paths: vec![vec![]; values.len()],
            values: values.to_vec(),
        };
        let with_prefix = |executor: &mut Cpu, program: &CpuProgram| {
            let mut state = memory();
            for (i, part) in prefix.chunks(ROWS).enumerate() {
                attend(executor, program, &weights, &mut state, &chain(part, i * ROWS));
            }
            state
        };
        let tree = Tree::random(&mut Random(round as u64));
        let tree_values: Vec<[Vec<f32>; 3]> = (0..tree.rows()).map(&mut values).collect();
        // The cell of a row: some in the sequence's pages, where a step without a tree would store different positions, and some
        // elsewhere.
        let cell = |row: usize| {
            if row.is_multiple_of(3) { natural(committed + row) } else { 3 * PAGE_CELLS + row * 5 }
        };
        let row_paths: Vec<Vec<usize>> = (0..tree.rows()).map(|row| tree.path(row)).collect();
        let rows = Rows {
            values: tree_values.clone(),
            positions: row_paths.iter().map(|row_path| committed + row_path.len() - 1).collect(),
            cells: (0..tree.rows()).map(cell).collect(),
            tree_starts: vec![committed; tree.rows()],
            paths: row_paths.iter().map(|row_path| row_path.iter().map(|&row| cell(row)).collect()).collect(),
        };
        let mut state = with_prefix(executor, &tree_program);
        let given = attend(executor, &tree_program, &weights, &mut state, &rows);
        for (row, row_path) in row_paths.iter().enumerate() {
            let mut state = with_prefix(executor, &plain);
            let values: Vec<[Vec<f32>; 3]> = row_path.iter().map(|&row| tree_values[row].clone()).collect();
            let wanted = attend(executor, &plain, &weights, &mut state, &chain(&values, committed));
            assert_eq!(
                Some(&given[row]),
                wanted.last(),
                "round {round}, row {row} by {row_path:?}, {spec:?}"
            );
        }
    }
}

const KERNEL: usize = 4;
const DELTA: DeltaHeads = DeltaHeads { key_heads: 2, value_heads: 4, key_dim: 8, value_dim: 24 };

/// A short convolution and a delta net after it.
fn recurrent_graph(channels: usize) -> Graph {
    let mut b = Builder::new(RowCounts { rows: ROWS, output_rows: 1 });
    let x = b.input(Tag::new("x"), DType::F32, Shape::per_row(channels)).expect("a fresh name");
    let [alpha, beta] = ["alpha", "beta"].map(|name| {
        b.input(Tag::new(name), DType::F32, Shape::per_row(DELTA.value_heads)).expect("a fresh name")
    });
    let [read, write] = ["read", "write"]
        .map(|name| b.input(Tag::new(name), DType::I32, Shape::per_row(1)).expect("a fresh name"));
    let mut weight = |index: u32, cols: usize| -> ValueId {
        b.weight(Tag::indexed("weight", index), DType::F32, Shape::fixed(1, cols)).expect("a fresh name")
    };
    let [conv_weight, bias, rate] =
        [weight(0, channels * KERNEL), weight(1, DELTA.value_heads), weight(2, DELTA.value_heads)];
    let conv = b.state(Tag::new("conv")).expect("a fresh name");
    let delta = b.state(Tag::new("delta")).expect("a fresh name");
    let x = b.apply(Op::ShortConv { kernel: KERNEL }, &[x, conv_weight, conv, read, write]).expect("fits");
    let operands = [x, alpha, beta, bias, rate, delta, read, write];
    let out = b.apply(Op::GatedDelta(DELTA), &operands).expect("fits");
    b.output(OUT, out).expect("computed");
    b.finish()
}

#[test]
fn siblings_read_the_same_slot_and_rows_may_read_earlier_rows_slots() {
    let mut random = Random(41);
    let channels = DELTA.columns().expect("small");
    let vectors = [channels * KERNEL, DELTA.value_heads, DELTA.value_heads];
    let weights = Weights::new(
        vectors.map(|len| Weight::Vector(random_values(&mut random, len))).into_iter().collect(),
    );
    let graph = recurrent_graph(channels);
    let mut executor = Cpu::new(2).expect("an executor");
    let program = executor.prepare(&graph, &weights).expect("valid");
    let spec = RecurrentSpec { kernel: KERNEL, channels, heads: DELTA };
    let layers = StateLayers { recurrent: vec![spec], slots: ROWS + 1, ..StateLayers::default() };
    let memory = || CpuState::new(&layers).expect("small");
    let mut run = |state: &mut CpuState, rows: &[&[Vec<f32>; 3]], read: &[i32], write: &[i32]| {
        let mut arena = CpuArena::default();
        let bound = program
            .bind(&mut arena, RowCounts { rows: rows.len(), output_rows: 1 }, |input| {
                let value = |i: usize| rows.iter().flat_map(|row| row[i].clone()).collect::<Vec<_>>();
                match input.tag().name {
                    "x" => input.f32(&value(0)),
                    "alpha" => input.f32(&value(1)),
                    "beta" => input.f32(&value(2)),
                    "read" => input.i32(read),
                    "write" => input.i32(write),
                    _ => input.no_data(),
                }
            })
            .expect("every input is known");
        let outputs = executor.run_bound(bound, &weights, state).expect("no thread panics");
        (0..rows.len()).map(|row| bits(outputs.row(OUT, row))).collect::<Vec<_>>()
    };
    for _ in 0..200 {
        let tree = Tree::random(&mut random);
        let mut values =
            || [channels, DELTA.value_heads, DELTA.value_heads].map(|n| random_values(&mut random, n));
        let before = values();
        let rows: Vec<[Vec<f32>; 3]> = (0..tree.rows()).map(|_| values()).collect();
        // Slot 0 is the committed state: roots read it, and no row writes it.
        let slot = |row: usize| (1 + row) as i32;
        let read: Vec<i32> = tree.parents.iter().map(|parent| parent.map_or(0, slot)).collect();
        let write: Vec<i32> = (0..tree.rows()).map(slot).collect();
        let mut state = memory();
        run(&mut state, &[&before], &[-1], &[0]);
        let given = run(&mut state, &rows.iter().collect::<Vec<_>>(), &read, &write);
        for (row, given) in given.iter().enumerate() {
            // The path by itself, in place in one slot, row by row.
            let mut state = memory();
            run(&mut state, &[&before], &[-1], &[5]);
            let alone: Vec<_> =
                tree.path(row).into_iter().map(|row| run(&mut state, &[&rows[row]], &[5], &[5])).collect();
            assert_eq!(alone.last().expect("not empty"), std::slice::from_ref(given), "{:?}", tree.parents);
        }
    }
}
