//! Formatting: `text % values`, and the fields and specifications of `str.format`.

use super::access::{attribute, item};
use super::context::RenderContext;
use super::error::{Result, python, type_error, unsupported, value_error};
use super::number::{parse_int, truncate};
use super::value::{Call, Value};
use super::write::{escape, escaped, push_code, repr, to_text};

/// The widest field, and the most digits.
const WIDTH_MAX: usize = 1 << 20;

// printf

/// Python's `format % values`, of text.
pub(crate) fn percent(context: &mut RenderContext, format: &Value, values: &Value) -> Result<Value> {
    let mut printf =
        Printf { context, values, next: 0, escapes: matches!(format, Value::Markup(_)), out: String::new() };
    let text = format.as_text().unwrap_or_default();
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        printf.context.steps(1 + at / 64)?;
        printf.out.push_str(&rest[..at]);
        rest = printf.field(&rest[at + 1..])?;
        let len = printf.out.len();
        printf.context.reserve(len)?;
    }
    printf.out.push_str(rest);
    let is_used_up = match values {
        Value::Tuple(items) => printf.next >= items.len(),
        Value::Dict(_) | Value::List(_) | Value::Range(_) | Value::Undefined(_) => true,
        _ => printf.next > 0,
    };
    if !is_used_up {
        return type_error("not all arguments converted during string formatting");
    }
    let out = printf.out;
    context.text_like(format, out)
}

struct Printf<'p> {
    context: &'p mut RenderContext,
    values: &'p Value,
    next: usize,
    /// Whether values are escaped, since the format is marked as safe.
    escapes: bool,
    out: String,
}

#[derive(Default)]
struct Flags {
    is_left: bool,
    has_sign: bool,
    has_space: bool,
    has_zeros: bool,
    is_alternative: bool,
}

