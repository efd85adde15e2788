//! Jinja2's filters, and the `tojson` of transformers.

use super::access::{attribute_path, attribute_paths, has_word, own_attribute};
use super::compare::{equal, order, sort};
use super::context::{RenderContext, undefined_error};
use super::error::{Result, python, type_error, unsupported};
use super::format::percent;
use super::iterate::{collect, ignore_case, len, next, reversed, source};
use super::lexer::is_space;
use super::number::{absolute, parse_float, parse_int, round_float, round_int, truncate};
use super::operators::binary;
use super::text_methods;
use super::value::{Call, Generator, Items, Pending, Source, Value};
use super::write::{JsonStyle, escape, escaped, to_json, to_text};
use std::cmp::Ordering;
use std::collections::HashSet;

/// All filters of Jinja2.
pub(crate) const NAMES: &str = "abs attr batch capitalize center count d default dictsort e escape filesizeformat first float \
    forceescape format groupby indent int items join last length list lower map max min pprint \
    random reject rejectattr replace reverse round safe select selectattr slice sort string \
    striptags sum title tojson trim truncate unique upper urlencode urlize wordcount wordwrap \
    xmlattr";
/// Those that are rejected by name.
pub(crate) const UNSUPPORTED: &str = "pprint random striptags urlize wordwrap";

/// Applies a filter.
pub(crate) fn apply(context: &mut RenderContext, name: &str, value: Value, call: Call) -> Result<Value> {
    context.steps(1)?;
    match name {
        _ if has_word(UNSUPPORTED, name) => unsupported(format!("the filter `{name}`")),
        "default" | "d" => {
            let [default, is_boolean] = call.bind(name, ["default_value", "boolean"], 0)?;
            let is_absent =
                value.is_undefined() || (is_boolean.is_some_and(|is| is.is_true()) && !value.is_true());
            Ok(if is_absent { default.unwrap_or_else(|| Value::small_text("")) } else { value })
        }
        "string" | "lower" | "upper" | "capitalize" | "title" | "center" | "trim" | "replace" | "indent"
        | "truncate" | "format" | "e" | "escape" | "forceescape" | "safe" | "join" | "wordcount"
        | "urlencode" | "filesizeformat" | "xmlattr" | "tojson" => text(context, name, value, call),
        "abs" | "round" | "int" | "float" | "sum" => number(context, name, value, call),
        "map" | "select" | "reject" | "selectattr" | "rejectattr" | "unique" | "batch" | "slice"
        | "items" => generator(name, value, call),
        "length" | "count" => {
            let [] = call.positional(name, 0)?;
            if let Value::Text(text) | Value::Markup(text) = &value {
                context.steps(text.len() / 64)?;
            }
            Ok(Value::Int(len(&value)?))
        }
        "attr" => {
            let [attribute] = call.bind(name, ["name"], 1)?;
            let Some(attribute) = attribute.as_ref().and_then(Value::as_text) else {
                return type_error("the name of an attribute is not a string");
            };
            let found = own_attribute(&value, attribute)?;
            Ok(found.unwrap_or_else(|| {
                Value::undefined(format!("'{} object' has no attribute '{attribute}'", value.type_name()))
            }))
        }
        _ => sequence(context, name, value, call),
    }
}

