//! `gpt-oss`: gpt-oss-20b and -120b (arXiv 2508.10925).
//!
//! Local and global layers in turn, beginning with a local one, all of which rotate alike: by YaRN, without rounding the
//! pairs between which it blends to whole ones. Each head has an attention sink. Every projection has a bias, and the
//! feed-forward networks are mixtures whose gated units are clamped. Files call the norm before the mixture
//! `post_attention_norm`.

use super::dense::{Dense, Local, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::{Activation, Real, RopeLayout};

/// Every so many layers one is global.
const PERIOD: usize = 2;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    let layers = keys.count("block_count")?;
    let local = Local {
        window: keys.count("attention.sliding_window")?,
        layers: keys.layer_pattern(layers, PERIOD)?,
        rope: None,
    };
    let variant = Variant {
        ffn_norm: "post_attention_norm",
        activation: Activation::ClampedSwiglu { alpha: Real(1.702), limit: Real(7.0) },
        sinks: true,
        yarn_rounds_pairs: false,
        local: Some(local),
        ..Variant::new(RopeLayout::NeoX, FfnShape::mixture(keys, false)?)
    };
    Dense::open(file, keys, variant)
}
