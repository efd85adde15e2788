//! `gemma2`: Gemma 2 (arXiv 2408.00118).
//!
//! Sliding-window and full-attention layers alternate, a sliding-window one first. Attention scores and logits have a softcap.
//! Attention and feed-forward network have a norm before and one after, whose weights lie in GGUF files with the 1 already added
//! that the checkpoints leave out.

use super::dense::{Dense, Norms, SlidingWindow, Variant};
use super::gemma3::attention_scale;
use crate::ffn::FfnShape;
use crate::graph_context::LogitScaling;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, F32Bits, RopeLayout};

/// One layer in this many has full attention.
const PERIOD: usize = 2;
/// Window of the sliding-window layers, if the file does not specify it.
const WINDOW: usize = 4096;
/// Layers of the 27B model, the only one whose scores are scaled by the width of the residual stream per head.
const LAYERS_OF_27B: usize = 46;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    let hyperparameters = keys.hyperparameters(file)?;
    let sliding_window = SlidingWindow {
        window: keys.window()?.unwrap_or(WINDOW),
        layers: keys.layer_pattern(hyperparameters.layers, PERIOD)?,
        rope: None,
    };
    // Old files leave the caps out; the models were all trained with these.
    let cap =
        |name, default| Ok::<_, ModelError>(Some(F32Bits(keys.optional_positive(name)?.unwrap_or(default))));
    let variant = Variant {
        norms: Norms::Sandwich,
        activation: Activation::GeluTanh,
        embedding_scale: (hyperparameters.hidden as f32).sqrt(),
        attention_scale: attention_scale(keys, &hyperparameters, LAYERS_OF_27B)?,
        attention_softcap: cap("attn_logit_softcapping", 50.0)?,
        logits: LogitScaling { scale: 1.0, softcap: cap("final_logit_softcapping", 30.0)? },
        sliding_window: Some(sliding_window),
        ..Variant::new(RopeLayout::NeoX, FfnShape::gated(keys)?)
    };
    Dense::open(file, keys, variant)
}
