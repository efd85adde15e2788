//! The methods of Python's `str`, and of markupsafe's `Markup`, which gives and escapes markup.

use super::context::RenderContext;
use super::error::{Result, type_error, unsupported, value_error};
use super::format::format;
use super::iterate::collect;
use super::lexer::is_space;
use super::unicode::{
    is_alphabetic, is_decimal, is_digit, is_identifier, is_lower, is_numeric, is_printable, is_title,
    is_upper, push_title,
};
use super::value::{Call, Value, new_text};
use super::write::escaped;

/// Calls a method of a string.
pub(crate) fn call(context: &mut RenderContext, value: &Value, name: &str, arguments: Call) -> Result<Value> {
    let text = value.as_text().unwrap_or_default();
    context.steps(1 + text.len() / 16)?;
    match name {
        "format" => format(context, value, &arguments),
        "format_map" => {
            let [map] = arguments.positional(name, 1)?;
            let Some(Value::Dict(map)) = map else { return type_error("format_map() takes a map") };
            let named = map
                .entries()
                .iter()
                .filter_map(|(key, value)| Some((new_text(key.as_text()?.to_owned()), value.clone())));
            let call = Call { positional: Vec::new(), named: named.collect() };
            format(context, value, &call)
        }
        "count" | "find" | "rfind" | "index" | "rindex" => search(text, name, arguments),
        "startswith" | "endswith" => affix(text, name, arguments),
        "split" | "rsplit" | "splitlines" => {
            let parts = split(text, name, arguments)?;
            context.reserve_items(2 * parts.len())?;
            let parts = parts
                .into_iter()
                .map(|part| context.text_like(value, part.to_owned()))
                .collect::<Result<_>>()?;
            context.list(parts)
        }
        "partition" | "rpartition" => partition(context, value, name, arguments),
        "join" => join(context, value, arguments),
        "replace" => replace(context, value, arguments),
        "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => widen(context, value, name, arguments),
        "strip" | "lstrip" | "rstrip" => {
            let [characters] = arguments.positional(name, 0)?;
            let stripped = strip(text, name, characters)?.to_owned();
            context.text_like(value, stripped)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = arguments.positional(name, 1)?;
            let affix = required_text(name, affix)?;
            let rest =
                if name == "removeprefix" { text.strip_prefix(&*affix) } else { text.strip_suffix(&*affix) };
            context.text_like(value, rest.unwrap_or(text).to_owned())
        }
        _ if name.starts_with("is") => {
            let [] = arguments.positional(name, 0)?;
            Ok(Value::Bool(is(text, name)))
        }
        _ => {
            let [] = match name {
                "encode" | "maketrans" | "translate" | "escape" | "striptags" | "unescape" => {
                    return unsupported(format!("the method `{name}` of strings"));
                }
                _ => arguments.positional(name, 0)?,
            };
            let text = cased(text, name)?;
            context.text_like(value, text)
        }
    }
}

fn partition(context: &mut RenderContext, value: &Value, name: &str, arguments: Call) -> Result<Value> {
    let text = value.as_text().unwrap_or_default();
    let [separator] = arguments.positional(name, 1)?;
    let separator = required_text(name, separator)?;
    if separator.is_empty() {
        return value_error("empty separator");
    }
    let found = if name == "partition" { text.find(&*separator) } else { text.rfind(&*separator) };
    let parts = match (found, name) {
        (Some(at), _) => [&text[..at], &separator, &text[at + separator.len()..]],
        (None, "partition") => [text, "", ""],
        (None, _) => ["", "", text],
    };
    let parts =
        parts.into_iter().map(|part| context.text_like(value, part.to_owned())).collect::<Result<_>>()?;
    context.tuple(parts)
}

fn required_text(name: &str, value: Option<Value>) -> Result<String> {
    match value.as_ref().and_then(Value::as_text) {
        Some(text) => Ok(text.to_owned()),
        None => type_error(format!("{name}() takes a string")),
    }
}

