//! `qwen3moe`: the Qwen3 mixtures of experts. Qwen3's form with experts in every layer, stacked in one tensor for each of
//! their three matrices.

use super::super::blueprint::Blueprint;
use super::super::config::{Config, ConfigError};
use super::dense::{Numbers, ffn_width, rope, weight};

pub(super) fn describe(config: &Config, out: &mut Blueprint) -> Result<(), ConfigError> {
    if config.optional_count("decoder_sparse_step")?.unwrap_or(1) != 1 {
        return Err(config.wrong("decoder_sparse_step", "1: every layer has experts"));
    }
    let numbers = Numbers::describe(config, out)?;
    let (experts, used) = (config.count("num_experts")?, config.count("num_experts_per_tok")?);
    if used > experts {
        return Err(config.wrong("num_experts_per_tok", format!("at most the {experts} of num_experts")));
    }
    let width = config.count("moe_intermediate_size")?;
    ffn_width(config, out)?;
    out.set_experts(experts);
    out.count("expert_count", experts);
    out.count("expert_used_count", used);
    out.count("expert_feed_forward_length", width);
    rope(&config.rope("full_attention"), out, numbers.head_dim)?;
    numbers.ends(out, config.is_tied(false)?);
    let hidden = numbers.hidden;
    for layer in 0..numbers.layers {
        numbers.norm(out, layer, "attn_norm");
        numbers.attention(out, layer);
        numbers.head_norms(out, layer);
        numbers.norm(out, layer, "ffn_norm");
        out.random(weight(layer, "ffn_gate_inp"), &[hidden, experts]);
        out.random(weight(layer, "ffn_gate_exps"), &[hidden, width, experts]);
        out.random(weight(layer, "ffn_up_exps"), &[hidden, width, experts]);
        out.random(weight(layer, "ffn_down_exps"), &[width, hidden, experts]);
    }
    Ok(())
}
