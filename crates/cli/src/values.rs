//! Values of flags: numbers and their ranges, with errors in a user's words. The parser adds the flag and the value as typed.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use verbatim_engine::KvType;

/// A count, or -1 for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub Option<usize>);

fn number(text: &str, wanted: &str, holds: impl Fn(f32) -> bool) -> Result<f32, String> {
    let value = text.trim().parse().map_err(|_| format!("this must be {wanted}"))?;
    if holds(value) { Ok(value) } else { Err(format!("this must be {wanted}")) }
}

/// A KV cache type, by its name.
pub fn kv_type() -> impl TypedValueParser<Value = KvType> {
    PossibleValuesParser::new(KvType::ALL.map(KvType::name)).try_map(|name| kv_type_of(&name))
}

/// The KV cache type of this name.
pub fn kv_type_of(name: &str) -> Result<KvType, String> {
    let found = KvType::ALL.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("{name} is not one of {}", KvType::ALL.map(KvType::name).join(", ")))
}

/// A number from 0 to 1.
pub fn probability(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))
}

/// A finite number that is not negative.
pub fn not_negative(text: &str) -> Result<f32, String> {
    number(text, "a number that is not negative", |value| value.is_finite() && value >= 0.0)
}

/// A finite number.
pub fn finite(text: &str) -> Result<f32, String> {
    number(text, "a number", f32::is_finite)
}

/// A number of at most 1; a negative one is off.
pub fn target(text: &str) -> Result<f32, String> {
    number(text, "a number of at most 1", |value| value.is_finite() && value <= 1.0)
}

/// The decay of a moving average.
pub fn decay(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 0.99", |value| (0.0..=0.99).contains(&value))
}

/// A temperature. As in llama.cpp, a negative one is greedy.
pub fn temperature(text: &str) -> Result<f32, String> {
    number(text, "a number; 0 or less is greedy", f32::is_finite).map(|value| value.max(0.0))
}

/// A penalty that divides logits; 0 is off, as 1 is.
pub fn repeat_penalty(text: &str) -> Result<f32, String> {
    let divides = |value: f32| value == 0.0 || value > 0.0 && value.is_finite() && (1.0 / value).is_finite();
    let value = number(text, "a number above 0; 0 or 1 is off", divides)?;
    Ok(if value == 0.0 { 1.0 } else { value })
}

/// A whole number from `min` on.
fn whole(text: &str, min: i64, wanted: &str) -> Result<i64, String> {
    let text = text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<i64>() {
        Ok(value) if value >= min => Ok(value),
        Err(_) if is_whole && !text.starts_with('-') => Err("this number is too large".to_owned()),
        _ => Err(format!("this must be {wanted}")),
    }
}

/// 0 or more.
pub fn count(text: &str) -> Result<usize, String> {
    whole(text, 0, "a whole number, 0 or more").and_then(fits)
}

/// 1 or more.
pub fn positive(text: &str) -> Result<usize, String> {
    whole(text, 1, "a whole number, 1 or more").and_then(fits)
}

/// How many tokens to look back: -1 is all.
pub fn last_n(text: &str) -> Result<Limit, String> {
    whole(text, -1, "-1 (all), 0 (off) or a number of tokens").and_then(limit)
}

/// How many tokens to think: -1 is any number.
pub fn budget(text: &str) -> Result<Limit, String> {
    whole(text, -1, "-1 (any number), 0 (none) or a number of tokens").and_then(limit)
}

/// How many tokens to generate. -1 is any number, and so is llama.cpp's -2, until the context is full.
pub fn max_tokens(text: &str) -> Result<Limit, String> {
    whole(text, -2, "a number of tokens, or -1 for any number").and_then(limit)
}

/// A context size. As in llama.cpp, 0 is the model's own.
pub fn context(text: &str) -> Result<Limit, String> {
    match whole(text, 0, "a number of tokens, or 0 for the model's own")? {
        0 => Ok(Limit(None)),
        tokens => limit(tokens),
    }
}

/// A number of threads. As in llama.cpp, -1 is the default.
pub fn threads(text: &str) -> Result<Limit, String> {
    let wanted = "a number of threads from 1, or -1 for the default";
    match whole(text, -1, wanted)? {
        0 => Err(format!("this must be {wanted}")),
        threads => limit(threads),
    }
}

/// K of top-k: as in llama.cpp, 0 and negative numbers keep all.
pub fn top_k(text: &str) -> Result<usize, String> {
    whole(text, i64::MIN, "a whole number; 0 or -1 keeps all").and_then(|k| fits(k.max(0)))
}

/// Whether mirostat 2.0 is on.
pub fn mirostat(text: &str) -> Result<bool, String> {
    match text.trim() {
        "0" => Ok(false),
        "2" => Ok(true),
        "1" => Err("mirostat 1.0 is not supported: use 2, or 0 for off".to_owned()),
        _ => Err("this must be 0 (off) or 2".to_owned()),
    }
}

fn fits(value: i64) -> Result<usize, String> {
    usize::try_from(value).map_err(|_| "this number is too large".to_owned())
}

fn limit(value: i64) -> Result<Limit, String> {
    if value < 0 { Ok(Limit(None)) } else { fits(value).map(|value| Limit(Some(value))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_and_explained() {
        assert_eq!((probability("0"), probability(" 0.5 "), probability("1")), (Ok(0.0), Ok(0.5), Ok(1.0)));
        for wrong in ["-0.1", "1.5", "nan", "inf", "x", ""] {
            assert_eq!(probability(wrong), Err("this must be a number from 0 to 1".to_owned()));
        }
        assert_eq!((temperature("-1"), temperature("0.8")), (Ok(0.0), Ok(0.8)));
        assert_eq!((repeat_penalty("0"), repeat_penalty("1.1")), (Ok(1.0), Ok(1.1)));
        assert!(repeat_penalty("-1").is_err() && repeat_penalty("1e-45").is_err());
        assert!(decay("1").is_err() && target("1.1").is_err() && finite("inf").is_err());
    }

    #[test]
    fn counts_may_have_no_limit() {
        assert_eq!((last_n("-1"), last_n("7")), (Ok(Limit(None)), Ok(Limit(Some(7)))));
        assert_eq!((max_tokens("-2"), max_tokens("0")), (Ok(Limit(None)), Ok(Limit(Some(0)))));
        assert_eq!((context("0"), context("64")), (Ok(Limit(None)), Ok(Limit(Some(64)))));
        assert_eq!((top_k("-7"), top_k("3")), (Ok(0), Ok(3)));
        for wrong in ["-2", "1.5", "many", "", "-"] {
            assert!(last_n(wrong).unwrap_err().starts_with("this must be -1 (all)"), "{wrong}");
        }
        assert_eq!(count("99999999999999999999").unwrap_err(), "this number is too large");
        assert!(threads("0").is_err() && positive("0").is_err() && mirostat("3").is_err());
    }
}