impl Printf<'_> {
    /// Writes a field; returns what follows it.
    fn field<'t>(&mut self, mut rest: &'t str) -> Result<&'t str> {
        let mut named = None;
        if let Some(after) = rest.strip_prefix('(') {
            let mut nesting = 1;
            let end = after.find(|character| {
                nesting += i32::from(character == '(') - i32::from(character == ')');
                nesting == 0
            });
            let Some(end) = end else { return value_error("incomplete format key") };
            let key = self.context.text(after[..end].to_owned())?;
            let value = match self.values {
                Value::Dict(dict) => dict.get(&key)?.cloned(),
                _ => return type_error("format requires a mapping"),
            };
            let Some(value) = value else { return python("KeyError", after[..end].to_owned()) };
            named = Some(value);
            rest = &after[end + 1..];
        }
        let mut flags = Flags::default();
        while let Some(flag) = rest.chars().next().filter(|flag| "-+ 0#".contains(*flag)) {
            match flag {
                '-' => flags.is_left = true,
                '+' => flags.has_sign = true,
                ' ' => flags.has_space = true,
                '0' => flags.has_zeros = true,
                _ => flags.is_alternative = true,
            }
            rest = &rest[1..];
        }
        let (mut width, after) = self.number(rest)?;
        if let Some(negative) = width.filter(|width| *width < 0) {
            flags.is_left = true;
            width = Some(-negative);
        }
        rest = after;
        let mut precision = None;
        if let Some(after) = rest.strip_prefix('.') {
            let (number, after) = self.number(after)?;
            precision = Some(number.unwrap_or(0).max(0));
            rest = after;
        }
        rest = rest.strip_prefix(['h', 'l', 'L']).unwrap_or(rest);
        let Some(conversion) = rest.chars().next() else { return value_error("incomplete format") };
        let rest = &rest[conversion.len_utf8()..];
        let [width, precision] = [width, precision].map(|number| number.map(|number| number as usize));
        if width.max(precision).is_some_and(|number| number > WIDTH_MAX) {
            return unsupported(format!("a field of more than {WIDTH_MAX} characters"));
        }
        if conversion == '%' {
            self.out.push('%');
            return Ok(rest);
        }
        let value = match named {
            Some(value) => value,
            None => self.next_value()?,
        };
        let text = self.converted(conversion, &value, &flags, precision)?;
        let is_number = !matches!(conversion, 'c' | 's' | 'r' | 'a');
        let zeros = flags.has_zeros && !flags.is_left && is_number;
        let align = if flags.is_left {
            '<'
        } else if zeros {
            '='
        } else {
            '>'
        };
        pad(&mut self.out, &text, if zeros { '0' } else { ' ' }, align, width.unwrap_or(0));
        Ok(rest)
    }

    /// A width or precision, which `*` takes from the values.
    fn number<'t>(&mut self, text: &'t str) -> Result<(Option<i128>, &'t str)> {
        if let Some(rest) = text.strip_prefix('*') {
            let value = self.next_value()?;
            return match value.as_int() {
                Some(number) => Ok((Some(number.clamp(-i128::from(i32::MAX), i128::from(i32::MAX))), rest)),
                None => type_error("* wants int"),
            };
        }
        let len = text.bytes().take_while(u8::is_ascii_digit).count();
        Ok((text[..len].parse().ok(), &text[len..]))
    }

    fn next_value(&mut self) -> Result<Value> {
        let value = match self.values {
            Value::Tuple(items) => items.get(self.next).cloned(),
            value if self.next == 0 => Some(value.clone()),
            _ => None,
        };
        self.next += 1;
        match value {
            Some(value) => Ok(value),
            None => type_error("not enough arguments for format string"),
        }
    }

    fn converted(
        &mut self,
        conversion: char,
        value: &Value,
        flags: &Flags,
        precision: Option<usize>,
    ) -> Result<String> {
        let plus = if flags.has_sign {
            "+"
        } else if flags.has_space {
            " "
        } else {
            ""
        };
        match conversion {
            's' | 'r' | 'a' => {
                let text = match (conversion, self.escapes) {
                    ('s', true) => escaped(self.context, value)?,
                    ('s', false) => to_text(self.context, value)?,
                    ('r', escapes) => {
                        let text = repr(self.context, value)?;
                        if escapes { escape(&text) } else { text }
                    }
                    _ => ascii(&repr(self.context, value)?),
                };
                Ok(match precision {
                    Some(precision) => text.chars().take(precision).collect(),
                    None => text,
                })
            }
            'c' => character(value),
            'd' | 'i' | 'u' => {
                let whole = match value {
                    Value::Float(value) => truncate(*value)?.as_int(),
                    Value::Text(text) | Value::Markup(text) if self.escapes => {
                        parse_int(text, 10)?.and_then(|value| value.as_int())
                    }
                    _ => value.as_int(),
                };
                let Some(whole) = whole else { return number_required(conversion, value) };
                Ok(signed(whole < 0, plus) + &at_least(whole.unsigned_abs().to_string(), precision))
            }
            'x' | 'X' | 'o' => {
                let Some(whole) = value.as_int().filter(|_| !self.escapes) else {
                    return number_required(conversion, value);
                };
                let digits = at_least(radix(whole.unsigned_abs(), conversion), precision);
                let prefix = if flags.is_alternative { format!("0{conversion}") } else { String::new() };
                Ok(signed(whole < 0, plus) + &prefix + &digits)
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let number = match value {
                    Value::Float(value) => Some(*value),
                    _ => value.as_int().map(|value| value as f64),
                };
                let Some(number) = number else { return number_required(conversion, value) };
                let digits =
                    float_digits(number.abs(), conversion, precision.unwrap_or(6), flags.is_alternative);
                Ok(signed(number.is_sign_negative() && !number.is_nan(), plus) + &digits)
            }
            _ => value_error(format!("unsupported format character '{conversion}'")),
        }
    }
}

fn number_required<T>(conversion: char, value: &Value) -> Result<T> {
    type_error(format!("%{conversion} format: a number is required, not {}", value.type_name()))
}

fn signed(is_negative: bool, plus: &str) -> String {
    if is_negative { "-" } else { plus }.to_owned()
}

fn at_least(digits: String, precision: Option<usize>) -> String {
    let zeros = precision.unwrap_or(0).saturating_sub(digits.len());
    "0".repeat(zeros) + &digits
}

fn radix(value: u128, kind: char) -> String {
    match kind {
        'x' => format!("{value:x}"),
        'X' => format!("{value:X}"),
        'o' => format!("{value:o}"),
        _ => format!("{value:b}"),
    }
}

