//! Regular expressions in JSON schemas: from ECMA 262, which schemas use, to what llguidance enforces exactly.

use jsonschema_regex::{is_valid_ecma_regex, to_rust_regex};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

/// A regular expression for llguidance.
pub(crate) struct Pattern {
    /// In the notation of Rust's `regex` crate.
    pub text: String,
    /// Whether it matches the same texts. Otherwise it matches fewer: none with U+0000.
    pub is_exact: bool,
    /// Whether a part of it matches only characters for which JSON has no escape but `\u0001` and the like.
    pub needs_unicode_escape: bool,
}

/// Whether a character has no spelling in JSON but `\u0001` and the like. llguidance does not write U+007F as it is.
pub(crate) fn needs_unicode_escape(c: char) -> bool {
    c.is_ascii_control() && !matches!(c, '\u{8}' | '\t' | '\n' | '\u{C}' | '\r')
}

/// Converts an expression.
///
/// In JSON strings, llguidance allows `\"` and `\\` wherever all control characters are possible, even if these two are
/// not. Without U+0000 not all are, so it is removed from every class that has it and not both `"` and `\`. Groups are
/// removed first, so that classes that llguidance would join are joined here.
///
/// # Errors
/// What is wrong with the expression.
pub(crate) fn convert(ecma: &str) -> Result<Pattern, String> {
    if !is_valid_ecma_regex(ecma) {
        return Err("it is not a regular expression of ECMA 262; look for `*`, `+`, `?` or `{n}` with nothing before \
                    it to repeat, `]`, `{` or `}` without a `\\` before it, and extensions such as `(?i)` or `[:alpha:]`"
            .to_owned());
    }
    let rust = to_rust_regex(ecma).map_err(|()| "it uses something that is not supported".to_owned())?;
    let parsed = regex_syntax::parse(&rust).map_err(|error| match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "it uses something that is not supported".to_owned(),
    })?;
    let mut pattern = Pattern { text: String::new(), is_exact: true, needs_unicode_escape: false };
    pattern.text = without_nul(parsed, &mut pattern)?.to_string();
    Ok(pattern)
}

/// The expression without U+0000. Sets the flags of `pattern`.
fn without_nul(hir: Hir, pattern: &mut Pattern) -> Result<Hir, String> {
    let mut all = |parts: Vec<Hir>| -> Result<Vec<Hir>, String> {
        parts.into_iter().map(|part| without_nul(part, pattern)).collect()
    };
    Ok(match hir.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Literal(literal) if literal.0.contains(&0) => {
            return Err("U+0000 is not supported".to_owned());
        }
        HirKind::Literal(literal) => {
            pattern.needs_unicode_escape |=
                literal.0.iter().any(|byte| needs_unicode_escape(char::from(*byte)));
            Hir::literal(literal.0)
        }
        HirKind::Class(class) => self::class(class, pattern)?,
        HirKind::Repetition(mut repetition) => {
            repetition.sub = Box::new(without_nul(*repetition.sub, pattern)?);
            Hir::repetition(repetition)
        }
        HirKind::Capture(capture) => without_nul(*capture.sub, pattern)?,
        HirKind::Concat(parts) => Hir::concat(all(parts)?),
        // Classes are joined first.
        HirKind::Alternation(parts) => {
            let parts = all(parts)?;
            Hir::alternation(parts)
        }
    })
}

fn class(class: Class, pattern: &mut Pattern) -> Result<Hir, String> {
    let Class::Unicode(mut class) = class else { return Err("it must match text, not bytes".to_owned()) };
    let has =
        |wanted: char| class.ranges().iter().any(|range| range.start() <= wanted && wanted <= range.end());
    if has('\0') && !(has('"') && has('\\')) {
        pattern.is_exact = false;
        class.difference(&ClassUnicode::new([ClassUnicodeRange::new('\0', '\0')]));
    }
    pattern.needs_unicode_escape |= class
        .ranges()
        .iter()
        .all(|range| range.end().is_ascii() && (range.start()..=range.end()).all(needs_unicode_escape));
    Ok(Hir::class(Class::Unicode(class)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_classes_that_would_be_quoted_wrong_change() {
        for (ecma, is_exact) in [
            ("^[a-z]+$", true),
            (".", true),
            (r"[^\n]", true),
            (r"[\x01-\x1f]", true),
            (r#"[^"]"#, false),
            (r"[^\\]", false),
            (r"\p{Cc}", false),
            (r"a(b|[\x00-\x20])*", false),
        ] {
            assert_eq!(convert(ecma).unwrap().is_exact, is_exact, "{ecma}");
        }
        assert_eq!(
            convert(r#"^(?<name>[^"])$"#).unwrap().text,
            convert(r"^[\x01-!#-\u{10FFFF}]$").unwrap().text
        );
    }
}
