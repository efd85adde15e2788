//! The object of a response.

use crate::answer::{Ending, Piece};
use crate::stats::timings;
use crate::tools::parser::ToolCall;
use serde_json::{Map, Value, json};
use verbatim_engine::FinishReason;

/// What all states of a response have in common.
#[derive(Debug)]
pub(crate) struct Head {
    id: String,
    created: i64,
    model: String,
    echo: Map<String, Value>,
}

impl Head {
    pub(crate) fn new(model: &str, echo: Map<String, Value>) -> Head {
        Head {
            id: new_id("resp"),
            created: jiff::Timestamp::now().as_second(),
            model: model.to_owned(),
            echo,
        }
    }

    /// The response with this status and output.
    pub(crate) fn object(&self, status: &str, output: &[Value]) -> Value {
        let echo = |name: &str, other: Value| self.echo.get(name).cloned().unwrap_or(other);
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": null,
            "incomplete_details": null,
            "instructions": echo("instructions", Value::Null),
            "max_output_tokens": echo("max_output_tokens", Value::Null),
            "metadata": echo("metadata", json!({})),
            "model": self.model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "store": false,
            "text": echo("text", json!({ "format": { "type": "text" } })),
            "tool_choice": echo("tool_choice", "auto".into()),
            "tools": echo("tools", json!([])),
            "truncation": "disabled",
            "usage": null,
        })
    }

    /// The whole response.
    pub(crate) fn complete(&self, output: &[Value], ending: &Ending) -> Value {
        let is_cut = matches!(ending.reason, FinishReason::MaxTokens | FinishReason::ContextFull);
        let mut object = self.object(if is_cut { "incomplete" } else { "completed" }, output);
        if is_cut {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let stats = &ending.stats;
        object["usage"] = json!({
            "input_tokens": stats.prompt_tokens,
            "input_tokens_details": { "cached_tokens": stats.cached_tokens },
            "output_tokens": stats.generated_tokens,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": stats.prompt_tokens + stats.generated_tokens,
        });
        object["timings"] = timings(stats);
        object
    }
}

pub(crate) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{:016x}", fastrand::u64(..))
}

/// The items of an answer.
pub(crate) fn output(whole: &Piece) -> Vec<Value> {
    let mut items = Vec::new();
    if !whole.reasoning.is_empty() {
        items.push(reasoning(&new_id("rs"), &whole.reasoning));
    }
    if !whole.text.is_empty() || whole.calls.is_empty() {
        items.push(message(&new_id("msg"), "completed", &[text_part(&whole.text)]));
    }
    items.extend(whole.calls.iter().map(|call| function_call(&new_id("fc"), call, &call.arguments_text())));
    items
}

pub(crate) fn reasoning(id: &str, text: &str) -> Value {
    let content = json!([{ "type": "reasoning_text", "text": text }]);
    json!({ "id": id, "type": "reasoning", "summary": [], "content": content })
}

pub(crate) fn message(id: &str, status: &str, content: &[Value]) -> Value {
    json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
}

pub(crate) fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

pub(crate) fn function_call(id: &str, call: &ToolCall, arguments: &str) -> Value {
    json!({
        "id": id,
        "type": "function_call",
        "status": "completed",
        "call_id": format!("call_{}", call.id),
        "name": call.name,
        "arguments": arguments,
    })
}
