//! What several tests of this crate need.

#![allow(dead_code)] // each test uses a part

use std::path::{Path, PathBuf};

use verbatim_gguf::{GgufError, GgufFile, GgufWriter};

/// A file of `tests/data/hostile`.
pub fn hostile_path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/hostile")).join(name)
}

/// Writes everything that a file holds to a new one.
pub fn rewrite(file: &GgufFile) -> Result<Vec<u8>, GgufError> {
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        writer.put(key, value)?;
    }
    for info in file.tensors() {
        writer.declare(info.name(), info.dtype(), info.dims())?;
    }
    let expected_bytes = writer.file_bytes();
    let mut data = writer.begin(Vec::new())?;
    for tensor in file.iter_tensors() {
        data.append(tensor.name(), &tensor.data()?)?;
    }
    let bytes = data.finish()?;
    assert_eq!(bytes.len() as u64, expected_bytes);
    Ok(bytes)
}
