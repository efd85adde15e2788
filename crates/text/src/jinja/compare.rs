//! Equality, order and membership, as Python has them.

use super::context::{RenderContext, undefined_error};
use super::error::{Result, type_error, unsupported};
use super::value::{Value, View};
use std::cmp::Ordering;
use std::rc::Rc;

/// Python's `left == right`.
pub(crate) fn equal(context: &mut RenderContext, left: &Value, right: &Value) -> Result<bool> {
    context.steps(1)?;
    Ok(match (left, right) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Float(left), Value::Float(right)) => left == right,
        (Value::Float(float), other) | (other, Value::Float(float)) => match other.as_int() {
            Some(int) => compare_mixed(int, *float) == Some(Ordering::Equal),
            None => false,
        },
        (Value::Text(left) | Value::Markup(left), Value::Text(right) | Value::Markup(right)) => {
            context.steps(left.len().min(right.len()) / 64)?;
            left.as_bytes() == right.as_bytes()
        }
        (Value::List(left), Value::List(right)) | (Value::Tuple(left), Value::Tuple(right)) => {
            Rc::ptr_eq(left, right)
                || (left.len() == right.len() && first_difference(context, left, right)?.is_none())
        }
        (Value::Dict(left), Value::Dict(right)) => {
            if left.entries().len() != right.entries().len() {
                return Ok(false);
            }
            for (key, value) in left.entries() {
                match right.get(key)? {
                    Some(other) if equal(context, value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(left), Value::Range(right)) => {
            let len = left.len();
            len == right.len()
                && (len == 0 || left.start == right.start)
                && (len < 2 || left.step == right.step)
        }
        (Value::View(View::Values, left), Value::View(View::Values, right)) => Rc::ptr_eq(left, right),
        (Value::View(..), Value::View(..)) => return unsupported("a comparison of dict views"),
        (Value::Iterator(left), Value::Iterator(right)) => Rc::ptr_eq(left, right),
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        (Value::Macro(left), Value::Macro(right)) => Rc::ptr_eq(left, right),
        (Value::Loop(left), Value::Loop(right)) => Rc::ptr_eq(left, right),
        (Value::Cycler(left), Value::Cycler(right)) => Rc::ptr_eq(left, right),
        (Value::Joiner(left), Value::Joiner(right)) => Rc::ptr_eq(left, right),
        (Value::Function(left), Value::Function(right)) => left == right,
        (Value::Method(left), Value::Method(right)) => left.1 == right.1 && is_same(&left.0, &right.0),
        _ => match (left.as_int(), right.as_int()) {
            (Some(left), Some(right)) => left == right,
            _ => false,
        },
    })
}

/// Python's `left is right`, as far as it is certain.
pub(crate) fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::None, Value::None) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        // Python shares the integers from -5 to 256, and constants.
        (Value::Int(left), Value::Int(right)) => left == right,
        (Value::Text(left), Value::Text(right)) | (Value::Markup(left), Value::Markup(right)) => {
            Rc::ptr_eq(left, right)
        }
        (Value::List(left), Value::List(right)) | (Value::Tuple(left), Value::Tuple(right)) => {
            Rc::ptr_eq(left, right)
        }
        (Value::Dict(left), Value::Dict(right)) => Rc::ptr_eq(left, right),
        (Value::Namespace(left), Value::Namespace(right)) => Rc::ptr_eq(left, right),
        (Value::Iterator(left), Value::Iterator(right)) => Rc::ptr_eq(left, right),
        (Value::Loop(left), Value::Loop(right)) => Rc::ptr_eq(left, right),
        (Value::Macro(left), Value::Macro(right)) => Rc::ptr_eq(left, right),
        (Value::Function(left), Value::Function(right)) => left == right,
        _ => false,
    }
}

