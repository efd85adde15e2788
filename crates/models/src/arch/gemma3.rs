//! `gemma3`: the text part of Gemma 3 (arXiv 2503.19786).
//!
//! Five sliding-window ("local") layers, then a full-attention ("global") one, and so on. The former have a RoPE base of 10000,
//! the latter a larger base, scaled in the larger models. Each head of Q and K is normalized; attention and feed-forward network
//! have a norm before and one after. Norm weights lie in GGUF files with the 1 already added that the checkpoints leave out.

use super::dense::{Dense, Norms, QkNorms, SlidingWindow, Variant};
use crate::ffn::FfnShape;
use crate::graph_context::LogitScaling;
use crate::metadata::MetadataReader;
use crate::{Hyperparameters, Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, F32Bits, RopeLayout};

/// One layer in this many has full attention.
const PERIOD: usize = 6;
/// RoPE base of the sliding-window layers, if the file does not give it.
const SLIDING_WINDOW_BASE: f32 = 10_000.0;
/// Layers of the 27B model, the only one whose scores are scaled by the width of the residual stream per head.
const LAYERS_OF_27B: usize = 62;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    let hyperparameters = keys.hyperparameters(file)?;
    let (_, _, head_dim) = keys.heads(hyperparameters.hidden)?;
    let sliding_window = match keys.window()? {
        None => None,
        Some(window) => Some(SlidingWindow {
            window,
            layers: keys.layer_pattern(hyperparameters.layers, PERIOD)?,
            rope: Some(keys.sliding_window_rope(head_dim, SLIDING_WINDOW_BASE)?),
        }),
    };
    let variant = Variant {
        qk_norms: QkNorms::Heads,
        norms: Norms::Sandwich,
        activation: Activation::GeluTanh,
        embedding_scale: (hyperparameters.hidden as f32).sqrt(),
        attention_scale: attention_scale(keys, &hyperparameters, LAYERS_OF_27B)?,
        attention_softcap: keys.optional_positive("attn_logit_softcapping")?.map(F32Bits),
        logits: LogitScaling {
            scale: 1.0,
            softcap: keys.optional_positive("final_logit_softcapping")?.map(F32Bits),
        },
        sliding_window,
        ..Variant::new(RopeLayout::NeoX, FfnShape::gated(keys)?)
    };
    Dense::open(file, keys, variant)
}

/// The factor on the scores, where it is not the common one: files do not give it, but of Gemma 2 and 3 only the model
/// with this many layers departs from it.
pub(super) fn attention_scale(
    keys: &MetadataReader<'_>,
    hyperparameters: &Hyperparameters,
    layers_of_27b: usize,
) -> Result<Option<f32>, ModelError> {
    let Hyperparameters { hidden, layers, .. } = *hyperparameters;
    let (heads, ..) = keys.heads(hidden)?;
    let by_width = (layers == layers_of_27b).then(|| 1.0 / ((hidden / heads) as f32).sqrt());
    Ok(keys.optional_positive("attention.scale")?.or(by_width))
}
