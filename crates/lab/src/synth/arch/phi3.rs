//! `phi3`: Phi-3, Phi-3.5 and Phi-4. Llama's form with Q, K and V in one tensor, and gate and up projection in another.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, ffn_width, rope, rotary_dim, weight};

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    let hparams = Hyperparameters::describe(config, out)?;
    let width = ffn_width(config, out)?;
    if let Some(window) = config.optional_count("sliding_window")? {
        out.count("attention.sliding_window", window);
    }
    let settings = config.rope("full_attention");
    out.count("rope.dimension_count", rotary_dim(&settings, config, hparams.head_dim, 1.0)?);
    rope(&settings, out, hparams.head_dim)?;
    hparams.ends(out, config.is_tied(false)?);
    for layer in 0..hparams.layers {
        hparams.norm(out, layer, "attn_norm");
        hparams.fused_attention(out, layer);
        hparams.norm(out, layer, "ffn_norm");
        out.random(weight(layer, "ffn_up"), &[hparams.hidden, 2 * width]);
        out.random(weight(layer, "ffn_down"), &[width, hparams.hidden]);
    }
    Ok(())
}