fn sequence(context: &mut RenderContext, name: &str, value: Value, call: Call) -> Result<Value> {
    match name {
        "list" => {
            let [] = call.positional(name, 0)?;
            let items = collect(context, &value)?;
            context.list(items)
        }
        "first" => {
            let [] = call.positional(name, 0)?;
            let first = next(context, &mut source(&value)?)?;
            Ok(first.unwrap_or_else(|| Value::undefined("No first item, sequence was empty.")))
        }
        "last" => {
            let [] = call.positional(name, 0)?;
            let Some(mut source) = reversed(&value) else {
                return type_error(format!("'{}' object is not reversible", value.type_name()));
            };
            let last = next(context, &mut source)?;
            Ok(last.unwrap_or_else(|| Value::undefined("No last item, sequence was empty.")))
        }
        "reverse" => {
            let [] = call.positional(name, 0)?;
            if let Some(text) = value.as_text() {
                let reversed: String = text.chars().rev().collect();
                return context.text_like(&value, reversed);
            }
            match reversed(&value) {
                Some(source) => Value::iterator(source),
                None => {
                    let mut items = collect(context, &value)?;
                    items.reverse();
                    context.list(items)
                }
            }
        }
        "sort" => {
            let [is_reversed, is_case_sensitive, attribute] =
                call.bind(name, ["reverse", "case_sensitive", "attribute"], 0)?;
            let (items, attribute) = (collect(context, &value)?, attribute.unwrap_or(Value::None));
            let is_case_sensitive = is_true(is_case_sensitive);
            let mut keyed = Vec::with_capacity(items.len());
            for item in items {
                let mut keys = attribute_paths(context, &item, &attribute)?;
                if !is_case_sensitive {
                    keys = keys.into_iter().map(|key| ignore_case(context, key)).collect::<Result<_>>()?;
                }
                keyed.push((Value::list(keys)?, item));
            }
            let sorted = sort(context, keyed, is_true(is_reversed))?;
            context.list(sorted)
        }
        "dictsort" => dictsort(context, value, call),
        "groupby" => groupby(context, value, call),
        "min" | "max" => {
            let [is_case_sensitive, attribute] = call.bind(name, ["case_sensitive", "attribute"], 0)?;
            extreme(context, name, &value, is_true(is_case_sensitive), &attribute.unwrap_or(Value::None))
        }
        _ => python("TemplateRuntimeError", format!("No filter named '{name}' found.")),
    }
}

