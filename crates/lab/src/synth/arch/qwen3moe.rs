//! `qwen3moe`: the Qwen3 mixtures of experts. Qwen3's form with a mixture in every layer.

use super::super::blueprint::Blueprint;
use super::super::config::{Config, ConfigError};
use super::dense::{Mixture, Numbers, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut Blueprint) -> Result<(), ConfigError> {
    if config.optional_count("decoder_sparse_step")?.unwrap_or(1) != 1 {
        return Err(config.wrong("decoder_sparse_step", "1: every layer has experts"));
    }
    let numbers = Numbers::describe(config, out)?;
    let mixture = Mixture::describe(config, out, ["num_experts", "moe_intermediate_size"])?;
    ffn_width(config, out)?;
    rope(&config.rope("full_attention"), out, numbers.head_dim)?;
    numbers.ends(out, config.is_tied(false)?);
    for layer in 0..numbers.layers {
        numbers.norm(out, layer, "attn_norm");
        numbers.attention(out, layer);
        numbers.head_norms(out, layer);
        numbers.norm(out, layer, "ffn_norm");
        mixture.tensors(&numbers, out, layer);
    }
    Ok(())
}
