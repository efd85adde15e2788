//! `smollm3`: SmolLM3 (huggingface.co/blog/smollm3). Llama's form, but the last of every four layers has no RoPE on Q
//! and K: it only knows positions through the causal mask (NoPE, arXiv 2501.18795).

use super::dense::{Dense, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::RopeLayout;

/// One layer in this many has no RoPE. Files have no key for it.
const PERIOD: usize = 4;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    keys.reject_nonzero("attention.sliding_window", "0: windows are not supported in this architecture")?;
    keys.reject_nonzero("expert_count", "0: MoE is not supported in this architecture")?;
    let variant = Variant {
        uses_rope: |layer| !(layer + 1).is_multiple_of(PERIOD),
        // The converter to GGUF reorders the rows of Q and K, as for Llama.
        ..Variant::new(RopeLayout::Interleaved, FfnShape::gated(keys)?)
    };
    Dense::open(file, keys, variant)
}
