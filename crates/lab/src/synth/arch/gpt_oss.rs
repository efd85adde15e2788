//! `gpt-oss`: gpt-oss-20b and -120b. MoE in every layer, biases everywhere, and an attention sink for each head. The
//! published files keep their experts as MXFP4; here they get the format of the quantisation type.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, Moe, ffn_width, rope, weight};

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    let hparams = Hyperparameters::describe(config, out)?;
    let moe = Moe::describe(config, out, ["num_local_experts", "intermediate_size"])?;
    ffn_width(config, out)?;
    out.count("attention.sliding_window", config.count("sliding_window")?);
    rope(&config.rope("full_attention"), out, hparams.head_dim)?;
    hparams.ends(out, config.is_tied(false)?);
    let Moe { experts, width } = moe;
    for layer in 0..hparams.layers {
        let bias = |part: &str| format!("blk.{layer}.{part}.bias");
        hparams.norm(out, layer, "attn_norm");
        hparams.attention(out, layer);
        hparams.attention_biases(out, layer);
        out.random(bias("attn_output"), &[hparams.hidden]);
        out.random(weight(layer, "attn_sinks"), &[hparams.heads]);
        hparams.norm(out, layer, "post_attention_norm");
        moe.tensors(&hparams, out, layer);
        out.random(bias("ffn_gate_inp"), &[experts]);
        out.random(bias("ffn_gate_exps"), &[width, experts]);
        out.random(bias("ffn_up_exps"), &[width, experts]);
        out.random(bias("ffn_down_exps"), &[hparams.hidden, experts]);
    }
    Ok(())
}
