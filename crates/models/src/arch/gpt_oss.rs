//! `gpt-oss`: gpt-oss-20b and -120b (arXiv 2508.10925).
//!
//! Sliding-window and full-attention layers alternate, a sliding-window one first, all with YaRN, which does not round the pairs
//! between which it blends to whole ones. Each head has an attention sink. Every projection has a bias, and the FFNs are MoE with
//! clamped SwiGLU. Files call the FFN norm `post_attention_norm`.

use super::dense::{Dense, SlidingWindow, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, F32Bits, RopeLayout};

/// One layer in this many has full attention.
const PERIOD: usize = 2;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    let layers = keys.require_count("block_count")?;
    let sliding_window = SlidingWindow {
        window: keys.require_count("attention.sliding_window")?,
        layers: keys.layer_pattern(layers, PERIOD)?,
        rope: None,
    };
    let variant = Variant {
        ffn_norm: "post_attention_norm",
        activation: Activation::ClampedSwiglu { alpha: F32Bits(1.702), limit: F32Bits(7.0) },
        sinks: true,
        yarn_truncate: false,
        sliding_window: Some(sliding_window),
        ..Variant::new(RopeLayout::NeoX, FfnShape::moe(keys, false)?)
    };
    Dense::open(file, keys, variant)
}
