//! Iteration over the items of values, lazily, including the filters that return generators.

use super::access::attribute_path;
use super::compare::equal;
use super::context::RenderContext;
use super::error::{Result, python, type_error, unsupported};
use super::value::{Call, Dict, Generator, Items, Key, Pending, Range, Source, Value, View, new_text};
use std::rc::Rc;

/// Python's `iter(value)`.
///
/// # Errors
/// If the value cannot be iterated over.
pub(crate) fn source(value: &Value) -> Result<Source> {
    Ok(match value {
        Value::Undefined(_) => Source::Empty,
        Value::Text(text) | Value::Markup(text) => Source::Text(Rc::clone(text), 0),
        Value::List(items) | Value::Tuple(items) => Source::Items(Rc::clone(items), 0),
        Value::Dict(dict) => Source::Dict(View::Keys, Rc::clone(dict), 0),
        Value::View(view, dict) => Source::Dict(*view, Rc::clone(dict), 0),
        Value::Range(range) => Source::Range(*range),
        Value::Iterator(iterator) => Source::Shared(Rc::clone(iterator)),
        Value::Loop(_) => return unsupported("iterating over `loop`"),
        _ => return type_error(format!("'{}' object is not iterable", value.type_name())),
    })
}

/// Python's `reversed(value)`; None where it cannot be reversed.
pub(crate) fn reversed(value: &Value) -> Option<Source> {
    Some(match value {
        Value::Undefined(_) => Source::Empty,
        Value::Text(text) | Value::Markup(text) => {
            // Unlike iteration, this takes items of the string, which are marked as safe if it is.
            let characters = text.chars().map(|character| new_text(character.to_string()));
            let item = |text| {
                if matches!(value, Value::Markup(_)) { Value::Markup(text) } else { Value::Text(text) }
            };
            let items = Items::new(characters.map(item).collect()).ok()?;
            let len = items.len();
            Source::Reversed(items, len)
        }
        Value::List(items) | Value::Tuple(items) => Source::Reversed(Rc::clone(items), items.len()),
        Value::Dict(dict) => Source::ReversedDict(View::Keys, Rc::clone(dict), dict.entries().len()),
        Value::View(view, dict) => Source::ReversedDict(*view, Rc::clone(dict), dict.entries().len()),
        Value::Range(range) => {
            let len = range.len();
            let start = range.start + (len - 1) * range.step;
            Source::Range(Range { start, stop: start - len * range.step, step: -range.step })
        }
        _ => return None,
    })
}

/// The next item.
pub(crate) fn next(context: &mut RenderContext, source: &mut Source) -> Result<Option<Value>> {
    context.steps(1)?;
    Ok(match source {
        Source::Empty => None,
        Source::Items(items, index) => {
            *index += 1;
            items.get(*index - 1).cloned()
        }
        Source::Reversed(items, index) => {
            *index = index.saturating_sub(1);
            let item = items.get(*index).cloned();
            if *index == 0 {
                *source = Source::Empty;
            }
            item
        }
        Source::Text(text, at) => match text[*at..].chars().next() {
            Some(character) => {
                *at += character.len_utf8();
                Some(Value::small_text(character.encode_utf8(&mut [0; 4])))
            }
            None => None,
        },
        Source::Dict(view, dict, index) => {
            *index += 1;
            dict.item(*view, *index - 1)?
        }
        Source::ReversedDict(view, dict, index) => {
            let (view, dict, at) = (*view, Rc::clone(dict), index.checked_sub(1));
            *index = at.unwrap_or(0);
            at.map_or(Ok(None), |at| dict.item(view, at))?
        }
        Source::Range(range) if range.len() > 0 => {
            let item = range.get(0);
            range.start += range.step;
            Some(item)
        }
        Source::Range(_) => None,
        Source::Shared(iterator) => {
            let iterator = Rc::clone(iterator);
            let Ok(mut inner) = iterator.source.try_borrow_mut() else {
                return python("ValueError", "generator already executing");
            };
            let item = next(context, &mut inner)?;
            if item.is_none() {
                *inner = Source::Empty;
            }
            item
        }
        Source::Generator(generator) => {
            let item = generate(context, generator);
            // A generator that has failed or ended gives nothing more.
            if !matches!(item, Ok(Some(_))) {
                *source = Source::Empty;
            }
            item?
        }
    })
}

/// All items of a value.
pub(crate) fn collect(context: &mut RenderContext, value: &Value) -> Result<Vec<Value>> {
    if let Value::List(items) | Value::Tuple(items) = value {
        context.reserve_items(items.len())?;
        return Ok(items.to_vec());
    }
    let mut source = source(value)?;
    collect_source(context, &mut source)
}

