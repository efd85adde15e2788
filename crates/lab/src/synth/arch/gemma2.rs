//! `gemma2`: Gemma 2. Norms before and after each half of a layer; scores and logits are capped softly.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    let hparams = Hyperparameters::describe(config, out)?;
    let width = ffn_width(config, out)?;
    out.count("attention.sliding_window", config.count("sliding_window")?);
    out.real("attn_logit_softcapping", config.real("attn_logit_softcapping")?);
    out.real("final_logit_softcapping", config.real("final_logit_softcapping")?);
    rope(&config.rope("full_attention"), out, hparams.head_dim)?;
    hparams.ends(out, config.is_tied(true)?);
    for layer in 0..hparams.layers {
        hparams.norm(out, layer, "attn_norm");
        hparams.attention(out, layer);
        hparams.norm(out, layer, "post_attention_norm");
        hparams.norm(out, layer, "ffn_norm");
        hparams.ffn(out, layer, width);
        hparams.norm(out, layer, "post_ffw_norm");
    }
    Ok(())
}
