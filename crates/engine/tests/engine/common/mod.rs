//! Golden models, and values that other implementations computed for them; tests/data/README.md says how.

pub mod answers;
pub mod scratch;
pub mod synthetic;

use safetensors::SafeTensors;
use std::path::PathBuf;
use verbatim_cpu::Cpu;
use verbatim_engine::{
    Backend, HiddenOutput, KvType, LoadError, LoadOptions, Row, RowInput, RowOutputs, Stepper,
};
use verbatim_gguf::GgufFile;

pub fn data(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(path)
}

/// A matrix of a safetensors file.
pub struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    pub fn open(path: &str) -> Golden {
        Golden { bytes: std::fs::read(data(path)).unwrap_or_else(|error| panic!("{path}: {error}")) }
    }

    fn words(&self, name: &str) -> (Vec<usize>, Vec<[u8; 4]>) {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("a safetensors file");
        let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        (tensor.shape().to_vec(), tensor.data().as_chunks::<4>().0.to_vec())
    }

    pub fn f32(&self, name: &str) -> (Vec<usize>, Vec<f32>) {
        let (shape, words) = self.words(name);
        (shape, words.into_iter().map(f32::from_le_bytes).collect())
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name).1.into_iter().map(|word| i32::from_le_bytes(word) as u32).collect()
    }
}

/// What most tests run on.
pub type Engine = Stepper<Cpu>;

/// The CPU with this many threads.
pub fn cpu(threads: usize) -> Cpu {
    Cpu::new(threads).expect("a backend")
}

/// A model on two threads of the CPU.
pub fn load(file: &GgufFile, options: &LoadOptions) -> Result<Engine, LoadError> {
    Stepper::load(cpu(2), file, options)
}

/// The file of the test data, or of the synthetic model that is named `synthetic/NAME`.
pub fn model_file(path: &str) -> GgufFile {
    match path.strip_prefix("synthetic/") {
        Some(name) => synthetic::named(name).file(),
        None => GgufFile::open(data(path)).unwrap_or_else(|error| panic!("{path}: {error}")),
    }
}

/// A model of [`model_file`] on two threads of the CPU.
pub fn engine(path: &str, options: LoadOptions) -> Engine {
    engine_on(cpu(2), path, options)
}

/// A model of [`model_file`] on a backend.
pub fn engine_on<B: Backend>(backend: B, path: &str, options: LoadOptions) -> Stepper<B> {
    Stepper::load(backend, &model_file(path), &options).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// K and V as computed, as in the references.
pub fn exact() -> LoadOptions {
    LoadOptions { k: KvType::F32, v: KvType::F32, ..LoadOptions::default() }
}

/// Logits after every token of a sequence of its own, fed in steps of the given sizes (the last is repeated).
pub fn logits<B: Backend>(engine: &mut Stepper<B>, tokens: &[u32], cuts: &[usize]) -> Vec<f32> {
    let sequence = engine.begin().expect("a free sequence");
    let mut result = Vec::new();
    let mut fed = 0;
    let mut cuts = cuts.iter().copied();
    let mut cut = 1;
    while fed < tokens.len() {
        cut = cuts.next().unwrap_or(cut);
        let chunk = &tokens[fed..(fed + cut).min(tokens.len())];
        let start = engine.append(sequence, chunk.len()).expect("room");
        let rows: Vec<Row> = chunk
            .iter()
            .enumerate()
            .map(|(i, &token)| Row {
                sequence,
                kv_index: start + i,
                input: RowInput::Token(token),
                want: RowOutputs::LOGITS,
            })
            .collect();
        let outputs = engine.step(&rows).expect("a step");
        for i in 0..chunk.len() {
            result.extend_from_slice(outputs.logits(i).expect("wanted"));
        }
        drop(outputs);
        engine.commit(sequence, chunk.len()).expect("in flight");
        fed += chunk.len();
    }
    engine.end(sequence).expect("begun");
    result
}

pub fn standard_deviation(x: &[f32]) -> f64 {
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
    (x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
}

/// The largest difference over the standard deviation of the reference.
pub fn worst(given: &[f32], reference: &[f32]) -> f64 {
    assert_eq!(given.len(), reference.len());
    let worst = given.iter().zip(reference).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
    worst / standard_deviation(reference)
}

/// The largest difference over the largest absolute value of the reference's row.
pub fn worst_relative(given: &[f32], reference: &[f32], cols: usize) -> f64 {
    assert_eq!(given.len(), reference.len());
    let rows = given.chunks(cols).zip(reference.chunks(cols));
    rows.map(|(a, b)| {
        let largest = b.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
        let worst = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
        worst / largest
    })
    .fold(0.0, f64::max)
}

/// Mean Kullback-Leibler divergence of the softmax of `given` from that of `reference`, in nats.
pub fn mean_divergence(given: &[f32], reference: &[f32], cols: usize) -> f64 {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total = row.iter().map(|&x| f64::from(x - top).exp()).sum::<f64>().ln();
        row.iter().map(|&x| f64::from(x - top) - total).collect()
    };
    let rows = given.chunks(cols).zip(reference.chunks(cols));
    let divergences: Vec<f64> = rows
        .map(|(q, p)| log_softmax(p).iter().zip(log_softmax(q)).map(|(p, q)| p.exp() * (p - q)).sum())
        .collect();
    divergences.iter().sum::<f64>() / divergences.len() as f64
}

pub fn root_mean_square(x: impl Iterator<Item = f32>) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    for x in x {
        sum += f64::from(x).powi(2);
        count += 1;
    }
    (sum / f64::from(count)).sqrt()
}

