//! Requests of OpenAI's API that come another way than HTTP, such as in a file of batches.

use crate::fields::Fields;
use crate::generation::take_request;
use crate::openai::messages::take_conversation;
use serde_json::{Map, Value};
use verbatim_engine::{Prompt, Request};
use verbatim_text::Tokenizer;

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRequest(String);

/// The request of a body with `messages`, or a `prompt` that is a text. `defaults` count where it says nothing. Its `model` is
/// not checked.
///
/// # Errors
/// If a field is wrong, or has no meaning here: an answer without it would be another.
pub fn parse_request(
    body: Map<String, Value>,
    defaults: &Request,
    tokenizer: &Tokenizer,
) -> Result<Request, InvalidRequest> {
    let wrong = |error: crate::error::ApiError| InvalidRequest(error.message);
    let mut fields = Fields::of(body, String::new());
    let text: Option<String> = fields.take("prompt").map_err(wrong)?;
    let prompt = match (text, fields.has("messages")) {
        (Some(text), false) => Prompt::Text(text),
        (None, true) => Prompt::Conversation(Box::new(take_conversation(&mut fields).map_err(wrong)?)),
        _ => return Err(InvalidRequest("there must be either a prompt or messages".to_owned())),
    };
    let request = take_request(&mut fields, defaults, tokenizer).map_err(wrong)?;
    let _name: Option<String> = fields.take("model").map_err(wrong)?;
    match fields.unknown().first() {
        None => Ok(Request { prompt, ..request }),
        Some(name) => Err(InvalidRequest(format!("the field {name} has no meaning here: leave it out"))),
    }
}