fn character(value: &Value) -> Result<String> {
    if let Some(text) = value.as_text() {
        return match text.chars().count() {
            1 => Ok(text.to_owned()),
            _ => type_error("%c requires int or char"),
        };
    }
    let Some(code) = value.as_int() else { return type_error("%c requires int or char") };
    match u32::try_from(code).ok().and_then(char::from_u32) {
        Some(character) => Ok(character.to_string()),
        None => python("OverflowError", "%c arg not in range(0x110000)"),
    }
}

/// Text with everything but ASCII as escapes.
fn ascii(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if character.is_ascii() { out.push(character) } else { push_code(&mut out, character) }
    }
    out
}

/// The digits of a float that is not negative, in the formats `e`, `f`, `g` and `%`.
fn float_digits(number: f64, kind: char, precision: usize, is_alternative: bool) -> String {
    let digits = match kind.to_ascii_lowercase() {
        _ if number.is_nan() => "nan".to_owned(),
        _ if number.is_infinite() => "inf".to_owned(),
        'e' => exponential(number, precision),
        'f' => format!("{number:.precision$}"),
        '%' => format!("{:.precision$}%", number * 100.0),
        _ => general(number, precision, is_alternative),
    };
    let needs_point = is_alternative && precision == 0 && matches!(kind, 'f' | 'F') && number.is_finite();
    let digits = if needs_point { digits + "." } else { digits };
    if kind.is_ascii_uppercase() { digits.to_ascii_uppercase() } else { digits }
}