fn is_true(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

fn generator(name: &str, value: Value, mut call: Call) -> Result<Value> {
    let from = Pending::Value(value);
    let generator = match name {
        "map" => {
            let attribute = call.named.iter().position(|(key, _)| key.as_str() == "attribute");
            match attribute.filter(|_| call.positional.is_empty()) {
                None => Generator::Filter { from, arguments: call },
                Some(at) => {
                    let attribute = call.named.remove(at).1;
                    let default = call.named.iter().position(|(key, _)| key.as_str() == "default");
                    let default = default.map_or(Value::None, |at| call.named.remove(at).1);
                    match call.named.is_empty() {
                        true => Generator::Attribute { from, attribute, default },
                        // The arguments are wrong, which shows when the first item is taken.
                        false => Generator::Filter { from, arguments: call },
                    }
                }
            }
        }
        "select" | "reject" => {
            Generator::Select { from, attribute: None, is_rejecting: name == "reject", arguments: call }
        }
        "selectattr" | "rejectattr" => {
            // A missing name shows when the first item is taken.
            let attribute =
                if call.positional.is_empty() { Value::Undefined(None) } else { call.positional.remove(0) };
            Generator::Select {
                from,
                attribute: Some(attribute),
                is_rejecting: name == "rejectattr",
                arguments: call,
            }
        }
        "unique" => {
            let [is_case_sensitive, attribute] = call.bind(name, ["case_sensitive", "attribute"], 0)?;
            let attribute = attribute.unwrap_or(Value::None);
            Generator::Unique {
                from,
                is_case_sensitive: is_true(is_case_sensitive),
                attribute,
                seen: HashSet::new(),
            }
        }
        "items" => {
            let [] = call.positional(name, 0)?;
            match from {
                Pending::Value(value) => Generator::Pairs(value),
                Pending::Source(_) => return type_error("Can only get item pairs from a mapping."),
            }
        }
        "batch" => {
            let [size, fill] = call.bind(name, ["linecount", "fill_with"], 1)?;
            let [size, fill] = [size, fill].map(|value| value.unwrap_or(Value::None));
            Generator::Batch { from, size, fill, is_done: false }
        }
        _ => {
            let [count, fill] = call.bind(name, ["slices", "fill_with"], 1)?;
            let [count, fill] = [count, fill].map(|value| value.unwrap_or(Value::None));
            match from {
                Pending::Value(value) => Generator::Slice { value, count, fill },
                Pending::Source(_) => return type_error("nothing to slice"),
            }
        }
    };
    Value::iterator(Source::Generator(Box::new(generator)))
}

fn dictsort(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    let [is_case_sensitive, by, is_reversed] =
        call.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let position = match by.as_ref().map(|by| by.as_text()) {
        None | Some(Some("key")) => 0,
        Some(Some("value")) => 1,
        _ => return python("FilterArgumentError", "You can only sort by either \"key\" or \"value\""),
    };
    let dict = match &value {
        Value::Dict(dict) => dict,
        Value::Undefined(message) => return undefined_error(message),
        _ => {
            return python(
                "AttributeError",
                format!("'{}' object has no attribute 'items'", value.type_name()),
            );
        }
    };
    let is_case_sensitive = is_true(is_case_sensitive);
    let mut keyed = Vec::with_capacity(dict.entries().len());
    for (key, value) in dict.entries() {
        let by = if position == 0 { key } else { value };
        let by = if is_case_sensitive { by.clone() } else { ignore_case(context, by.clone())? };
        keyed.push((by, context.tuple(vec![key.clone(), value.clone()])?));
    }
    let sorted = sort(context, keyed, is_true(is_reversed))?;
    context.list(sorted)
}

fn groupby(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    let [attribute, default, is_case_sensitive] =
        call.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let [attribute, default] = [attribute, default].map(|value| value.unwrap_or(Value::None));
    let is_case_sensitive = is_true(is_case_sensitive);
    let mut keyed = Vec::new();
    for item in collect(context, &value)? {
        let key = attribute_path(context, &item, &attribute, &default)?;
        let key = if is_case_sensitive { key } else { ignore_case(context, key)? };
        keyed.push((key.clone(), Value::tuple(vec![key, item])?));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for pair in sort(context, keyed, false)? {
        let Value::Tuple(pair) = pair else { continue };
        match groups.last_mut() {
            Some((key, items)) if equal(context, key, &pair[0])? => items.push(pair[1].clone()),
            _ => groups.push((pair[0].clone(), vec![pair[1].clone()])),
        }
    }
    let mut out = Vec::with_capacity(groups.len());
    for (key, items) in groups {
        let key =
            if is_case_sensitive { key } else { attribute_path(context, &items[0], &attribute, &default)? };
        let items = context.list(items)?;
        out.push(Items::group(key, items)?);
    }
    context.list(out)
}

fn extreme(
    context: &mut RenderContext,
    name: &str,
    value: &Value,
    is_case_sensitive: bool,
    attribute: &Value,
) -> Result<Value> {
    let mut source = source(value)?;
    let mut best: Option<(Value, Value)> = None;
    while let Some(item) = next(context, &mut source)? {
        let key = attribute_path(context, &item, attribute, &Value::None)?;
        let key = if is_case_sensitive { key } else { ignore_case(context, key)? };
        let is_better = match &best {
            None => true,
            Some((known, _)) if name == "max" => order(context, ">", &key, known)? == Some(Ordering::Greater),
            Some((known, _)) => order(context, "<", &key, known)? == Some(Ordering::Less),
        };
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or_else(|| Value::undefined("No aggregated item, sequence was empty."), |(_, item)| item))
}

fn number(context: &mut RenderContext, name: &str, value: Value, call: Call) -> Result<Value> {
    match name {
        "abs" => {
            let [] = call.positional(name, 0)?;
            absolute(&value)
        }
        "int" => {
            let [default, base] = call.bind(name, ["default", "base"], 0)?;
            to_int(&value, default.unwrap_or(Value::Int(0)), base.unwrap_or(Value::Int(10)))
        }
        "float" => {
            let [default] = call.bind(name, ["default"], 0)?;
            Ok(match to_float(&value)? {
                Some(number) => Value::Float(number),
                None => default.unwrap_or(Value::Float(0.0)),
            })
        }
        "sum" => {
            let [attribute, start] = call.bind(name, ["attribute", "start"], 0)?;
            let (attribute, mut sum) = (attribute.unwrap_or(Value::None), start.unwrap_or(Value::Int(0)));
            if sum.as_text().is_some() {
                return type_error("sum() can't sum strings");
            }
            let mut source = source(&value)?;
            while let Some(item) = next(context, &mut source)? {
                let item = attribute_path(context, &item, &attribute, &Value::None)?;
                sum = binary(context, "+", &sum, &item)?;
            }
            Ok(sum)
        }
        _ => round(context, value, call),
    }
}

fn to_int(value: &Value, default: Value, base: Value) -> Result<Value> {
    match value {
        Value::Undefined(message) => return undefined_error(message),
        Value::Float(number) if number.is_nan() => return Ok(default),
        Value::Float(number) => return truncate(*number),
        _ => {}
    }
    if let Some(int) = value.as_int() {
        return Ok(Value::Int(int));
    }
    let Some(text) = value.as_text() else { return Ok(default) };
    if let Some(base) = base.as_int()
        && let Some(int) = parse_int(text, base)?
    {
        return Ok(int);
    }
    match parse_float(text) {
        Some(number) if number.is_finite() => truncate(number),
        _ => Ok(default),
    }
}

/// Python's `float(value)`; None where it raises a TypeError or ValueError.
fn to_float(value: &Value) -> Result<Option<f64>> {
    Ok(match value {
        Value::Undefined(message) => return undefined_error(message),
        Value::Float(number) => Some(*number),
        Value::Text(text) | Value::Markup(text) => parse_float(text),
        _ => value.as_int().map(|int| int as f64),
    })
}

fn round(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    let [precision, method] = call.bind("round", ["precision", "method"], 0)?;
    let precision = precision.unwrap_or(Value::Int(0));
    let method = method.unwrap_or_else(|| Value::small_text("common"));
    let method = method.as_text().filter(|method| ["common", "ceil", "floor"].contains(method));
    let Some(method) = method else {
        return python("FilterArgumentError", "method must be common, ceil or floor");
    };
    if method == "common" {
        let digits = precision.as_int();
        return match (&value, value.as_int(), digits) {
            (Value::Undefined(message), ..) => undefined_error(message),
            (Value::Float(number), _, None) if precision.is_none() => truncate(round_float(*number, 0)),
            (Value::Float(number), _, Some(digits)) => Ok(Value::Float(round_float(*number, digits))),
            (_, Some(int), None) if precision.is_none() => Ok(Value::Int(int)),
            (_, Some(int), Some(digits)) => round_int(int, digits),
            _ => type_error(format!("type {} cannot be rounded", value.type_name())),
        };
    }
    let unit = binary(context, "**", &Value::Int(10), &precision)?;
    let scaled = binary(context, "*", &value, &unit)?;
    let whole = match (&scaled, scaled.as_int()) {
        (_, Some(int)) => Value::Int(int),
        (Value::Float(number), _) => truncate(if method == "ceil" { number.ceil() } else { number.floor() })?,
        _ => return type_error(format!("must be a real number, not {}", scaled.type_name())),
    };
    binary(context, "/", &whole, &unit)
}

fn soft_text(context: &mut RenderContext, value: Value) -> Result<Value> {
    match value {
        Value::Text(_) | Value::Markup(_) => Ok(value),
        _ => {
            let text = to_text(context, &value)?;
            context.text(text)
        }
    }
}

fn text(context: &mut RenderContext, name: &str, value: Value, call: Call) -> Result<Value> {
    match name {
        "string" => {
            let [] = call.positional(name, 0)?;
            soft_text(context, value)
        }
        "lower" | "upper" | "capitalize" => {
            let [] = call.positional(name, 0)?;
            let text = soft_text(context, value)?;
            text_methods::call(context, &text, name, Call::default())
        }
        "title" => {
            let [] = call.positional(name, 0)?;
            let text = to_text(context, &value)?;
            context.text(title(&text))
        }
        "center" => {
            let [width] = call.bind(name, ["width"], 0)?;
            let text = soft_text(context, value)?;
            let call = Call { positional: vec![width.unwrap_or(Value::Int(80))], named: Vec::new() };
            text_methods::call(context, &text, name, call)
        }
        "trim" => {
            let [characters] = call.bind(name, ["chars"], 0)?;
            let text = soft_text(context, value)?;
            text_methods::call(
                context,
                &text,
                "strip",
                Call { positional: characters.into_iter().collect(), named: Vec::new() },
            )
        }
        "replace" => replace(context, value, call),
        "format" => {
            if !call.positional.is_empty() && !call.named.is_empty() {
                return python(
                    "FilterArgumentError",
                    "can't handle positional and keyword arguments at the same time",
                );
            }
            let format = soft_text(context, value)?;
            let values = match call.named.is_empty() {
                true => Value::tuple(call.positional)?,
                false => Value::dict(call.named.into_iter().map(|(name, value)| (Value::Text(name), value)))?,
            };
            percent(context, &format, &values)
        }
        "e" | "escape" | "forceescape" | "safe" => markup(context, name, value, call),
        "indent" => indent(context, value, call),
        "truncate" => shorten(context, value, call),
        "join" => join(context, value, call),
        "wordcount" => {
            let [] = call.positional(name, 0)?;
            let text = to_text(context, &value)?;
            let is_word = |character: char| character.is_alphanumeric() || character == '_';
            let words = text.split(|character| !is_word(character)).filter(|word| !word.is_empty()).count();
            Ok(Value::Int(words as i128))
        }
        "urlencode" => urlencode(context, value, call),
        "filesizeformat" => file_size(value, call),
        "xmlattr" => attributes(context, value, call),
        _ => json(context, value, call),
    }
}

fn replace(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    let [old, new, limit] = call.bind("replace", ["old", "new", "count"], 2)?;
    let [old, new] = [old, new].map(|value| value.unwrap_or(Value::None));
    let limit = match limit {
        None | Some(Value::None) => -1,
        Some(limit) => match limit.as_int() {
            Some(limit) => limit,
            None => return type_error("the count of replacements is not an integer"),
        },
    };
    let (text, old, new) = (to_text(context, &value)?, to_text(context, &old)?, to_text(context, &new)?);
    let text = text_methods::replaced(context, &text, &old, &new, limit)?;
    context.text(text)
}

/// The filters that give markup.
fn markup(context: &mut RenderContext, name: &str, value: Value, call: Call) -> Result<Value> {
    let [] = call.positional(name, 0)?;
    let text = match name {
        "safe" => to_text(context, &value)?,
        "forceescape" => {
            let text = to_text(context, &value)?;
            context.reserve(6 * text.len())?;
            escape(&text)
        }
        _ => escaped(context, &value)?,
    };
    context.markup(text)
}

/// Words, which begin behind spaces, `-` and opening brackets, with a capital.
fn title(text: &str) -> String {
    let is_break = |character: char| is_space(character) || matches!(character, '-' | '(' | '{' | '[' | '<');
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let starts_break = rest.starts_with(is_break);
        let end = rest.find(|character| is_break(character) != starts_break).unwrap_or(rest.len());
        let mut characters = rest[..end].chars();
        out.extend(characters.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(&characters.as_str().to_lowercase());
        rest = &rest[end..];
    }
    out
}

fn indent(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    const WIDTH_MAX: i128 = 1 << 20;
    let [width, first, blank] = call.bind("indent", ["width", "first", "blank"], 0)?;
    let width = width.unwrap_or(Value::Int(4));
    let indentation = match (width.as_text(), width.as_int()) {
        (Some(text), _) => text.to_owned(),
        (_, Some(width)) if width > WIDTH_MAX => {
            return unsupported(format!("a width of more than {WIDTH_MAX} characters"));
        }
        (_, Some(width)) => " ".repeat(usize::try_from(width).unwrap_or(0)),
        _ => return type_error("the width of an indent is not an integer"),
    };
    let Some(text) = value.as_text() else {
        return match &value {
            Value::Undefined(message) => undefined_error(message),
            _ => type_error(format!("a value of type {} cannot be indented", value.type_name())),
        };
    };
    let text = text.to_owned() + "\n";
    let lines = text_methods::lines(&text, false);
    context.reserve(text.len() + lines.len().saturating_mul(indentation.len()))?;
    let indents_blank = is_true(blank);
    let mut out = if is_true(first) { indentation.clone() } else { String::new() };
    for (index, line) in lines.into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
            if indents_blank || !line.is_empty() {
                out.push_str(&indentation);
            }
        }
        out.push_str(line);
    }
    context.text_like(&value, out)
}

