//! The kernels against the reference backend, which computes every op by its definition: over random graphs with the same
//! weights, inputs and states, and single matmuls against bounds on the effect of rounding activations.

use verbatim_backend::{
    Backend, BindError, FilledInput, InputBinding, KvSpec, KvType, Outputs, PAGE_CELLS, RecurrentSpec,
    StateLayers, StateStore, WeightKind, WeightSource,
};
use verbatim_cpu::Cpu;
use verbatim_graph::random::{self, Random, tags};
use verbatim_graph::{Builder, Graph, Lifetime, Op, RowCounts, Shape, Tag, ValueId};
use verbatim_quant::{DType, dequantize, quantize};
use verbatim_reference::Reference;

/// The number of pages in the page table of random graphs.
const PAGES: usize = 4;
const GRAPHS: u64 = 2000;

/// The maximum error of a row, relative to its largest element, if only the order of sums differs, and if activations are rounded,
/// which the reference does not do.
const MAX_ERROR: [f64; 2] = [5e-5, 0.05];
/// If K and V are rounded, a sum whose last bit differs may round to a neighbouring value of their format. That is rare.
const ROUNDED: f64 = 0.1;
/// In a graph in which large values cancel, such as one through a single column, errors are larger: at most by this factor times
/// the change of the reference's own result if its inputs and weights are perturbed by as much as is rounded.
const TOLERANCE_FACTOR: f64 = 4.0;
const PERTURBED_RUNS: u64 = 8;
const PERTURBATION: [f32; 2] = [5e-7, 1.0 / 240.0];

fn encoded(dtype: DType, x: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.row_bytes(x.len()).expect("whole blocks")];
    quantize(dtype, x, &mut bytes).expect("small values");
    bytes
}

/// What is rounded in a graph.
#[derive(Clone, Copy, Default)]
struct Rounds {
    activations: bool,
    /// Whether experts are selected by values that may be off.
    chooses: bool,
    states: bool,
}

fn rounds(graph: &Graph) -> Rounds {
    let quantised = |&(_, id): &(Tag, ValueId)| graph.value(id).dtype != DType::F32;
    Rounds {
        activations: graph.leaves(Lifetime::Weight).any(|leaf| quantised(&leaf)),
        chooses: graph.nodes().iter().any(|node| matches!(node.op, Op::MoeTopK { .. })),
        states: graph.leaves(Lifetime::State).any(|(tag, _)| tag.name == tags::STATE),
    }
}

#[test]
fn random_graphs_agree_with_the_reference() {
    let mut cpu = Cpu::new(1).expect("a backend");
    // The worst, and how many: nothing is rounded but sums; K and V are; activations are; both.
    let mut worst = [0f64; 4];
    let mut counts = [0; 4];
    let (mut cancelling, mut other_level) = (0, 0);
    for seed in 0..GRAPHS {
        let graph = random::graph(seed);
        let Rounds { activations, chooses, states } = rounds(&graph);
        for rounds_kv in [false, true] {
            if rounds_kv && !states {
                continue;
            }
            let kinds = |choice: u64| match rounds_kv {
                true => KvType::ALL[((seed >> choice) % 9) as usize],
                false => KvType::F32,
            };
            let kinds = [kinds(0), kinds(2)];
            let rounds_kv = kinds != [KvType::F32; 2];
            // Different experts may be selected then, and all results differ.
            if chooses && (activations || rounds_kv) {
                continue;
            }
            let given = run(&mut cpu, &graph, kinds, seed, None);
            let wanted = run(&mut Reference, &graph, kinds, seed, None);
            let class = usize::from(rounds_kv) + 2 * usize::from(activations);
            let off = furthest(&given, &wanted);
            counts[class] += 1;
            let mut most = MAX_ERROR[usize::from(activations)];
            if off > most && off <= ROUNDED && rounds_kv {
                other_level += 1;
            } else if off > most {
                cancelling += 1;
                // A single perturbed run may cancel by chance, too.
                let amount = PERTURBATION[usize::from(activations)];
                let changes = (0..PERTURBED_RUNS).map(|index| {
                    let perturbation = Some(Perturbation { amount, index });
                    furthest(&run(&mut Reference, &graph, kinds, seed, perturbation), &wanted)
                });
                let changes = changes.fold(0.0, f64::max);
                println!(
                    "seed {seed}, {kinds:?}: off by {off:.2e}, up to {changes:.2e} if inputs are perturbed"
                );
                most = TOLERANCE_FACTOR * changes;
            } else {
                worst[class] = worst[class].max(off);
            }
            assert!(off <= most || rounds_kv && off <= ROUNDED, "seed {seed}, K and V {kinds:?}: {off:e}");
        }
    }
    println!(
        "sums, K and V, activations, both: {counts:?} runs, {worst:?}; {cancelling} cancel, {other_level} rounded apart"
    );
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
    assert!(counts.iter().sum::<usize>() >= 2000 && cancelling + other_level < 20, "{counts:?}");
}

