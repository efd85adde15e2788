//! The architectures, one file each.

mod dense;
mod gemma2;
mod gemma3;
mod gpt_oss;
mod granite;
mod hybrid;
mod llama;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod smollm3;

use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;

type Open = fn(&GgufFile, &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError>;

/// Every architecture by its name in GGUF files.
const ARCHITECTURES: &[(&str, Open)] = &[
    ("gemma2", gemma2::open),
    ("gemma3", gemma3::open),
    ("gpt-oss", gpt_oss::open),
    ("granite", granite::open),
    ("llama", llama::open),
    ("olmo2", olmo2::open),
    ("phi3", phi3::open),
    ("qwen2", qwen2::open),
    ("qwen3", qwen3::open),
    ("qwen35", qwen35::open),
    ("qwen35moe", qwen35moe::open),
    ("qwen3moe", qwen3moe::open),
    ("smollm3", smollm3::open),
];

/// The architectures that [`open`] knows, by their names in GGUF files.
pub fn architectures() -> Vec<&'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name).collect()
}

/// Opens a model: parses and validates the metadata and tensor table.
///
/// # Errors
/// An unknown architecture, a missing or unsupported hyperparameter, a missing tensor or one of a different shape: named,
/// with what was expected.
pub fn open(file: &GgufFile) -> Result<Box<dyn Model>, ModelError> {
    let name = file.metadata().require_str("general.architecture")?;
    match ARCHITECTURES.iter().find(|(known, _)| *known == name) {
        Some((_, open)) => open(file, &MetadataReader::new(file, name)),
        None => Err(ModelError::UnknownArchitecture { name: name.into(), known: architectures().join(", ") }),
    }
}
