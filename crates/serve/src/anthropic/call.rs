//! Anthropic's form of a conversation and its settings.

use crate::error::ApiError;
use crate::fields::{Fields, kind};
use crate::generation::take_request;
use crate::openai::messages::conversation;
use crate::options::ServedModel;
use crate::sampling::take_stop;
use crate::tools::choice::{Tools, take_tools};
use crate::tools::format::ToolFormat;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use verbatim_engine::{Conversation, Grammar, Prompt, Request};

/// Fields that say nothing about the answer.
const WITHOUT_EFFECT: [&str; 5] = ["metadata", "service_tier", "container", "betas", "cache_control"];

/// What a request says besides its settings.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) conversation: Conversation,
    budget: Option<usize>,
    format: Option<ToolFormat>,
    grammar: Option<Grammar>,
}

/// Takes the conversation: `system`, `messages`, `tools` and `thinking`.
///
/// # Errors
/// If a field is wrong.
pub(crate) fn take_conversation(fields: &mut Fields, model: &ServedModel) -> Result<Said, ApiError> {
    let Tools { definitions, format, grammar } = take_tools(fields, model)?;
    let messages = take_messages(fields)?;
    let thinking = fields.take::<Thinking>("thinking")?;
    let (variables, budget) = thinking.map_or_else(Default::default, Thinking::settings);
    let conversation = Conversation { variables, tools: definitions, ..conversation(messages, fields)? };
    Ok(Said { conversation, budget, format, grammar })
}

/// The messages in OpenAI's form.
fn take_messages(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let given: Vec<Value> = fields.require("messages")?;
    let mut messages = Vec::with_capacity(given.len() + 1);
    if let Some(system) = fields.take_value("system") {
        let text = text_of(system).map_err(|problem| fields.error("system", problem))?;
        if !text.is_empty() {
            messages.push(json!({ "role": "system", "content": text }));
        }
    }
    if given.is_empty() {
        return Err(fields.error("messages", "there must be at least one message"));
    }
    for (index, message) in given.into_iter().enumerate() {
        messages.extend(
            converted(message)
                .map_err(|(place, problem)| fields.error(&format!("messages[{index}]{place}"), problem))?,
        );
    }
    Ok(messages)
}

/// Takes a whole request; also returns how its answer may call tools.
///
/// # Errors
/// If a field is wrong.
pub(crate) fn take_call(
    fields: &mut Fields,
    model: &ServedModel,
) -> Result<(Request, Option<ToolFormat>), ApiError> {
    let Said { conversation, budget, format, grammar } = take_conversation(fields, model)?;
    if !fields.has("max_tokens") {
        return Err(fields.error("max_tokens", "this field is required"));
    }
    let stop = take_stop(fields, "stop_sequences", &model.defaults.stop)?;
    let request = take_request(fields, &model.defaults, model.engine.tokenizer())?;
    fields.ignore(&WITHOUT_EFFECT);
    let request = Request {
        prompt: Prompt::Conversation(Box::new(conversation)),
        stop,
        reasoning_budget: budget.or(request.reasoning_budget),
        grammar: grammar.or_else(|| request.grammar.clone()),
        ..request
    };
    Ok((request, format))
}

/// Whether the model thinks, and how many tokens.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with a type")]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<usize>,
}

impl Thinking {
    fn settings(self) -> (Map<String, Value>, Option<usize>) {
        let thinks = self.kind != "disabled";
        let variables = [("enable_thinking".to_owned(), thinks.into())].into_iter().collect();
        (variables, self.budget_tokens.filter(|_| thinks))
    }
}

/// The text of a string or of blocks of text.
fn text_of(content: Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let texts: Result<Vec<&str>, String> = blocks.iter().map(text_of_block).collect();
            Ok(texts?.join("\n"))
        }
        other => Err(format!("it must be a string or an array of blocks, not {}", kind(&other))),
    }
}

fn text_of_block(block: &Value) -> Result<&str, String> {
    match block.get("type").and_then(Value::as_str) {
        Some("text") => {
            block.get("text").and_then(Value::as_str).ok_or_else(|| "a text block needs a text".to_owned())
        }
        kind => Err(format!("blocks of type {:?} are not supported here", kind.unwrap_or("unknown"))),
    }
}