fn exponential(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general(number: f64, precision: usize, keeps_zeros: bool) -> String {
    let precision = precision.max(1);
    let scientific = format!("{number:.*e}", precision - 1);
    let exponent: i32 =
        scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let trim = |digits: &str| match digits.contains('.') && !keeps_zeros {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if (-4..precision as i32).contains(&exponent) {
        return trim(&format!("{number:.*}", (precision as i32 - 1 - exponent) as usize));
    }
    let text = exponential(number, precision - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
    trim(mantissa) + "e" + exponent
}

/// Appends text in a field of this width. `=` fills behind the sign and the prefix.
fn pad(out: &mut String, text: &str, fill: char, align: char, width: usize) {
    let missing = width.saturating_sub(text.chars().count());
    let (before, after) = match align {
        '<' => (0, missing),
        '^' => (missing / 2, missing - missing / 2),
        _ => (missing, 0),
    };
    let sign_len = match align {
        '=' => {
            let sign = usize::from(text.starts_with(['+', '-', ' ']));
            let has_prefix =
                ["0x", "0X", "0o", "0b", "0B"].iter().any(|prefix| text[sign..].starts_with(prefix));
            sign + if has_prefix { 2 } else { 0 }
        }
        _ => 0,
    };
    out.push_str(&text[..sign_len]);
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(&text[sign_len..]);
    out.extend(std::iter::repeat_n(fill, after));
}

// str.format

/// Python's `text.format(...)`.
pub(crate) fn format(context: &mut RenderContext, format: &Value, arguments: &Call) -> Result<Value> {
    let mut fields =
        Fields { context, arguments, automatic: Some(0), escapes: matches!(format, Value::Markup(_)) };
    let text = fields.expand(format.as_text().unwrap_or_default(), 2)?;
    context.text_like(format, text)
}

struct Fields<'f> {
    context: &'f mut RenderContext,
    arguments: &'f Call,
    /// The number of the next field without a name; None once fields have numbers.
    automatic: Option<usize>,
    escapes: bool,
}

impl Fields<'_> {
    fn expand(&mut self, text: &str, depth: usize) -> Result<String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if rest.starts_with(brace) {
                out.push_str(brace);
                rest = &rest[1..];
                continue;
            }
            if brace == "}" {
                return value_error("Single '}' encountered in format string");
            }
            if depth == 0 {
                return value_error("Max string recursion exceeded");
            }
            let (field, after) = field_end(rest)?;
            rest = after;
            let field = self.field(field, depth)?;
            self.context.reserve(out.len() + field.len())?;
            out.push_str(&field);
        }
        out.push_str(rest);
        Ok(out)
    }

    fn field(&mut self, field: &str, depth: usize) -> Result<String> {
        let name_end = name_end(field);
        let (name, mut rest) = field.split_at(name_end);
        let mut conversion = None;
        if let Some(after) = rest.strip_prefix('!') {
            conversion = after.chars().next();
            let Some(found) = conversion else { return value_error("unmatched '{' in format spec") };
            rest = &after[found.len_utf8()..];
            if !rest.is_empty() && !rest.starts_with(':') {
                return value_error("expected ':' after conversion specifier");
            }
        }
        let name = if name.is_empty() || name.bytes().all(|byte| byte.is_ascii_digit()) {
            self.numbered(name)?
        } else {
            name.to_owned()
        };
        let value = self.value(&name)?;
        let spec = self.expand(rest.strip_prefix(':').unwrap_or(""), depth - 1)?;
        let text = match conversion {
            None => return self.formatted(&value, &spec),
            Some('s') => to_text(self.context, &value)?,
            Some('r') => repr(self.context, &value)?,
            Some('a') => ascii(&repr(self.context, &value)?),
            Some(other) => return value_error(format!("Unknown conversion specifier '{other}'")),
        };
        let value = self.context.text(text)?;
        self.formatted(&value, &spec)
    }

    fn formatted(&mut self, value: &Value, spec: &str) -> Result<String> {
        if !self.escapes {
            return format_value(self.context, value, spec);
        }
        if let Value::Markup(text) = value {
            return if spec.is_empty() {
                Ok(text.to_string())
            } else {
                value_error("Unsupported format specification for Markup.")
            };
        }
        Ok(escape(&format_value(self.context, value, spec)?))
    }

    fn numbered(&mut self, name: &str) -> Result<String> {
        match (self.automatic, name.is_empty()) {
            (Some(next), true) => {
                self.automatic = Some(next + 1);
                Ok(next.to_string())
            }
            (None, true) => {
                value_error("cannot switch from manual field specification to automatic field numbering")
            }
            (Some(next), false) if next > 0 => {
                value_error("cannot switch from automatic field numbering to manual field specification")
            }
            (_, false) => {
                self.automatic = None;
                Ok(name.to_owned())
            }
        }
    }

    /// The value that a field's name, with attributes and indices, stands for.
    fn value(&mut self, name: &str) -> Result<Value> {
        let first_end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut rest) = name.split_at(first_end);
        let by_number =
            first.parse::<usize>().ok().filter(|_| first.bytes().all(|byte| byte.is_ascii_digit()));
        let found = match by_number {
            Some(index) => self.arguments.positional.get(index).cloned(),
            None => self
                .arguments
                .named
                .iter()
                .find(|(key, _)| key.as_str() == first)
                .map(|(_, value)| value.clone()),
        };
        let Some(mut value) = found else {
            return match by_number {
                Some(index) => python("IndexError", format!("no argument {index} for the format string")),
                None => python("KeyError", format!("no argument `{first}` for the format string")),
            };
        };
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('.') {
                let end = after.find(['.', '[']).unwrap_or(after.len());
                if end == 0 {
                    return value_error("Empty attribute in format string");
                }
                value = attribute(self.context, &value, &after[..end])?;
                rest = &after[end..];
            } else if let Some(after) = rest.strip_prefix('[') {
                let Some(end) = after.find(']').filter(|end| *end > 0) else {
                    return value_error("Missing ']' or empty attribute in format string");
                };
                let key = match after[..end].parse::<i128>() {
                    Ok(index) if after[..end].bytes().all(|byte| byte.is_ascii_digit()) => Value::Int(index),
                    _ => self.context.text(after[..end].to_owned())?,
                };
                value = item(self.context, &value, &key)?;
                rest = &after[end + 1..];
            } else {
                return value_error("Only '.' or '[' may follow ']' in format field specifier");
            }
        }
        Ok(value)
    }
}

/// A field up to its closing brace, and what follows it.
fn field_end(text: &str) -> Result<(&str, &str)> {
    let mut nesting = 1;
    let mut in_index = false;
    for (at, character) in text.char_indices() {
        match character {
            '[' if nesting == 1 => in_index = true,
            ']' => in_index = false,
            '{' if !in_index => nesting += 1,
            '}' if !in_index => nesting -= 1,
            _ => {}
        }
        if nesting == 0 {
            return Ok((&text[..at], &text[at + 1..]));
        }
    }
    value_error("expected '}' before end of string")
}

