//! The binary operators, as Python has them.

use super::context::{RenderContext, undefined_error};
use super::error::{Result, type_error, unsupported};
use super::format::percent;
use super::number::arithmetic;
use super::value::{Items, Value, View};
use super::write::escaped;
use std::rc::Rc;

/// `left operator right`.
pub(crate) fn binary(
    context: &mut RenderContext,
    operator: &str,
    left: &Value,
    right: &Value,
) -> Result<Value> {
    context.steps(1)?;
    if let Some(result) = arithmetic(operator, left, right) {
        return result;
    }
    match (operator, left, right) {
        ("%", Value::Text(_) | Value::Markup(_), _) => return percent(context, left, right),
        ("-", Value::View(View::Keys | View::Items, _), _)
        | ("-", _, Value::View(View::Keys | View::Items, _)) => {
            return unsupported("the difference of dict views (a set)");
        }
        (_, Value::Undefined(message), _) | (_, _, Value::Undefined(message)) => {
            return undefined_error(message);
        }
        ("+", ..) => {
            if let Some(sum) = add(context, left, right)? {
                return Ok(sum);
            }
        }
        ("*", _, _) => {
            if let Some(count) = right.as_int() {
                if let Some(repeated) = repeat(context, left, count)? {
                    return Ok(repeated);
                }
            } else if let Some(count) = left.as_int()
                && let Some(repeated) = repeat(context, right, count)?
            {
                return Ok(repeated);
            }
        }
        _ => {}
    }
    let (left, right) = (left.type_name(), right.type_name());
    type_error(format!("unsupported operand types for {operator}: '{left}' and '{right}'"))
}

fn add(context: &mut RenderContext, left: &Value, right: &Value) -> Result<Option<Value>> {
    Ok(Some(match (left, right) {
        (Value::Text(left), Value::Text(right)) => {
            context.reserve(left.len() + right.len())?;
            context.text([left.as_str(), right.as_str()].concat())?
        }
        (Value::Text(_) | Value::Markup(_), Value::Text(_) | Value::Markup(_)) => {
            let text = escaped(context, left)? + &escaped(context, right)?;
            context.markup(text)?
        }
        (Value::List(left), Value::List(right)) => {
            context.reserve_items(left.len() + right.len())?;
            context.list(left.iter().chain(right.iter()).cloned().collect())?
        }
        (Value::Tuple(left), Value::Tuple(right)) => {
            context.reserve_items(left.len() + right.len())?;
            context.tuple(left.iter().chain(right.iter()).cloned().collect())?
        }
        _ => return Ok(None),
    }))
}

fn repeat(context: &mut RenderContext, value: &Value, count: i128) -> Result<Option<Value>> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    Ok(Some(match value {
        Value::Text(text) | Value::Markup(text) => {
            context.reserve(text.len().saturating_mul(count))?;
            context.text_like(value, if text.is_empty() { String::new() } else { text.repeat(count) })?
        }
        Value::List(items) => Value::List(repeated(context, items, count)?),
        Value::Tuple(items) => Value::Tuple(repeated(context, items, count)?),
        _ => return Ok(None),
    }))
}

fn repeated(context: &mut RenderContext, items: &[Value], count: usize) -> Result<Rc<Items>> {
    let count = if items.is_empty() { 0 } else { count };
    context.reserve_items(items.len().saturating_mul(count))?;
    Items::new(std::iter::repeat_n(items, count).flatten().cloned().collect())
}
