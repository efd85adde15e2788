//! What architectures share: hyperparameters and tensors of a stack of attention layers.

use super::super::config::{Config, ConfigError, Rope};
use super::super::skeleton::ModelSkeleton;

/// The hyperparameters of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hyperparameters {
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) vocabulary: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
}

impl Hyperparameters {
    /// Reads the hyperparameters and writes the keys that every architecture has, except RoPE's.
    pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<Hyperparameters, ConfigError> {
        let (layers, hidden) = (config.layers()?, config.count("hidden_size")?);
        let heads = config.count("num_attention_heads")?;
        let kv_heads = config.optional_count("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(config.wrong("num_key_value_heads", format!("a divisor of the {heads} heads")));
        }
        let head_dim = match config.optional_count("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => return Err(config.wrong("num_attention_heads", format!("a divisor of {hidden}"))),
        };
        if !head_dim.is_multiple_of(2) {
            return Err(config.wrong("head_dim", format!("even, not {head_dim}, since RoPE rotates pairs")));
        }
        if heads * head_dim > 1 << 24 {
            return Err(config.wrong("num_attention_heads", format!("fewer, with a head size of {head_dim}")));
        }
        out.set_n_gqa(heads / kv_heads);
        out.count("block_count", layers);
        out.count("context_length", config.context()?);
        out.count("embedding_length", hidden);
        out.count("attention.head_count", heads);
        out.count("attention.head_count_kv", kv_heads);
        out.count("attention.key_length", head_dim);
        out.count("attention.value_length", head_dim);
        out.real("attention.layer_norm_rms_epsilon", config.real("rms_norm_eps")?);
        Ok(Hyperparameters { layers, hidden, vocabulary: config.vocabulary()?, heads, kv_heads, head_dim })
    }

    /// The tensors outside of the layers.
    pub(super) fn ends(&self, out: &mut ModelSkeleton, is_tied: bool) {
        out.random("token_embd.weight", &[self.hidden, self.vocabulary]);
        out.norm("output_norm.weight", self.hidden);
        if !is_tied {
            out.random("output.weight", &[self.hidden, self.vocabulary]);
        }
    }

    /// The matrices of attention.
    pub(super) fn attention(&self, out: &mut ModelSkeleton, layer: usize) {
        let (q_width, kv_width) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        out.random(weight(layer, "attn_q"), &[self.hidden, q_width]);
        out.random(weight(layer, "attn_k"), &[self.hidden, kv_width]);
        out.random(weight(layer, "attn_v"), &[self.hidden, kv_width]);
        out.random(weight(layer, "attn_output"), &[q_width, self.hidden]);
    }

    /// Biases of Q, K and V.
    pub(super) fn attention_biases(&self, out: &mut ModelSkeleton, layer: usize) {
        for (part, heads) in [("attn_q", self.heads), ("attn_k", self.kv_heads), ("attn_v", self.kv_heads)] {
            out.random(format!("blk.{layer}.{part}.bias"), &[heads * self.head_dim]);
        }
    }

    /// The matrices of attention, those of Q, K and V in one.
    pub(super) fn fused_attention(&self, out: &mut ModelSkeleton, layer: usize) {
        let q_width = self.heads * self.head_dim;
        out.random(weight(layer, "attn_qkv"), &[self.hidden, q_width + 2 * self.kv_heads * self.head_dim]);
        out.random(weight(layer, "attn_output"), &[q_width, self.hidden]);
    }

    /// Norms of each head of Q and K.
    pub(super) fn head_norms(&self, out: &mut ModelSkeleton, layer: usize) {
        out.norm(weight(layer, "attn_q_norm"), self.head_dim);
        out.norm(weight(layer, "attn_k_norm"), self.head_dim);
    }

    /// The gated feed-forward network.
    pub(super) fn ffn(&self, out: &mut ModelSkeleton, layer: usize, width: usize) {
        out.random(weight(layer, "ffn_gate"), &[self.hidden, width]);
        out.random(weight(layer, "ffn_up"), &[self.hidden, width]);
        out.random(weight(layer, "ffn_down"), &[width, self.hidden]);
    }

    /// A norm over the residual stream.
    pub(super) fn norm(&self, out: &mut ModelSkeleton, layer: usize, part: &str) {
        out.norm(weight(layer, part), self.hidden);
    }
}

/// MoE in every layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moe {
    pub(super) experts: usize,
    /// The inner width of an expert.
    pub(super) width: usize,
}

