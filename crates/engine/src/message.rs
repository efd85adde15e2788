//! Chat messages, as OpenAI's API has them.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// The role of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions before the conversation.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// One message. Chat templates get it in the shape that they take: see [`Capabilities`](verbatim_text::Capabilities).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ReadMessage")]
pub struct Message {
    /// The role.
    pub role: Role,
    /// The text; may be empty beside tool calls.
    pub content: String,
    /// Functions that the assistant calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's result: the call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Of a tool's result: the name of the tool, which some templates write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A function that the assistant calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// What the result refers to. Some templates need one of nine letters and digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// There is no other type.
    #[serde(default, rename = "type")]
    pub kind: ToolCallKind,
    /// The function.
    pub function: FunctionCall,
}

/// The type of a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolCallKind {
    /// A function.
    #[default]
    Function,
}

/// The name of a function, and what it is called with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The name.
    pub name: String,
    /// An object, or JSON text of one, as OpenAI's API has it.
    #[serde(default)]
    pub arguments: Json,
}

impl Message {
    /// A message of text.
    pub fn new(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), tool_calls: Vec::new(), tool_call_id: None, name: None }
    }
}

/// A message as it is read: text may be in parts, or absent beside tool calls.
#[derive(Deserialize)]
struct ReadMessage {
    role: Role,
    content: Option<Content>,
    tool_calls: Option<Vec<ToolCall>>,
    tool_call_id: Option<String>,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "the content of a message must be text, or a list of parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

impl TryFrom<ReadMessage> for Message {
    type Error = String;

    fn try_from(read: ReadMessage) -> Result<Message, String> {
        let ReadMessage { role, content, tool_calls, tool_call_id, name } = read;
        let tool_calls = tool_calls.unwrap_or_default();
        let content = match content {
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => {
                parts.into_iter().map(Part::into_text).collect::<Result<Vec<_>, _>>()?.join("\n")
            }
            None if tool_calls.is_empty() => return Err("a message needs content or tool_calls".to_owned()),
            None => String::new(),
        };
        let is_wrong =
            |call: &&ToolCall| !matches!(call.function.arguments, Json::Object(_) | Json::String(_));
        if let Some(call) = tool_calls.iter().find(is_wrong) {
            return Err(format!(
                "the arguments of the call of {} must be an object or JSON text of one",
                call.function.name
            ));
        }
        Ok(Message { role, content, tool_calls, tool_call_id, name })
    }
}

impl Part {
    fn into_text(self) -> Result<String, String> {
        let Part { kind, text } = self;
        text.filter(|_| kind == "text")
            .ok_or_else(|| format!("a part of type {kind:?} is not supported: only text is"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(message: Json) -> Result<Message, String> {
        serde_json::from_value(message).map_err(|error| error.to_string())
    }

    #[test]
    fn messages_are_read_in_every_shape_of_the_api() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let message = read(json!({"role": "user", "content": parts}));
        assert_eq!(message, Ok(Message::new(Role::User, "a\nb")));
        let call =
            json!({"id": "a1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
        let asked = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let message = read(asked).unwrap();
        assert_eq!((message.content.as_str(), message.tool_calls.len()), ("", 1));
        // What a session keeps is read again.
        assert_eq!(read(serde_json::to_value(&message).unwrap()), Ok(message));
        let result = json!({"role": "tool", "tool_call_id": "a1", "name": "f", "content": "2"});
        assert_eq!(serde_json::to_value(read(result.clone()).unwrap()).unwrap(), result);
    }

    #[test]
    fn what_a_message_must_not_be_is_said() {
        let call = json!({"function": {"name": "f", "arguments": [1]}});
        for (message, problem) in [
            (json!({"role": "user"}), "needs content or tool_calls"),
            (json!({"role": "user", "content": 3}), "must be text, or a list of parts"),
            (json!({"role": "user", "content": [{"type": "image_url"}]}), "\"image_url\" is not supported"),
            (json!({"role": "assistant", "tool_calls": [call]}), "the call of f must be an object"),
            (json!({"role": "nobody", "content": ""}), "unknown variant `nobody`"),
        ] {
            let error = read(message).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
