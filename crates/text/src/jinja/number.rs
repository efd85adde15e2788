//! Numbers: Python's arithmetic, conversions and rounding.

use super::error::{Result, python, type_error, unsupported};
use super::value::Value;

/// An integer or a float.
#[derive(Debug, Clone, Copy)]
enum Number {
    Int(i128),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Float(value) => Some(Number::Float(*value)),
        _ => value.as_int().map(Number::Int),
    }
}

fn big<T>() -> Result<T> {
    unsupported("an integer of more than 128 bits")
}

fn int(value: Option<i128>) -> Result<Value> {
    value.map_or_else(big, |value| Ok(Value::Int(value)))
}

fn division_by_zero<T>() -> Result<T> {
    python("ZeroDivisionError", "division by zero")
}

/// `left operator right` of two numbers; None where one is not a number.
pub(crate) fn arithmetic(operator: &str, left: &Value, right: &Value) -> Option<Result<Value>> {
    let (left, right) = (number(left)?, number(right)?);
    if let (Number::Int(left), Number::Int(right)) = (left, right) {
        return Some(int_arithmetic(operator, left, right));
    }
    let float = |number| match number {
        Number::Int(value) => value as f64,
        Number::Float(value) => value,
    };
    Some(float_arithmetic(operator, float(left), float(right)))
}

fn int_arithmetic(operator: &str, left: i128, right: i128) -> Result<Value> {
    match operator {
        "+" => int(left.checked_add(right)),
        "-" => int(left.checked_sub(right)),
        "*" => int(left.checked_mul(right)),
        "/" | "//" | "%" if right == 0 => division_by_zero(),
        "/" => Ok(Value::Float(true_division(left, right))),
        "//" => int(left.checked_div(right).map(|quotient| {
            let is_inexact = left % right != 0;
            quotient - i128::from(is_inexact && ((left < 0) != (right < 0)))
        })),
        "%" => int(left
            .checked_rem(right)
            .map(|rest| if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest })),
        _ => int_power(left, right),
    }
}

/// The quotient, rounded once.
fn true_division(left: i128, right: i128) -> f64 {
    const EXACT: i128 = 1 << 53;
    if left.abs() <= EXACT && right.abs() <= EXACT {
        return left as f64 / right as f64;
    }
    // Exact whole quotients are rounded once; others lose a bit at most, far below what templates print.
    match left.checked_rem(right) {
        Some(0) => (left / right) as f64,
        _ => left as f64 / right as f64,
    }
}

fn int_power(base: i128, exponent: i128) -> Result<Value> {
    if exponent < 0 {
        return match base {
            0 => python("ZeroDivisionError", "0.0 cannot be raised to a negative power"),
            _ => float_power(base as f64, exponent as f64),
        };
    }
    match (base, u32::try_from(exponent)) {
        (0 | 1, _) => Ok(Value::Int(if exponent == 0 { 1 } else { base })),
        (-1, _) => Ok(Value::Int(if exponent % 2 == 0 { 1 } else { -1 })),
        (_, Ok(exponent)) => int(base.checked_pow(exponent)),
        _ => big(),
    }
}

fn float_arithmetic(operator: &str, left: f64, right: f64) -> Result<Value> {
    Ok(Value::Float(match operator {
        "+" => left + right,
        "-" => left - right,
        "*" => left * right,
        "/" | "//" | "%" if right == 0.0 => return division_by_zero(),
        "/" => left / right,
        "//" => floor_division(left, right).0,
        "%" => floor_division(left, right).1,
        _ => return float_power(left, right),
    }))
}

/// CPython's `float_divmod`.
fn floor_division(left: f64, right: f64) -> (f64, f64) {
    let mut rest = left % right;
    let mut quotient = (left - rest) / right;
    if rest != 0.0 {
        if (right < 0.0) != (rest < 0.0) {
            rest += right;
            quotient -= 1.0;
        }
    } else {
        rest = 0.0_f64.copysign(right);
    }
    let floor = if quotient != 0.0 {
        let floor = quotient.floor();
        if quotient - floor > 0.5 { floor + 1.0 } else { floor }
    } else {
        0.0_f64.copysign(left / right)
    };
    (floor, rest)
}

