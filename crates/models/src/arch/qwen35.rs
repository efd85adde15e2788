//! `qwen35`: the dense Qwen3.5 models. Gated delta nets, and gated attention in every fourth layer.

use super::hybrid::Hybrid;
use crate::ffn::FfnShape;
use crate::keys::Keys;
use crate::{Model, ModelError};
use verbatim_gguf::GgufFile;

pub(super) fn open(file: &GgufFile, keys: &Keys<'_>) -> Result<Box<dyn Model>, ModelError> {
    Hybrid::open(file, keys, FfnShape::gated(keys)?)
}