fn required_int(name: &str, value: Option<Value>, default: i128) -> Result<i128> {
    match value {
        None => Ok(default),
        Some(value) => value.as_int().map_or_else(|| type_error(format!("{name}() takes an integer")), Ok),
    }
}

/// Text in the other case.
fn cased(text: &str, name: &str) -> Result<String> {
    let mut out = String::new();
    match name {
        "upper" => out = text.to_uppercase(),
        "lower" => out = text.to_lowercase(),
        "casefold" if text.is_ascii() => out = text.to_ascii_lowercase(),
        "capitalize" => {
            let mut characters = text.chars();
            characters.next().into_iter().for_each(|first| push_title(&mut out, first));
            out.push_str(&characters.as_str().to_lowercase());
        }
        "title" => {
            let mut after_cased = false;
            for character in text.chars() {
                match after_cased {
                    true => out.extend(character.to_lowercase()),
                    false => push_title(&mut out, character),
                }
                after_cased = is_upper(character) || is_lower(character) || is_title(character);
            }
        }
        "swapcase" => {
            for character in text.chars() {
                match character {
                    _ if is_upper(character) => out.extend(character.to_lowercase()),
                    _ if is_lower(character) => out.extend(character.to_uppercase()),
                    _ => out.push(character),
                }
            }
        }
        _ => return unsupported(format!("the method `{name}` of a string with characters outside of ASCII")),
    }
    Ok(out)
}

/// The questions `isalpha` and so on.
pub(crate) fn is(text: &str, name: &str) -> bool {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    let cased = |is_wrong: fn(char) -> bool, is_right: fn(char) -> bool| {
        !text.chars().any(is_wrong) && text.chars().any(is_right)
    };
    match name {
        "isalpha" => all(is_alphabetic),
        "isalnum" => {
            all(|character| is_alphabetic(character) || is_digit(character) || is_numeric(character))
        }
        "isascii" => text.is_ascii(),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(is_digit),
        "isnumeric" => all(is_numeric),
        "isidentifier" => is_identifier(text),
        "isprintable" => text.chars().all(is_printable),
        "isspace" => all(is_space),
        "islower" => cased(|character| is_upper(character) || is_title(character), is_lower),
        "isupper" => cased(|character| is_lower(character) || is_title(character), is_upper),
        _ => is_title_text(text),
    }
}

fn is_title_text(text: &str) -> bool {
    let (mut after_cased, mut found) = (false, false);
    for character in text.chars() {
        if is_upper(character) || is_title(character) {
            if after_cased {
                return false;
            }
            (after_cased, found) = (true, true);
        } else if is_lower(character) {
            if !after_cased {
                return false;
            }
            found = true;
        } else {
            after_cased = false;
        }
    }
    found
}

/// The part of a text between two bounds in characters, and where it starts.
fn between(text: &str, start: Option<Value>, stop: Option<Value>) -> Result<(&str, i128)> {
    let count = text.chars().count() as i128;
    let bound = |bound: Option<Value>, default: i128| match bound {
        None | Some(Value::None) => Ok(default),
        Some(bound) => match bound.as_int() {
            Some(bound) if bound < 0 => Ok((bound + count).max(0)),
            Some(bound) => Ok(bound),
            None => type_error("slice indices must be integers or None"),
        },
    };
    let (start, stop) = (bound(start, 0)?, bound(stop, count)?.min(count));
    let at = |index: i128| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
    match start > stop {
        // Not even an empty text is found there.
        true => Ok(("", -1)),
        false => Ok((&text[at(start)..at(stop)], start)),
    }
}