/// Where the name of a field ends: at `!` or `:` outside of brackets.
fn name_end(field: &str) -> usize {
    let mut in_index = false;
    let end = field.find(|character| {
        match character {
            '[' => in_index = true,
            ']' => in_index = false,
            _ => {}
        }
        !in_index && matches!(character, '!' | ':')
    });
    end.unwrap_or(field.len())
}

/// Python's `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    is_alternative: bool,
    has_zeros: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn parse(text: &str) -> Result<Spec> {
        let mut spec = Spec::default();
        let is_align = |character: &char| matches!(character, '<' | '>' | '=' | '^');
        let characters: Vec<char> = text.chars().collect();
        let mut rest = &characters[..];
        match rest {
            [fill, align, ..] if is_align(align) => {
                (spec.fill, spec.align) = (Some(*fill), Some(*align));
                rest = &rest[2..];
            }
            [align, ..] if is_align(align) => {
                spec.align = Some(*align);
                rest = &rest[1..];
            }
            _ => {}
        }
        let take = |rest: &mut &[char], options: &str| {
            let found = rest.first().copied().filter(|first| options.contains(*first));
            *rest = &rest[usize::from(found.is_some())..];
            found
        };
        spec.sign = take(&mut rest, "+- ");
        spec.is_alternative = take(&mut rest, "#").is_some();
        spec.has_zeros = take(&mut rest, "0").is_some();
        spec.width = number(&mut rest)?.unwrap_or(0);
        spec.grouping = take(&mut rest, ",_");
        if take(&mut rest, ".").is_some() {
            spec.precision = number(&mut rest)?;
            if spec.precision.is_none() {
                return value_error("Format specifier missing precision");
            }
        }
        spec.kind = rest.first().copied();
        if rest.len() > 1 {
            return value_error("Invalid format specifier");
        }
        Ok(spec)
    }

    fn pad(&self, text: &str, default_align: char) -> String {
        let zero_fill = self.has_zeros && self.fill.is_none();
        let fill = self.fill.unwrap_or(if zero_fill { '0' } else { ' ' });
        let align =
            self.align.unwrap_or(if self.has_zeros && default_align == '>' { '=' } else { default_align });
        let mut out = String::new();
        pad(&mut out, text, fill, align, self.width);
        out
    }

    /// Digits in groups, with zeros in front if zeros fill the field.
    fn grouped(&self, sign: &str, digits: &str, every: usize) -> String {
        let Some(separator) = self.grouping else { return sign.to_owned() + digits };
        let whole_len = digits.bytes().take_while(u8::is_ascii_hexdigit).count();
        let (whole, rest) = digits.split_at(whole_len);
        let fills = self.has_zeros
            && self.align.is_none_or(|align| align == '=')
            && self.fill.is_none_or(|fill| fill == '0');
        let mut whole = whole.to_owned();
        loop {
            let grouped = group(&whole, separator, every);
            let len = sign.len() + grouped.len() + rest.len();
            if !fills || len >= self.width {
                return sign.to_owned() + &grouped + rest;
            }
            whole.insert(0, '0');
        }
    }
}

fn group(digits: &str, separator: char, every: usize) -> String {
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(every) {
            out.push(separator);
        }
        out.push(digit);
    }
    out
}

fn number(rest: &mut &[char]) -> Result<Option<usize>> {
    let len = rest.iter().take_while(|character| character.is_ascii_digit()).count();
    let digits: String = rest[..len].iter().collect();
    *rest = &rest[len..];
    match digits.parse() {
        Ok(number) if number <= WIDTH_MAX => Ok(Some(number)),
        _ if digits.is_empty() => Ok(None),
        _ => unsupported(format!("a field of more than {WIDTH_MAX} characters")),
    }
}

