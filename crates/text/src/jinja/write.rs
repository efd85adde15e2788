//! Values as text: Python's `str` and `repr`, `json.dumps`, and the escaping of HTML.

use super::compare::sort;
use super::context::RenderContext;
use super::error::{Result, type_error, unsupported};
use super::unicode::is_printable;
use super::value::Value;
use crate::guard::MARK;

/// Namespaces may contain each other without end.
const NESTING_MAX: usize = 200;

/// Python's `str(value)`.
pub(crate) fn to_text(context: &mut RenderContext, value: &Value) -> Result<String> {
    let mut out = String::new();
    write(context, &mut out, value)?;
    Ok(out)
}

/// Appends Python's `str(value)`.
pub(crate) fn write(context: &mut RenderContext, out: &mut String, value: &Value) -> Result<()> {
    match value {
        Value::Undefined(_) => Ok(()),
        Value::Text(text) | Value::Markup(text) => {
            context.reserve(text.len())?;
            out.push_str(text);
            Ok(())
        }
        _ => Writer { context, out, style: &Style::Repr, nesting: 0 }.value(value),
    }
}

/// Python's `repr(value)`.
pub(crate) fn repr(context: &mut RenderContext, value: &Value) -> Result<String> {
    let mut out = String::new();
    Writer { context, out: &mut out, style: &Style::Repr, nesting: 0 }.value(value)?;
    Ok(out)
}

/// How `json.dumps` writes.
#[derive(Debug)]
pub(crate) struct JsonStyle {
    pub(crate) ensure_ascii: bool,
    /// What each level is indented by.
    pub(crate) indent: Option<String>,
    /// Between items, and between key and value.
    pub(crate) separators: Option<[String; 2]>,
    pub(crate) sort_keys: bool,
}

/// Python's `json.dumps(value)`.
pub(crate) fn to_json(context: &mut RenderContext, value: &Value, style: JsonStyle) -> Result<String> {
    let mut out = String::new();
    Writer { context, out: &mut out, style: &Style::Json(style), nesting: 0 }.value(value)?;
    Ok(out)
}

/// `&`, `<`, `>`, `'` and `"` as HTML entities.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(character),
        }
    }
    out
}

/// The text of a value, escaped unless it is marked as safe.
pub(crate) fn escaped(context: &mut RenderContext, value: &Value) -> Result<String> {
    match value {
        Value::Markup(text) => {
            context.reserve(text.len())?;
            Ok(text.to_string())
        }
        _ => {
            let text = to_text(context, value)?;
            context.reserve(6 * text.len())?;
            Ok(escape(&text))
        }
    }
}

enum Style {
    Repr,
    Json(JsonStyle),
}