fn search(text: &str, name: &str, arguments: Call) -> Result<Value> {
    let [sought, start, stop] = arguments.positional(name, 1)?;
    let sought = required_text(name, sought)?;
    let (part, start) = between(text, start, stop)?;
    if name == "count" {
        return Ok(Value::Int(if start < 0 { 0 } else { part.matches(&*sought).count() as i128 }));
    }
    let found = if name.starts_with('r') { part.rfind(&*sought) } else { part.find(&*sought) };
    match found.filter(|_| start >= 0) {
        Some(at) => Ok(Value::Int(start + part[..at].chars().count() as i128)),
        None if name.ends_with("index") => value_error("substring not found"),
        None => Ok(Value::Int(-1)),
    }
}

fn affix(text: &str, name: &str, arguments: Call) -> Result<Value> {
    let [affix, start, stop] = arguments.positional(name, 1)?;
    let (part, start) = between(text, start, stop)?;
    let affixes = match affix {
        Some(Value::Tuple(affixes)) => {
            affixes.iter().map(|affix| required_text(name, Some(affix.clone()))).collect::<Result<_>>()?
        }
        affix => vec![required_text(name, affix)?],
    };
    let has =
        |affix: &String| if name == "startswith" { part.starts_with(affix) } else { part.ends_with(affix) };
    Ok(Value::Bool(start >= 0 && affixes.iter().any(has)))
}

fn strip<'t>(text: &'t str, name: &str, characters: Option<Value>) -> Result<&'t str> {
    let characters = match characters {
        None | Some(Value::None) => None,
        characters => Some(required_text(name, characters)?),
    };
    let is_stripped = |character: char| match &characters {
        Some(characters) => characters.contains(character),
        None => is_space(character),
    };
    let text = if name == "rstrip" { text } else { text.trim_start_matches(is_stripped) };
    Ok(if name == "lstrip" { text } else { text.trim_end_matches(is_stripped) })
}

fn split<'t>(text: &'t str, name: &str, arguments: Call) -> Result<Vec<&'t str>> {
    if name == "splitlines" {
        let [keeps_ends] = arguments.bind(name, ["keepends"], 0)?;
        return Ok(lines(text, keeps_ends.is_some_and(|keeps| keeps.is_true())));
    }
    let [separator, limit] = arguments.bind(name, ["sep", "maxsplit"], 0)?;
    let limit = usize::try_from(required_int(name, limit, -1)?).unwrap_or(usize::MAX - 1).min(usize::MAX - 1);
    let is_last_first = name == "rsplit";
    match separator {
        None | Some(Value::None) => Ok(split_spaces(text, limit, is_last_first)),
        separator => {
            let separator = required_text(name, separator)?;
            if separator.is_empty() {
                return value_error("empty separator");
            }
            if !is_last_first {
                return Ok(text.splitn(limit + 1, &*separator).collect());
            }
            let mut parts: Vec<&str> = text.rsplitn(limit + 1, &*separator).collect();
            parts.reverse();
            Ok(parts)
        }
    }
}

