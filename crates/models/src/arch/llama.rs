//! `llama`: Llama 1 to 3, Mistral 7B, SmolLM2 and the many that share their form.
//!
//! Grouped-query attention, SwiGLU, RMS norms before each half of a layer (arXiv 2307.09288, 2407.21783). Llama 3.1
//! and later carry RoPE frequency factors as the tensor `rope_freqs.weight`.

use super::dense::{Dense, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::RopeLayout;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    keys.reject_nonzero("expert_count", "0: MoE is not supported in this architecture")?;
    // The converter to GGUF reorders the rows of Q and K so that pairs lie side by side.
    let ffn = FfnShape::gated(keys)?;
    Dense::open(file, keys, Variant::new(RopeLayout::Interleaved, ffn))
}
