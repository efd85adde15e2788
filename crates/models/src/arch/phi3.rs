//! `phi3`: Phi-3 and Phi-3.5 mini and medium, Phi-4 and Phi-4-mini (arXiv 2404.14219, 2412.08905).
//!
//! Llama's form with Q, K and V in one tensor, and gate and up projection in another. Models for long contexts use
//! one of two sets of frequency factors (LongRoPE): the long set where sequences may outgrow the context of the
//! first training. All layers have a window if the file specifies one, as in the reference implementation.

use super::dense::{Dense, SlidingWindow, Variant};
use crate::ffn::FfnShape;
use crate::metadata::{LayerPattern, MetadataReader};
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::RopeLayout;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    keys.reject_nonzero("expert_count", "0: MoE is not supported in this architecture")?;
    let sliding_window =
        keys.window()?.map(|window| SlidingWindow { window, layers: LayerPattern::ALL, rope: None });
    let variant = Variant { sliding_window, ..Variant::new(RopeLayout::NeoX, FfnShape::fused(keys)?) };
    Dense::open(file, keys, variant)
}