fn shorten(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    let [length, kills_words, end, leeway] =
        call.bind("truncate", ["length", "killwords", "end", "leeway"], 0)?;
    let end = end.unwrap_or_else(|| Value::small_text("..."));
    let length = length.unwrap_or(Value::Int(255)).as_int();
    let leeway = leeway.filter(|leeway| !leeway.is_none()).unwrap_or(Value::Int(5)).as_int();
    let (Some(length), Some(leeway)) = (length, leeway) else {
        return type_error("the length to truncate to is not an integer");
    };
    let end_len = len(&end)?;
    if length < end_len || leeway < 0 {
        return python("AssertionError", format!("expected length >= {end_len} and leeway >= 0"));
    }
    if len(&value)? <= length + leeway {
        return Ok(value);
    }
    let (Some(text), Some(end)) = (value.as_text(), end.as_text().map(|_| &end)) else {
        return type_error(format!("a value of type {} cannot be truncated", value.type_name()));
    };
    let kept: String = text.chars().take((length - end_len) as usize).collect();
    let kept = match is_true(kills_words) {
        true => kept,
        false => kept.rsplit_once(' ').map_or(kept.clone(), |(words, _)| words.to_owned()),
    };
    let kept = context.text_like(&value, kept)?;
    binary(context, "+", &kept, end)
}

