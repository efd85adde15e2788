//! `gemma3`: the text part of Gemma 3. Norms before and after each half of a layer; most layers have a sliding window.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::dense::{Hyperparameters, ffn_width, rope};

/// One layer in this many has full attention; files have no key for it.
const PERIOD: usize = 6;

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    for period in ["_sliding_window_pattern", "sliding_window_pattern"] {
        if config.optional_count(period)?.is_some_and(|found| found != PERIOD) {
            return Err(config.wrong(period, PERIOD.to_string()));
        }
    }
    let hparams = Hyperparameters::describe(config, out)?;
    let width = ffn_width(config, out)?;
    out.count("attention.sliding_window", config.count("sliding_window")?);
    rope(&config.rope("full_attention"), out, hparams.head_dim)?;
    let local = match config.optional_real("rope_local_base_freq")? {
        Some(base) => Some(base),
        None => config.rope("sliding_attention").optional_real("rope_theta")?,
    };
    out.real("rope.freq_base_swa", local.unwrap_or(10_000.0));
    hparams.ends(out, config.is_tied(true)?);
    for layer in 0..hparams.layers {
        hparams.norm(out, layer, "attn_norm");
        hparams.attention(out, layer);
        hparams.head_norms(out, layer);
        hparams.norm(out, layer, "post_attention_norm");
        hparams.norm(out, layer, "ffn_norm");
        hparams.ffn(out, layer, width);
        hparams.norm(out, layer, "post_ffw_norm");
    }
    Ok(())
}
