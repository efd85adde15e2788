//! A request of the Responses API.

use crate::error::ApiError;
use crate::fields::{Fields, kind};
use crate::generation::take_request;
use crate::openai::messages::conversation;
use crate::options::ServedModel;
use crate::sampling::take_max_tokens;
use crate::tools::choice::take_tools;
use crate::tools::format::ToolFormat;
use serde_json::{Map, Value, json};
use verbatim_engine::{Grammar, Prompt, Request};

/// Fields that say nothing about the answer.
const WITHOUT_EFFECT: [&str; 9] = [
    "include",
    "metadata",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "truncation",
    "user",
    "background",
];
/// Fields that the answer repeats.
const ECHOED: [&str; 6] = ["instructions", "tools", "tool_choice", "text", "metadata", "max_output_tokens"];

/// What is asked.
#[derive(Debug)]
pub(crate) struct ResponseCall {
    pub(crate) request: Request,
    pub(crate) tools: Option<ToolFormat>,
    pub(crate) streams: bool,
    /// Fields that the answer repeats.
    pub(crate) echo: Map<String, Value>,
}

impl ResponseCall {
    /// Takes the fields of a request.
    ///
    /// # Errors
    /// If one is wrong.
    pub(crate) fn take(fields: &mut Fields, model: &ServedModel) -> Result<ResponseCall, ApiError> {
        for name in ["previous_response_id", "conversation", "prompt"] {
            if fields.take_value(name).is_some() {
                return Err(
                    fields.error(name, "nothing is stored here: send the whole conversation as input")
                );
            }
        }
        let echo = ECHOED.iter().filter_map(|&name| Some((name.to_owned(), fields.get(name)?.clone())));
        let echo = echo.collect();
        let tools = take_tools(fields, model)?;
        let messages = take_messages(fields)?;
        let mut conversation = conversation(messages, fields)?;
        conversation.tools = tools.definitions;
        if let Some(mut reasoning) = fields.take_object("reasoning")? {
            if let Some(effort) = reasoning.take::<String>("effort")? {
                conversation.variables.insert("enable_thinking".to_owned(), (effort != "none").into());
                conversation.variables.insert("reasoning_effort".to_owned(), effort.into());
            }
            reasoning.ignore(&["summary", "generate_summary"]);
            fields.absorb(reasoning);
        }
        let grammar = take_format(fields)?;
        let max_tokens = take_max_tokens(fields, &["max_output_tokens"], model.defaults.max_tokens)?;
        let request = take_request(fields, &model.defaults, model.engine.tokenizer())?;
        let streams = fields.take("stream")?.unwrap_or(false);
        fields.ignore(&WITHOUT_EFFECT);
        let request = Request {
            prompt: Prompt::Conversation(Box::new(conversation)),
            max_tokens,
            grammar: tools.grammar.or(grammar).or_else(|| request.grammar.clone()),
            ..request
        };
        Ok(ResponseCall { request, tools: tools.format, streams, echo })
    }
}

/// `text.format`: what the answer must look like.
fn take_format(fields: &mut Fields) -> Result<Option<Grammar>, ApiError> {
    let Some(mut text) = fields.take_object("text")? else { return Ok(None) };
    let mut grammar = None;
    if let Some(mut format) = text.take_object("format")? {
        let kind: String = format.require("type")?;
        grammar = match &*kind {
            "text" => None,
            "json_object" => Some(Grammar::json_object()),
            "json_schema" => Some(Grammar::JsonSchema(format.require("schema")?)),
            _ => return Err(format.error("type", "it must be text, json_object or json_schema")),
        };
        format.ignore(&["name", "description", "strict", "schema"]);
        text.absorb(format);
    }
    fields.absorb(text);
    Ok(grammar)
}

/// The messages in the form of a chat: `instructions`, then `input`.
fn take_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(text) = fields.take::<String>("instructions")? {
        messages.push(json!({ "role": "system", "content": text }));
    }
    match fields.take_value("input") {
        None => return Err(fields.error("input", "this field is required")),
        Some(Value::String(text)) => messages.push(json!({ "role": "user", "content": text })),
        Some(Value::Array(items)) => {
            for (index, item) in items.into_iter().enumerate() {
                add_item(item, &mut messages)
                    .map_err(|problem| fields.error(&format!("input[{index}]"), problem))?;
            }
        }
        Some(other) => {
            let problem = format!("it must be a string or an array of items, not {}", kind(&other));
            return Err(fields.error("input", problem));
        }
    }
    Ok(messages)
}

fn add_item(item: Value, messages: &mut Vec<Value>) -> Result<(), String> {
    let Value::Object(mut entries) = item else {
        return Err(format!("an item must be an object, not {}", kind(&item)));
    };
    let given = entries.remove("type");
    let text_of = |key: &str| entries.get(key).and_then(Value::as_str).map(str::to_owned);
    match given.as_ref().and_then(Value::as_str).unwrap_or("message") {
        "message" => {
            let mut message = json!({ "role": entries.remove("role"), "content": entries.remove("content") });
            for name in ["name", "reasoning_content"] {
                if let Some(value) = entries.remove(name) {
                    message[name] = value;
                }
            }
            messages.push(message);
        }
        "function_call" => {
            let name = text_of("name").ok_or("a function_call needs a name")?;
            let arguments = text_of("arguments").ok_or("a function_call needs arguments, as JSON text")?;
            let function = json!({ "name": name, "arguments": arguments });
            let call = json!({ "id": text_of("call_id"), "type": "function", "function": function });
            add_call(call, messages);
        }
        "function_call_output" => {
            let id = text_of("call_id").ok_or("a function_call_output needs a call_id")?;
            let output = entries.remove("output").unwrap_or_default();
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
        }
        // What the model thought is not given back to it without its text.
        "reasoning" => {}
        kind => return Err(format!("items of type {kind:?} are not supported")),
    }
    Ok(())
}

/// A call belongs to the assistant's message in front of it.
fn add_call(call: Value, messages: &mut Vec<Value>) {
    match messages.last_mut().filter(|last| last["role"] == "assistant") {
        Some(last) => match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        },
        None => messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let body = json!({ "instructions": "Be brief.", "input": [
            { "role": "user", "content": [{ "type": "input_text", "text": "How cold?" }] },
            { "type": "reasoning", "summary": [] },
            { "type": "function_call", "call_id": "a", "name": "f", "arguments": "{}" },
            { "type": "function_call", "call_id": "b", "name": "g", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "a", "output": "4" },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "4" }] },
        ] });
        let mut fields = Fields::parse(body.to_string().as_bytes()).expect("JSON");
        let messages = take_messages(&mut fields).expect("valid");
        let roles: Vec<&str> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
        assert_eq!(messages[2]["tool_calls"].as_array().map(Vec::len), Some(2));
        assert!(conversation(messages, &mut fields).is_ok());
    }
}