fn join(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    let [separator, attribute] = call.bind("join", ["d", "attribute"], 0)?;
    let (separator, attribute) =
        (separator.unwrap_or_else(|| Value::small_text("")), attribute.unwrap_or(Value::None));
    let separator = to_text(context, &separator)?;
    let mut source = source(&value)?;
    let mut out = String::new();
    let mut is_first = true;
    while let Some(item) = next(context, &mut source)? {
        if !std::mem::take(&mut is_first) {
            out.push_str(&separator);
        }
        let item = attribute_path(context, &item, &attribute, &Value::None)?;
        let text = to_text(context, &item)?;
        context.steps((text.len() + separator.len()) / 64)?;
        out.push_str(&text);
        if out.len() > context.budget.bytes_max {
            context.reserve(out.len())?;
        }
    }
    context.text(out)
}

fn quote(context: &mut RenderContext, value: &Value, is_query: bool) -> Result<String> {
    let text = to_text(context, value)?;
    context.reserve(3 * text.len())?;
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(char::from(byte)),
            b'/' if !is_query => out.push('/'),
            b' ' if is_query => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(out)
}

fn urlencode(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    let [] = call.positional("urlencode", 0)?;
    if value.as_text().is_some() || source(&value).is_err() {
        let text = quote(context, &value, false)?;
        return context.text(text);
    }
    let mut pairs = Vec::new();
    let items = match &value {
        Value::Dict(dict) => Value::View(super::value::View::Items, std::rc::Rc::clone(dict)),
        _ => value,
    };
    for pair in collect(context, &items)? {
        let pair = collect(context, &pair)?;
        let [key, value] = &pair[..] else {
            return python("ValueError", "a pair of key and value is needed");
        };
        pairs.push(quote(context, key, true)? + "=" + &quote(context, value, true)?);
    }
    context.text(pairs.join("&"))
}

