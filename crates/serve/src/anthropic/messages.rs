//! `POST /v1/messages` and `/v1/messages/count_tokens`.

use crate::answer::{Completion, complete};
use crate::anthropic::call::{take_call, take_conversation};
use crate::anthropic::parts::{stop_reason, tool_id, usage};
use crate::anthropic::stream::MessageStream;
use crate::app::{App, blocking};
use crate::error::{ApiError, chat_error};
use crate::fields::Fields;
use crate::reply::{json as reply, warn};
use crate::stats::timings;
use crate::stream;
use crate::submit::submit;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn messages(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let (request, tools) = take_call(&mut fields, model)?;
    let streams = fields.take("stream")?.unwrap_or(false);
    let unknown = fields.unknown();
    let answers = submit(&app, vec![request], tools).await?;
    let head = head(model.info.name());
    let response = if streams {
        stream::response(answers, MessageStream::new(head), app.options.io_timeout)
    } else {
        let whole = complete(answers).await?.pop().map(|completion| whole(head, &completion));
        reply(&whole.unwrap_or_default())
    };
    Ok(warn(response, &unknown))
}

/// The tokens of a conversation, without an answer.
pub(crate) async fn count_tokens(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let conversation = take_conversation(&mut fields, model)?.conversation;
    let engine = model.engine.clone();
    let tokens = blocking(move || engine.chat_format().conversation_tokens(&conversation)).await?;
    let tokens = tokens.map_err(|error| chat_error(&error))?;
    Ok(warn(reply(&json!({ "input_tokens": tokens.len() })), &fields.unknown()))
}

/// A message without content.
fn head(model: &str) -> Value {
    json!({
        "id": format!("msg_{:016x}", fastrand::u64(..)),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": {},
    })
}

fn whole(mut message: Value, completion: &Completion) -> Value {
    let Completion { whole, ending, .. } = completion;
    let stats = &ending.stats;
    let mut content = Vec::new();
    if !whole.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": whole.reasoning, "signature": "" }));
    }
    if !whole.text.is_empty() || content.is_empty() && whole.calls.is_empty() {
        content.push(json!({ "type": "text", "text": whole.text }));
    }
    let calls = whole.calls.iter();
    content.extend(calls.map(|call| {
        json!({ "type": "tool_use", "id": tool_id(&call.id), "name": call.name, "input": call.arguments })
    }));
    message["content"] = content.into();
    (message["stop_reason"], message["stop_sequence"]) = stop_reason(ending);
    message["usage"] = usage(stats.prompt_tokens, stats.cached_tokens);
    message["usage"]["output_tokens"] = stats.generated_tokens.into();
    message["timings"] = timings(stats);
    message
}