/// The largest difference over the largest element of its row.
fn furthest(given: &[Vec<f32>], wanted: &[Vec<f32>]) -> f64 {
    assert_eq!(given.len(), wanted.len());
    let rows = given.iter().zip(wanted).map(|(given, wanted)| {
        assert_eq!(given.len(), wanted.len());
        let scale = wanted.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
        let off = given.iter().zip(wanted).map(|(a, b)| match a.to_bits() == b.to_bits() {
            true => 0.0,
            false => f64::from((a - b).abs()),
        });
        let off = off.fold(0f64, |most, off| if off.is_nan() { f64::INFINITY } else { most.max(off) });
        if off == 0.0 { 0.0 } else { off / scale }
    });
    rows.fold(0.0, f64::max)
}

/// The relative perturbation of inputs and weights.
#[derive(Clone, Copy)]
struct Perturbation {
    amount: f32,
    index: u64,
}

impl Perturbation {
    /// Factors near 1; all 1 without a perturbation.
    fn factors(perturbation: Option<Perturbation>, seed: u64) -> impl FnMut() -> f32 {
        let (amount, index) =
            perturbation.map_or((0.0, 0), |perturbation| (perturbation.amount, perturbation.index));
        let mut random = Random(seed ^ 9 ^ (index << 32));
        move || 1.0 + amount * random.unit()
    }
}

/// All rows of all outputs of two runs, the second of which goes on with the states that the first has left.
fn run<B: Backend>(
    backend: &mut B,
    graph: &Graph,
    [k, v]: [KvType; 2],
    seed: u64,
    perturbation: Option<Perturbation>,
) -> Vec<Vec<f32>> {
    let weights = weights(backend, graph, seed, &mut Perturbation::factors(perturbation, seed ^ 3));
    let mut state = backend.new_state();
    let [channels, kernel] = random::CONV;
    let recurrent = RecurrentSpec { kernel, channels, heads: random::DELTA };
    let spec = KvSpec { kv_heads: random::KV_HEADS, head_dim: random::HEAD_DIM, k, v };
    let kv_layers = layers(graph, &[tags::STATE]);
    let layers = StateLayers {
        kv: vec![(spec, PAGES); kv_layers],
        recurrent: vec![recurrent; layers(graph, &[tags::CONV, tags::DELTA])],
        slots: random::SLOTS,
    };
    state.append(&layers).expect("small");
    (0..kv_layers).for_each(|layer| fill_layer(backend, &weights, &mut state, layer, seed));

    let program = backend.prepare(graph, &weights).expect("valid");
    let mut arena = B::Arena::default();
    let most = graph.bounds();
    let (mut random, mut factor) = (Random(seed ^ 1), Perturbation::factors(perturbation, seed));
    let count = 1 + random.below(most.rows);
    let rows = RowCounts { rows: count, output_rows: most.output_rows.min(count) };
    let mut results = Vec::new();
    for _ in 0..2 {
        let fill = |input: InputBinding<'_>| fill(input, &mut random, rows, &mut factor);
        let outputs = backend.run(&program, &mut arena, rows, &weights, &mut state, fill).expect("a run");
        for (tag, _) in graph.outputs() {
            let rows = 0..outputs.rows(*tag).expect("an output");
            results.extend(rows.map(|row| outputs.row(*tag, row).expect("a row").to_vec()));
        }
    }
    results
}

