//! Attributes, items and slices, by the rules of Jinja2's sandbox.

use super::context::{RenderContext, undefined_error};
use super::error::{Result, type_error, unsupported, value_error};
use super::value::{Range, Value};
use super::write::repr;
use std::rc::Rc;

const TEXT_METHODS: &str = "capitalize casefold center count encode endswith expandtabs find format format_map index isalnum \
    isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle \
    isupper join ljust lower lstrip maketrans partition removeprefix removesuffix replace rfind \
    rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title translate \
    upper zfill";
const MARKUP_METHODS: &str = "escape striptags unescape";
const LIST_METHODS: &str = "copy count index";
const DICT_METHODS: &str = "copy fromkeys get items keys values";
const TUPLE_METHODS: &str = "count index";
const INT_METHODS: &str = "as_integer_ratio bit_count bit_length conjugate from_bytes to_bytes";
const FLOAT_METHODS: &str = "as_integer_ratio conjugate fromhex hex is_integer";
const CYCLER_METHODS: &str = "next reset";
/// What every object of Python has.
const OBJECT_ATTRIBUTES: &str = "__class__ __delattr__ __dir__ __doc__ __eq__ __format__ __hash__ __init__ __iter__ __module__ \
    __repr__ __str__";
/// What changes a list or map, which the sandbox forbids.
const LIST_CHANGES: &str = "append clear extend insert pop remove reverse sort";
const DICT_CHANGES: &str = "clear pop popitem setdefault update";

/// `value.name` in a template: an attribute, or else an item.
pub(crate) fn attribute(context: &mut RenderContext, value: &Value, name: &str) -> Result<Value> {
    context.steps(1)?;
    if let Some(found) = own_attribute(value, name)? {
        return Ok(found);
    }
    match item_by_text(value, name)? {
        Some(found) => Ok(found),
        None => Ok(no_attribute(value, name)),
    }
}

/// `value[key]` in a template: an item, or else an attribute.
pub(crate) fn item(context: &mut RenderContext, value: &Value, key: &Value) -> Result<Value> {
    context.steps(1)?;
    if let Some(name) = key.as_text() {
        if let Some(found) = item_by_text(value, name)? {
            return Ok(found);
        }
        return Ok(own_attribute(value, name)?.unwrap_or_else(|| no_attribute(value, name)));
    }
    let found = match value {
        Value::Undefined(message) => return undefined_error(message),
        // A key that cannot be hashed is in no map.
        Value::Dict(dict) => dict.get(key).ok().flatten().cloned(),
        Value::List(items) | Value::Tuple(items) => index(key, items.len()).map(|index| items[index].clone()),
        Value::Range(range) => {
            index(key, usize::try_from(range.len()).unwrap_or(0)).map(|index| range.get(index as i128))
        }
        Value::Text(text) | Value::Markup(text) => {
            let count = if text.is_ascii() { text.len() } else { text.chars().count() };
            context.steps(text.len() / 64)?;
            match index(key, count) {
                Some(index) => {
                    let character = text.chars().nth(index).unwrap_or_default();
                    Some(context.text_like(value, character.to_string())?)
                }
                None => None,
            }
        }
        _ => None,
    };
    match found {
        Some(found) => Ok(found),
        None => {
            let key = if key.as_int().is_some() || key.is_none() {
                repr(context, key)?
            } else {
                key.type_name().to_owned()
            };
            Ok(Value::undefined(format!("{} object has no element {key}", value.type_name())))
        }
    }
}

fn no_attribute(value: &Value, name: &str) -> Value {
    Value::undefined(format!("'{} object' has no attribute '{name}'", value.type_name()))
}

fn item_by_text(value: &Value, name: &str) -> Result<Option<Value>> {
    match value {
        Value::Undefined(message) => undefined_error(message),
        Value::Dict(dict) => Ok(dict.get_text(name).cloned()),
        _ => Ok(None),
    }
}

/// The index that a key means in a sequence of so many items.
fn index(key: &Value, count: usize) -> Option<usize> {
    let index = key.as_int()?;
    let index = if index < 0 { index + count as i128 } else { index };
    usize::try_from(index).ok().filter(|index| *index < count)
}

