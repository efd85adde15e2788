//! `qwen35moe`: the Qwen3.5 and Qwen3.6 MoE models. `qwen35`'s layers with MoE in each, and a gated shared expert.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Moe, weight};
use super::qwen35;

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    let moe = Moe::describe(config, out, ["num_experts", "moe_intermediate_size"])?;
    let shared = config.count("shared_expert_intermediate_size")?;
    out.count("expert_shared_feed_forward_length", shared);
    qwen35::describe_with(config, out, |hparams, out, layer| {
        let hidden = hparams.hidden;
        moe.tensors(hparams, out, layer);
        out.random(weight(layer, "ffn_gate_inp_shexp"), &[hidden]);
        out.random(weight(layer, "ffn_gate_shexp"), &[hidden, shared]);
        out.random(weight(layer, "ffn_up_shexp"), &[hidden, shared]);
        out.random(weight(layer, "ffn_down_shexp"), &[shared, hidden]);
    })
}
