//! `/tokenize`, `/detokenize` and `/apply-template`.

use crate::app::{App, blocking};
use crate::error::{ApiError, chat_error};
use crate::fields::Fields;
use crate::openai::messages::take_conversation;
use crate::reply::{json as reply, warn};
use crate::tools::choice::take_tools;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use verbatim_text::{SpecialTokens, Tokenizer};

/// Takes llama.cpp's `content`, or vLLM's `prompt` or `messages`.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let engine = model.engine.clone();
    let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
    let is_parsed = fields.take("parse_special")?.unwrap_or(true);
    let adds_special = fields.take("add_special")?;
    let adds_special = adds_special.or(fields.take("add_special_tokens")?);
    let special = if is_parsed { SpecialTokens::Parse } else { SpecialTokens::Ignore };
    let tokens = if let Some(content) = fields.take::<String>("content")? {
        blocking(move || engine.tokenizer().encode(&content, special, adds_special.unwrap_or(false))).await?
    } else if let Some(prompt) = fields.take::<String>("prompt")? {
        blocking(move || engine.tokenizer().encode(&prompt, special, adds_special.unwrap_or(true))).await?
    } else {
        let conversation = take_conversation(&mut fields)?;
        let tokens = blocking(move || engine.chat_format().conversation_tokens(&conversation)).await?;
        tokens.map_err(|error| chat_error(&error))?
    };
    let tokenizer = model.engine.tokenizer();
    let list: Vec<Value> = match with_pieces {
        true => tokens.iter().map(|&id| json!({ "id": id, "piece": piece(id, tokenizer) })).collect(),
        false => tokens.iter().map(|&id| id.into()).collect(),
    };
    let body = json!({ "tokens": list, "count": tokens.len(), "max_model_len": model.engine.context() });
    Ok(warn(reply(&body), &fields.unknown()))
}

/// A token's text, or its bytes where it is only a part of a character.
fn piece(id: u32, tokenizer: &Tokenizer) -> Value {
    let bytes = tokenizer.piece(id);
    std::str::from_utf8(bytes).map_or_else(|_| bytes.into(), Value::from)
}

pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let tokens: Vec<u32> = fields.require("tokens")?;
    let tokenizer = model.engine.tokenizer();
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= tokenizer.vocab_len()) {
        return Err(fields.error("tokens", format!("there is no token {token}")));
    }
    let text = String::from_utf8_lossy(&tokenizer.decode(&tokens, true)).into_owned();
    Ok(warn(reply(&json!({ "content": text, "prompt": text })), &fields.unknown()))
}

pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let mut conversation = take_conversation(&mut fields)?;
    conversation.tools = take_tools(&mut fields, model)?.definitions;
    let engine = model.engine.clone();
    let text = blocking(move || engine.chat_format().conversation_text(&conversation)).await?;
    let text = text.map_err(|error| chat_error(&error))?;
    Ok(warn(reply(&json!({ "prompt": text })), &fields.unknown()))
}
