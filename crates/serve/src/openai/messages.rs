//! The messages of a chat, in OpenAI's form.

use crate::error::ApiError;
use crate::fields::{Fields, kind};
use serde_json::{Map, Value, json};
use verbatim_engine::Conversation;

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// The fields of a message that templates may write.
const OPTIONAL: [&str; 5] = ["name", "tool_call_id", "reasoning_content", "reasoning", "thinking"];

/// Takes the messages, and the variables of the chat template.
///
/// # Errors
/// If there are none, or one is not what it should be.
pub(crate) fn take_conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    let mut conversation = conversation(fields.require::<Vec<Value>>("messages")?, fields)?;
    conversation.variables = take_variables(fields)?;
    Ok(conversation)
}

/// A conversation of messages.
///
/// # Errors
/// As [`take_conversation`].
pub(crate) fn conversation(given: Vec<Value>, fields: &mut Fields) -> Result<Conversation, ApiError> {
    if given.is_empty() {
        return Err(fields.error("messages", "there must be at least one message"));
    }
    let mut messages = Vec::with_capacity(given.len());
    for (index, value) in given.into_iter().enumerate() {
        let name = format!("messages[{index}]");
        let Value::Object(entries) = value else {
            return Err(fields.error(&name, format!("a message must be an object, not {}", kind(&value))));
        };
        let mut message = Fields::of(entries, format!("{name}."));
        messages.push(checked(&mut message)?);
        fields.absorb(message);
    }
    let prefill = take_prefill(&mut messages);
    Ok(Conversation { messages, prefill, ..Conversation::default() })
}

fn take_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut variables: Map<String, Value> = fields.take("chat_template_kwargs")?.unwrap_or_default();
    const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];
    if let Some(name) = RESERVED.into_iter().find(|name| variables.contains_key(*name)) {
        return Err(
            fields.error(&format!("chat_template_kwargs.{name}"), "this variable is set by the server")
        );
    }
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        if effort == "none" {
            variables.entry("enable_thinking").or_insert(false.into());
        }
        variables.entry("reasoning_effort").or_insert(effort.into());
    }
    Ok(variables)
}

/// A message with the fields that templates know.
fn checked(message: &mut Fields) -> Result<Value, ApiError> {
    let role: String = message.require("role")?;
    if !ROLES.contains(&&*role) {
        return Err(message.error("role", format!("{role:?} is not one of {}", ROLES.join(", "))));
    }
    // OpenAI's newer name for it.
    let role = if role == "developer" { "system".to_owned() } else { role };
    let calls = message.take::<Vec<Value>>("tool_calls")?.filter(|calls| !calls.is_empty());
    if calls.is_some() && role != "assistant" {
        return Err(message.error("tool_calls", "only the assistant calls tools"));
    }
    let content = match message.take_value("content") {
        None if role == "assistant" => Value::Null,
        None => return Err(message.error("content", "this field is required")),
        Some(content) => checked_content(content, message)?,
    };
    let mut checked = json!({ "role": role, "content": content });
    if content_is_missing(&checked) && calls.is_none() {
        checked["content"] = "".into();
    }
    if let Some(calls) = calls {
        for (index, call) in calls.iter().enumerate() {
            check_call(call)
                .map_err(|(place, problem)| message.error(&format!("tool_calls[{index}]{place}"), problem))?;
        }
        checked["tool_calls"] = calls.into();
    }
    for name in OPTIONAL {
        if let Some(text) = message.take::<String>(name)? {
            checked[name] = text.into();
        }
    }
    Ok(checked)
}

fn content_is_missing(message: &Value) -> bool {
    message["content"].is_null()
}

fn checked_content(content: Value, message: &Fields) -> Result<Value, ApiError> {
    match content {
        Value::String(_) => Ok(content),
        Value::Array(parts) => {
            let parts: Result<Vec<Value>, ApiError> = parts
                .into_iter()
                .enumerate()
                .map(|(index, part)| {
                    text_of_part(&part)
                        .map(|text| json!({ "type": "text", "text": text }))
                        .map_err(|problem| message.error(&format!("content[{index}]"), problem))
                })
                .collect();
            Ok(Value::Array(parts?))
        }
        other => Err(message
            .error("content", format!("it must be a string or an array of parts, not {}", kind(&other)))),
    }
}