/// Python's `getattr(value, name)`, as far as the sandbox lets templates see it.
pub(crate) fn own_attribute(value: &Value, name: &str) -> Result<Option<Value>> {
    if let Value::Undefined(message) = value {
        return match has_word(OBJECT_ATTRIBUTES, name) {
            true => Ok(Some(unsafe_attribute(value, name))),
            false => undefined_error(message),
        };
    }
    if let Value::Namespace(namespace) = value {
        return Ok(namespace.get(name));
    }
    if let Value::Loop(_) = value {
        // Looking ahead may run the loop's test, which only an expression in the template can.
        return unsupported("attributes of `loop` by a filter or a format string");
    }
    let is_hidden = name.starts_with("__") && name.ends_with("__") && name.len() > 4;
    let changes = match value {
        Value::List(_) => LIST_CHANGES,
        Value::Dict(_) => DICT_CHANGES,
        _ => "",
    };
    if is_hidden || has_word(changes, name) {
        return Ok(Some(unsafe_attribute(value, name)));
    }
    if let Some(found) = data_attribute(value, name)? {
        return Ok(Some(found));
    }
    let methods = match value {
        Value::Text(_) => TEXT_METHODS,
        Value::Markup(_) if has_word(MARKUP_METHODS, name) => MARKUP_METHODS,
        Value::Markup(_) => TEXT_METHODS,
        Value::List(_) => LIST_METHODS,
        Value::Tuple(_) | Value::Range(_) => TUPLE_METHODS,
        Value::Dict(_) => DICT_METHODS,
        Value::Bool(_) | Value::Int(_) => INT_METHODS,
        Value::Float(_) => FLOAT_METHODS,
        Value::Cycler(_) => CYCLER_METHODS,
        _ => "",
    };
    let method = methods.split(' ').find(|method| *method == name);
    Ok(method.map(|method| Value::Method(Rc::new((value.clone(), method)))))
}

fn unsafe_attribute(value: &Value, name: &str) -> Value {
    Value::undefined(format!("access to attribute '{name}' of '{}' object is unsafe", value.type_name()))
}

fn data_attribute(value: &Value, name: &str) -> Result<Option<Value>> {
    Ok(Some(match (value, name) {
        (Value::Bool(_) | Value::Int(_), "real" | "numerator") => Value::Int(value.as_int().unwrap_or(0)),
        (Value::Bool(_) | Value::Int(_), "imag") => Value::Int(0),
        (Value::Bool(_) | Value::Int(_), "denominator") => Value::Int(1),
        (Value::Float(_), "real") => value.clone(),
        (Value::Float(_), "imag") => Value::Float(0.0),
        (Value::Range(range), "start") => Value::Int(range.start),
        (Value::Range(range), "stop") => Value::Int(range.stop),
        (Value::Range(range), "step") => Value::Int(range.step),
        (Value::Tuple(items), "grouper") if items.is_group => items[0].clone(),
        (Value::Tuple(items), "list") if items.is_group => items[1].clone(),
        (Value::Cycler(cycler), "items") => Value::tuple(cycler.items.clone())?,
        (Value::Cycler(cycler), "pos") => Value::Int(cycler.position.get() as i128),
        (Value::Cycler(cycler), "current") => cycler.items[cycler.position.get()].clone(),
        (Value::Joiner(joiner), "sep") => joiner.separator.clone(),
        (Value::Joiner(joiner), "used") => Value::Bool(joiner.is_used.get()),
        (Value::View(..), "mapping" | "isdisjoint") | (Value::Iterator(_), "close" | "send" | "throw") => {
            return unsupported(format!("the attribute `{name}` of a value of type {}", value.type_name()));
        }
        (
            Value::Macro(_),
            "name" | "arguments" | "catch_kwargs" | "catch_varargs" | "caller" | "explicit_caller",
        ) => {
            return unsupported(format!("the attribute `{name}` of a macro"));
        }
        _ => return Ok(None),
    }))
}