fn file_size(value: Value, call: Call) -> Result<Value> {
    let [is_binary] = call.bind("filesizeformat", ["binary"], 0)?;
    let is_binary = is_true(is_binary);
    let Some(bytes) = to_float(&value)? else {
        return python("ValueError", "the size of a file is not a number");
    };
    let base: f64 = if is_binary { 1024.0 } else { 1000.0 };
    let text = if bytes == 1.0 {
        "1 Byte".to_owned()
    } else if bytes < base {
        let whole = truncate(bytes)?.as_int().unwrap_or(0);
        format!("{whole} Bytes")
    } else {
        let letters = if is_binary { "KMGTPEZY" } else { "kMGTPEZY" };
        let mut unit = base;
        let mut shown = String::new();
        for letter in letters.chars() {
            unit *= base;
            shown = format!("{:.1} {letter}{}", base * bytes / unit, if is_binary { "iB" } else { "B" });
            if bytes < unit {
                break;
            }
        }
        shown
    };
    Ok(Value::small_text(&text))
}

fn attributes(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    let [has_space] = call.bind("xmlattr", ["autospace"], 0)?;
    let dict = match &value {
        Value::Dict(dict) => dict,
        Value::Undefined(message) => return undefined_error(message),
        _ => {
            return python(
                "AttributeError",
                format!("'{}' object has no attribute 'items'", value.type_name()),
            );
        }
    };
    let mut parts = Vec::new();
    for (key, value) in dict.entries().iter().filter(|(_, value)| !value.is_none() && !value.is_undefined()) {
        let Some(name) = key.as_text() else { return type_error("the name of an attribute is not a string") };
        if name.contains([' ', '\t', '\n', '\r', '\x0b', '\x0c', '/', '>', '=']) {
            return python("ValueError", format!("Invalid character in attribute name: {name:?}"));
        }
        parts.push(format!("{}=\"{}\"", escaped(context, key)?, escaped(context, value)?));
    }
    let text = parts.join(" ");
    let space = if has_space.is_none_or(|has| has.is_true()) && !text.is_empty() { " " } else { "" };
    context.text(space.to_owned() + &text)
}

