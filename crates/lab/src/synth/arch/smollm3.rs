//! `smollm3`: Llama's form; which layers rotate is fixed and in no key.

use super::super::blueprint::Blueprint;
use super::super::config::{Config, ConfigError};
use super::dense::{Numbers, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut Blueprint) -> Result<(), ConfigError> {
    let numbers = Numbers::describe(config, out)?;
    let width = ffn_width(config, out)?;
    out.count("rope.dimension_count", numbers.head_dim);
    rope(&config.rope("full_attention"), out, numbers.head_dim)?;
    numbers.ends(out, config.is_tied(true)?);
    for layer in 0..numbers.layers {
        numbers.norm(out, layer, "attn_norm");
        numbers.attention(out, layer);
        numbers.norm(out, layer, "ffn_norm");
        numbers.ffn(out, layer, width);
    }
    Ok(())
}