fn first_difference(context: &mut RenderContext, left: &[Value], right: &[Value]) -> Result<Option<usize>> {
    for (index, (left, right)) in left.iter().zip(right).enumerate() {
        if !equal(context, left, right)? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// The order of two values, None where one is NaN.
///
/// # Errors
/// If Python cannot order them with `operator`.
pub(crate) fn order(
    context: &mut RenderContext,
    operator: &str,
    left: &Value,
    right: &Value,
) -> Result<Option<Ordering>> {
    context.steps(1)?;
    match (left, right) {
        (Value::Undefined(message), _) | (_, Value::Undefined(message)) => undefined_error(message),
        (Value::Text(left) | Value::Markup(left), Value::Text(right) | Value::Markup(right)) => {
            context.steps(left.len().min(right.len()) / 64)?;
            // UTF-8 sorts as code points do.
            Ok(Some(left.as_bytes().cmp(right.as_bytes())))
        }
        (Value::List(left), Value::List(right)) | (Value::Tuple(left), Value::Tuple(right)) => {
            match first_difference(context, left, right)? {
                Some(index) => order(context, operator, &left[index], &right[index]),
                None => Ok(Some(left.len().cmp(&right.len()))),
            }
        }
        (Value::View(View::Keys | View::Items, _), Value::View(View::Keys | View::Items, _)) => {
            unsupported("a comparison of dict views")
        }
        (Value::Float(left), Value::Float(right)) => Ok(left.partial_cmp(right)),
        _ => match (left, left.as_int(), right, right.as_int()) {
            (_, Some(left), _, Some(right)) => Ok(Some(left.cmp(&right))),
            (_, Some(left), Value::Float(right), _) => Ok(compare_mixed(left, *right)),
            (Value::Float(left), _, _, Some(right)) => Ok(compare_mixed(right, *left).map(Ordering::reverse)),
            _ => type_error(format!(
                "`{operator}` is not supported between '{}' and '{}'",
                left.type_name(),
                right.type_name()
            )),
        },
    }
}

/// Python's `left < right`.
pub(crate) fn is_less(context: &mut RenderContext, left: &Value, right: &Value) -> Result<bool> {
    Ok(order(context, "<", left, right)? == Some(Ordering::Less))
}

/// The exact order of an integer and a float.
fn compare_mixed(int: i128, float: f64) -> Option<Ordering> {
    const INTS_END: f64 = 1.7e38;
    if float.is_nan() {
        return None;
    }
    if float.abs() >= INTS_END {
        return Some(if float > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let whole = float.floor();
    Some(int.cmp(&(whole as i128)).then(if float > whole { Ordering::Less } else { Ordering::Equal }))
}

/// Sorts as Python's `sorted(values, reverse=...)` does by keys: stable, and with `<` alone.
pub(crate) fn sort(
    context: &mut RenderContext,
    mut keyed: Vec<(Value, Value)>,
    is_reversed: bool,
) -> Result<Vec<Value>> {
    if is_reversed {
        keyed.reverse();
    }
    let mut runs: Vec<Vec<(Value, Value)>> = keyed.into_iter().map(|item| vec![item]).collect();
    while runs.len() > 1 {
        let mut merged = Vec::with_capacity(runs.len().div_ceil(2));
        let mut runs_left = runs.into_iter();
        while let Some(left) = runs_left.next() {
            merged.push(match runs_left.next() {
                Some(right) => merge(context, left, right)?,
                None => left,
            });
        }
        runs = merged;
    }
    let mut sorted: Vec<Value> = runs.into_iter().flatten().map(|(_, value)| value).collect();
    if is_reversed {
        sorted.reverse();
    }
    Ok(sorted)
}

fn merge(
    context: &mut RenderContext,
    left: Vec<(Value, Value)>,
    right: Vec<(Value, Value)>,
) -> Result<Vec<(Value, Value)>> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(first), Some(second)) = (left.peek(), right.peek()) {
        let takes_right = is_less(context, &second.0, &first.0)?;
        merged.extend(if takes_right { right.next() } else { left.next() });
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}