pub fn hidden_rows<B: Backend>(
    engine: &mut Stepper<B>,
    tokens: &[u32],
    points: &[HiddenOutput],
) -> Vec<Vec<f32>> {
    let sequence = engine.begin().expect("a free sequence");
    engine.append(sequence, tokens.len()).expect("room");
    let want = RowOutputs { hidden: points, ..RowOutputs::NONE };
    let row = |(kv_index, &token)| Row { sequence, kv_index, input: RowInput::Token(token), want };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    let outputs = engine.step(&rows).expect("a step");
    let values = |&point: &HiddenOutput| {
        let rows = 0..tokens.len();
        rows.flat_map(|row| outputs.hidden(point, row).expect("computed").to_vec()).collect::<Vec<f32>>()
    };
    let values = points.iter().map(values).collect();
    drop(outputs);
    engine.end(sequence).expect("begun");
    values
}

/// Models of `tests/data/models` with references by transformers.
pub const GOLDEN_MODELS: [&str; 8] = [
    "gemma3-iswa",
    "llama-gqa-tied",
    "llama3-rope-untied",
    "qwen2-bias",
    "qwen3",
    "qwen35-hybrid",
    "qwen35-hybrid-mtp",
    "qwen3moe",
];

/// A model with references by llama.cpp alone, and without layers.
pub const PEER_MODEL: &str = "qwen35moe-hybrid";

/// All small models, as [`engine`] takes them: what the tests of equality, plans and allocations run on.
pub fn tiny_models() -> Vec<String> {
    let golden =
        GOLDEN_MODELS.into_iter().chain([PEER_MODEL]).map(|name| format!("models/{name}/model.gguf"));
    let quantised = ["Q4_1", "Q4_K_M"].map(|kind| format!("quants/model/qwen3-256.{kind}.gguf"));
    let synthetic = synthetic::all().into_iter().map(|model| format!("synthetic/{}", model.name));
    golden.chain(quantised).chain(synthetic).collect()
}

/// A real model, from the folder that `VERBATIM_TEST_MODELS` names (or `.cache/models`). Without it the test is skipped,
/// unless `VERBATIM_TEST_FORBID_SKIP` is set.
pub fn real_model(name: &str, options: LoadOptions) -> Option<Engine> {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache/models");
    let folder = std::env::var("VERBATIM_TEST_MODELS").unwrap_or_else(|_| default.into());
    let path = PathBuf::from(folder).join(format!("{name}.gguf"));
    if !path.exists() {
        assert!(std::env::var_os("VERBATIM_TEST_FORBID_SKIP").is_none(), "{} is missing", path.display());
        eprintln!("skipped: {} is missing (`verbatim pull {name}` gets it)", path.display());
        return None;
    }
    let file = GgufFile::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    Some(load(&file, &options).unwrap_or_else(|error| panic!("{name}: {error}")))
}
