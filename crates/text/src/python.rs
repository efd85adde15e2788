//! What chat templates expect of Python: `str()`, `json.dumps()` and the methods of strings.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Values nested deeper than this are not written. It is far below what the stack allows.
const NESTING_MAX: usize = 100;
/// One unit of minijinja fuel covers this many bytes.
const BYTES_PER_FUEL: usize = 64;

/// Python's `str(value)`; of an undefined value, Jinja's empty text.
pub(crate) fn str(state: &State, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        _ => {
            let mut writer = Writer { state, text: String::new(), style: Style::Repr, nesting: 0 };
            writer.value(value)?;
            Ok(writer.text)
        }
    }
}

/// The `tojson` filter of the `transformers` library: Python's `json.dumps` with `ensure_ascii=False` unless asked for,
/// and nothing escaped for HTML.
pub(crate) fn to_json(
    state: &State,
    value: &Value,
    indent: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get("indent")?,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let json = JsonStyle {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent: indent.filter(|indent| !indent.is_none()).map(indent_unit).transpose()?,
        separators: separators.map(<[String; 2]>::try_from).transpose().map_err(|_| {
            Error::new(ErrorKind::InvalidOperation, "the separators of tojson must be two strings")
        })?,
    };
    options.assert_all_used()?;
    let mut writer = Writer { state, text: String::new(), style: Style::Json(&json), nesting: 0 };
    writer.value(value)?;
    Ok(writer.text)
}

/// Jinja's `sequence` test: whatever has a length and can be indexed, so strings and mappings too.
pub(crate) fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

/// Calls a method that minijinja's values lack and Python's have.
pub(crate) fn call_method(
    state: &mut State,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    match (value.as_str(), name, arguments) {
        (Some(text), "removeprefix", [prefix]) => {
            let prefix = text_argument(name, prefix)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        (Some(text), "removesuffix", [suffix]) => {
            let suffix = text_argument(name, suffix)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        (Some(text), "partition", [separator]) => {
            let separator = text_argument(name, separator)?;
            let (before, found, after) = match text.split_once(separator) {
                Some((before, after)) => (before, separator, after),
                None => (text, "", ""),
            };
            Ok([before, found, after].into_iter().map(Value::from).collect())
        }
        (Some(text), "rpartition", [separator]) => {
            let separator = text_argument(name, separator)?;
            let (before, found, after) = match text.rsplit_once(separator) {
                Some((before, after)) => (before, separator, after),
                None => ("", "", text),
            };
            Ok([before, found, after].into_iter().map(Value::from).collect())
        }
        (Some(text), "join", [items]) => join(state, text, items),
        (Some(text), "format", _) => {
            consume_fuel_for_format(state, text, arguments)?;
            pycompat::unknown_method_callback(state, value, name, arguments)
        }
        _ => pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

fn join(state: &State, separator: &str, items: &Value) -> Result<Value, Error> {
    let mut text = String::new();
    for (index, item) in items.try_iter()?.enumerate() {
        let item = text_argument("join", &item)?.to_owned();
        consume_fuel_for_bytes(state, separator.len() + item.len())?;
        text.push_str(if index > 0 { separator } else { "" });
        text.push_str(&item);
    }
    Ok(Value::from(text))
}

/// `str.format` makes text that is not bounded by its input (`'{:>999999999}'`, `'{0}{0}{0}'`), and the library does not
/// count it. So fuel for the largest possible result is consumed first.
fn consume_fuel_for_format(state: &State, format: &str, arguments: &[Value]) -> Result<(), Error> {
    let mut argument_bytes = 0usize;
    for argument in arguments {
        let named = match argument.is_kwargs() {
            true => argument.try_iter()?.map(|name| argument.get_item(&name)).collect::<Result<_, _>>()?,
            false => vec![argument.clone()],
        };
        for value in named {
            argument_bytes += match value.kind() {
                ValueKind::String => value.as_str().map_or(0, str::len),
                ValueKind::Number | ValueKind::Bool | ValueKind::None => 64,
                _ => {
                    let message =
                        "str.format takes strings and numbers; apply the filter `string` to other values";
                    return Err(Error::new(ErrorKind::InvalidOperation, message));
                }
            };
        }
    }
    let fields = format.matches('{').count();
    let numbers =
        format.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let width_bytes =
        numbers.fold(0usize, |sum, digits| sum.saturating_add(digits.parse().unwrap_or(usize::MAX)));
    consume_fuel_for_bytes(state, fields.saturating_mul(argument_bytes).saturating_add(width_bytes))
}

fn consume_fuel_for_bytes(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / BYTES_PER_FUEL) as u64)
}

fn text_argument<'v>(method: &str, argument: &'v Value) -> Result<&'v str, Error> {
    argument.as_str().ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("the argument of str.{method} must be a string"))
    })
}

struct JsonStyle {
    ensure_ascii: bool,
    sort_keys: bool,
    /// What one level of nesting is indented by.
    indent: Option<String>,
    /// Between items, and between key and value.
    separators: Option<[String; 2]>,
}

fn indent_unit(indent: Value) -> Result<String, Error> {
    const INDENT_MAX: usize = 64;
    let unit = match (indent.as_str(), indent.as_usize()) {
        (Some(text), _) if text.len() <= INDENT_MAX => Some(text.to_owned()),
        (None, Some(spaces)) if spaces <= INDENT_MAX => Some(" ".repeat(spaces)),
        _ => None,
    };
    unit.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("the indent of tojson must be at most {INDENT_MAX} spaces"),
        )
    })
}