struct Writer<'w> {
    context: &'w mut RenderContext,
    out: &'w mut String,
    style: &'w Style,
    nesting: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<()> {
        self.context.reserve(self.out.len().saturating_sub(self.out.capacity() / 2))?;
        match self.style {
            Style::Repr => self.repr(value),
            Style::Json(_) => self.json(value),
        }
    }

    fn repr(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Undefined(_) => self.out.push_str("Undefined"),
            Value::None => self.out.push_str("None"),
            Value::Bool(value) => self.out.push_str(if *value { "True" } else { "False" }),
            Value::Int(value) => self.out.push_str(&value.to_string()),
            Value::Float(value) => self.out.push_str(&float(*value)),
            Value::Text(text) => self.text(text)?,
            Value::Markup(text) => {
                self.out.push_str("Markup(");
                self.text(text)?;
                self.out.push(')');
            }
            Value::List(items) => self.sequence('[', items, ']')?,
            Value::Tuple(items) => self.sequence('(', items, ')')?,
            Value::Dict(dict) => self.mapping(dict.entries())?,
            Value::View(view, dict) => {
                let (name, mut items) = (value.type_name(), Vec::new());
                for index in 0..dict.entries().len() {
                    items.extend(dict.item(*view, index)?);
                }
                self.out.push_str(name);
                self.out.push('(');
                self.sequence('[', &items, ']')?;
                self.out.push(')');
            }
            Value::Range(range) if range.step == 1 => {
                self.out.push_str(&format!("range({}, {})", range.start, range.stop));
            }
            Value::Range(range) => {
                self.out.push_str(&format!("range({}, {}, {})", range.start, range.stop, range.step));
            }
            Value::Namespace(namespace) => {
                let attributes = namespace.attributes.borrow().clone();
                let attributes: Vec<_> =
                    attributes.into_iter().map(|(name, value)| (Value::Text(name), value)).collect();
                self.out.push_str("<Namespace ");
                self.mapping(&attributes)?;
                self.out.push('>');
            }
            Value::Loop(state) if state.length.get().is_some() => {
                let length = state.length.get().unwrap_or(0);
                self.out.push_str(&format!("<LoopContext {}/{length}>", state.index0.get() + 1));
            }
            Value::Function("dict") => self.out.push_str("<class 'dict'>"),
            Value::Function(name @ ("namespace" | "cycler" | "joiner")) => {
                let class = name[..1].to_ascii_uppercase() + &name[1..];
                self.out.push_str(&format!("<class 'jinja2.utils.{class}'>"));
            }
            Value::Macro(_) => return unsupported("printing a macro"),
            _ => {
                return unsupported(format!(
                    "printing a value of type {}, which has no text",
                    value.type_name()
                ));
            }
        }
        Ok(())
    }

    fn json(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::None => self.out.push_str("null"),
            Value::Bool(value) => self.out.push_str(if *value { "true" } else { "false" }),
            Value::Int(value) => self.out.push_str(&value.to_string()),
            Value::Float(value) => self.out.push_str(&json_float(*value)),
            Value::Text(text) | Value::Markup(text) => self.text(text)?,
            Value::List(items) | Value::Tuple(items) => self.sequence('[', items, ']')?,
            Value::Dict(dict) => self.mapping(dict.entries())?,
            _ => {
                return type_error(format!(
                    "a value of type {} cannot be written as JSON",
                    value.type_name()
                ));
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.context.reserve(text.len())?;
        match self.style {
            Style::Repr => write_repr(self.out, text),
            Style::Json(style) => write_json(self.out, text, style.ensure_ascii),
        }
        Ok(())
    }

    fn sequence(&mut self, open: char, items: &[Value], close: char) -> Result<()> {
        self.open(open)?;
        for (index, item) in items.iter().enumerate() {
            self.separate(index == 0);
            self.value(item)?;
        }
        if open == '(' && items.len() == 1 {
            self.out.push(',');
        }
        self.close(close, items.is_empty());
        Ok(())
    }

    fn mapping(&mut self, entries: &[(Value, Value)]) -> Result<()> {
        self.open('{')?;
        let keys = entries.iter().map(|(key, _)| key.clone()).enumerate();
        let order: Vec<usize> = match self.style {
            Style::Json(JsonStyle { sort_keys: true, .. }) => {
                let keyed = keys.map(|(index, key)| (key, Value::Int(index as i128))).collect();
                sort(self.context, keyed, false)?
                    .iter()
                    .filter_map(Value::as_int)
                    .map(|index| index as usize)
                    .collect()
            }
            _ => (0..entries.len()).collect(),
        };
        for (position, index) in order.into_iter().enumerate() {
            let (key, value) = &entries[index];
            self.separate(position == 0);
            self.key(key)?;
            self.value(value)?;
        }
        self.close('}', entries.is_empty());
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<()> {
        let Style::Json(style) = self.style else {
            self.value(key)?;
            self.out.push_str(": ");
            return Ok(());
        };
        match key {
            Value::Text(_) | Value::Markup(_) => self.value(key)?,
            // JSON has only text as keys.
            Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => {
                self.out.push('"');
                self.value(key)?;
                self.out.push('"');
            }
            _ => return type_error(format!("a key of type {} cannot be written as JSON", key.type_name())),
        }
        self.out.push_str(style.separators.as_ref().map_or(": ", |[_, colon]| colon));
        Ok(())
    }

    fn open(&mut self, bracket: char) -> Result<()> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            return unsupported(format!("printing a value that is nested deeper than {NESTING_MAX} levels"));
        }
        self.out.push(bracket);
        Ok(())
    }

    fn separate(&mut self, is_first: bool) {
        let Style::Json(style) = self.style else {
            self.out.push_str(if is_first { "" } else { ", " });
            return;
        };
        if !is_first {
            self.out.push_str(match (&style.separators, &style.indent) {
                (Some([comma, _]), _) => comma,
                (None, Some(_)) => ",",
                (None, None) => ", ",
            });
        }
        self.new_line();
    }

    fn close(&mut self, bracket: char, is_empty: bool) {
        self.nesting -= 1;
        if !is_empty {
            self.new_line();
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self) {
        if let Style::Json(JsonStyle { indent: Some(indent), .. }) = self.style {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), self.nesting));
        }
    }
}

fn write_json(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0C' => out.push_str("\\f"),
            MARK => out.push(MARK),
            _ if character < ' ' || (ensure_ascii && character > '~') => {
                if ensure_ascii && character == '\x7f' {
                    out.push(character);
                    continue;
                }
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// Python's `repr` of a string: in single quotes unless that would need escaping.
pub(crate) fn write_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', character]),
            _ if character == MARK || is_printable(character) => out.push(character),
            _ => push_code(out, character),
        }
    }
    out.push(quote);
}

/// A character as `\x`, `\u` or `\U` with its code.
pub(crate) fn push_code(out: &mut String, character: char) {
    out.push_str(&match character as u32 {
        code @ 0..=0xff => format!("\\x{code:02x}"),
        code @ 0x100..=0xffff => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    });
}

fn json_float(number: f64) -> String {
    match number {
        _ if number.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ => float(number),
    }
}

/// Python's `repr` of a float: the shortest digits that read back the same, with an exponent below 1e-4 and from 1e16 on.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) || number == 0.0 {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}
