//! `qwen2`: Qwen2 and Qwen2.5. Q, K and V have biases.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    let hparams = Hyperparameters::describe(config, out)?;
    let width = ffn_width(config, out)?;
    rope(&config.rope("full_attention"), out, hparams.head_dim)?;
    hparams.ends(out, config.is_tied(false)?);
    for layer in 0..hparams.layers {
        hparams.norm(out, layer, "attn_norm");
        hparams.attention(out, layer);
        hparams.attention_biases(out, layer);
        hparams.norm(out, layer, "ffn_norm");
        hparams.ffn(out, layer, width);
    }
    Ok(())
}