/// Python's `value[start:stop:step]`.
pub(crate) fn slice(context: &mut RenderContext, value: &Value, bounds: [Option<Value>; 3]) -> Result<Value> {
    let missing = || type_error(format!("'{}' object has no such slice", value.type_name()));
    let mut numbers = [None; 3];
    for (number, bound) in numbers.iter_mut().zip(&bounds) {
        *number = match bound {
            None | Some(Value::None) => None,
            Some(bound) => match bound.as_int() {
                Some(int) => Some(int),
                None if value.is_undefined() => break,
                None => return missing(),
            },
        };
    }
    let count = match value {
        Value::Undefined(message) => return undefined_error(message),
        Value::Text(text) | Value::Markup(text) => text.chars().count() as i128,
        Value::List(items) | Value::Tuple(items) => items.len() as i128,
        Value::Range(range) => range.len(),
        _ => return missing(),
    };
    if numbers[2] == Some(0) {
        return value_error("slice step cannot be zero");
    }
    let indices = slice_range(numbers, count);
    let selected = (0..indices.len()).map(|at| (indices.start + at * indices.step) as usize);
    context.steps(count as usize / 16 + indices.len() as usize)?;
    match value {
        Value::List(items) => context.list(selected.map(|index| items[index].clone()).collect()),
        Value::Tuple(items) => context.tuple(selected.map(|index| items[index].clone()).collect()),
        Value::Range(range) => Ok(Value::Range(Range {
            start: range.start + indices.start * range.step,
            stop: range.start + indices.stop * range.step,
            step: range.step * indices.step,
        })),
        Value::Text(text) | Value::Markup(text) if indices.step == 1 => {
            let (skip, take) = (indices.start as usize, indices.len() as usize);
            let part: String = text.chars().skip(skip).take(take).collect();
            context.text_like(value, part)
        }
        Value::Text(text) | Value::Markup(text) => {
            context.reserve(text.len() * 4)?;
            let characters: Vec<char> = text.chars().collect();
            let part: String = selected.map(|index| characters[index]).collect();
            context.text_like(value, part)
        }
        _ => missing(),
    }
}

/// Python's `range(*slice(start, stop, step).indices(count))`.
fn slice_range([start, stop, step]: [Option<i128>; 3], count: i128) -> Range {
    let step = step.unwrap_or(1).clamp(-i128::from(i64::MAX), i128::from(i64::MAX));
    let (lowest, highest) = if step > 0 { (0, count) } else { (-1, count - 1) };
    let clamp =
        |bound: i128| if bound < 0 { (bound.saturating_add(count)).max(lowest) } else { bound.min(highest) };
    let (first, last) = if step > 0 { (0, count) } else { (count - 1, -1) };
    Range { start: start.map_or(first, clamp), stop: stop.map_or(last, clamp), step }
}

/// An attribute by a path with dots, as filters take it: `default` replaces what is undefined unless it is None.
pub(crate) fn attribute_path(
    context: &mut RenderContext,
    value: &Value,
    path: &Value,
    default: &Value,
) -> Result<Value> {
    let mut value = value.clone();
    let keys = match path.as_text() {
        Some(text) => path_keys(text),
        None if path.is_none() => Vec::new(),
        None => vec![path.clone()],
    };
    for key in keys {
        value = item(context, &value, &key)?;
        if value.is_undefined() && !default.is_none() {
            value = default.clone();
        }
    }
    Ok(value)
}

fn path_keys(path: &str) -> Vec<Value> {
    let key = |part: &str| match part.parse::<i128>() {
        Ok(number) if part.bytes().all(|byte| byte.is_ascii_digit()) => Value::Int(number),
        _ => Value::small_text(part),
    };
    path.split('.').map(key).collect()
}

/// Several paths, separated by commas, and their values as a list.
pub(crate) fn attribute_paths(
    context: &mut RenderContext,
    value: &Value,
    paths: &Value,
) -> Result<Vec<Value>> {
    match paths.as_text() {
        Some(text) => {
            let paths: Vec<Value> = text.split(',').map(Value::small_text).collect();
            paths.iter().map(|path| attribute_path(context, value, path, &Value::None)).collect()
        }
        None => Ok(vec![attribute_path(context, value, paths, &Value::None)?]),
    }
}

/// Whether a list of words separated by spaces has this one.
pub(crate) fn has_word(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// The error of calling what cannot be called.
pub(crate) fn not_callable<T>(value: &Value) -> Result<T> {
    match value {
        Value::Undefined(message) => undefined_error(message),
        _ => type_error(format!("'{}' object is not callable", value.type_name())),
    }
}
