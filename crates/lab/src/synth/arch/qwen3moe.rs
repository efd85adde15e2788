//! `qwen3moe`: the Qwen3 MoE models. Qwen3 with MoE in every layer.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, Moe, ffn_width, rope};

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    if config.optional_count("decoder_sparse_step")?.unwrap_or(1) != 1 {
        return Err(config.wrong("decoder_sparse_step", "1: every layer has experts"));
    }
    let hparams = Hyperparameters::describe(config, out)?;
    let moe = Moe::describe(config, out, ["num_experts", "moe_intermediate_size"])?;
    ffn_width(config, out)?;
    rope(&config.rope("full_attention"), out, hparams.head_dim)?;
    hparams.ends(out, config.is_tied(false)?);
    for layer in 0..hparams.layers {
        hparams.norm(out, layer, "attn_norm");
        hparams.attention(out, layer);
        hparams.head_norms(out, layer);
        hparams.norm(out, layer, "ffn_norm");
        moe.tensors(&hparams, out, layer);
    }
    Ok(())
}