impl Moe {
    /// Reads the hyperparameters under the names that a configuration has for them, and writes their keys.
    pub(super) fn describe(
        config: &Config,
        out: &mut ModelSkeleton,
        [experts_key, width_key]: [&str; 2],
    ) -> Result<Moe, ConfigError> {
        let (experts, width) = (config.count(experts_key)?, config.count(width_key)?);
        let used_key = "num_experts_per_tok";
        let used = config.count(used_key)?;
        if used > experts {
            return Err(config.wrong(used_key, format!("at most the {experts} of {experts_key}")));
        }
        out.set_experts(experts);
        out.count("expert_count", experts);
        out.count("expert_used_count", used);
        out.count("expert_feed_forward_length", width);
        Ok(Moe { experts, width })
    }

    /// The router, and the experts' three matrices, each stacked in one tensor.
    pub(super) fn tensors(&self, hparams: &Hyperparameters, out: &mut ModelSkeleton, layer: usize) {
        let (Moe { experts, width }, hidden) = (*self, hparams.hidden);
        out.random(weight(layer, "ffn_gate_inp"), &[hidden, experts]);
        out.random(weight(layer, "ffn_gate_exps"), &[hidden, width, experts]);
        out.random(weight(layer, "ffn_up_exps"), &[hidden, width, experts]);
        out.random(weight(layer, "ffn_down_exps"), &[width, hidden, experts]);
    }
}

/// The name of a tensor of a layer.
pub(super) fn weight(layer: usize, part: &str) -> String {
    format!("blk.{layer}.{part}.weight")
}

/// The inner width of the feed-forward networks.
pub(super) fn ffn_width(config: &Config, out: &mut ModelSkeleton) -> Result<usize, ConfigError> {
    let width = config.count("intermediate_size")?;
    out.count("feed_forward_length", width);
    Ok(width)
}

/// RoPE dimensions of each head.
pub(super) fn rotary_dim(
    rope: &Rope<'_>,
    config: &Config,
    head_dim: usize,
    share_when_absent: f32,
) -> Result<usize, ConfigError> {
    let key = "partial_rotary_factor";
    let share = rope.optional_real(key)?.unwrap_or(share_when_absent);
    let rotary_dim = (head_dim as f32 * share) as usize;
    if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        return Err(config.wrong(key, format!("an even part of the {head_dim} elements of a head")));
    }
    Ok(rotary_dim)
}

/// The RoPE keys, and for Llama 3 the tensor of frequency factors.
pub(super) fn rope(rope: &Rope<'_>, out: &mut ModelSkeleton, head_dim: usize) -> Result<(), ConfigError> {
    let base = rope.optional_real("rope_theta")?.unwrap_or(10_000.0);
    out.real("rope.freq_base", base);
    match rope.kind() {
        "default" => {}
        kind @ ("linear" | "yarn") => {
            out.text("rope.scaling.type", kind);
            out.real("rope.scaling.factor", rope.real("factor")?);
            if kind == "yarn" {
                out.count(
                    "rope.scaling.original_context_length",
                    rope.positions("original_max_position_embeddings")?,
                );
            }
        }
        // The first Phi-3 models called it that; in all later models it means what it says.
        "longrope" | "su" => long_rope(rope, out)?,
        "llama3" => out.values("rope_freqs.weight", llama3_freq_factors(rope, base, head_dim)?),
        other => {
            return Err(ConfigError::Value {
                key: "rope_type".into(),
                found: format!("`{}`", other.chars().take(60).collect::<String>()),
                expected: "default, linear, yarn, longrope or llama3".into(),
            });
        }
    }
    Ok(())
}

/// LongRoPE: two sets of frequency factors, for sequences up to the context of the first training and for longer ones.
fn long_rope(rope: &Rope<'_>, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    out.text("rope.scaling.type", "longrope");
    out.count("rope.scaling.original_context_length", rope.positions("original_max_position_embeddings")?);
    out.values("rope_factors_long.weight", rope.reals("long_factor")?);
    out.values("rope_factors_short.weight", rope.reals("short_factor")?);
    Ok(())
}

/// The RoPE frequency factors of Llama 3.1 and later: slow ones by the factor, fast ones by 1, and those
/// between by something between (transformers' `rope_type: llama3`).
fn llama3_freq_factors(rope: &Rope<'_>, base: f32, head_dim: usize) -> Result<Vec<f32>, ConfigError> {
    let (factor, original) = (rope.real("factor")?, rope.real("original_max_position_embeddings")?);
    let (low, high) = (rope.real("low_freq_factor")?, rope.real("high_freq_factor")?);
    let factor = |pair: usize| {
        let wavelength = std::f32::consts::TAU * base.powf(2.0 * pair as f32 / head_dim as f32);
        let turns = original / wavelength;
        if turns > high {
            1.0
        } else if turns < low {
            factor
        } else {
            let share = (turns - low) / (high - low);
            1.0 / ((1.0 - share) / factor + share)
        }
    };
    Ok((0..head_dim / 2).map(factor).collect())
}
