//! Methods of values other than strings, and the way to those of strings.

use super::compare::equal;
use super::context::RenderContext;
use super::error::{Result, python, type_error, unsupported, value_error};
use super::iterate::contains;
use super::text_methods;
use super::value::{Call, Value, View};
use std::rc::Rc;

/// Calls a method of a value.
pub(crate) fn call(context: &mut RenderContext, value: &Value, name: &str, arguments: Call) -> Result<Value> {
    context.steps(1)?;
    match (value, name) {
        (Value::Text(_) | Value::Markup(_), _) => text_methods::call(context, value, name, arguments),
        (Value::Dict(dict), "get") => {
            let [key, default] = arguments.positional("get", 1)?;
            let found = dict.get(&key.unwrap_or(Value::None))?.cloned();
            Ok(found.or(default).unwrap_or(Value::None))
        }
        (Value::Dict(dict), "keys" | "values" | "items") => {
            let [] = arguments.positional(name, 0)?;
            let view = match name {
                "keys" => View::Keys,
                "values" => View::Values,
                _ => View::Items,
            };
            Ok(Value::View(view, Rc::clone(dict)))
        }
        (Value::Dict(dict), "copy") => {
            let [] = arguments.positional(name, 0)?;
            context.reserve_items(2 * dict.entries().len())?;
            Value::dict(dict.entries().iter().cloned())
        }
        (Value::List(items), "copy") => {
            let [] = arguments.positional(name, 0)?;
            context.list(items.to_vec())
        }
        (Value::List(items) | Value::Tuple(items), "count") => {
            let [sought] = arguments.positional(name, 1)?;
            let mut count = 0;
            for item in items.iter() {
                count += i128::from(equal(context, item, sought.as_ref().unwrap_or(&Value::None))?);
            }
            Ok(Value::Int(count))
        }
        (Value::List(items) | Value::Tuple(items), "index") => {
            let [sought, start, stop] = arguments.positional(name, 1)?;
            index(context, items, &sought.unwrap_or(Value::None), start, stop)
        }
        (Value::Range(range), "index" | "count") => {
            let [sought] = arguments.positional(name, 1)?;
            let sought = sought.unwrap_or(Value::None);
            let is_inside = contains(context, value, &sought)?;
            match (name, sought) {
                ("count", _) => Ok(Value::Int(i128::from(is_inside))),
                (_, Value::Float(number)) if is_inside => {
                    Ok(Value::Int((number as i128 - range.start) / range.step))
                }
                (_, sought) if is_inside => {
                    Ok(Value::Int((sought.as_int().unwrap_or(0) - range.start) / range.step))
                }
                _ => value_error("the value is not in the range"),
            }
        }
        (Value::Cycler(_) | Value::Loop(_), _) => cycle(context, value, name, arguments),
        _ => number(value, name, arguments),
    }
}

/// The methods of `loop` and of cyclers.
fn cycle(context: &mut RenderContext, value: &Value, name: &str, arguments: Call) -> Result<Value> {
    match (value, name) {
        (Value::Cycler(cycler), _) => {
            let [] = arguments.positional(name, 0)?;
            let position = cycler.position.get();
            if name == "reset" {
                cycler.position.set(0);
                return Ok(Value::None);
            }
            cycler.position.set((position + 1) % cycler.items.len());
            Ok(cycler.items[position].clone())
        }
        (Value::Loop(state), "cycle") => {
            let count = arguments.positional.len() as i128;
            if !arguments.named.is_empty() || count == 0 {
                return type_error("no items for cycling given");
            }
            Ok(arguments.positional[state.index0.get().rem_euclid(count) as usize].clone())
        }
        (Value::Loop(state), _) => {
            if !arguments.named.is_empty() {
                return type_error("changed() takes no arguments by name");
            }
            let last = state.changed.borrow().clone();
            let (last, now) =
                (last.map(Value::tuple).transpose()?, Value::tuple(arguments.positional.clone())?);
            let is_same = match last {
                Some(last) => equal(context, &last, &now)?,
                None => false,
            };
            *state.changed.borrow_mut() = Some(arguments.positional);
            Ok(Value::Bool(!is_same))
        }
        _ => unsupported(format!("the method `{name}` of a value of type {}", value.type_name())),
    }
}

fn index(
    context: &mut RenderContext,
    items: &[Value],
    sought: &Value,
    start: Option<Value>,
    stop: Option<Value>,
) -> Result<Value> {
    let bound = |bound: Option<Value>, default: i128| match bound.as_ref().map(Value::as_int) {
        None => Ok(default),
        Some(Some(bound)) if bound < 0 => Ok((bound + items.len() as i128).max(0)),
        Some(Some(bound)) => Ok(bound),
        Some(None) => type_error("slice indices must be integers"),
    };
    let (start, stop) = (bound(start, 0)?, bound(stop, i128::MAX)?);
    for (index, item) in items.iter().enumerate() {
        if (start..stop).contains(&(index as i128)) && equal(context, item, sought)? {
            return Ok(Value::Int(index as i128));
        }
    }
    value_error("the value is not in the list")
}

fn number(value: &Value, name: &str, arguments: Call) -> Result<Value> {
    match (value, value.as_int(), name) {
        (Value::Float(number), _, "is_integer") => {
            let [] = arguments.positional(name, 0)?;
            Ok(Value::Bool(number.is_finite() && number.fract() == 0.0))
        }
        (Value::Float(_), _, "conjugate") | (_, Some(_), "conjugate") => {
            let [] = arguments.positional(name, 0)?;
            Ok(value.as_int().map_or_else(|| value.clone(), Value::Int))
        }
        (_, Some(int), "bit_length") => {
            let [] = arguments.positional(name, 0)?;
            Ok(Value::Int(i128::from(u128::BITS - int.unsigned_abs().leading_zeros())))
        }
        (_, Some(int), "bit_count") => {
            let [] = arguments.positional(name, 0)?;
            Ok(Value::Int(i128::from(int.unsigned_abs().count_ones())))
        }
        (Value::Undefined(_) | Value::None, ..) => python("AttributeError", format!("no method `{name}`")),
        _ => unsupported(format!("the method `{name}` of a value of type {}", value.type_name())),
    }
}