fn split_spaces(text: &str, limit: usize, is_last_first: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest =
        if is_last_first { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !rest.is_empty() {
        if parts.len() == limit {
            parts.push(rest);
            break;
        }
        if is_last_first {
            let start = rest.trim_end_matches(|character| !is_space(character)).len();
            parts.push(&rest[start..]);
            rest = rest[..start].trim_end_matches(is_space);
        } else {
            let end = rest.find(is_space).unwrap_or(rest.len());
            parts.push(&rest[..end]);
            rest = rest[end..].trim_start_matches(is_space);
        }
    }
    if is_last_first {
        parts.reverse();
    }
    parts
}

/// Python's `text.splitlines(keepends)`.
pub(crate) fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let is_end = |character: char| {
        matches!(
            character,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let end_len = match rest[end..].chars().next() {
            Some('\r') if rest[end..].starts_with("\r\n") => 2,
            first => first.map_or(0, char::len_utf8),
        };
        lines.push(if keeps_ends { &rest[..end + end_len] } else { &rest[..end] });
        rest = &rest[end + end_len..];
    }
    lines
}

fn join(context: &mut RenderContext, value: &Value, arguments: Call) -> Result<Value> {
    let [items] = arguments.positional("join", 1)?;
    let separator = value.as_text().unwrap_or_default();
    let items = collect(context, &items.unwrap_or(Value::None))?;
    let mut out = String::new();
    for (index, item) in items.iter().enumerate() {
        let text = match value {
            Value::Markup(_) => escaped(context, item)?,
            _ => required_text("join", Some(item.clone()))?,
        };
        if index > 0 {
            out.push_str(separator);
        }
        context.reserve(text.len() + separator.len())?;
        out.push_str(&text);
        if out.len() > context.budget.bytes_max {
            context.reserve(out.len())?;
        }
    }
    // Joining plain text with one item that is markup gives plain text.
    context.text_like(value, out)
}

fn replace(context: &mut RenderContext, value: &Value, arguments: Call) -> Result<Value> {
    let [old, new, limit] = arguments.positional("replace", 2)?;
    let (old, new) = (required_text("replace", old)?, new.unwrap_or(Value::None));
    let limit = required_int("replace", limit, -1)?;
    let new = match value {
        Value::Markup(_) => escaped(context, &new)?,
        _ => required_text("replace", Some(new))?,
    };
    let text = replaced(context, value.as_text().unwrap_or_default(), &old, &new, limit)?;
    context.text_like(value, text)
}

/// Python's `text.replace(old, new, limit)`.
pub(crate) fn replaced(
    context: &mut RenderContext,
    text: &str,
    old: &str,
    new: &str,
    limit: i128,
) -> Result<String> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let found = text.matches(old).take(limit).count();
    context.reserve(text.len() + found.saturating_mul(new.len()))?;
    Ok(text.replacen(old, new, limit))
}

fn widen(context: &mut RenderContext, value: &Value, name: &str, arguments: Call) -> Result<Value> {
    const WIDTH_MAX: i128 = 1 << 24;
    let text = value.as_text().unwrap_or_default();
    if name == "expandtabs" {
        let [size] = arguments.bind(name, ["tabsize"], 0)?;
        let size = required_int(name, size, 8)?.clamp(0, WIDTH_MAX) as usize;
        context.reserve(text.len() + text.matches('\t').count().saturating_mul(size))?;
        return context.text_like(value, expand_tabs(text, size));
    }
    let (width, fill) = match name {
        "zfill" => {
            let [width] = arguments.positional(name, 1)?;
            (width, None)
        }
        _ => {
            let [width, fill] = arguments.positional(name, 1)?;
            (width, fill)
        }
    };
    let width = required_int(name, width, 0)?;
    if width > WIDTH_MAX {
        return unsupported(format!("a width of more than {WIDTH_MAX} characters"));
    }
    let fill = match (fill, value) {
        (None, _) => " ".to_owned(),
        (Some(fill), Value::Markup(_)) => escaped(context, &fill)?,
        (fill, _) => required_text(name, fill)?,
    };
    let Some(fill) = fill.chars().next().filter(|_| fill.chars().count() == 1) else {
        return type_error("The fill character must be exactly one character long");
    };
    let missing = usize::try_from(width - text.chars().count() as i128).unwrap_or(0);
    context.reserve(text.len() + missing * fill.len_utf8())?;
    let pad = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    let text = match name {
        "ljust" => text.to_owned() + &pad(missing),
        "rjust" => pad(missing) + text,
        "zfill" => {
            let sign_len = usize::from(text.starts_with(['+', '-']));
            text[..sign_len].to_owned() + &"0".repeat(missing) + &text[sign_len..]
        }
        _ => {
            let before = missing / 2 + (missing & width as usize & 1);
            pad(before) + text + &pad(missing - before)
        }
    };
    context.text_like(value, text)
}

fn expand_tabs(text: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for character in text.chars() {
        match character {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(character);
                column = 0;
            }
            _ => {
                out.push(character);
                column += 1;
            }
        }
    }
    out
}