fn fill(
    input: InputBinding<'_>,
    random: &mut Random,
    rows: RowCounts,
    factor: &mut dyn FnMut() -> f32,
) -> Result<FilledInput, BindError> {
    let count = input.count();
    let mut below = |limit: usize| -> Vec<i32> { (0..count).map(|_| random.below(limit) as i32).collect() };
    match input.tag().name {
        tags::TOKENS => input.i32(&below(random::VOCABULARY)),
        tags::POSITIONS => input.i32(&below(random::POSITIONS)),
        tags::TREE_STARTS => input.i32(&below(random::POSITIONS + 10)),
        tags::PATHS => input.i32(&below(PAGES * PAGE_CELLS)),
        tags::VALID_FROM => input.i32(&below(random::POSITIONS)),
        tags::READ_CELLS => {
            let cells: Vec<i32> = below(PAGES * PAGE_CELLS + 1).iter().map(|cell| cell - 1).collect();
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
        tags::X => input.f32(&(0..count).map(|_| random.unit() * factor()).collect::<Vec<_>>()),
        _ => input.no_data(),
    }
}

/// Writes random values into all cells of a layer, with the op.
fn fill_layer<B: Backend>(
    backend: &mut B,
    weights: &B::Weights,
    state: &mut B::State,
    layer: usize,
    seed: u64,
) {
    let width = random::KV_HEADS * random::HEAD_DIM;
    let rows = RowCounts { rows: PAGES * PAGE_CELLS, output_rows: 1 };
    let mut builder = Builder::new(rows);
    let kv = builder.state(Tag::indexed(tags::STATE, layer as u32)).expect("fresh");
    let [k, v] = [0, 1].map(|index| {
        builder.input(Tag::indexed(tags::X, index), DType::F32, Shape::per_row(width)).expect("fresh")
    });
    let cells = builder.input(Tag::new(tags::CELLS), DType::I32, Shape::per_row(1)).expect("fresh");
    let write = Op::KvWrite { kv_heads: random::KV_HEADS, head_dim: random::HEAD_DIM };
    builder.apply(write, &[kv, k, v, cells]).expect("fits");
    let program = backend.prepare(&builder.finish(), weights).expect("valid");
    let mut random = Random(seed ^ 7);
    let fill = |input: InputBinding<'_>| match input.tag().name {
        tags::CELLS => input.i32_from(0..rows.rows as i32),
        _ => {
            let elements: Vec<f32> = (0..input.count()).map(|_| random.unit()).collect();
            input.f32(&elements)
        }
    };
    let mut arena = B::Arena::default();
    backend.run(&program, &mut arena, rows, weights, state, fill).expect("a run");
}

/// Layers of these kinds of state.
fn layers(graph: &Graph, names: &[&str]) -> usize {
    let states = graph.leaves(Lifetime::State).filter(|(tag, _)| names.contains(&tag.name));
    states.map(|(tag, _)| tag.index as usize + 1).max().unwrap_or(0)
}

