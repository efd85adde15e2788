//! `qwen35moe`: the Qwen3.5 MoE models. `qwen35`'s layers with an MoE FFN in each, which has a shared
//! expert with a gate.

use super::hybrid::Hybrid;
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    Hybrid::open(file, keys, FfnShape::moe(keys, true)?)
}
