//! `qwen35`: the dense Qwen3.5 models. Gated delta nets, and gated attention in every fourth layer.

use super::hybrid::Hybrid;
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    Hybrid::open(file, keys, FfnShape::gated(keys)?)
}
