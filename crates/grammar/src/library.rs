//! Errors and panics of the constraint library.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The longest message of the library that is passed on.
const MAX_MESSAGE_CHARS: usize = 600;

/// Runs a step of the library. A grammar comes from outside, and must not end the program where the library asserts what
/// it should check. Nothing of a failed step may be used afterwards.
pub(crate) fn catch<T>(step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(text.unwrap_or_else(|| "the constraint library has panicked".to_owned()))
    })
}

/// What the library says, without what is meant for its own developers.
pub(crate) fn plain_message(message: &str) -> Cow<'_, str> {
    let ends = ["\n<non-verbose/>", "\n<backtrace>", "\n<state>"];
    let end = ends.iter().filter_map(|end| message.find(end)).min().unwrap_or(message.len());
    let message = message[..end].trim();
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => Cow::Owned(format!("{} ...", &message[..end])),
        None => Cow::Borrowed(message),
    }
}
