//! `gemma2`: Gemma 2. Norms before and after each half of a layer; scores and logits are capped softly.

use super::super::blueprint::Blueprint;
use super::super::config::{Config, ConfigError};
use super::dense::{Numbers, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut Blueprint) -> Result<(), ConfigError> {
    let numbers = Numbers::describe(config, out)?;
    let width = ffn_width(config, out)?;
    out.count("attention.sliding_window", config.count("sliding_window")?);
    out.real("attn_logit_softcapping", config.real("attn_logit_softcapping")?);
    out.real("final_logit_softcapping", config.real("final_logit_softcapping")?);
    rope(&config.rope("full_attention"), out, numbers.head_dim)?;
    numbers.ends(out, config.is_tied(true)?);
    for layer in 0..numbers.layers {
        numbers.norm(out, layer, "attn_norm");
        numbers.attention(out, layer);
        numbers.norm(out, layer, "post_attention_norm");
        numbers.norm(out, layer, "ffn_norm");
        numbers.ffn(out, layer, width);
        numbers.norm(out, layer, "post_ffw_norm");
    }
    Ok(())
}
