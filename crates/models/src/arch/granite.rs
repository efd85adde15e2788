//! `granite`: the dense Granite 3 and 4 models (github.com/ibm-granite/granite-3.0-language-models).
//!
//! Llama's form with four factors from the file: on the embeddings, on the attention's scores, on what each half of a
//! layer adds, and a divisor of the logits.

use super::dense::{Dense, Variant};
use crate::ffn::FfnShape;
use crate::graph_context::LogitScaling;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::RopeLayout;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    keys.reject_nonzero("expert_count", "0: MoE is not supported in this architecture")?;
    keys.require_flag("rope.scaling.finetuned", true, "true: models without RoPE are not supported")?;
    let Some(logit_divisor) = keys.optional_positive("logit_scale")? else {
        return Err(keys.wrong("logit_scale", "missing or 0", "the number that logits are divided by"));
    };
    // The converter to GGUF reorders the rows of Q and K so that pairs lie side by side.
    let variant = Variant {
        embedding_scale: keys.optional_positive("embedding_scale")?.unwrap_or(1.0),
        attention_scale: keys.optional_positive("attention.scale")?,
        residual_scale: keys.optional_positive("residual_scale")?.unwrap_or(1.0),
        logits: LogitScaling { scale: 1.0 / logit_divisor, softcap: None },
        ..Variant::new(RopeLayout::Interleaved, FfnShape::gated(keys)?)
    };
    Dense::open(file, keys, variant)
}
