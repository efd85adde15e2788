//! Limits on what comes from outside.

use crate::error::GrammarError;

/// The longest text of a grammar. The largest schemas in public use have two megabytes.
const MAX_BYTES: usize = 4 << 20;

pub(crate) fn check_size(kind: &'static str, bytes: usize) -> Result<(), GrammarError> {
    match bytes > MAX_BYTES {
        true => Err(GrammarError::TooLarge { kind, bytes, max_bytes: MAX_BYTES }),
        false => Ok(()),
    }
}
