//! `qwen3moe`: the Qwen3 MoE models (arXiv 2505.09388). Qwen3 with MoE in every layer, whose
//! weights are the softmax over the chosen experts.

use super::dense::{Dense, QkNorms, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::RopeLayout;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    let ffn = FfnShape::moe(keys, false)?;
    let variant = Variant { qk_norms: QkNorms::Heads, ..Variant::new(RopeLayout::NeoX, ffn) };
    Dense::open(file, keys, variant)
}
