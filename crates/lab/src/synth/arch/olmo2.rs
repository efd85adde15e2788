//! `olmo2`: OLMo 2. What each half of a layer adds is normed, and so are Q and K, over all their heads together.

use super::super::blueprint::Blueprint;
use super::super::config::{Config, ConfigError};
use super::dense::{Numbers, ffn_width, rope, weight};

pub(super) fn describe(config: &Config, out: &mut Blueprint) -> Result<(), ConfigError> {
    let numbers = Numbers::describe(config, out)?;
    let width = ffn_width(config, out)?;
    rope(&config.rope("full_attention"), out, numbers.head_dim)?;
    numbers.ends(out, config.is_tied(false)?);
    for layer in 0..numbers.layers {
        numbers.attention(out, layer);
        out.norm(weight(layer, "attn_q_norm"), numbers.heads * numbers.head_dim);
        out.norm(weight(layer, "attn_k_norm"), numbers.kv_heads * numbers.head_dim);
        numbers.norm(out, layer, "post_attention_norm");
        numbers.ffn(out, layer, width);
        numbers.norm(out, layer, "post_ffw_norm");
    }
    Ok(())
}
