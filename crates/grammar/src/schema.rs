//! Checks a JSON schema before the library sees it.

use crate::endless::is_endless;
use crate::error::GrammarError;
use crate::limits::check_size;
use serde_json::{Map, Value, json};

const KIND: &str = "JSON schema";
/// Values within values. As deep as serde_json reads texts.
const MAX_DEPTH: usize = 128;
const TOO_DEEP: GrammarError = GrammarError::TooDeep { kind: KIND, max_depth: MAX_DEPTH };
/// The key under which the library finds its options.
const OPTIONS: &str = "x-guidance";
/// Options that a schema may set itself. The others would accept more than the schema says.
const ALLOWED_OPTIONS: [&str; 5] =
    ["item_separator", "key_separator", "whitespace_flexible", "whitespace_pattern", "json_allowed_escapes"];
/// Whitespace between two parts of a document. Without a bound, some models never stop writing it.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// The largest `multipleOf`, without its decimal point: its automaton has a state for each remainder.
const MAX_MULTIPLE: u64 = 10_000;
/// Bounds are computed as 64-bit integers.
const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
const MAX_BOUND: f64 = 9.3e18;

/// A schema, from text.
///
/// # Errors
/// The text is too long, not JSON, or nested too deep.
pub(crate) fn parse(text: &str) -> Result<Value, GrammarError> {
    check_size(KIND, text.len())?;
    serde_json::from_str(text).map_err(|error| match error.to_string() {
        message if message.starts_with("recursion limit exceeded") => TOO_DEEP,
        _ => error.into(),
    })
}

/// The schema with the options that the library shall use.
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
            let what = "a schema is an object, such as {\"type\": \"object\"}".to_owned();
            return Err(GrammarError::Schema { what });
        }
    };
    let mut options = json!({ "whitespace_pattern": WHITESPACE });
    if let Some(own) = schema.remove(OPTIONS) {
        let Value::Object(own) = own else {
            return Err(GrammarError::Schema { what: format!("`{OPTIONS}` must be an object") });
        };
        if let Some(key) = own.keys().find(|key| !ALLOWED_OPTIONS.contains(&key.as_str())) {
            let what = format!("`{OPTIONS}.{key:.40}` is not supported; remove it");
            return Err(GrammarError::Schema { what });
        }
        if own.get("whitespace_flexible") == Some(&Value::Bool(false)) {
            options = json!({});
        }
        own.into_iter().for_each(|(key, value)| options[key] = value);
    }
    schema.insert(OPTIONS.to_owned(), options);
    Ok(Value::Object(schema))
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
                check_numbers(members)?;
                stack.extend(members.values().map(|value| (value, depth + 1)));
            }
            Value::String(text) => size += text.len(),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    check_size(KIND, size)
}

fn check_numbers(members: &Map<String, Value>) -> Result<(), GrammarError> {
    if let Some(Value::Number(multiple)) = members.get("multipleOf") {
        let text = multiple.to_string();
        let digits: String = text.split('e').next().unwrap_or_default().replace('.', "");
        let digits = digits.trim_matches('0');
        if digits.parse::<u64>().is_ok_and(|digits| digits > MAX_MULTIPLE) {
            let what = format!(
                "`multipleOf` must not have a value of more than {MAX_MULTIPLE} without its point: {text}"
            );
            return Err(GrammarError::Schema { what });
        }
    }
    for key in BOUNDS {
        if let Some(bound) = members.get(key).and_then(Value::as_f64)
            && bound.abs() > MAX_BOUND
        {
            let what = format!("`{key}` must be between -{MAX_BOUND:e} and {MAX_BOUND:e}; remove it");
            return Err(GrammarError::Schema { what });
        }
    }
    Ok(())
}