/// The `tojson` of transformers: `json.dumps` without the escaping of HTML that Jinja2's own does.
fn json(context: &mut RenderContext, value: Value, call: Call) -> Result<Value> {
    const INDENT_MAX: usize = 100;
    let [ensure_ascii, indent, separators, sort_keys] =
        call.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"], 0)?;
    let indent = match indent {
        None | Some(Value::None) => None,
        Some(indent) => Some(match (indent.as_text(), indent.as_int()) {
            (Some(text), _) => text.to_owned(),
            (_, Some(width)) => " ".repeat(usize::try_from(width).unwrap_or(0).min(INDENT_MAX + 1)),
            _ => return type_error("the indent of JSON is not an integer"),
        }),
    };
    if indent.as_ref().is_some_and(|indent| indent.len() > INDENT_MAX) {
        return unsupported(format!("an indent of more than {INDENT_MAX} characters"));
    }
    let separators = match separators {
        None | Some(Value::None) => None,
        Some(separators) => {
            let separators = collect(context, &separators)?;
            match &separators[..] {
                [comma, colon] => match (comma.as_text(), colon.as_text()) {
                    (Some(comma), Some(colon)) => Some([comma.to_owned(), colon.to_owned()]),
                    _ => return type_error("the separators of JSON are not strings"),
                },
                _ => return python("ValueError", "JSON has two separators"),
            }
        }
    };
    let style =
        JsonStyle { ensure_ascii: is_true(ensure_ascii), indent, separators, sort_keys: is_true(sort_keys) };
    let text = to_json(context, &value, style)?;
    context.text(text)
}
