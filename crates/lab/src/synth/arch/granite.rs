//! `granite`: the dense Granite models. Llama's form with four factors.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::llama;

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    let factors = [
        ("embedding_scale", "embedding_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ];
    for (name, key) in factors {
        out.real(name, config.real(key)?);
    }
    llama::describe(config, out)
}
