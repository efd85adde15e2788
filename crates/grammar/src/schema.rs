//! Checks a JSON schema before the library sees it.

use crate::endless::is_endless;
use crate::error::GrammarError;
use crate::limits::check_size;
use crate::numbers;
use crate::pattern::{self, Pattern};
use serde_json::{Map, Value, json};

const KIND: &str = "JSON schema";
/// Values within values. As deep as serde_json reads texts.
const MAX_DEPTH: usize = 128;
const TOO_DEEP: GrammarError = GrammarError::TooDeep { kind: KIND, max_depth: MAX_DEPTH };
/// The key under which the library finds its options.
const OPTIONS: &str = "x-guidance";
/// The option that a schema may set itself. The others accept what is not JSON, or not what the schema says.
const ALLOWED_OPTION: &str = "whitespace_flexible";
/// Whitespace between two parts of a document. Without a bound, some models never stop writing it.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// Keywords whose members are schemas under names of their own.
const NAMED_SCHEMAS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords whose values are no schemas.
const CONSTANTS: [&str; 2] = ["const", "enum"];

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
            return Err(error("a schema is an object, such as {\"type\": \"object\"}"));
        }
    };
    let options = options(schema.remove(OPTIONS))?;
    rewrite_members(&mut schema)?;
    schema.insert(OPTIONS.to_owned(), options);
    Ok(Value::Object(schema))
}

/// The library's options, with those that a schema has itself.
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

/// Rewrites a schema to one that the library enforces exactly.
fn rewrite(schema: &mut Value) -> Result<(), GrammarError> {
    match schema {
        Value::Object(members) => rewrite_members(members),
        Value::Array(schemas) => schemas.iter_mut().try_for_each(rewrite),
        _ => Ok(()),
    }
}

fn rewrite_members(members: &mut Map<String, Value>) -> Result<(), GrammarError> {
    numbers::check_keywords(members).map_err(error)?;
    rewrite_pattern_properties(members)?;
    for (key, value) in members.iter_mut() {
        match value {
            value if CONSTANTS.contains(&key.as_str()) => numbers::check_constant(value).map_err(error)?,
            Value::Object(schemas) if NAMED_SCHEMAS.contains(&key.as_str()) => {
                schemas.values_mut().try_for_each(rewrite)?;
            }
            Value::String(ecma) if key == "pattern" => *ecma = convert(key, ecma)?.text,
            Value::String(target) if key == "$ref" => check_target(target)?,
            value => rewrite(value)?,
        }
    }
    Ok(())
}

fn convert(keyword: &str, ecma: &str) -> Result<Pattern, GrammarError> {
    pattern::convert(ecma).map_err(|what| error(format!("`{keyword}` {ecma:.80?}: {what}")))
}

/// The expressions of `patternProperties` also say which properties are not additional ones. So those that match too little
/// are possible only where there are none.
fn rewrite_pattern_properties(members: &mut Map<String, Value>) -> Result<(), GrammarError> {
    const KEY: &str = "patternProperties";
    let is_closed = members.get("additionalProperties") == Some(&Value::Bool(false));
    let Some(Value::Object(schemas)) = members.get_mut(KEY) else { return Ok(()) };
    for (ecma, schema) in std::mem::take(schemas) {
        let pattern = convert(KEY, &ecma)?;
        if !pattern.is_exact && !is_closed {
            let what = format!(
                "`{KEY}` {ecma:.80?} is supported only with `\"additionalProperties\": false`, as it has control characters \
                 but not both of `\"` and `\\`"
            );
            return Err(error(what));
        }
        if schemas.insert(pattern.text, schema).is_some() {
            return Err(error(format!(
                "`{KEY}` {ecma:.80?} means the same as another one; remove one of them"
            )));
        }
    }
    let names = members.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    match names.into_iter().any(|name| name.contains('\0')) {
        true => Err(error("a property whose name has U+0000 is not supported beside `patternProperties`")),
        false => Ok(()),
    }
}

/// References into constants would make schemas of them, which have not been rewritten.
fn check_target(target: &str) -> Result<(), GrammarError> {
    let Some((_, path)) = target.split_once("#/") else { return Ok(()) };
    let mut is_name = false;
    for segment in path.split('/') {
        if !is_name && (CONSTANTS.contains(&segment) || segment.contains('%')) {
            return Err(error(format!("`$ref` {target:.80?} must lead to a schema, such as `#/$defs/name`")));
        }
        is_name = !is_name && NAMED_SCHEMAS.contains(&segment);
    }
    Ok(())
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
