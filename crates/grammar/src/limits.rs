//! Limits on what comes from outside.

use crate::error::GrammarError;

/// The longest text of a grammar. The largest schemas in public use have two megabytes.
const MAX_BYTES: usize = 4 << 20;
/// The most lines of a Lark grammar. The library takes time with the square of a chain of definitions, each of which needs a
/// line.
const MAX_LARK_LINES: usize = 5000;

pub(crate) fn check_size(kind: &'static str, bytes: usize) -> Result<(), GrammarError> {
    match bytes > MAX_BYTES {
        true => Err(GrammarError::TooLarge { kind, bytes, max_bytes: MAX_BYTES }),
        false => Ok(()),
    }
}

pub(crate) fn check_lark_lines(lark: &str) -> Result<(), GrammarError> {
    match lark.lines().count() > MAX_LARK_LINES {
        true => Err(GrammarError::Lark {
            what: format!("it has more than {MAX_LARK_LINES} lines; write some definitions into others"),
        }),
        false => Ok(()),
    }
}
