//! What the tests share.

use verbatim_gguf::GgufFile;
use verbatim_text::VocabSource;

/// The path of a file below `tests/data`.
pub fn data(path: &str) -> String {
    format!("{}/../../tests/data/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The vocabulary of a file in `tests/data/tokenizers/vocab`.
#[allow(dead_code, reason = "not every test file reads vocabularies")]
pub fn vocabulary(name: &str) -> VocabSource {
    let file = GgufFile::open(data(&format!("tokenizers/vocab/{name}"))).unwrap();
    VocabSource::from_gguf(file.metadata()).unwrap()
}