/// The largest exponent of a float. Larger ones overflow unless the base is next to 1.
const POWER_MAX: f64 = 2048.0;

/// A power in double-double arithmetic, which rounds it once. Libraries differ in the last bit of `pow`.
fn whole_power(base: f64, exponent: i32) -> f64 {
    // The product of two sums of a value and its rounding error.
    let multiply = |(high, low): (f64, f64), (other_high, other_low): (f64, f64)| {
        let product = high * other_high;
        let error = libm::fma(high, other_high, -product) + (high * other_low + low * other_high);
        let sum = product + error;
        if sum.is_finite() { (sum, error - (sum - product)) } else { (product, 0.0) }
    };
    let mut power = (1.0, 0.0);
    for bit in (0..32 - exponent.unsigned_abs().leading_zeros()).rev() {
        power = multiply(power, power);
        if exponent.unsigned_abs() >> bit & 1 == 1 {
            power = multiply(power, (base, 0.0));
        }
    }
    if exponent >= 0 {
        return power.0;
    }
    let inverse = 1.0 / power.0;
    match inverse.is_normal() && power.0.is_finite() {
        true => inverse + inverse * (libm::fma(-inverse, power.0, 1.0) - inverse * power.1),
        false => inverse,
    }
}

fn float_power(base: f64, exponent: f64) -> Result<Value> {
    if base == 0.0 && exponent < 0.0 {
        return python("ZeroDivisionError", "0.0 cannot be raised to a negative power");
    }
    if base < 0.0 && exponent.is_finite() && exponent.fract() != 0.0 && base.is_finite() {
        return unsupported("complex numbers, which a power of a negative number is");
    }
    let power = match exponent {
        0.5 if base.is_finite() => base.sqrt(),
        _ if !(base.is_finite() && exponent.is_finite()) || base == 1.0 => libm::pow(base, exponent),
        _ if exponent.fract() != 0.0 || exponent.abs() > POWER_MAX => {
            return unsupported("a power of floats with a fraction, or a huge number, as the exponent");
        }
        _ => whole_power(base, exponent as i32),
    };
    match power.is_infinite() && base.is_finite() && exponent.is_finite() {
        true => python("OverflowError", "the result of a power is too large"),
        false => Ok(Value::Float(power)),
    }
}

/// `-value` of a number.
pub(crate) fn negative(value: &Value) -> Result<Value> {
    match number(value) {
        Some(Number::Int(value)) => int(value.checked_neg()),
        Some(Number::Float(value)) => Ok(Value::Float(-value)),
        None => type_error(format!("bad operand type for unary -: '{}'", value.type_name())),
    }
}

/// `+value` of a number.
pub(crate) fn positive(value: &Value) -> Result<Value> {
    match number(value) {
        Some(Number::Int(value)) => Ok(Value::Int(value)),
        Some(Number::Float(value)) => Ok(Value::Float(value)),
        None => type_error(format!("bad operand type for unary +: '{}'", value.type_name())),
    }
}

/// Python's `abs(value)`.
pub(crate) fn absolute(value: &Value) -> Result<Value> {
    match number(value) {
        Some(Number::Int(value)) => int(value.checked_abs()),
        Some(Number::Float(value)) => Ok(Value::Float(value.abs())),
        None => type_error(format!("bad operand type for abs(): '{}'", value.type_name())),
    }
}

/// Python's `int(float)`.
pub(crate) fn truncate(value: f64) -> Result<Value> {
    const INTS_END: f64 = 1.7e38;
    match value {
        _ if value.is_nan() => python("ValueError", "cannot convert float NaN to integer"),
        _ if value.is_infinite() => python("OverflowError", "cannot convert float infinity to integer"),
        _ if value.abs() >= INTS_END => big(),
        _ => Ok(Value::Int(value as i128)),
    }
}

