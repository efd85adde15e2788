//! Numbers in JSON schemas that llguidance would change, or that take it too long.

use serde_json::{Map, Number, Value};

/// The largest `multipleOf`, without its decimal point: its automaton has a state for each remainder.
const MAX_MULTIPLE: u64 = 10_000;
/// llguidance expands bounds into ranges up to the next power of ten, as 64-bit integers.
const MAX_BOUND: f64 = 1e18;
/// Up to here, adding 1 to a 64-bit float is exact. llguidance does so with exclusive bounds.
const MAX_EXCLUSIVE: f64 = (1_u64 << 53) as f64;

/// Checks all numbers of a JSON text: that reading them does not change them.
///
/// # Errors
/// The first one that cannot be represented.
pub(crate) fn check_literals(json: &str) -> Result<(), String> {
    let mut rest = json;
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
    while let Some(start) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        rest = &rest[start..];
        let length = match rest.starts_with('"') {
            true => string_length(rest),
            false => rest.find(|c| !is_number(c)).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        if let Ok(number) = token.parse::<Number>()
            && decimal(token) != decimal(&number.to_string())
        {
            return Err(format!(
                "the number {token:.40} cannot be represented exactly, only as {number}; use fewer digits"
            ));
        }
    }
    Ok(())
}

/// The length of the JSON string that a text starts with.
pub(crate) fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

/// A number's digits without zeros at either end, and the power of ten that they are multiplied by: equal for equal
/// numbers, up to the sign.
fn decimal(literal: &str) -> (String, i64) {
    let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
    let significant = digits.trim_end_matches('0');
    let zeros = (digits.len() - significant.len()) as i64;
    let significant = significant.trim_start_matches('0').to_owned();
    match significant.is_empty() {
        true => (significant, 0),
        // An exponent that is too large for 64 bits cannot be read as a number.
        false => {
            let exponent = exponent.parse::<i64>().unwrap_or(i64::MAX / 2);
            (significant, exponent.saturating_sub(fraction.len() as i64).saturating_add(zeros))
        }
    }
}

/// Checks the numbers within a constant.
pub(crate) fn check_constant(value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) if !is_constant_exact(number) => Err(format!(
            "the constant {number} cannot be represented exactly as a 64-bit float; use fewer digits"
        )),
        Value::Array(values) => values.iter().try_for_each(check_constant),
        Value::Object(members) => members.values().try_for_each(check_constant),
        _ => Ok(()),
    }
}

/// Checks the keywords of a schema that have numbers.
pub(crate) fn check_keywords(members: &Map<String, Value>) -> Result<(), String> {
    if let Some(Value::Number(multiple)) = members.get("multipleOf") {
        let text = multiple.to_string();
        let digits: String = text.split('e').next().unwrap_or_default().replace('.', "");
        let digits = digits.trim_matches('0');
        if digits.parse::<u64>().is_ok_and(|digits| digits > MAX_MULTIPLE) {
            return Err(format!(
                "`multipleOf` must not have a value of more than {MAX_MULTIPLE} without its point: {text}"
            ));
        }
    }
    let is_integer = members.get("type").is_some_and(|kind| kind == "integer");
    for (key, max) in [
        ("minimum", MAX_BOUND),
        ("maximum", MAX_BOUND),
        ("exclusiveMinimum", MAX_EXCLUSIVE),
        ("exclusiveMaximum", MAX_EXCLUSIVE),
    ] {
        let Some(Value::Number(bound)) = members.get(key) else { continue };
        // Common, and computed exactly.
        let is_largest = is_integer && key == "maximum" && bound.as_i64() == Some(i64::MAX);
        let is_possible = is_bound_exact(bound) && bound.as_f64().is_some_and(|bound| bound.abs() < max);
        if !is_possible && !is_largest {
            return Err(format!(
                "`{key}` must be between -{max:e} and {max:e}, and exact as a 64-bit float: {bound}; remove it, or use a \
                 smaller one"
            ));
        }
    }
    Ok(())
}

/// Whether llguidance, which has all numbers as 64-bit floats, allows this constant. It writes those that are 64-bit
/// integers as such, and others with the fewest digits that mean the same float.
fn is_constant_exact(number: &Number) -> bool {
    let float = number.as_f64().unwrap_or(f64::NAN);
    match number.as_i64() {
        Some(integer) => integer != i64::MIN && float as i128 == i128::from(integer),
        None => number.is_f64() || float.to_string() == number.to_string(),
    }
}

/// Whether a bound stays the same both as an integer and as the fewest digits that mean the same float: which of them
/// llguidance takes depends on the type.
fn is_bound_exact(number: &Number) -> bool {
    let float = number.as_f64().unwrap_or(f64::NAN);
    let whole = float as i128;
    let is_same = number.as_i128().is_none_or(|integer| integer == whole);
    float.fract() != 0.0 || float == 0.0 || is_same && float.to_string() == whole.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_exact_or_refused() {
        for literal in [
            "0",
            "-0",
            "1",
            "-1.50",
            "1e3",
            "0.1",
            "1E+2",
            "1.0e-7",
            "100000000000000000000",
            "18446744073709551615",
            "1e308",
            "0.30000000000000004",
            "-9223372036854775808",
            "5e-324",
            "0e999999999999999999999",
        ] {
            assert!(
                check_literals(&format!("{{\"a 1.23456789012345678901\\\"\": [{literal}]}}")).is_ok(),
                "{literal}"
            );
        }
        for literal in [
            "12345678901234567890123",
            "-12345678901234567890123",
            "18446744073709551617",
            "0.12345678901234567890123",
            "3.141592653589793238",
            "1e-400",
        ] {
            let error = check_literals(&format!("[1, \"\\\\\", {literal}]")).unwrap_err();
            assert!(error.contains(literal), "{error}");
        }
    }
}
