//! The fields of a request: taken one by one, so that several APIs share them, errors name them and what is left is known.

use crate::error::ApiError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// A JSON object whose fields are taken out. A field that is `null` counts as absent.
#[derive(Debug)]
pub(crate) struct Fields {
    entries: Map<String, Value>,
    /// What comes before the names of its fields in messages, such as `options.`.
    prefix: String,
    /// Fields of inner objects that nothing took.
    unknown: Vec<String>,
    /// Length of the body.
    bytes: usize,
}

impl Fields {
    /// The fields of a body.
    ///
    /// # Errors
    /// If it is not a JSON object. Objects and arrays may be nested 127 deep.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, ApiError> {
        if body.is_empty() {
            return Err(ApiError::bad("the request has no body: send a JSON object"));
        }
        let value: Value = serde_json::from_slice(body)
            .map_err(|error| ApiError::bad(format!("the body is not valid JSON: {error}")))?;
        match value {
            Value::Object(entries) => Ok(Fields { bytes: body.len(), ..Fields::of(entries, String::new()) }),
            other => Err(ApiError::bad(format!("the body must be a JSON object, not {}", kind(&other)))),
        }
    }

    /// The fields of an object within a request; `prefix` is its path with a dot behind.
    pub(crate) fn of(entries: Map<String, Value>, prefix: String) -> Fields {
        Fields { entries, prefix, unknown: Vec::new(), bytes: 0 }
    }

    /// Length of the body in bytes.
    pub(crate) fn body_bytes(&self) -> usize {
        self.bytes
    }

    /// The full name of a field.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// An error about a field.
    pub(crate) fn error(&self, name: &str, problem: impl std::fmt::Display) -> ApiError {
        ApiError::field(&self.name(name), problem)
    }

    /// Takes a field.
    ///
    /// # Errors
    /// If its value is of another type.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.entries.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => from_value(value, &self.name(name)).map(Some),
        }
    }

    /// Whether a field is there and not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.get(name).is_some_and(|value| !value.is_null())
    }

    /// A field that stays where it is.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.entries.get(name)
    }

    /// Takes a field that has several names: the first that is there.
    pub(crate) fn take_any<T: DeserializeOwned>(&mut self, names: &[&str]) -> Result<Option<T>, ApiError> {
        let mut found = None;
        for name in names {
            let value = self.take(name)?;
            found = found.or(value);
        }
        Ok(found)
    }

    /// Takes a field that must be there.
    pub(crate) fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| self.error(name, "this field is required"))
    }

    /// Takes a field as it is.
    pub(crate) fn take_value(&mut self, name: &str) -> Option<Value> {
        self.entries.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes an object, whose unknown fields [`absorb`](Self::absorb) reports.
    pub(crate) fn take_object(&mut self, name: &str) -> Result<Option<Fields>, ApiError> {
        let entries = self.take(name)?;
        Ok(entries.map(|entries| Fields::of(entries, format!("{}.", self.name(name)))))
    }

    /// Takes what nothing took of an inner object.
    pub(crate) fn absorb(&mut self, inner: Fields) {
        self.unknown.extend(inner.unknown());
    }

    /// Takes fields that have no effect here and need none.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.entries.shift_remove(*name);
        }
    }

    /// The names of the fields that nothing took.
    pub(crate) fn unknown(self) -> Vec<String> {
        let Fields { entries, prefix, mut unknown, .. } = self;
        unknown.extend(
            entries.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| format!("{prefix}{name}")),
        );
        unknown
    }
}

/// A value as this type; `name` is its path for the error.
///
/// # Errors
/// If it is of another type.
pub(crate) fn from_value<T: DeserializeOwned>(value: Value, name: &str) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let separator = if path.starts_with('[') { "" } else { "." };
        let name = if path == "." { name.to_owned() } else { format!("{name}{separator}{path}") };
        ApiError::field(&name, in_json_words(&error.inner().to_string()))
    })
}

/// A message of serde, whose types are Rust's, in JSON's words.
fn in_json_words(message: &str) -> String {
    const WORDS: [(&str, &str); 9] = [
        ("f32", "a number"),
        ("u32", "an integer that is not negative"),
        ("u64", "an integer that is not negative"),
        ("usize", "an integer that is not negative"),
        ("i32", "an integer"),
        ("i64", "an integer"),
        ("a sequence", "an array"),
        ("a map", "an object"),
        ("a boolean", "true or false"),
    ];
    let Some((found, expected)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let word = WORDS.iter().find(|(rust, _)| *rust == expected).map_or(expected, |(_, word)| word);
    let found = found.replace("sequence", "array").replace("invalid type: map", "invalid type: object");
    format!("{found}expected {word}")
}

/// What a value is, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields {
        Fields::parse(text.as_bytes()).expect("valid")
    }

    fn message<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
        result.expect_err("wrong").message
    }

    #[test]
    fn what_nothing_takes_is_known() {
        let mut body = fields(r#"{"a": 1, "b": null, "c": 2, "d": null, "o": {"x": 1, "y": 2}}"#);
        assert_eq!(body.take::<u32>("a").expect("valid"), Some(1));
        assert_eq!(body.take::<u32>("b").expect("valid"), None);
        let mut inner = body.take_object("o").expect("valid").expect("there");
        assert_eq!(inner.require::<u32>("x").expect("there"), 1);
        body.absorb(inner);
        assert_eq!(body.unknown(), ["o.y", "c"]);
    }

    #[test]
    fn errors_name_the_field_in_json_words() {
        let wrong = message(fields(r#"{"temperature": "hot"}"#).take::<f32>("temperature"));
        assert_eq!(wrong, r#"temperature: invalid type: string "hot", expected a number"#);
        let wrong = message(fields(r#"{"stop": ["a", 7]}"#).take::<Vec<String>>("stop"));
        assert_eq!(wrong, "stop[1]: invalid type: integer `7`, expected a string");
        let wrong = message(fields(r#"{"n": -1}"#).take::<u32>("n"));
        assert_eq!(wrong, "n: invalid value: integer `-1`, expected an integer that is not negative");
        assert_eq!(message(fields("{}").require::<u32>("n")), "n: this field is required");
        assert!(message(Fields::parse(b"[1]")).contains("not an array"));
        assert!(message(Fields::parse(b"{\"a\": \"\xff\"}")).contains("not valid JSON"));
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(200), "]".repeat(200));
        assert!(message(Fields::parse(deep.as_bytes())).contains("recursion limit"));
    }
}
