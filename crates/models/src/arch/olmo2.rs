//! `olmo2`: OLMo 2 (arXiv 2501.00656). Attention and feed-forward network read the residual stream directly, and
//! their outputs are normalized (post-norm); Q and K are normalized over all their heads together.

use super::dense::{Dense, Norms, QkNorms, Variant};
use crate::ffn::FfnShape;
use crate::metadata::MetadataReader;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;
use verbatim_graph::RopeLayout;

pub(super) fn open(file: &GgufFile, keys: &MetadataReader<'_>) -> Result<Box<dyn Model>, ModelError> {
    keys.reject_nonzero("attention.sliding_window", "0: OLMo 3 is not supported")?;
    let variant = Variant {
        qk_norms: QkNorms::Rows,
        norms: Norms::Post,
        ..Variant::new(RopeLayout::NeoX, FfnShape::gated(keys)?)
    };
    Dense::open(file, keys, variant)
}
