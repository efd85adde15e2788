//! `gpt-oss`: gpt-oss-20b and -120b (arXiv 2508.10925).
//!
//! Local and global layers alternate, a local one first, all with YaRN, which does not round the
//! pairs between which it blends to whole ones. Each head has an attention sink. Every projection has a bias, and the
//! FFNs are MoE with clamped SwiGLU. Files call the FFN norm
//! `post_attention_norm`.

use super::dense::{Dense, Local, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, F32Bits, RopeLayout};

/// One layer in this many is global.
const PERIOD: usize = 2;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    let layers = keys.require_count("block_count")?;
    let local = Local {
        window: keys.require_count("attention.sliding_window")?,
        layers: keys.layer_pattern(layers, PERIOD)?,
        rope: None,
    };
    let variant = Variant {
        ffn_norm: "post_attention_norm",
        activation: Activation::ClampedSwiglu { alpha: F32Bits(1.702), limit: F32Bits(7.0) },
        sinks: true,
        yarn_truncate: false,
        local: Some(local),
        ..Variant::new(RopeLayout::NeoX, FfnShape::moe(keys, false)?)
    };
    Dense::open(file, keys, variant)
}
