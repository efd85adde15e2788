//! The architectures, one file each: from a `config.json` to the keys and tensors that GGUF files have.

mod dense;
mod gemma2;
mod gemma3;
mod gpt_oss;
mod granite;
mod llama;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod smollm3;

use super::config::{Config, ConfigError};
use super::skeleton::ModelSkeleton;

/// An architecture.
pub(super) struct Architecture {
    /// What configurations call it in `model_type`.
    model_types: &'static [&'static str],
    /// What GGUF files call it.
    pub(super) name: &'static str,
    pub(super) describe: fn(&Config, &mut ModelSkeleton) -> Result<(), ConfigError>,
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture { model_types: &["gemma2"], name: "gemma2", describe: gemma2::describe },
    Architecture { model_types: &["gemma3_text", "gemma3"], name: "gemma3", describe: gemma3::describe },
    Architecture { model_types: &["gpt_oss"], name: "gpt-oss", describe: gpt_oss::describe },
    Architecture { model_types: &["granite"], name: "granite", describe: granite::describe },
    Architecture { model_types: &["llama"], name: "llama", describe: llama::describe },
    Architecture { model_types: &["olmo2"], name: "olmo2", describe: olmo2::describe },
    Architecture { model_types: &["phi3"], name: "phi3", describe: phi3::describe },
    Architecture { model_types: &["qwen2"], name: "qwen2", describe: qwen2::describe },
    Architecture { model_types: &["qwen3"], name: "qwen3", describe: qwen3::describe },
    Architecture { model_types: &["qwen3_5_text", "qwen3_5"], name: "qwen35", describe: qwen35::describe },
    Architecture {
        model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
        name: "qwen35moe",
        describe: qwen35moe::describe,
    },
    Architecture { model_types: &["qwen3_moe"], name: "qwen3moe", describe: qwen3moe::describe },
    Architecture { model_types: &["smollm3"], name: "smollm3", describe: smollm3::describe },
];

/// Their names in GGUF files.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|architecture| architecture.name)
}

/// The architecture of a configuration.
pub(super) fn for_config(config: &Config) -> Result<&'static Architecture, ConfigError> {
    let found = config.text("model_type")?;
    let known = || ARCHITECTURES.iter().flat_map(|architecture| architecture.model_types);
    ARCHITECTURES.iter().find(|architecture| architecture.model_types.contains(&found)).ok_or_else(|| {
        let known = known().copied().collect::<Vec<_>>().join(", ");
        ConfigError::Architecture { found: found.chars().take(60).collect(), known }
    })
}
