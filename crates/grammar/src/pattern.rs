//! Regular expressions in JSON schemas: from ECMA 262, which schemas use, to what the library enforces exactly.

use jsonschema_regex::{is_valid_ecma_regex, to_rust_regex};
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind};

/// A regular expression for the library.
pub(crate) struct Pattern {
    /// In the notation of Rust's `regex` crate.
    pub text: String,
    /// Whether it matches the same texts. Otherwise it matches fewer: none with U+0000.
    pub is_exact: bool,
}

/// Converts an expression.
///
/// In JSON strings, the library allows `\"` and `\\` wherever all control characters are possible, even if these two are
/// not. Without U+0000 not all are, so it is removed from every class that has it and not both `"` and `\`. Groups are
/// removed first, so that classes that the library would join are joined here.
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
    let mut is_exact = true;
    let hir = without_nul(parsed, &mut is_exact)?;
    Ok(Pattern { text: hir.to_string(), is_exact })
}

fn without_nul(hir: Hir, is_exact: &mut bool) -> Result<Hir, String> {
    let mut all = |parts: Vec<Hir>| -> Result<Vec<Hir>, String> {
        parts.into_iter().map(|part| without_nul(part, is_exact)).collect()
    };
    Ok(match hir.into_kind() {
        HirKind::Empty => Hir::empty(),
        HirKind::Look(look) => Hir::look(look),
        HirKind::Literal(literal) if literal.0.contains(&0) => {
            return Err("U+0000 is not supported".to_owned());
        }
        HirKind::Literal(literal) => Hir::literal(literal.0),
        HirKind::Class(class) => self::class(class, is_exact)?,
        HirKind::Repetition(mut repetition) => {
            repetition.sub = Box::new(without_nul(*repetition.sub, is_exact)?);
            Hir::repetition(repetition)
        }
        HirKind::Capture(capture) => without_nul(*capture.sub, is_exact)?,
        HirKind::Concat(parts) => Hir::concat(all(parts)?),
        // Classes are joined first.
        HirKind::Alternation(parts) => {
            let parts = all(parts)?;
            Hir::alternation(parts)
        }
    })
}

fn class(class: Class, is_exact: &mut bool) -> Result<Hir, String> {
    let Class::Unicode(mut class) = class else { return Err("it must match text, not bytes".to_owned()) };
    let has =
        |wanted: char| class.ranges().iter().any(|range| range.start() <= wanted && wanted <= range.end());
    if has('\0') && !(has('"') && has('\\')) {
        *is_exact = false;
        class.difference(&ClassUnicode::new([ClassUnicodeRange::new('\0', '\0')]));
    }
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
