//! Limits on what comes from outside.

use crate::error::GrammarError;

/// The longest text of a grammar. The largest schemas in public use have two megabytes.
const MAX_BYTES: usize = 4 << 20;
/// The most symbols of a Lark grammar: llguidance takes time with the square of the alternatives of a definition.
pub(crate) const MAX_LARK_SYMBOLS: usize = 20_000;
/// The most names of terminals in a Lark grammar: llguidance takes time with the cube of a chain of terminals.
pub(crate) const MAX_LARK_TERMINALS: usize = 3000;

pub(crate) fn check_size(kind: &'static str, bytes: usize) -> Result<(), GrammarError> {
    match bytes > MAX_BYTES {
        true => Err(GrammarError::TooLarge { kind, bytes, max_bytes: MAX_BYTES }),
        false => Ok(()),
    }
}
