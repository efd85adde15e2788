//! Checks a JSON schema before llguidance sees it.

use crate::endless::is_endless;
use crate::error::GrammarError;
use crate::limits::check_size;
use crate::{numbers, rewrite};
use serde_json::{Map, Value, json};

const KIND: &str = "JSON schema";
/// Values within values. As deep as serde_json reads texts.
const MAX_DEPTH: usize = 128;
const TOO_DEEP: GrammarError = GrammarError::TooDeep { kind: KIND, max_depth: MAX_DEPTH };
/// The key under which llguidance finds its options.
const OPTIONS: &str = "x-guidance";
/// The option that a schema may set itself. The others accept what is not JSON, or not what the schema says.
const ALLOWED_OPTION: &str = "whitespace_flexible";
/// Whitespace between two parts of a document. Without a bound, some models never stop writing it.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// The letters and signs of JSON's escapes without `\u0061`.
const SHORT_ESCAPES: &str = "nrbtf\\\"";

/// A schema, from text.
///
/// # Errors
/// The text is too long, not JSON, or nested too deep, or has numbers that cannot be represented.
pub(crate) fn parse(text: &str) -> Result<Value, GrammarError> {
    check_size(KIND, text.len())?;
    let text = text.strip_prefix('\u{FEFF}').unwrap_or(text);
    let schema = serde_json::from_str(text).map_err(|error| match error.to_string() {
        message if message.starts_with("recursion limit exceeded") => TOO_DEEP,
        _ => error.into(),
    })?;
    numbers::check_literals(text).map_err(error)?;
    Ok(schema)
}

fn error(what: impl Into<String>) -> GrammarError {
    GrammarError::Schema { what: what.into() }
}

/// The schema with the options that llguidance shall use.
pub(crate) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    check_depth_and_size(schema)?;
    if is_endless(schema) {
        let what = "a part of it requires itself, so that a document would never end; make a property or an item on \
                    the way optional";
        return Err(GrammarError::Empty { kind: KIND, what: what.to_owned() });
    }
    let mut schema = match schema {
        Value::Object(schema) => schema.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => {
            let what = "it is `false`; use `true` or `{}` for any document".to_owned();
            return Err(GrammarError::Empty { kind: KIND, what });
        }
        _ => {
            return Err(error("a schema is an object, such as {\"type\": \"object\"}"));
        }
    };
    let mut options = options(schema.remove(OPTIONS))?;
    if !rewrite::rewrite(&mut schema).map_err(error)?.may_escape {
        options["json_allowed_escapes"] = json!(SHORT_ESCAPES);
    }
    schema.insert(OPTIONS.to_owned(), options);
    Ok(Value::Object(schema))
}

/// llguidance's options, with those that a schema has itself.
fn options(own: Option<Value>) -> Result<Value, GrammarError> {
    let mut options = json!({ "whitespace_pattern": WHITESPACE });
    let Some(own) = own else { return Ok(options) };
    let Value::Object(own) = own else { return Err(error(format!("`{OPTIONS}` must be an object"))) };
    for (key, value) in own {
        match value {
            Value::Bool(true) if key == ALLOWED_OPTION => {}
            Value::Bool(false) if key == ALLOWED_OPTION => options = json!({ ALLOWED_OPTION: false }),
            _ if key == ALLOWED_OPTION => {
                return Err(error(format!("`{OPTIONS}.{key}` must be `true` or `false`")));
            }
            _ => {
                let what = format!(
                    "`{OPTIONS}.{key:.40}` is not supported, as outputs might not be JSON that satisfies the schema; remove it"
                );
                return Err(error(what));
            }
        }
    }
    Ok(options)
}

/// Without recursion: the schema may be nested however deep.
fn check_depth_and_size(schema: &Value) -> Result<(), GrammarError> {
    let mut size = 0;
    let mut stack = vec![(schema, 1)];
    while let Some((value, depth)) = stack.pop() {
        if depth > MAX_DEPTH {
            return Err(TOO_DEEP);
        }
        size += 2;
        match value {
            Value::Array(values) => stack.extend(values.iter().map(|value| (value, depth + 1))),
            Value::Object(members) => {
                size += members.keys().map(String::len).sum::<usize>();
                stack.extend(members.values().map(|value| (value, depth + 1)));
            }
            Value::String(text) => size += text.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    check_size(KIND, size)
}