/// Python's `int(text, base)`: None if the text is not such an integer.
pub(crate) fn parse_int(text: &str, base: i128) -> Result<Option<Value>> {
    let text = text.trim_matches(super::lexer::is_space);
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefixed = |letter: char| {
        digits.strip_prefix('0').and_then(|rest| rest.strip_prefix([letter, letter.to_ascii_uppercase()]))
    };
    let (radix, digits) = match base {
        0 => match [('x', 16), ('o', 8), ('b', 2)]
            .into_iter()
            .find_map(|(letter, radix)| Some((radix, prefixed(letter)?)))
        {
            Some((radix, digits)) => (radix, digits.strip_prefix('_').unwrap_or(digits)),
            None if digits.starts_with('0') && digits.bytes().any(|byte| !matches!(byte, b'0' | b'_')) => {
                return Ok(None);
            }
            None => (10, digits),
        },
        2 | 8 | 16 => {
            let letter = match base {
                2 => 'b',
                8 => 'o',
                _ => 'x',
            };
            let digits = prefixed(letter).map_or(digits, |digits| digits.strip_prefix('_').unwrap_or(digits));
            (base as u32, digits)
        }
        3..=36 => (base as u32, digits),
        _ => return Ok(None),
    };
    let is_valid = !digits.is_empty()
        && !digits.starts_with('_')
        && !digits.ends_with('_')
        && !digits.contains("__")
        && digits.chars().all(|digit| digit == '_' || digit.is_digit(radix));
    if !is_valid {
        return Ok(None);
    }
    let digits = digits.replace('_', "");
    let digits = if is_negative { format!("-{digits}") } else { digits };
    i128::from_str_radix(&digits, radix).map_or_else(|_| big(), |value| Ok(Some(Value::Int(value))))
}

/// Python's `float(text)`: None if the text is not a number.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(super::lexer::is_space);
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let has_stray = bytes
        .iter()
        .enumerate()
        .any(|(at, byte)| *byte == b'_' && !(at > 0 && is_digit(at - 1) && is_digit(at + 1)));
    let text = text.replace('_', "");
    let name = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let is_number = name.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    if has_stray || !(is_number || matches!(&name[..], "inf" | "infinity" | "nan")) {
        return None;
    }
    text.parse().ok()
}

/// Python's `round(value, digits)` of a float: to the nearest decimal, ties to even.
pub(crate) fn round_float(value: f64, digits: i128) -> f64 {
    if !value.is_finite() || digits > 323 {
        return value;
    }
    if digits >= 0 {
        return format!("{value:.*}", digits as usize).parse().unwrap_or(value);
    }
    if digits < -308 {
        return 0.0_f64.copysign(value);
    }
    // The digits before the point, rounded at the place by their exact decimal.
    let scientific = format!("{value:e}");
    let exponent: i128 =
        scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    match usize::try_from(exponent + digits) {
        Ok(places) => format!("{value:.places$e}").parse().unwrap_or(value),
        Err(_) => {
            let unit = libm::pow(10.0, -digits as f64);
            if value.abs() > unit / 2.0 { unit.copysign(value) } else { 0.0_f64.copysign(value) }
        }
    }
}

/// Python's `round(value, digits)` of an integer.
pub(crate) fn round_int(value: i128, digits: i128) -> Result<Value> {
    if digits >= 0 {
        return Ok(Value::Int(value));
    }
    let Some(unit) = u32::try_from(-digits).ok().and_then(|digits| 10_i128.checked_pow(digits)) else {
        return Ok(Value::Int(0));
    };
    let floor = value.div_euclid(unit);
    let rest = value.rem_euclid(unit);
    let up = rest * 2 > unit || (rest * 2 == unit && floor % 2 != 0);
    int((floor + i128::from(up)).checked_mul(unit))
}
