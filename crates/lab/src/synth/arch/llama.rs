//! `llama`: Llama 1 to 3 and the many of their form.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    for biases in ["attention_bias", "mlp_bias"] {
        if config.flag(biases)? {
            return Err(config.wrong(biases, "false"));
        }
    }
    form(config, out, false)
}

/// The keys and tensors of Llama; `tied` is the default if the configuration does not specify it.
pub(super) fn form(config: &Config, out: &mut ModelSkeleton, tied: bool) -> Result<(), ConfigError> {
    let hparams = Hyperparameters::describe(config, out)?;
    let width = ffn_width(config, out)?;
    out.count("rope.dimension_count", hparams.head_dim);
    rope(&config.rope("full_attention"), out, hparams.head_dim)?;
    hparams.ends(out, config.is_tied(tied)?);
    for layer in 0..hparams.layers {
        hparams.norm(out, layer, "attn_norm");
        hparams.attention(out, layer);
        hparams.norm(out, layer, "ffn_norm");
        hparams.ffn(out, layer, width);
    }
    Ok(())
}
