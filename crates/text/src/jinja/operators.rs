//! The binary operators, as Python has them.

use super::error::{Result, type_error, unsupported};
use super::format::percent;
use super::machine::{Machine, undefined_error};
use super::number::arithmetic;
use super::value::{Items, Value, View};
use super::write::escaped;
use std::rc::Rc;

/// `left operator right`.
pub(crate) fn binary(machine: &mut Machine, operator: &str, left: &Value, right: &Value) -> Result<Value> {
    machine.steps(1)?;
    if let Some(result) = arithmetic(operator, left, right) {
        return result;
    }
    match (operator, left, right) {
        ("%", Value::Text(_) | Value::Markup(_), _) => return percent(machine, left, right),
        ("-", Value::View(View::Keys | View::Items, _), _)
        | ("-", _, Value::View(View::Keys | View::Items, _)) => {
            return unsupported("sets, which a difference of views of maps is");
        }
        (_, Value::Undefined(message), _) | (_, _, Value::Undefined(message)) => {
            return undefined_error(message);
        }
        ("+", ..) => {
            if let Some(sum) = add(machine, left, right)? {
                return Ok(sum);
            }
        }
        ("*", _, _) => {
            if let Some(count) = right.as_int() {
                if let Some(repeated) = repeat(machine, left, count)? {
                    return Ok(repeated);
                }
            } else if let Some(count) = left.as_int()
                && let Some(repeated) = repeat(machine, right, count)?
            {
                return Ok(repeated);
            }
        }
        _ => {}
    }
    let (left, right) = (left.type_name(), right.type_name());
    type_error(format!("unsupported operand types for {operator}: '{left}' and '{right}'"))
}

fn add(machine: &mut Machine, left: &Value, right: &Value) -> Result<Option<Value>> {
    Ok(Some(match (left, right) {
        (Value::Text(left), Value::Text(right)) => {
            machine.reserve(left.len() + right.len())?;
            machine.text([left.as_str(), right.as_str()].concat())?
        }
        (Value::Text(_) | Value::Markup(_), Value::Text(_) | Value::Markup(_)) => {
            let text = escaped(machine, left)? + &escaped(machine, right)?;
            machine.markup(text)?
        }
        (Value::List(left), Value::List(right)) => {
            machine.reserve_items(left.len() + right.len())?;
            machine.list(left.iter().chain(right.iter()).cloned().collect())?
        }
        (Value::Tuple(left), Value::Tuple(right)) => {
            machine.reserve_items(left.len() + right.len())?;
            machine.tuple(left.iter().chain(right.iter()).cloned().collect())?
        }
        _ => return Ok(None),
    }))
}

fn repeat(machine: &mut Machine, value: &Value, count: i128) -> Result<Option<Value>> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    Ok(Some(match value {
        Value::Text(text) | Value::Markup(text) => {
            machine.reserve(text.len().saturating_mul(count))?;
            machine.text_like(value, if text.is_empty() { String::new() } else { text.repeat(count) })?
        }
        Value::List(items) => Value::List(repeated(machine, items, count)?),
        Value::Tuple(items) => Value::Tuple(repeated(machine, items, count)?),
        _ => return Ok(None),
    }))
}

fn repeated(machine: &mut Machine, items: &[Value], count: usize) -> Result<Rc<Items>> {
    let count = if items.is_empty() { 0 } else { count };
    machine.reserve_items(items.len().saturating_mul(count))?;
    Items::new(std::iter::repeat_n(items, count).flatten().cloned().collect())
}