/// Python's `format(value, spec)`.
fn format_value(context: &mut RenderContext, value: &Value, spec: &str) -> Result<String> {
    if spec.is_empty() {
        return to_text(context, value);
    }
    let is_formattable =
        matches!(value, Value::Text(_) | Value::Markup(_) | Value::Float(_)) || value.as_int().is_some();
    if !is_formattable {
        return type_error(format!("unsupported format string passed to {}.__format__", value.type_name()));
    }
    let spec = Spec::parse(spec)?;
    context.reserve(4 * spec.width.max(spec.precision.unwrap_or(0)))?;
    match value {
        Value::Float(number) => format_float(*number, &spec),
        _ => match (value.as_text(), value.as_int()) {
            (Some(text), _) => format_text(text, &spec),
            (_, Some(int)) => format_int(int, &spec),
            _ => Ok(String::new()),
        },
    }
}

fn format_text(text: &str, spec: &Spec) -> Result<String> {
    if spec.kind.is_some_and(|kind| kind != 's') {
        return value_error("unknown format code for object of type 'str'");
    }
    if spec.sign.is_some() || spec.is_alternative || spec.grouping.is_some() || spec.align == Some('=') {
        return value_error("sign, '#', grouping and '=' are not allowed in string format specifier");
    }
    let text: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
    Ok(spec.pad(&text, '<'))
}

fn plus(spec: &Spec) -> &'static str {
    match spec.sign {
        Some('+') => "+",
        Some(' ') => " ",
        _ => "",
    }
}

fn format_int(int: i128, spec: &Spec) -> Result<String> {
    let kind = spec.kind.unwrap_or('d');
    if matches!(kind, 'e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') {
        return format_float(int as f64, spec);
    }
    if spec.precision.is_some() {
        return value_error("Precision not allowed in integer format specifier");
    }
    let sign = signed(int < 0, plus(spec));
    let (prefix, digits, every) = match kind {
        'd' | 'n' => ("", int.unsigned_abs().to_string(), 3),
        'x' => ("0x", radix(int.unsigned_abs(), 'x'), 4),
        'X' => ("0X", radix(int.unsigned_abs(), 'X'), 4),
        'o' => ("0o", radix(int.unsigned_abs(), 'o'), 4),
        'b' => ("0b", radix(int.unsigned_abs(), 'b'), 4),
        'c' if spec.sign.is_none() && !spec.is_alternative && spec.grouping.is_none() => {
            return Ok(spec.pad(&character(&Value::Int(int))?, '<'));
        }
        _ => return value_error(format!("Unknown format code '{kind}' for object of type 'int'")),
    };
    if (spec.grouping == Some(',') && kind != 'd') || (spec.grouping.is_some() && kind == 'n') {
        return value_error(format!("Cannot specify grouping with '{kind}'."));
    }
    let prefix = if spec.is_alternative { prefix } else { "" };
    Ok(spec.pad(&spec.grouped(&(sign + prefix), &digits, every), '>'))
}

fn format_float(number: f64, spec: &Spec) -> Result<String> {
    let magnitude = number.abs();
    let digits = match (spec.kind, spec.precision) {
        (None, None) => super::write::float(magnitude),
        (None, Some(precision)) => {
            let digits = general(magnitude, precision, spec.is_alternative);
            // At least one digit stands behind the point, which the exponent of `g` leaves one place less for.
            let scientific = exponential(magnitude, precision.max(1) - 1);
            let exponent: i32 =
                scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
            match magnitude.is_finite() && !digits.contains(['.', 'e']) {
                true if exponent + 1 >= precision.max(1) as i32 => {
                    let text = exponential(magnitude, precision.max(1) - 1);
                    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
                    let mantissa = if mantissa.contains('.') {
                        mantissa.trim_end_matches('0').trim_end_matches('.')
                    } else {
                        mantissa
                    };
                    format!("{mantissa}e{exponent}")
                }
                true => digits + ".0",
                false => digits,
            }
        }
        (Some(kind @ ('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%')), precision) => {
            float_digits(magnitude, kind, precision.unwrap_or(6), spec.is_alternative)
        }
        (Some('n'), precision) => float_digits(magnitude, 'g', precision.unwrap_or(6), spec.is_alternative),
        (Some(kind), _) => {
            return value_error(format!("Unknown format code '{kind}' for object of type 'float'"));
        }
    };
    if spec.kind == Some('n') && spec.grouping.is_some() {
        return value_error("Cannot specify grouping with 'n'.");
    }
    let sign = signed(number.is_sign_negative() && !number.is_nan(), plus(spec));
    Ok(spec.pad(&spec.grouped(&sign, &digits, 3), '>'))
}
