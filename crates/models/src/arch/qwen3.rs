//! `qwen3`: the dense Qwen3 models (arXiv 2505.09388). QK norm before RoPE; the size
//! of a head does not follow from that of the residual stream.

use super::dense::{Dense, QkNorms, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::RopeLayout;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    let ffn = FfnShape::gated(keys)?;
    let variant = Variant { qk_norms: QkNorms::Heads, ..Variant::new(RopeLayout::NeoX, ffn) };
    Dense::open(file, keys, variant)
}