/// The kind of each weight follows from its reader: the right-hand side of matmuls and embedding tables are matrices.
fn weights<B: Backend>(
    backend: &mut B,
    graph: &Graph,
    seed: u64,
    factor: &mut dyn FnMut() -> f32,
) -> B::Weights {
    let leaves: Vec<(Tag, ValueId)> = graph.leaves(Lifetime::Weight).collect();
    let mut random = Random(seed ^ 2);
    let mut weights = backend.new_weights();
    for index in 0..=leaves.iter().map(|(tag, _)| tag.index).max().unwrap_or(0) {
        let leaf = leaves.iter().find(|(tag, _)| tag.index == index);
        let (kind, dtype, [rows, cols]) = match leaf {
            // A weight that was pruned.
            None => (WeightKind::Vector, DType::F32, [1, 1]),
            Some(&(_, id)) => {
                let value = graph.value(id);
                (kind(graph, id), value.dtype, [value.shape.rows.at(graph.bounds()), value.shape.cols])
            }
        };
        let elements: Vec<f32> = (0..rows * cols).map(|_| random.unit() * 0.3 * factor()).collect();
        let (rows, cols) = if kind == WeightKind::Vector { (1, rows * cols) } else { (rows, cols) };
        let bytes = encoded(dtype, &elements);
        let source = WeightSource { kind, dtype, rows, cols, bytes: &bytes };
        backend.append_weight(&mut weights, source).expect("fits");
    }
    weights
}

fn kind(graph: &Graph, id: ValueId) -> WeightKind {
    let reader = graph
        .nodes()
        .iter()
        .find_map(|node| Some((node.op, node.operands.iter().position(|&operand| operand == id)?)));
    reader.map_or(WeightKind::Vector, |(op, operand)| op.weight_kind(operand))
}

/// Both backends store the same bytes.
#[test]
fn stored_keys_and_values_are_equal() {
    let mut cpu = Cpu::new(2).expect("a backend");
    for (index, k) in KvType::ALL.into_iter().enumerate() {
        let v = KvType::ALL[(index * 2 + 3) % 9];
        let spec = KvSpec { kv_heads: random::KV_HEADS, head_dim: random::HEAD_DIM, k, v };
        let layers = StateLayers { kv: vec![(spec, PAGES)], ..StateLayers::default() };
        let stored = [stored(&mut cpu, &layers), stored(&mut Reference, &layers)];
        assert!(stored[0] == stored[1], "{} and {}", k.name(), v.name());
        assert_eq!(stored[0].len(), spec.cell_bytes().expect("small") * PAGES * PAGE_CELLS);
    }
}

fn stored<B: Backend>(backend: &mut B, layers: &StateLayers) -> Vec<u8> {
    let (weights, mut state) = (backend.new_weights(), backend.new_state());
    state.append(layers).expect("small");
    fill_layer(backend, &weights, &mut state, 0, 3);
    let mut bytes = Vec::new();
    state.read_cells(0, &mut (0..PAGES * PAGE_CELLS), &mut bytes);
    bytes
}

/// The weight types of the matmul tests.
const DTYPES: [DType; 18] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::TQ1_0,
    DType::TQ2_0,
    DType::MXFP4,
    DType::Q2_K,
    DType::Q3_K,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::IQ4_NL,
    DType::IQ4_XS,
];

/// Columns of the matrices: a multiple of the block size of every type.
const K: usize = 512;
const N: usize = 40;
const ROWS: usize = 9;
const EXPERTS: usize = 3;

