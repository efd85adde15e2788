//! What the tests share.

use std::io::Read;

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;
use verbatim_gguf::GgufFile;
use verbatim_text::VocabSource;

/// The path of a file below `tests/data`.
pub fn data(path: &str) -> String {
    format!("{}/../../tests/data/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// A compressed JSON file below `tests/data`.
#[allow(dead_code, reason = "not every test file reads recorded templates")]
pub fn compressed_json(path: &str) -> serde_json::Value {
    let file = std::fs::File::open(data(path)).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// A file below `tests/data`; the largest are kept compressed.
#[allow(dead_code, reason = "not every test file reads data")]
pub fn read(path: &str) -> Vec<u8> {
    let path = data(path);
    match std::fs::File::open(format!("{path}.gz")) {
        Ok(compressed) => {
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(compressed).read_to_end(&mut bytes).unwrap();
            bytes
        }
        Err(_) => std::fs::read(path).unwrap(),
    }
}

/// The vocabulary of a file in `tests/data/tokenizers/vocab`.
#[allow(dead_code, reason = "not every test file reads vocabularies")]
pub fn vocabulary(name: &str) -> VocabSource {
    let file = GgufFile::from_bytes(read(&format!("tokenizers/vocab/{name}"))).unwrap();
    VocabSource::from_gguf(file.metadata()).unwrap()
}

/// So many random cases, the same in every run; the environment can ask for others.
#[allow(dead_code, reason = "not every test file is random")]
pub fn config(cases: u32) -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let is_set = |name| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if is_set("PROPTEST_CASES") { from_environment.cases } else { cases },
        rng_seed: if is_set("PROPTEST_RNG_SEED") { from_environment.rng_seed } else { RngSeed::Fixed(1) },
        failure_persistence: None,
        ..from_environment
    }
}
