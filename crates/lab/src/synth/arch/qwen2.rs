//! `qwen2`: Qwen2 and Qwen2.5. Q, K and V have biases.

use super::super::blueprint::Blueprint;
use super::super::config::{Config, ConfigError};
use super::dense::{Numbers, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut Blueprint) -> Result<(), ConfigError> {
    let numbers = Numbers::describe(config, out)?;
    let width = ffn_width(config, out)?;
    rope(&config.rope("full_attention"), out, numbers.head_dim)?;
    numbers.ends(out, config.is_tied(false)?);
    for layer in 0..numbers.layers {
        numbers.norm(out, layer, "attn_norm");
        numbers.attention(out, layer);
        numbers.attention_biases(out, layer);
        numbers.norm(out, layer, "ffn_norm");
        numbers.ffn(out, layer, width);
    }
    Ok(())
}
