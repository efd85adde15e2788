//! Checks a JSON schema before the library sees it.

use crate::error::GrammarError;
use crate::limits::check_size;
use serde_json::{Map, Value, json};

const KIND: &str = "JSON schema";
/// As deep as serde_json reads texts.
const MAX_DEPTH: usize = 128;
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

/// The schema with the options that the library shall use.
pub(crate) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    check_depth_and_size(schema)?;
    let mut schema = match schema {
        Value::Object(schema) => schema.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(GrammarError::Empty { kind: KIND }),
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
            return Err(GrammarError::TooDeep { kind: KIND, max_depth: MAX_DEPTH });
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
