//! What whole messages and streams have in common.

use crate::answer::Ending;
use serde_json::{Value, json};
use verbatim_engine::FinishReason;

/// An id of a tool call in Anthropic's form.
pub(crate) fn tool_id(id: &str) -> String {
    format!("toolu_{id}")
}

/// Why an answer ended, and the stop sequence that ended it.
pub(crate) fn stop_reason(ending: &Ending) -> (Value, Value) {
    match &ending.reason {
        _ if ending.calls_tools => ("tool_use".into(), Value::Null),
        FinishReason::EndOfText | FinishReason::Cancelled => ("end_turn".into(), Value::Null),
        FinishReason::StopString(text) => ("stop_sequence".into(), text.as_str().into()),
        FinishReason::MaxTokens | FinishReason::ContextFull => ("max_tokens".into(), Value::Null),
    }
}

/// The usage of a prompt. Tokens from the cache do not count as input.
pub(crate) fn usage(prompt_tokens: usize, cached_tokens: usize) -> Value {
    json!({
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": 0,
    })
}
