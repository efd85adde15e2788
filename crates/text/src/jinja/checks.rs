//! Jinja2's tests: what follows `is`.

use super::access::has_word;
use super::compare::{equal, is_same, order};
use super::context::RenderContext;
use super::error::{Result, python, type_error, unsupported};
use super::filters;
use super::iterate::contains;
use super::operators::binary;
use super::text_methods;
use super::value::{Call, Key, Value};
use super::write::to_text;
use std::cmp::Ordering;

/// All tests of Jinja2.
pub(crate) const NAMES: &str = "!= < <= == > >= boolean callable defined divisibleby eq equalto escaped even false filter float \
    ge greaterthan gt in integer iterable le lessthan lower lt mapping ne none number odd sameas \
    sequence string test true undefined upper";

/// Applies a test.
pub(crate) fn apply(context: &mut RenderContext, name: &str, value: Value, call: Call) -> Result<bool> {
    context.steps(1)?;
    if !has_word(NAMES, name) {
        return python("TemplateRuntimeError", format!("No test named '{name}' found."));
    }
    let takes_argument = matches!(
        name,
        "!=" | "<"
            | "<="
            | "=="
            | ">"
            | ">="
            | "divisibleby"
            | "eq"
            | "equalto"
            | "ge"
            | "greaterthan"
            | "gt"
            | "in"
            | "le"
            | "lessthan"
            | "lt"
            | "ne"
            | "sameas"
    );
    if takes_argument {
        let parameter = match name {
            "divisibleby" => "num",
            "in" => "seq",
            "sameas" => "other",
            // The functions of Python's module `operator` take no arguments by name.
            _ => "",
        };
        let [other] = call.bind(name, [parameter], 1)?;
        return pair(context, name, &value, &other.unwrap_or(Value::None));
    }
    let [] = call.bind(name, [], 0)?;
    single(context, name, &value)
}

fn pair(context: &mut RenderContext, name: &str, value: &Value, other: &Value) -> Result<bool> {
    match name {
        "==" | "eq" | "equalto" => equal(context, value, other),
        "!=" | "ne" => Ok(!equal(context, value, other)?),
        "in" => contains(context, other, value),
        "divisibleby" => {
            let rest = binary(context, "%", value, other)?;
            equal(context, &rest, &Value::Int(0))
        }
        "sameas" => same(value, other),
        "<" | "lt" | "lessthan" => Ok(order(context, "<", value, other)? == Some(Ordering::Less)),
        ">" | "gt" | "greaterthan" => Ok(order(context, ">", value, other)? == Some(Ordering::Greater)),
        "<=" | "le" => Ok(order(context, "<=", value, other)?.is_some_and(Ordering::is_le)),
        _ => Ok(order(context, ">=", value, other)?.is_some_and(Ordering::is_ge)),
    }
}

/// Python's `is`, rejected where only its memory tells.
fn same(value: &Value, other: &Value) -> Result<bool> {
    const SHARED: std::ops::RangeInclusive<i128> = -5..=256;
    let is_uncertain = match (value, other) {
        (Value::Int(value), Value::Int(other)) => value == other && !SHARED.contains(value),
        (Value::Float(value), Value::Float(other)) => value == other,
        (Value::Text(value), Value::Text(other)) => {
            value.as_str() == other.as_str() && !std::rc::Rc::ptr_eq(value, other)
        }
        (Value::Tuple(value), Value::Tuple(other)) => value.is_empty() && other.is_empty(),
        (Value::Undefined(_), Value::Undefined(_)) => true,
        _ => false,
    };
    match is_uncertain {
        true => unsupported("`sameas` of values that may or may not be shared"),
        false => Ok(is_same(value, other)),
    }
}

fn single(context: &mut RenderContext, name: &str, value: &Value) -> Result<bool> {
    Ok(match name {
        "boolean" => matches!(value, Value::Bool(_)),
        "callable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Method(_)
                | Value::Function(_)
                | Value::Macro(_)
                | Value::Loop(_)
                | Value::Joiner(_)
        ),
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "escaped" => matches!(value, Value::Markup(_)),
        "even" | "odd" => {
            let rest = binary(context, "%", value, &Value::Int(2))?;
            equal(context, &rest, &Value::Int(i128::from(name == "odd")))?
        }
        "false" => matches!(value, Value::Bool(false)),
        "true" => matches!(value, Value::Bool(true)),
        "filter" | "test" => {
            // Python looks the value up in a map, so it must be hashable.
            Key::new(value)?;
            let names = if name == "filter" { filters::NAMES } else { NAMES };
            value.as_text().is_some_and(|value| has_word(names, value))
        }
        "float" => matches!(value, Value::Float(_)),
        "integer" => matches!(value, Value::Int(_)),
        "number" => matches!(value, Value::Float(_)) || value.as_int().is_some(),
        "lower" | "upper" => {
            let text = to_text(context, value)?;
            text_methods::is(&text, if name == "lower" { "islower" } else { "isupper" })
        }
        "mapping" => matches!(value, Value::Dict(_)),
        "none" => value.is_none(),
        "string" => value.as_text().is_some(),
        "sequence" => matches!(
            value,
            Value::Undefined(_)
                | Value::Text(_)
                | Value::Markup(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(_)
        ),
        "iterable" => matches!(
            value,
            Value::Undefined(_)
                | Value::Text(_)
                | Value::Markup(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::View(..)
                | Value::Range(_)
                | Value::Iterator(_)
                | Value::Loop(_)
        ),
        _ => return type_error(format!("the test `{name}` takes an argument")),
    })
}
