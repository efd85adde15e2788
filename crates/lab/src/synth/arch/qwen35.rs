//! `qwen35`: the dense Qwen3.5 and Qwen3.6 models. Gated delta nets, and gated attention in every fourth layer. MTP layers
//! are not generated.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, ffn_width, rope, rotary_dim, weight};

/// M-RoPE sections of the published models. For text all three dimensions have the same position.
const ROPE_SECTIONS: [i32; 3] = [11, 11, 10];

/// The hyperparameters of a gated delta net.
struct DeltaNet {
    kernel: usize,
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
}

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    let width = ffn_width(config, out)?;
    describe_with(config, out, |hparams, out, layer| hparams.ffn(out, layer, width))
}

/// The model, with feed-forward networks whose tensors `ffn` adds.
pub(super) fn describe_with(
    config: &Config,
    out: &mut ModelSkeleton,
    ffn: impl Fn(&Hyperparameters, &mut ModelSkeleton, usize),
) -> Result<(), ConfigError> {
    let hparams = Hyperparameters::describe(config, out)?;
    let delta = DeltaNet::describe(config, out)?;
    let interval = config.optional_count("full_attention_interval")?.unwrap_or(4);
    out.count("full_attention_interval", interval);
    describe_rope(config, out, hparams.head_dim)?;
    hparams.ends(out, config.is_tied(false)?);
    for layer in 0..hparams.layers {
        hparams.norm(out, layer, "attn_norm");
        if (layer + 1).is_multiple_of(interval) {
            attention(&hparams, out, layer);
        } else {
            delta.tensors(&hparams, out, layer);
        }
        hparams.norm(out, layer, "post_attention_norm");
        ffn(&hparams, out, layer);
    }
    Ok(())
}

/// Partial RoPE.
fn describe_rope(config: &Config, out: &mut ModelSkeleton, head_dim: usize) -> Result<(), ConfigError> {
    let settings = config.rope("full_attention");
    out.count("rope.dimension_count", rotary_dim(&settings, config, head_dim, 0.25)?);
    let mut sections = settings.counts("mrope_section").unwrap_or_else(|| ROPE_SECTIONS.to_vec());
    sections.resize(4, 0);
    out.counts("rope.dimension_sections", sections);
    rope(&settings, out, head_dim)
}

/// The Q projection also computes a gate per head.
fn attention(hparams: &Hyperparameters, out: &mut ModelSkeleton, layer: usize) {
    let Hyperparameters { hidden, heads, kv_heads, head_dim, .. } = *hparams;
    out.random(weight(layer, "attn_q"), &[hidden, 2 * heads * head_dim]);
    out.random(weight(layer, "attn_k"), &[hidden, kv_heads * head_dim]);
    out.random(weight(layer, "attn_v"), &[hidden, kv_heads * head_dim]);
    out.random(weight(layer, "attn_output"), &[heads * head_dim, hidden]);
    hparams.head_norms(out, layer);
}

impl DeltaNet {
    fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<DeltaNet, ConfigError> {
        let delta = DeltaNet {
            kernel: config.count("linear_conv_kernel_dim")?,
            key_heads: config.count("linear_num_key_heads")?,
            value_heads: config.count("linear_num_value_heads")?,
            key_dim: config.count("linear_key_head_dim")?,
            value_dim: config.count("linear_value_head_dim")?,
        };
        if !delta.value_heads.is_multiple_of(delta.key_heads) {
            let expected = format!("a multiple of the {} of linear_num_key_heads", delta.key_heads);
            return Err(config.wrong("linear_num_value_heads", expected));
        }
        if delta.value_heads > 4096 || delta.value_heads * delta.key_dim.max(delta.value_dim) > 1 << 24 {
            return Err(config.wrong("linear_num_value_heads", "fewer, with this head size"));
        }
        out.count("ssm.conv_kernel", delta.kernel);
        out.count("ssm.state_size", delta.key_dim);
        out.count("ssm.group_count", delta.key_heads);
        out.count("ssm.time_step_rank", delta.value_heads);
        out.count("ssm.inner_size", delta.value_heads * delta.value_dim);
        Ok(delta)
    }

    fn tensors(&self, hparams: &Hyperparameters, out: &mut ModelSkeleton, layer: usize) {
        let DeltaNet { kernel, key_heads, value_heads, key_dim, value_dim } = *self;
        let hidden = hparams.hidden;
        let width = value_heads * value_dim;
        let channels = 2 * key_heads * key_dim + width;
        out.random(weight(layer, "attn_qkv"), &[hidden, channels]);
        out.random(weight(layer, "attn_gate"), &[hidden, width]);
        out.random(weight(layer, "ssm_alpha"), &[hidden, value_heads]);
        out.random(weight(layer, "ssm_beta"), &[hidden, value_heads]);
        out.random(weight(layer, "ssm_conv1d"), &[kernel, channels]);
        // Decay rates from slow to fast, as in trained models.
        let rates = (1..=value_heads).map(|head| -(head as f32) / value_heads as f32);
        out.values(format!("blk.{layer}.ssm_a"), rates.collect());
        out.constant(format!("blk.{layer}.ssm_dt.bias"), value_heads, -2.0);
        out.norm(weight(layer, "ssm_norm"), value_dim);
        out.random(weight(layer, "ssm_out"), &[width, hidden]);
    }
}