/// A quant block of 32 activations is stored as multiples of the best of several scales, all of which map its absmax to 120 or more
/// steps. Its error is at most that of half a step everywhere: the root of 32 times absmax / 240. A second term stores the error of
/// the first.
#[test]
fn matmuls_are_within_the_bounds_of_rounded_activations() {
    let mut cpu = Cpu::new(2).expect("a backend");
    let mut random = Random(9);
    for dtype in DTYPES {
        for op in [
            Op::Linear { bias: false, residual: false },
            Op::LmHead,
            Op::MoeLinear { experts: EXPERTS, bias: false },
        ] {
            let experts = if matches!(op, Op::MoeLinear { .. }) { EXPERTS } else { 1 };
            let elements: Vec<f32> = (0..experts * N * K).map(|_| random.unit() * 0.3).collect();
            let bytes = encoded(dtype, &elements);
            let mut decoded = vec![0.0; elements.len()];
            dequantize(dtype, &bytes, &mut decoded).expect("whole blocks");
            // Blocks of very different sizes.
            let size = [1.0, 0.01, 30.0];
            let x: Vec<f32> = (0..ROWS * K).map(|i| random.unit() * size[i / 32 % 3]).collect();
            let given = product(&mut cpu, op, dtype, &bytes, &x);
            let wanted = product(&mut Reference, op, dtype, &bytes, &x);
            let terms = if op == Op::LmHead { 2 } else { 1 };
            let (mut most, mut squares, mut expected) = (0f64, 0.0, 0.0);
            for (index, (given, wanted)) in given.iter().zip(&wanted).enumerate() {
                let (row, column) = (index / N, index % N);
                let weight = &decoded[(row % experts * N + column) * K..][..K];
                let (bound, variance, sum) = bounds(terms, &x[row * K..][..K], weight);
                let off = f64::from((given - wanted).abs());
                // Sums are also taken in a different order.
                assert!(off <= bound + 1e-6 * sum, "{dtype} {op:?}: {off:e}, at most {bound:e}");
                most = most.max(off / bound);
                squares += off * off;
                expected += variance + (1e-7 * sum).powi(2);
            }
            let ratio = (squares / expected).sqrt();
            println!("{dtype} {op:?}: at most {most:.3} of the bound, {ratio:.3} of what is expected");
            assert!(ratio < 1.3, "{dtype} {op:?}: {ratio}");
        }
    }
}

/// The maximum error of a dot product with activations rounded to `terms` int8 terms; its expected square, and the sum of
/// absolute products.
fn bounds(terms: i32, x: &[f32], weight: &[f32]) -> (f64, f64, f64) {
    let (mut bound, mut variance, mut sum) = (0.0, 0.0, 0.0);
    for (x, weight) in x.chunks(32).zip(weight.chunks(32)) {
        let absmax = x.iter().fold(0f64, |most, x| most.max(f64::from(x.abs())));
        let norm: f64 = weight.iter().map(|&w| f64::from(w).powi(2)).sum();
        bound += absmax * (32f64.sqrt() / 240.0).powi(terms) * norm.sqrt();
        // A step's rounding is spread evenly.
        variance += (absmax / 240f64.powi(terms)).powi(2) / 3.0 * norm;
        sum += x.iter().zip(weight).map(|(x, w)| f64::from((x * w).abs())).sum::<f64>();
    }
    (bound, variance, sum)
}

fn product<B: Backend>(backend: &mut B, op: Op, dtype: DType, bytes: &[u8], x: &[f32]) -> Vec<f32> {
    let bounds = RowCounts { rows: ROWS, output_rows: ROWS };
    let mut b = Builder::new(bounds);
    let (experts, kind) = match op {
        Op::MoeLinear { experts, .. } => (experts, WeightKind::Experts(experts)),
        _ => (1, WeightKind::Matrix),
    };
    let mut weights = backend.new_weights();
    let source = WeightSource { kind, dtype, rows: experts * N, cols: K, bytes: &bytes };
    backend.append_weight(&mut weights, source).expect("fits");
    let input = b.input(Tag::new("x"), DType::F32, Shape::per_row(K)).expect("fresh");
    let weight = b.weight(Tag::indexed("weight", 0), dtype, Shape::fixed(experts * N, K)).expect("fresh");
    let mut operands = vec![input, weight];
    if experts > 1 {
        operands.push(b.input(Tag::new("chosen"), DType::I32, Shape::per_row(1)).expect("fresh"));
    }
    let y = b.apply(op, &operands).expect("fits");
    b.output(Tag::new("y"), y).expect("computed");
    let program = backend.prepare(&b.finish(), &weights).expect("valid");
    let (mut arena, mut state) = (B::Arena::default(), backend.new_state());
    let fill = |input: InputBinding<'_>| match input.tag().name {
        "x" => input.f32(x),
        _ => input.i32_from((0..ROWS).map(|row| (row % EXPERTS) as i32)),
    };
    let outputs = backend.run(&program, &mut arena, bounds, &weights, &mut state, fill).expect("a run");
    (0..ROWS).flat_map(|row| outputs.row(Tag::new("y"), row).expect("a row").to_vec()).collect()
}