/// The text of a part of a message.
pub(crate) fn text_of_part(part: &Value) -> Result<&str, String> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
    match kind {
        "text" | "input_text" | "output_text" => {
            part.get("text").and_then(Value::as_str).ok_or_else(|| "a text part needs a text".to_owned())
        }
        "refusal" => {
            part.get("refusal").and_then(Value::as_str).ok_or_else(|| "a refusal needs a text".to_owned())
        }
        kind => Err(format!("parts of type {kind:?} are not supported: the model takes text only")),
    }
}

/// What is wrong with a tool call in a message, and where.
fn check_call(call: &Value) -> Result<(), (&'static str, &'static str)> {
    let function = call.get("function").and_then(Value::as_object);
    let function = function.ok_or((".function", "a tool call needs a function"))?;
    let is_text = |key: &str| function.get(key).is_some_and(Value::is_string);
    if !is_text("name") {
        return Err((".function.name", "it must be a string"));
    }
    if !is_text("arguments") && !function.get("arguments").is_none_or(Value::is_object) {
        return Err((".function.arguments", "it must be JSON text"));
    }
    Ok(())
}

/// An assistant's message at the end is the beginning of the answer, as in llama.cpp and in Anthropic's API.
fn take_prefill(messages: &mut Vec<Value>) -> String {
    let is_prefill = messages.len() > 1
        && messages.last().is_some_and(|last| {
            last["role"] == "assistant" && last.get("tool_calls").is_none() && last["content"].is_string()
        });
    let last = if is_prefill { messages.pop() } else { None };
    last.and_then(|message| message["content"].as_str().map(str::to_owned)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(messages: &str) -> Result<Conversation, ApiError> {
        let mut fields = Fields::parse(format!("{{\"messages\": {messages}}}").as_bytes()).expect("JSON");
        take_conversation(&mut fields)
    }

    #[test]
    fn messages_are_in_the_form_that_templates_take() {
        let conversation = parsed(
            r#"[{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": "Hi", "name": "Ann", "mood": "good"},
                {"role": "assistant", "content": null, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "content": "4", "tool_call_id": "a"},
                {"role": "assistant", "content": "It is"}]"#,
        )
        .expect("valid");
        let roles: Vec<_> = conversation.messages.iter().map(|message| message["role"].as_str()).collect();
        assert_eq!(roles, [Some("system"), Some("user"), Some("assistant"), Some("tool")]);
        assert_eq!(conversation.messages[1], json!({ "role": "user", "content": "Hi", "name": "Ann" }));
        assert_eq!(conversation.prefill, "It is");
    }

    #[test]
    fn what_is_wrong_with_a_message_is_said() {
        for (messages, wanted) in [
            ("[]", "messages: there must be at least one"),
            ("[7]", "messages[0]: a message must be an object, not a number"),
            (r#"[{"content": "x"}]"#, "messages[0].role: this field is required"),
            (r#"[{"role": "robot", "content": "x"}]"#, "messages[0].role: \"robot\" is not one of"),
            (r#"[{"role": "user"}]"#, "messages[0].content: this field is required"),
            (r#"[{"role": "user", "content": 7}]"#, "messages[0].content: it must be a string"),
            (
                r#"[{"role": "user", "content": [{"type": "image_url"}]}]"#,
                "messages[0].content[0]: parts of type",
            ),
            (r#"[{"role": "user", "content": "x", "tool_calls": [{}]}]"#, "only the assistant"),
            (
                r#"[{"role": "assistant", "tool_calls": [{}]}]"#,
                "messages[0].tool_calls[0].function: a tool call",
            ),
        ] {
            let error = parsed(messages).expect_err(messages).message;
            assert!(error.starts_with(wanted) || error.contains("only the assistant"), "{error}");
        }
    }
}
