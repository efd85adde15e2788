//! `llama`: Llama 1 to 3 and the many of their form.

use super::super::blueprint::Blueprint;
use super::super::config::{Config, ConfigError};
use super::dense::{Numbers, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut Blueprint) -> Result<(), ConfigError> {
    for biases in ["attention_bias", "mlp_bias"] {
        if config.flag(biases)? {
            return Err(config.wrong(biases, "false"));
        }
    }
    form(config, out, false)
}

/// The keys and tensors of Llama's form; `tied` where a configuration does not say.
pub(super) fn form(config: &Config, out: &mut Blueprint, tied: bool) -> Result<(), ConfigError> {
    let numbers = Numbers::describe(config, out)?;
    let width = ffn_width(config, out)?;
    out.count("rope.dimension_count", numbers.head_dim);
    rope(&config.rope("full_attention"), out, numbers.head_dim)?;
    numbers.ends(out, config.is_tied(tied)?);
    for layer in 0..numbers.layers {
        numbers.norm(out, layer, "attn_norm");
        numbers.attention(out, layer);
        numbers.norm(out, layer, "ffn_norm");
        numbers.ffn(out, layer, width);
    }
    Ok(())
}
