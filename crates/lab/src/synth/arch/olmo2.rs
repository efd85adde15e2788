//! `olmo2`: OLMo 2. Post-norm; Q and K are normalized over all their heads together.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, ffn_width, rope, weight};

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    let hparams = Hyperparameters::describe(config, out)?;
    let width = ffn_width(config, out)?;
    rope(&config.rope("full_attention"), out, hparams.head_dim)?;
    hparams.ends(out, config.is_tied(false)?);
    for layer in 0..hparams.layers {
        hparams.attention(out, layer);
        out.norm(weight(layer, "attn_q_norm"), hparams.heads * hparams.head_dim);
        out.norm(weight(layer, "attn_k_norm"), hparams.kv_heads * hparams.head_dim);
        hparams.norm(out, layer, "post_attention_norm");
        hparams.ffn(out, layer, width);
        hparams.norm(out, layer, "post_ffw_norm");
    }
    Ok(())
}
