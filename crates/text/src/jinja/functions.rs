//! The functions that templates find among their variables: Jinja2's, and those that transformers adds.

use super::context::RenderContext;
use super::error::{Result, python, raised, type_error, unsupported, value_error};
use super::iterate::collect;
use super::value::{Call, Charge, Cycler, Joiner, Namespace, Range, Text, Value};
use super::write::to_text;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// All functions.
pub(crate) const NAMES: &str = "cycler dict joiner lipsum namespace raise_exception range strftime_now";

/// Calls a function.
pub(crate) fn call(context: &mut RenderContext, name: &str, call: Call) -> Result<Value> {
    context.steps(1)?;
    match name {
        "range" => range(call),
        "dict" => {
            let pairs = pairs(context, call)?;
            context.reserve_items(2 * pairs.len())?;
            Value::dict(pairs)
        }
        "namespace" => namespace(context, call),
        "cycler" => {
            if !call.named.is_empty() {
                return type_error("cycler() takes no arguments by name");
            }
            if call.positional.is_empty() {
                return python("RuntimeError", "at least one item has to be provided");
            }
            // Its depth is that of a tuple of its items.
            Value::tuple(call.positional.clone())?;
            Ok(Value::Cycler(Rc::new(Cycler { items: call.positional, position: Cell::new(0) })))
        }
        "joiner" => {
            let [separator] = call.bind(name, ["sep"], 0)?;
            let separator = separator.unwrap_or_else(|| Value::small_text(", "));
            Ok(Value::Joiner(Rc::new(Joiner { separator, is_used: Cell::new(false) })))
        }
        "raise_exception" => {
            let [message] = call.bind(name, ["message"], 1)?;
            let message = to_text(context, &message.unwrap_or(Value::None))?;
            raised(message)
        }
        "strftime_now" => {
            let [format] = call.bind(name, ["format"], 1)?;
            let Some(format) = format.as_ref().and_then(Value::as_text) else {
                return type_error("strftime_now() takes a string");
            };
            match (context.strftime)(format) {
                Ok(time) => context.text(time),
                Err(message) => value_error(message),
            }
        }
        _ => unsupported(format!("the function `{name}`")),
    }
}

fn range(call: Call) -> Result<Value> {
    const LEN_MAX: i128 = 100_000;
    let [first, second, step] = call.positional("range", 1)?;
    let mut numbers = [0, 0, 1];
    for (number, value) in numbers.iter_mut().zip([&first, &second, &step]) {
        if let Some(value) = value {
            match value.as_int() {
                Some(int) if int.unsigned_abs() < 1 << 100 => *number = int,
                Some(_) => return python("OverflowError", "the bounds of a range are too large"),
                None => {
                    return type_error(format!(
                        "'{}' object cannot be interpreted as an integer",
                        value.type_name()
                    ));
                }
            }
        }
    }
    let [first_number, second_number, step] = numbers;
    let (start, stop) = if second.is_some() { (first_number, second_number) } else { (0, first_number) };
    if step == 0 {
        return value_error("range() arg 3 must not be zero");
    }
    let range = Range { start, stop, step };
    match range.len() > LEN_MAX {
        true => python("OverflowError", format!("the sandbox blocks ranges larger than {LEN_MAX}")),
        false => Ok(Value::Range(range)),
    }
}

/// The entries that Python's `dict(...)` has.
fn pairs(context: &mut RenderContext, mut call: Call) -> Result<Vec<(Value, Value)>> {
    let named = std::mem::take(&mut call.named);
    let [from] = call.positional("dict", 0)?;
    let mut pairs = Vec::new();
    match from {
        None => {}
        Some(Value::Dict(dict)) => pairs.extend(dict.entries().iter().cloned()),
        Some(from) => {
            for pair in collect(context, &from)? {
                let pair = collect(context, &pair)?;
                let [key, value] = &pair[..] else {
                    return value_error("an entry of a map is made of a key and a value");
                };
                pairs.push((key.clone(), value.clone()));
            }
        }
    }
    pairs.extend(named.into_iter().map(|(name, value)| (Value::Text(name), value)));
    Ok(pairs)
}

fn namespace(context: &mut RenderContext, call: Call) -> Result<Value> {
    let Value::Dict(dict) = Value::dict(pairs(context, call)?)? else { return type_error("not a dict") };
    let mut attributes: Vec<(Rc<Text>, Value)> = Vec::new();
    for (key, value) in dict.entries() {
        let (Value::Text(key) | Value::Markup(key)) = key else {
            return unsupported("a namespace with names that are not strings");
        };
        attributes.push((Rc::clone(key), value.clone()));
    }
    let charge = RefCell::new(Charge::new(128 + 64 * attributes.len()));
    let namespace = Rc::new(Namespace { attributes: RefCell::new(attributes), charge });
    context.reserve(128)?;
    context.namespaces.push(Rc::clone(&namespace));
    Ok(Value::Namespace(namespace))
}

/// Sets an attribute of a namespace.
pub(crate) fn set_attribute(
    context: &mut RenderContext,
    namespace: &Namespace,
    name: &Rc<Text>,
    value: Value,
) -> Result<()> {
    let mut attributes = namespace.attributes.borrow_mut();
    context.steps(1 + attributes.len() / 16)?;
    match attributes.iter_mut().find(|(known, _)| known.as_str() == name.as_str()) {
        Some((_, slot)) => *slot = value,
        None => {
            attributes.push((Rc::clone(name), value));
            *namespace.charge.borrow_mut() = Charge::new(128 + 64 * attributes.len());
        }
    }
    Ok(())
}
