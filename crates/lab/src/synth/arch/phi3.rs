//! `phi3`: Phi-3, Phi-3.5 and Phi-4. Llama's form with Q, K and V in one tensor, and gate and up projection in another.

use super::super::blueprint::Blueprint;
use super::super::config::{Config, ConfigError};
use super::dense::{Numbers, ffn_width, rope, rotary_dim, weight};

pub(super) fn describe(config: &Config, out: &mut Blueprint) -> Result<(), ConfigError> {
    let numbers = Numbers::describe(config, out)?;
    let width = ffn_width(config, out)?;
    if let Some(window) = config.optional_count("sliding_window")? {
        out.count("attention.sliding_window", window);
    }
    let settings = config.rope("full_attention");
    out.count("rope.dimension_count", rotary_dim(&settings, config, numbers.head_dim, 1.0)?);
    rope(&settings, out, numbers.head_dim)?;
    numbers.ends(out, config.is_tied(false)?);
    for layer in 0..numbers.layers {
        numbers.norm(out, layer, "attn_norm");
        numbers.fused_attention(out, layer);
        numbers.norm(out, layer, "ffn_norm");
        out.random(weight(layer, "ffn_up"), &[numbers.hidden, 2 * width]);
        out.random(weight(layer, "ffn_down"), &[width, numbers.hidden]);
    }
    Ok(())
}