#[derive(Clone, Copy)]
enum Style<'s> {
    /// `repr(value)`
    Repr,
    /// `json.dumps(value)`
    Json(&'s JsonStyle),
}

struct Writer<'w> {
    state: &'w State<'w, 'w>,
    text: String,
    style: Style<'w>,
    nesting: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        // A value may contain the same part many times, so its rendered size is unbounded: each item consumes fuel at once.
        self.state.consume_fuel(1)?;
        match value.kind() {
            ValueKind::Undefined => match self.style {
                Style::Repr => self.text.push_str("Undefined"),
                Style::Json(_) => {
                    return Err(Error::new(ErrorKind::UndefinedError, "an undefined value has no JSON form"));
                }
            },
            ValueKind::None => self.word("None", "null"),
            ValueKind::Bool if value.is_true() => self.word("True", "true"),
            ValueKind::Bool => self.word("False", "false"),
            ValueKind::Number if value.is_integer() => self.text.push_str(&value.to_string()),
            ValueKind::Number => self.text.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value)?,
            ValueKind::Map => self.mapping(value)?,
            ValueKind::Bytes | ValueKind::Plain => match self.style {
                Style::Repr => self.text.push_str(&value.to_string()),
                Style::Json(_) => {
                    return Err(Error::new(ErrorKind::BadSerialization, format!("{value} has no JSON form")));
                }
            },
            // An error that was deferred comes out where the value is used.
            _ => return value.try_iter().map(|_| ()),
        }
        Ok(())
    }

    fn word(&mut self, repr: &str, json: &str) {
        self.text.push_str(match self.style {
            Style::Repr => repr,
            Style::Json(_) => json,
        });
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        consume_fuel_for_bytes(self.state, text.len())?;
        match self.style {
            Style::Repr => write_repr(&mut self.text, text),
            Style::Json(json) => write_json_string(&mut self.text, text, json.ensure_ascii),
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value) -> Result<(), Error> {
        let is_tuple = value.is_tuple() && matches!(self.style, Style::Repr);
        let (open, close) = if is_tuple { ('(', ')') } else { ('[', ']') };
        self.open(open)?;
        let mut count = 0;
        for item in value.try_iter()? {
            self.separate(count == 0);
            self.value(&item)?;
            count += 1;
        }
        if is_tuple && count == 1 {
            self.text.push(',');
        }
        self.close(close, count == 0);
        Ok(())
    }

    fn mapping(&mut self, value: &Value) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if let Style::Json(JsonStyle { sort_keys: true, .. }) = self.style {
            keys.sort();
        }
        self.open('{')?;
        for (index, key) in keys.iter().enumerate() {
            self.separate(index == 0);
            self.key(key)?;
            self.value(&value.get_item(key)?)?;
        }
        self.close('}', keys.is_empty());
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match self.style {
            // JSON has string keys only; Python writes other keys as strings.
            Style::Json(_) if key.as_str().is_none() => {
                self.text.push('"');
                self.value(key)?;
                self.text.push('"');
            }
            _ => self.value(key)?,
        }
        match self.style {
            Style::Json(JsonStyle { separators: Some([_, colon]), .. }) => self.text.push_str(colon),
            _ => self.text.push_str(": "),
        }
        Ok(())
    }

    fn open(&mut self, bracket: char) -> Result<(), Error> {
        self.nesting += 1;
        if self.nesting > NESTING_MAX {
            let message = format!("a value is nested deeper than {NESTING_MAX} levels");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        self.text.push(bracket);
        Ok(())
    }

    fn separate(&mut self, is_first: bool) {
        let Style::Json(json) = self.style else {
            self.text.push_str(if is_first { "" } else { ", " });
            return;
        };
        if !is_first {
            self.text.push_str(match (&json.separators, &json.indent) {
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
        self.text.push(bracket);
    }

    fn new_line(&mut self) {
        if let Style::Json(JsonStyle { indent: Some(indent), .. }) = self.style {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(indent.as_str(), self.nesting));
        }
    }
}

/// Writes a string as Python's `json.dumps` does.
fn write_json_string(out: &mut String, text: &str, ensure_ascii: bool) {
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
            _ if character < ' ' || (ensure_ascii && character > '~') => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// Writes a string as Python's `repr` does: in single quotes unless that would need escaping.
fn write_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => out.extend(['\\', character]),
            '\0'..='\x1F' | '\x7F'..='\u{A0}' | '\u{AD}' => {
                out.push_str(&format!("\\x{:02x}", character as u32))
            }
            _ => out.push(character),
        }
    }
    out.push(quote);
}

/// Writes a float as Python's `repr` does: the shortest digits that read back the same, with an exponent below 1e-4 and
/// from 1e16 on.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases: [(f64, &str); 10] = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456.789, "123456.789"),
        ];
        for (number, text) in cases {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn strings_are_written_as_python_writes_them() {
        let repr = |text| {
            let mut out = String::new();
            write_repr(&mut out, text);
            out
        };
        assert_eq!(repr("a'b"), r#""a'b""#);
        assert_eq!(repr(r#"a'b"c"#), r#"'a\'b"c'"#);
        assert_eq!(repr("é\n\x07\\"), r"'é\n\x07\\'");
        let json = |text, ascii| {
            let mut out = String::new();
            write_json_string(&mut out, text, ascii);
            out
        };
        assert_eq!(json("<é\u{7}\"😀>", false), "\"<é\\u0007\\\"😀>\"");
        assert_eq!(json("é😀", true), "\"\\u00e9\\ud83d\\ude00\"");
    }
}
