//! Checks a regular expression before llguidance sees it.

use crate::error::GrammarError;
use crate::limits::check_size;

/// The regular expression as a Lark grammar.
///
/// It is parsed here and printed in its plainest form, so that nothing in it (flags, comments, slashes) can mean something
/// else in Lark.
pub(crate) fn to_lark(regex: &str) -> Result<String, GrammarError> {
    let error = |what: String| GrammarError::Regex { what };
    if regex.contains("<stop>") {
        return Err(error("a group must not have the name `stop`; rename it".to_owned()));
    }
    let parsed = regex_syntax::parse(regex).map_err(|syntax| error(describe(&syntax)))?;
    let plain = parsed.to_string();
    check_size("regular expression", plain.len())?;
    Ok(format!("start: /{}/", plain.replace('/', r"\/")))
}

/// What is wrong and where, without the expression itself, which may be long.
fn describe(error: &regex_syntax::Error) -> String {
    let (what, position) = match error {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), error.span().start),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), error.span().start),
        _ => return "it is malformed".to_owned(),
    };
    format!("line {}, column {}: {what}", position.line, position.column)
}
