//! Memory use of loading. Alone in its file, because it measures the whole process.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use verbatim_cpu::Cpu;
use verbatim_engine::{LoadOptions, Sampler, Stepper};
use verbatim_gguf::GgufFile;
use verbatim_lab::synth::{ModelSkeleton, QuantType, WriteOptions, write};

/// 121 million weights, a fifth of them in one tensor.
const SHAPE: &str = r#"{"model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 3072, "vocab_size": 24000,
    "max_position_embeddings": 512, "rope_theta": 1000000, "rms_norm_eps": 1e-6, "tie_word_embeddings": true}"#;

/// The environment variable that makes the test, run again, the process that is measured.
const MODEL: &str = "VERBATIM_TEST_MEASURED_MODEL";

/// The program, its threads' stacks, the tensor table, what of the file is read at a time, and the values of a step.
const BESIDE_BYTES: usize = 32 << 20;

/// Tokens of the context: 2 GiB of KV cache, of which hardly anything is used.
const CONTEXT: usize = 1 << 18;

#[test]
fn memory_holds_the_packed_weights_and_what_is_used_of_the_context() {
    if let Some(path) = std::env::var_os(MODEL) {
        return measure(Path::new(&path));
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let options = WriteOptions { quant: QuantType::Q4_K_M, seed: 1, threads: 2 };
    write(&ModelSkeleton::from_config("measured", SHAPE).unwrap(), &options, &path, &mut |_| true).unwrap();

    // A new process: in this one the making of the model is the peak.
    let mut test = Command::new(std::env::current_exe().unwrap());
    let name = "memory_holds_the_packed_weights_and_what_is_used_of_the_context";
    let output = test.args(["--exact", name, "--nocapture"]).env(MODEL, &path).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}{errors}");
}

fn measure(path: &Path) {
    let file = GgufFile::open(path).unwrap();
    let before = peak_bytes();
    let options = LoadOptions { context: Some(CONTEXT), ..LoadOptions::default() };
    let mut engine = Stepper::load(Cpu::new(2).unwrap(), &file, &options).unwrap();
    let sequence = engine.begin().unwrap();
    engine.advance(sequence, &[1], &Sampler::greedy(), || true).unwrap();
    let (peak, file_bytes) = (peak_bytes(), file.bytes_total());
    println!("a peak of {peak} bytes, {before} before, for a file of {file_bytes}");
    assert!(file_bytes > 60 << 20 && peak > file_bytes);
    let most = file_bytes + file_bytes * 15 / 100 + BESIDE_BYTES;
    assert!(peak <= most, "a peak of {peak} bytes for a file of {file_bytes}; at most {most} are allowed");
}

/// The most memory that this process has had.
fn peak_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
}