/// A message as messages in OpenAI's form, where results of tools are messages of their own; on error, where it is wrong and why.
fn converted(message: Value) -> Result<Vec<Value>, (&'static str, String)> {
    let Value::Object(mut entries) = message else {
        return Err(("", format!("a message must be an object, not {}", kind(&message))));
    };
    let role = entries.remove("role").unwrap_or_default();
    if role != "user" && role != "assistant" {
        return Err((".role", format!("it must be user or assistant, not {role}")));
    }
    let content = entries.remove("content").ok_or((".content", "this field is required".to_owned()))?;
    let Value::Array(blocks) = content else {
        let text = text_of(content).map_err(|problem| (".content", problem))?;
        return Ok(vec![json!({ "role": role, "content": text })]);
    };
    let (mut results, mut calls, mut thoughts, mut texts) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for block in blocks {
        match block.get("type").and_then(Value::as_str) {
            Some("thinking" | "redacted_thinking") => thoughts.extend(text_at(&block, "thinking")),
            Some("tool_result") => results.push(tool_result(block).map_err(|problem| (".content", problem))?),
            Some("tool_use") => calls.push(tool_use(&block).ok_or((".content", WRONG_USE.to_owned()))?),
            _ => texts.push(block),
        }
    }
    let has_text = !texts.is_empty();
    let text = text_of(Value::Array(texts)).map_err(|problem| (".content", problem))?;
    let mut message = json!({ "role": role, "content": text });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.join("\n").into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    // Results answer the message before, so they come first.
    let is_needed = has_text || results.is_empty();
    Ok(results.into_iter().chain(is_needed.then_some(message)).collect())
}

const WRONG_USE: &str = "a tool_use block needs a name and an input that is an object";

fn text_at(block: &Value, key: &str) -> Option<String> {
    block.get(key)?.as_str().map(str::to_owned)
}

fn tool_use(block: &Value) -> Option<Value> {
    let (name, input) = (text_at(block, "name")?, block.get("input").filter(|input| input.is_object())?);
    let function = json!({ "name": name, "arguments": input.to_string() });
    Some(json!({ "id": call_id(text_at(block, "id")), "type": "function", "function": function }))
}

fn tool_result(mut block: Value) -> Result<Value, String> {
    let id = call_id(text_at(&block, "tool_use_id"));
    let content = block.get_mut("content").map(Value::take).unwrap_or_default();
    let text = if content.is_null() { String::new() } else { text_of(content)? };
    Ok(json!({ "role": "tool", "tool_call_id": id, "content": text }))
}

/// The id of a call as templates know it.
fn call_id(id: Option<String>) -> String {
    let id = id.unwrap_or_default();
    id.strip_prefix("toolu_").map(str::to_owned).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_in_the_form_that_templates_take() {
        let body = json!({
            "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }],
            "messages": [
                { "role": "user", "content": [{ "type": "text", "text": "Hi" }, { "type": "text", "text": "you" }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "Hm." },
                    { "type": "text", "text": "Hi." },
                    { "type": "tool_use", "id": "toolu_abc", "name": "f", "input": { "a": 1 } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "toolu_abc", "content": [{ "type": "text", "text": "4" }] },
                    { "type": "text", "text": "And?" },
                ] },
            ],
        });
        let mut fields = Fields::parse(body.to_string().as_bytes()).expect("JSON");
        let call =
            json!({ "id": "abc", "type": "function", "function": { "name": "f", "arguments": "{\"a\":1}" } });
        let wanted = json!([
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Hi\nyou" },
            { "role": "assistant", "content": "Hi.", "reasoning_content": "Hm.", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "abc", "content": "4" },
            { "role": "user", "content": "And?" },
        ]);
        assert_eq!(Value::from(take_messages(&mut fields).expect("valid")), wanted);
    }

    #[test]
    fn thinking_is_a_variable_and_a_budget() {
        let settings = |text: &str| serde_json::from_str::<Thinking>(text).expect("valid").settings();
        let (variables, budget) = settings(r#"{"type": "enabled", "budget_tokens": 2000}"#);
        assert_eq!((&variables["enable_thinking"], budget), (&json!(true), Some(2000)));
        let (variables, budget) = settings(r#"{"type": "disabled", "budget_tokens": 2000}"#);
        assert_eq!((&variables["enable_thinking"], budget), (&json!(false), None));
    }
}
