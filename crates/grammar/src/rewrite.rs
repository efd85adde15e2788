//! Rewrites a JSON schema to one that llguidance enforces exactly.

use crate::numbers;
use crate::pattern::{self, Pattern, needs_unicode_escape};
use serde_json::{Map, Value};

/// Keywords whose members are schemas under names of their own.
const NAMED_SCHEMAS: [&str; 5] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords whose values are not schemas.
const CONSTANTS: [&str; 2] = ["const", "enum"];
/// The longest quotation of a schema in a message.
const MAX_QUOTED_CHARS: usize = 80;

/// What has been found out about a schema.
pub(crate) struct Rewritten {
    /// Whether `\u0061` and the like are possible in strings. Where other keys than the named ones are possible, llguidance
    /// would allow a named key again, spelled in this way and with another value.
    pub may_escape: bool,
}

/// Rewrites a schema, which must not be nested too deep.
///
/// # Errors
/// What cannot be enforced.
pub(crate) fn rewrite(schema: &mut Map<String, Value>) -> Result<Rewritten, String> {
    let mut rewriter = Rewriter { is_open: false, escaped: None };
    rewriter.members(schema)?;
    match rewriter.escaped {
        Some(text) if rewriter.is_open => Err(format!(
            "the control characters of {text} are supported only where every object with `properties`, `required` or \
             `patternProperties` has `\"additionalProperties\": false`"
        )),
        _ => Ok(Rewritten { may_escape: !rewriter.is_open }),
    }
}

struct Rewriter {
    /// Whether an object may have other keys than named ones.
    is_open: bool,
    /// A string or expression with characters that only `\u0001` and the like can stand for.
    escaped: Option<String>,
}

impl Rewriter {
    fn schema(&mut self, schema: &mut Value) -> Result<(), String> {
        match schema {
            Value::Object(members) => self.members(members),
            Value::Array(schemas) => schemas.iter_mut().try_for_each(|schema| self.schema(schema)),
            _ => Ok(()),
        }
    }

    fn members(&mut self, members: &mut Map<String, Value>) -> Result<(), String> {
        numbers::check_keywords(members)?;
        let is_closed = members.get("additionalProperties") == Some(&Value::Bool(false));
        let has_names =
            ["properties", "patternProperties", "required"].iter().any(|key| members.contains_key(*key));
        self.is_open |= has_names && !is_closed;
        self.pattern_properties(members, is_closed)?;
        for (key, value) in members.iter_mut() {
            match value {
                value if CONSTANTS.contains(&key.as_str()) => {
                    numbers::check_constant(value)?;
                    self.constant(value);
                }
                Value::Object(schemas) if NAMED_SCHEMAS.contains(&key.as_str()) => {
                    schemas.values_mut().try_for_each(|schema| self.schema(schema))?;
                }
                Value::String(ecma) if key == "pattern" => *ecma = self.pattern(key, ecma)?.text,
                Value::String(target) if key == "$ref" => check_target(target)?,
                value => self.schema(value)?,
            }
        }
        Ok(())
    }

    fn constant(&mut self, value: &Value) {
        match value {
            Value::String(text) if text.contains(needs_unicode_escape) => self.escaped = Some(quoted(text)),
            Value::Array(values) => values.iter().for_each(|value| self.constant(value)),
            Value::Object(members) => members.values().for_each(|value| self.constant(value)),
            _ => {}
        }
    }

    fn pattern(&mut self, keyword: &str, ecma: &str) -> Result<Pattern, String> {
        let pattern =
            pattern::convert(ecma).map_err(|what| format!("`{keyword}` {}: {what}", quoted(ecma)))?;
        if pattern.needs_unicode_escape {
            self.escaped = Some(quoted(ecma));
        }
        Ok(pattern)
    }

    /// The expressions of `patternProperties` also say which properties are not additional ones. So those that match too
    /// little are possible only where there are none.
    fn pattern_properties(
        &mut self,
        members: &mut Map<String, Value>,
        is_closed: bool,
    ) -> Result<(), String> {
        const KEY: &str = "patternProperties";
        let Some(Value::Object(schemas)) = members.get_mut(KEY) else { return Ok(()) };
        for (ecma, schema) in std::mem::take(schemas) {
            let pattern = self.pattern(KEY, &ecma)?;
            if !pattern.is_exact && !is_closed {
                return Err(format!(
                    "`{KEY}` {} is supported only with `\"additionalProperties\": false`, as it matches U+0000 but not \
                     both of `\"` and `\\`",
                    quoted(&ecma)
                ));
            }
            if schemas.insert(pattern.text, schema).is_some() {
                return Err(format!(
                    "`{KEY}` {} means the same as another one; remove one of them",
                    quoted(&ecma)
                ));
            }
        }
        let names = members.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys);
        match names.into_iter().any(|name| name.contains('\0')) {
            true => Err(format!("a property whose name has U+0000 is not supported beside `{KEY}`")),
            false => Ok(()),
        }
    }
}

/// References into constants would make schemas of them, which have not been rewritten.
fn check_target(target: &str) -> Result<(), String> {
    let Some((_, path)) = target.split_once("#/") else { return Ok(()) };
    let mut is_name = false;
    for segment in path.split('/') {
        if !is_name && (CONSTANTS.contains(&segment) || segment.contains('%')) {
            return Err(format!("`$ref` {} must lead to a schema, such as `#/$defs/name`", quoted(target)));
        }
        is_name = !is_name && NAMED_SCHEMAS.contains(&segment);
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    let start: String = text.chars().take(MAX_QUOTED_CHARS).collect();
    format!("{start:?}{}", if start.len() < text.len() { " ..." } else { "" })
}
