//! `qwen2`: Qwen2 and Qwen2.5 (arXiv 2407.10671). Llama's form with biases on Q, K and V.

use super::dense::{Dense, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::RopeLayout;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    let ffn = FfnShape::gated(keys)?;
    Dense::open(file, keys, Variant::new(RopeLayout::NeoX, ffn))
}
