//! `smollm3`: Llama's form, tied; which layers have RoPE is fixed and in no key.

use super::super::config::{Config, ConfigError};
use super::super::skeleton::ModelSkeleton;
use super::llama;

pub(super) fn describe(config: &Config, out: &mut ModelSkeleton) -> Result<(), ConfigError> {
    llama::form(config, out, true)
}
