//! From a known shape or a `config.json` to the model without its weights.

use super::config::{Config, ConfigError};
use super::{ModelSkeleton, UnknownShape, arch, shapes, vocabulary};

impl ModelSkeleton {
    /// The model of a known shape.
    ///
    /// # Errors
    /// If the shape is not known.
    pub fn from_shape(name: &str) -> Result<ModelSkeleton, UnknownShape> {
        let config = shapes::config_of(name)?;
        Ok(ModelSkeleton::from_config(name, config).expect("the configurations of known shapes are tested"))
    }

    /// The model that a `config.json` describes.
    ///
    /// # Errors
    /// If the configuration lacks something, contains something impossible, or has an unknown architecture.
    pub fn from_config(name: &str, json: &str) -> Result<ModelSkeleton, ConfigError> {
        let config = Config::parse(json)?;
        let architecture = arch::for_config(&config)?;
        let vocabulary = config.vocabulary()?;
        if vocabulary < vocabulary::min_tokens() {
            let min = vocabulary::min_tokens();
            return Err(config.wrong("vocab_size", format!("at least {min}, for a usable vocabulary")));
        }
        let mut skeleton = ModelSkeleton::new(name, architecture.name, vocabulary, config.layers()?);
        (architecture.describe)(&config, &mut skeleton)?;
        Ok(skeleton)
    }
}
