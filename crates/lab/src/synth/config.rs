//! A `config.json` as Hugging Face keeps them, read with bounds: every value must be plausible.

use serde_json::{Map, Value};

/// Maximum of a count.
const MAX_COUNT: u64 = 1 << 22;
/// Maximum vocabulary size. All tokens are in the file's metadata, so in memory.
const MAX_TOKENS: u64 = 1 << 20;
/// Maximum number of layers.
const MAX_LAYERS: u64 = 1 << 10;
/// Maximum number of positions. They take no space in the file.
const MAX_POSITIONS: u64 = 1 << 30;

/// What is wrong with a `config.json`.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The text is not JSON.
    #[error("it is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The text is JSON, but not a configuration.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// A key that the architecture needs is absent.
    #[error("key `{0}` is missing")]
    Missing(String),
    /// A key has a value that the architecture cannot have.
    #[error("key `{key}` is {found}; it must be {expected}")]
    Value {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// No architecture of that name is known.
    #[error("models of type `{found}` are not supported; supported types are {known}")]
    Architecture {
        /// The model type.
        found: String,
        /// The known ones.
        known: String,
    },
}

/// The text model of a `config.json`.
pub(super) struct Config {
    /// Of a model with parts for images or sound, the part for text.
    text: Map<String, Value>,
    /// The whole.
    root: Map<String, Value>,
}

impl Config {
    pub(super) fn parse(json: &str) -> Result<Config, ConfigError> {
        let Value::Object(root) = serde_json::from_str(json)? else { return Err(ConfigError::NotAnObject) };
        let text = match root.get("text_config") {
            Some(Value::Object(text)) => text.clone(),
            _ => root.clone(),
        };
        Ok(Config { text, root })
    }

    /// The value of a key; null is absent.
    fn get(&self, key: &str) -> Option<&Value> {
        self.text.get(key).or_else(|| self.root.get(key)).filter(|value| !value.is_null())
    }

    pub(super) fn wrong(&self, key: &str, expected: impl Into<String>) -> ConfigError {
        let found = self.get(key).map_or_else(|| "missing".to_owned(), excerpt);
        ConfigError::Value { key: key.into(), found, expected: expected.into() }
    }

    fn count_up_to(&self, key: &str, most: u64) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(count) if (1..=most).contains(&count) => Ok(Some(count as usize)),
            _ => Err(self.wrong(key, format!("an integer from 1 to {most}"))),
        }
    }

    fn required<T>(key: &str, value: Option<T>) -> Result<T, ConfigError> {
        value.ok_or_else(|| ConfigError::Missing(key.into()))
    }

    /// An integer >= 1.
    pub(super) fn count(&self, key: &str) -> Result<usize, ConfigError> {
        Self::required(key, self.optional_count(key)?)
    }

    /// An optional integer >= 1.
    pub(super) fn optional_count(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        self.count_up_to(key, MAX_COUNT)
    }

    pub(super) fn layers(&self) -> Result<usize, ConfigError> {
        let key = "num_hidden_layers";
        Self::required(key, self.count_up_to(key, MAX_LAYERS)?)
    }

    pub(super) fn vocabulary(&self) -> Result<usize, ConfigError> {
        let key = "vocab_size";
        Self::required(key, self.count_up_to(key, MAX_TOKENS)?)
    }

    pub(super) fn context(&self) -> Result<usize, ConfigError> {
        let key = "max_position_embeddings";
        Self::required(key, self.count_up_to(key, MAX_POSITIONS)?)
    }

    /// A finite number above 0.
    pub(super) fn real(&self, key: &str) -> Result<f32, ConfigError> {
        let value = self.get(key).ok_or_else(|| ConfigError::Missing(key.into()))?;
        positive(value).ok_or_else(|| self.wrong(key, "a number above 0"))
    }

    pub(super) fn optional_real(&self, key: &str) -> Result<Option<f32>, ConfigError> {
        if self.get(key).is_some() { self.real(key).map(Some) } else { Ok(None) }
    }

    /// A switch that is off when it is absent.
    pub(super) fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<&str, ConfigError> {
        let value = self.get(key).ok_or_else(|| ConfigError::Missing(key.into()))?;
        value.as_str().ok_or_else(|| self.wrong(key, "a text"))
    }

    /// Whether the output head is the embedding. Gemma's configurations omit it, since all of them do.
    pub(super) fn is_tied(&self, when_absent: bool) -> Result<bool, ConfigError> {
        let key = "tie_word_embeddings";
        if self.get(key).is_some() { self.flag(key) } else { Ok(when_absent) }
    }

    /// The RoPE settings. Newer configurations have them in an object, for some models one for each kind of
    /// layer; older ones beside the others.
    pub(super) fn rope(&self, layer_type: &str) -> Rope<'_> {
        let parameters = self.get("rope_parameters").and_then(Value::as_object);
        let parameters = parameters.map(|all| all.get(layer_type).and_then(Value::as_object).unwrap_or(all));
        let scaling = self.get("rope_scaling").and_then(Value::as_object);
        Rope { config: self, settings: parameters.or(scaling) }
    }
}

