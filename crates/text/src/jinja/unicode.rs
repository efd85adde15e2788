//! Python's classes of characters, and the case mappings that Rust lacks.

use regex_automata::meta::Regex;
use std::sync::LazyLock;

fn class(pattern: &str) -> Regex {
    Regex::new(&format!("^(?:{pattern})$")).expect("a class of characters")
}

static ALPHABETIC: LazyLock<Regex> = LazyLock::new(|| class(r"\p{L}"));
static UNPRINTABLE: LazyLock<Regex> = LazyLock::new(|| class(r"\p{C}|\p{Z}"));
static DECIMAL: LazyLock<Regex> = LazyLock::new(|| class(r"\p{Nd}"));
static NUMERIC: LazyLock<Regex> = LazyLock::new(|| class(r"\p{N}"));
static IDENTIFIER: LazyLock<Regex> = LazyLock::new(|| class(r"[\p{XID_Start}_]\p{XID_Continue}*"));
static UPPERCASE: LazyLock<Regex> = LazyLock::new(|| class(r"\p{Uppercase}"));
static LOWERCASE: LazyLock<Regex> = LazyLock::new(|| class(r"\p{Lowercase}"));
static TITLECASE: LazyLock<Regex> = LazyLock::new(|| class(r"\p{Lt}"));

fn is(class: &LazyLock<Regex>, character: char) -> bool {
    class.is_match(character.encode_utf8(&mut [0; 4]).as_bytes())
}

pub(crate) fn is_alphabetic(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_alphabetic() } else { is(&ALPHABETIC, character) }
}

pub(crate) fn is_printable(character: char) -> bool {
    match character {
        ' '..='~' => true,
        _ if character.is_ascii() => false,
        _ => !is(&UNPRINTABLE, character),
    }
}

pub(crate) fn is_decimal(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_digit() } else { is(&DECIMAL, character) }
}

/// Decimals, superscripts and circled digits.
pub(crate) fn is_digit(character: char) -> bool {
    let is_other = matches!(character,
        '²' | '³' | '¹' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}' | '\u{2460}'..='\u{2468}'
        | '\u{2474}'..='\u{247c}' | '\u{2488}'..='\u{2490}' | '\u{24ea}' | '\u{24f5}'..='\u{24fd}' | '\u{24ff}'
        | '\u{2776}'..='\u{277e}' | '\u{2780}'..='\u{2788}' | '\u{278a}'..='\u{2792}');
    is_other || is_decimal(character)
}

pub(crate) fn is_numeric(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_digit() } else { is(&NUMERIC, character) }
}

pub(crate) fn is_identifier(text: &str) -> bool {
    IDENTIFIER.is_match(text.as_bytes())
}

pub(crate) fn is_upper(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_uppercase() } else { is(&UPPERCASE, character) }
}

pub(crate) fn is_lower(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_lowercase() } else { is(&LOWERCASE, character) }
}

pub(crate) fn is_title(character: char) -> bool {
    !character.is_ascii() && is(&TITLECASE, character)
}

/// Appends the title case of a character.
pub(crate) fn push_title(out: &mut String, character: char) {
    const IOTA: char = '\u{399}';
    const COMBINING_IOTA: char = '\u{345}';
    match character {
        'Ǆ'..='ǆ' => out.push('ǅ'),
        'Ǉ'..='ǉ' => out.push('ǈ'),
        'Ǌ'..='ǌ' => out.push('ǋ'),
        'Ǳ'..='ǳ' => out.push('ǲ'),
        // Georgian has capitals, but no title case.
        '\u{10d0}'..='\u{10fa}' | '\u{10fd}'..='\u{10ff}' => out.push(character),
        '\u{1f80}'..='\u{1faf}' => out.extend(char::from_u32(character as u32 | 8)),
        '\u{1fb3}' | '\u{1fbc}' => out.push('\u{1fbc}'),
        '\u{1fc3}' | '\u{1fcc}' => out.push('\u{1fcc}'),
        '\u{1ff3}' | '\u{1ffc}' => out.push('\u{1ffc}'),
        _ => {
            let mut upper = character.to_uppercase();
            out.extend(upper.next());
            for rest in upper {
                match rest {
                    IOTA => out.push(COMBINING_IOTA),
                    _ => out.extend(rest.to_lowercase()),
                }
            }
        }
    }
}
