//! What the tests share.

use std::io::Read;

use verbatim_gguf::GgufFile;
use verbatim_text::VocabSource;

/// The path of a file below `tests/data`.
pub fn data(path: &str) -> String {
    format!("{}/../../tests/data/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The vocabulary of a file in `tests/data/tokenizers/vocab`; the largest are kept compressed.
#[allow(dead_code, reason = "not every test file reads vocabularies")]
pub fn vocabulary(name: &str) -> VocabSource {
    let path = data(&format!("tokenizers/vocab/{name}"));
    let file = match std::fs::File::open(format!("{path}.gz")) {
        Ok(compressed) => {
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(compressed).read_to_end(&mut bytes).unwrap();
            GgufFile::from_bytes(bytes).unwrap()
        }
        Err(_) => GgufFile::open(path).unwrap(),
    };
    VocabSource::from_gguf(file.metadata()).unwrap()
}