/// The RoPE settings.
pub(super) struct Rope<'a> {
    config: &'a Config,
    settings: Option<&'a Map<String, Value>>,
}

impl Rope<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.settings.and_then(|settings| settings.get(key)).filter(|value| !value.is_null())
    }

    /// The kind of scaling; `default` for none.
    pub(super) fn kind(&self) -> &str {
        self.get("rope_type").or_else(|| self.get("type")).and_then(Value::as_str).unwrap_or("default")
    }

    /// A setting above 0, wherever it is.
    pub(super) fn optional_real(&self, key: &str) -> Result<Option<f32>, ConfigError> {
        match self.get(key) {
            None => self.config.optional_real(key),
            Some(value) => match positive(value) {
                Some(number) => Ok(Some(number)),
                None => Err(ConfigError::Value {
                    key: key.into(),
                    found: excerpt(value),
                    expected: "a number above 0".into(),
                }),
            },
        }
    }

    pub(super) fn real(&self, key: &str) -> Result<f32, ConfigError> {
        Config::required(key, self.optional_real(key)?)
    }

    /// A setting that counts positions.
    pub(super) fn positions(&self, key: &str) -> Result<usize, ConfigError> {
        match self.real(key)? {
            positions if positions <= MAX_POSITIONS as f32 => Ok(positions as usize),
            positions => Err(ConfigError::Value {
                key: key.into(),
                found: positions.to_string(),
                expected: format!("at most {MAX_POSITIONS}"),
            }),
        }
    }

    /// A list of numbers above 0, such as RoPE frequency factors.
    pub(super) fn reals(&self, key: &str) -> Result<Vec<f32>, ConfigError> {
        let value = Config::required(key, self.get(key))?;
        let numbers = value.as_array().filter(|list| !list.is_empty());
        numbers.and_then(|list| list.iter().map(positive).collect()).ok_or_else(|| ConfigError::Value {
            key: key.into(),
            found: excerpt(value),
            expected: "a list of numbers above 0".into(),
        })
    }

    /// A list of counts, such as M-RoPE sections.
    pub(super) fn counts(&self, key: &str) -> Option<Vec<i32>> {
        let counts = self.get(key)?.as_array()?.iter();
        counts
            .map(|count| count.as_u64().filter(|&count| count <= MAX_COUNT).map(|count| count as i32))
            .collect()
    }
}

fn positive(value: &Value) -> Option<f32> {
    value.as_f64().map(|number| number as f32).filter(|number| number.is_finite() && *number > 0.0)
}

/// A value for a message: configurations can hold whole dictionaries.
fn excerpt(value: &Value) -> String {
    const SHOWN: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= SHOWN { text } else { text.chars().take(SHOWN).collect::<String>() + "…" }
}