pub(crate) fn collect_source(context: &mut RenderContext, source: &mut Source) -> Result<Vec<Value>> {
    let mut items = Vec::new();
    while let Some(item) = next(context, source)? {
        if items.len() == items.capacity() {
            context.reserve(2 * items.len() * size_of::<Value>())?;
        }
        items.push(item);
    }
    Ok(items)
}

/// Python's `len(value)`.
pub(crate) fn len(value: &Value) -> Result<i128> {
    Ok(match value {
        Value::Undefined(_) => 0,
        Value::Text(text) | Value::Markup(text) => text.chars().count() as i128,
        Value::List(items) | Value::Tuple(items) => items.len() as i128,
        Value::Dict(dict) | Value::View(_, dict) => dict.entries().len() as i128,
        Value::Range(range) => range.len(),
        Value::Loop(state) => match state.length.get() {
            Some(length) => length,
            None => return unsupported("the length of a loop over a generator, outside of `loop.length`"),
        },
        _ => return type_error(format!("object of type '{}' has no len()", value.type_name())),
    })
}

/// Python's `item in container`.
pub(crate) fn contains(context: &mut RenderContext, container: &Value, item: &Value) -> Result<bool> {
    match container {
        Value::Text(text) | Value::Markup(text) => match item.as_text() {
            Some(part) => {
                context.steps((text.len() + part.len()) / 64)?;
                Ok(text.contains(part))
            }
            None => type_error(format!("a string cannot contain a value of type {}", item.type_name())),
        },
        Value::Dict(dict) | Value::View(View::Keys, dict) => Ok(dict.get(item)?.is_some()),
        Value::View(View::Items, dict) => match item {
            Value::Tuple(pair) if pair.len() == 2 => match Dict::get(dict, &pair[0])? {
                Some(value) => equal(context, value, &pair[1]),
                None => Ok(false),
            },
            _ => Ok(false),
        },
        Value::Range(range) => {
            let whole = match item {
                Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e30 => Some(*value as i128),
                _ => item.as_int(),
            };
            let is_inside = |int: i128| {
                let distance = int - range.start;
                distance % range.step == 0 && (0..range.len()).contains(&(distance / range.step))
            };
            Ok(whole.is_some_and(is_inside))
        }
        _ => {
            let mut source = source(container).or_else(|_| {
                type_error(format!("argument of type '{}' is not iterable", container.type_name()))
            })?;
            while let Some(other) = next(context, &mut source)? {
                if equal(context, &other, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

impl Pending {
    /// The source; on the first call it is created from the value.
    fn open(&mut self) -> Result<&mut Source> {
        if let Pending::Value(value) = self {
            *self = Pending::Source(Box::new(source(value)?));
        }
        match self {
            Pending::Source(source) => Ok(source),
            Pending::Value(_) => unreachable!("replaced above"),
        }
    }

    /// Whether the value is falsy: `map` and `select` then yield nothing, as in Jinja2.
    fn is_false(&self) -> bool {
        matches!(self, Pending::Value(value) if !value.is_true())
    }
}

fn generate(context: &mut RenderContext, generator: &mut Generator) -> Result<Option<Value>> {
    match generator {
        Generator::Attribute { from, attribute, default } => {
            if from.is_false() {
                return Ok(None);
            }
            let Some(item) = next(context, from.open()?)? else { return Ok(None) };
            attribute_path(context, &item, attribute, default).map(Some)
        }
        Generator::Filter { from, arguments } => {
            if from.is_false() {
                return Ok(None);
            }
            let mut arguments = arguments.clone();
            if arguments.positional.is_empty() {
                return python("FilterArgumentError", "map requires a filter argument");
            }
            let name = arguments.positional.remove(0);
            let Some(item) = next(context, from.open()?)? else { return Ok(None) };
            match name.as_text() {
                Some(name) => (context.filter)(context, name, item, arguments).map(Some),
                None => python("TemplateRuntimeError", "the name of a filter is not a string"),
            }
        }
        Generator::Select { from, attribute, is_rejecting, arguments } => {
            select(context, from, attribute.as_ref(), *is_rejecting, arguments)
        }
        Generator::Unique { from, is_case_sensitive, attribute, seen } => loop {
            let Some(item) = next(context, from.open()?)? else { return Ok(None) };
            let value = attribute_path(context, &item, attribute, &Value::None)?;
            let value = if *is_case_sensitive { value } else { ignore_case(context, value)? };
            if seen.insert(Key::new(&value)?) {
                context.reserve(128)?;
                return Ok(Some(item));
            }
        },
        Generator::Batch { from, size, fill, is_done } => batch(context, from, size, fill, is_done),
        Generator::Slice { value, count, fill } => {
            let slices = slices(context, value, count, fill)?;
            let mut source = Source::Items(Items::new(slices)?, 0);
            let first = next(context, &mut source)?;
            *generator = Generator::Attribute {
                from: Pending::Source(Box::new(source)),
                attribute: Value::None,
                default: Value::None,
            };
            Ok(first)
        }
        Generator::Pairs(value) => {
            let source = match value {
                Value::Undefined(_) => Source::Empty,
                Value::Dict(dict) => Source::Dict(View::Items, Rc::clone(dict), 0),
                _ => return type_error("Can only get item pairs from a mapping."),
            };
            *generator = Generator::Attribute {
                from: Pending::Source(Box::new(source)),
                attribute: Value::None,
                default: Value::None,
            };
            generate(context, generator)
        }
    }
}

fn select(
    context: &mut RenderContext,
    from: &mut Pending,
    attribute: Option<&Value>,
    is_rejecting: bool,
    arguments: &Call,
) -> Result<Option<Value>> {
    if from.is_false() {
        return Ok(None);
    }
    if matches!(attribute, Some(Value::Undefined(None))) {
        return python("FilterArgumentError", "Missing parameter for attribute name");
    }
    loop {
        let Some(item) = next(context, from.open()?)? else { return Ok(None) };
        let value = match attribute {
            Some(attribute) => attribute_path(context, &item, attribute, &Value::None)?,
            None => item.clone(),
        };
        let is_selected = match arguments.positional.split_first() {
            None => value.is_true(),
            Some((name, rest)) => {
                let Some(name) = name.as_text() else {
                    return python("TemplateRuntimeError", "the name of a test is not a string");
                };
                let rest = Call { positional: rest.to_vec(), named: arguments.named.clone() };
                (context.test)(context, name, value, rest)?
            }
        };
        if is_selected != is_rejecting {
            return Ok(Some(item));
        }
    }
}

fn batch(
    context: &mut RenderContext,
    from: &mut Pending,
    size: &mut Value,
    fill: &Value,
    is_done: &mut bool,
) -> Result<Option<Value>> {
    if *is_done {
        return Ok(None);
    }
    let source = from.open()?;
    let mut items = Vec::new();
    let whole = match size {
        Value::Float(size) if size.fract() == 0.0 => Some(*size as i128),
        _ => size.as_int(),
    };
    let limit = whole.unwrap_or(-1);
    if limit == 0 {
        // Jinja2 gives an empty list before the first item, and then never ends a batch.
        let items = collect_source(context, source)?;
        *is_done = items.is_empty();
        *from = Pending::Source(Box::new(Source::Items(Items::new(items)?, 0)));
        *size = Value::Int(-1);
        return if *is_done { Ok(None) } else { context.list(Vec::new()).map(Some) };
    }
    while items.len() as i128 != limit {
        match next(context, source)? {
            Some(item) => items.push(item),
            None => {
                *is_done = true;
                break;
            }
        }
    }
    if items.is_empty() {
        return Ok(None);
    }
    if *is_done && !fill.is_none() {
        let Some(limit) = whole else { return type_error("the size of a batch is not an integer") };
        let missing = usize::try_from(limit - items.len() as i128).unwrap_or(0);
        context.reserve_items(missing)?;
        items.extend(std::iter::repeat_n(fill.clone(), missing));
    }
    context.list(items).map(Some)
}

fn slices(context: &mut RenderContext, value: &Value, count: &Value, fill: &Value) -> Result<Vec<Value>> {
    let items = collect(context, value)?;
    let Some(count) = count.as_int() else { return type_error("the number of slices is not an integer") };
    if count == 0 {
        return python("ZeroDivisionError", "integer division or modulo by zero");
    }
    let count = usize::try_from(count).unwrap_or(0);
    context.reserve_items(count)?;
    let mut slices = Vec::with_capacity(count);
    let mut rest = &items[..];
    for index in 0..count {
        let has_extra = index < items.len() % count;
        let (slice, after) = rest.split_at(items.len() / count + usize::from(has_extra));
        rest = after;
        let mut slice = slice.to_vec();
        if !fill.is_none() && !has_extra {
            slice.push(fill.clone());
        }
        slices.push(context.list(slice)?);
    }
    Ok(slices)
}

/// A string in lower case, other values as they are.
pub(crate) fn ignore_case(context: &mut RenderContext, value: Value) -> Result<Value> {
    match value.as_text() {
        Some(text) => {
            context.reserve(text.len())?;
            let lower = text.to_lowercase();
            Ok(match value {
                Value::Markup(_) => Value::Markup(new_text(lower)),
                _ => Value::Text(new_text(lower)),
            })
        }
        None => Ok(value),
    }
}
