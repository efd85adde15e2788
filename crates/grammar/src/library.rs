//! Errors and panics of llguidance.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The longest message of llguidance that is passed on.
const MAX_MESSAGE_CHARS: usize = 600;
/// The longest part of one of its lines, of which it may quote two.
const MAX_PART_CHARS: usize = 80;

/// Runs a step of llguidance. A grammar comes from outside, and must not end the program where llguidance asserts what
/// it should check. Nothing of a failed step may be used afterwards.
pub(crate) fn catch<T>(step: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(text.unwrap_or_else(|| "llguidance has panicked".to_owned()))
    })
}

/// What llguidance says, without what is meant for its own developers.
pub(crate) fn plain_message(message: &str) -> Cow<'_, str> {
    let ends = ["\n<non-verbose/>", "\n<backtrace>", "\n<state>"];
    let end = ends.iter().filter_map(|end| message.find(end)).min().unwrap_or(message.len());
    let message = message[..end].trim();
    if message.lines().all(|line| line.chars().count() <= 2 * MAX_PART_CHARS)
        && message.len() <= MAX_MESSAGE_CHARS
    {
        return Cow::Borrowed(message);
    }
    let message = message.lines().map(shortened).collect::<Vec<_>>().join("\n");
    match message.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => Cow::Owned(format!("{} ...", &message[..end])),
        None => Cow::Owned(message),
    }
}

/// A line without its middle, if it is long.
fn shortened(line: &str) -> String {
    let characters: Vec<char> = line.chars().collect();
    let part = |characters: &[char]| characters.iter().collect::<String>();
    match characters.len() > 2 * MAX_PART_CHARS {
        true => {
            let (head, tail) =
                (&characters[..MAX_PART_CHARS], &characters[characters.len() - MAX_PART_CHARS..]);
            format!("{} ... {}", part(head), part(tail))
        }
        false => line.to_owned(),
    }
}
