//! What a chat template takes, found out by rendering small conversations, and messages shaped accordingly.
//!
//! Templates disagree on the shape of messages: content as text or as a list of typed parts, arguments of tool calls as JSON text or
//! as objects, and so on. A template that is given the other shape may fail, print Python's notation, or drop the words. So what a
//! template accepts is tried, as llama.cpp does.

use crate::error::TemplateError;
use serde_json::{Map, Value as Json, json};

/// What a chat template takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Whether the content of a message may be text.
    pub takes_text: bool,
    /// Whether the content of a message may be a list of parts, such as `{"type": "text", "text": "…"}`.
    pub takes_parts: bool,
    /// Whether it writes system messages.
    pub supports_system: bool,
    /// Whether it writes the definitions of tools.
    pub supports_tools: bool,
    /// Whether it writes the tool calls of the assistant.
    pub supports_tool_calls: bool,
    /// How it takes the arguments of tool calls.
    pub tool_arguments: ToolArguments,
    /// Whether it writes tool calls only beside the content null, or only beside an empty text; None if it does not matter.
    pub tool_call_content: Option<EmptyContent>,
    /// The field of a message whose text it writes as the assistant's reasoning.
    pub reasoning_field: Option<&'static str>,
}

/// How a template takes the arguments of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolArguments {
    /// As an object.
    Object,
    /// As JSON text.
    Text,
    /// No shape was written properly, or there are no tool calls: as they are.
    Unknown,
}

/// What stands for no content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyContent {
    /// `null`.
    Null,
    /// `""`.
    Text,
}

/// Words that no template contains.
const WORDS: &str = "probe of content";
const CALL_NAME: &str = "probe_call";
const TOOL_NAME: &str = "probe_tool";
const KEY: &str = "probe_key";
const VALUE: &str = "probe_value";
/// Where templates look for reasoning; APIs use the first.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

impl Capabilities {
    /// Tries a template, which is given as a function of its context.
    pub(crate) fn probe(render: &dyn Fn(&Json) -> Result<String, TemplateError>) -> Capabilities {
        let probe = Probe { render, needs_parts: false };
        let takes_text = probe.writes(&[json!({"role": "user", "content": WORDS})], WORDS);
        let parts = json!([{"type": "text", "text": WORDS}]);
        let text = probe.text(&[json!({"role": "user", "content": parts})], false);
        // A template that prints what it is given shows the notation of the list.
        let takes_parts = text.is_some_and(|text| {
            text.contains(WORDS) && !text.contains("'type'") && !text.contains("\"type\"")
        });
        let probe = Probe { render, needs_parts: takes_parts && !takes_text };
        let system = [probe.message("system", WORDS), probe.message("user", "u")];
        let tool_calls = probe.tool_calls();
        Capabilities {
            // What cannot be tried at all is given as APIs give it.
            takes_text: takes_text || !takes_parts,
            takes_parts,
            supports_system: probe.writes(&system, WORDS),
            supports_tools: probe.writes_tools(),
            supports_tool_calls: tool_calls.is_some(),
            tool_arguments: tool_calls.map_or(ToolArguments::Unknown, |(arguments, _)| arguments),
            tool_call_content: tool_calls.and_then(|(_, content)| content),
            reasoning_field: REASONING_FIELDS.into_iter().find(|field| probe.writes_reasoning(field)),
        }
    }

    /// Shapes messages as the template takes them: content, arguments of tool calls, and the name of the field with the reasoning.
    /// What is not an array of objects stays as it is, for the template to render or reject.
    ///
    /// # Errors
    /// [`TemplateError::Message`] if the template would drop a part of a message: a system message, an image, tool calls.
    pub fn shape(&self, messages: &mut Json) -> Result<(), TemplateError> {
        for (index, message) in messages.as_array_mut().into_iter().flatten().enumerate() {
            let Some(message) = message.as_object_mut() else { continue };
            self.shape_message(message).map_err(|reason| TemplateError::Message { index, reason })?;
        }
        Ok(())
    }

    fn shape_message(&self, message: &mut Map<String, Json>) -> Result<(), String> {
        let has_calls =
            message.get("tool_calls").and_then(Json::as_array).is_some_and(|calls| !calls.is_empty());
        if message.get("role").is_some_and(|role| role == "system")
            && !self.supports_system
            && has_words(message)
        {
            return Err(
                "the chat template writes no system messages; put its text into the first user message"
                    .into(),
            );
        }
        if has_calls && !self.supports_tool_calls {
            return Err("the chat template writes no tool calls".into());
        }
        if let Some(content) = message.get_mut("content") {
            self.shape_content(content)?;
        }
        if has_calls {
            let is_empty = message.get("content").is_none_or(|content| content.is_null() || content == "");
            match self.tool_call_content.filter(|_| is_empty) {
                Some(EmptyContent::Null) => message.insert("content".into(), Json::Null),
                Some(EmptyContent::Text) => message.insert("content".into(), "".into()),
                None => None,
            };
            let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
            calls.into_iter().flatten().for_each(|call| self.shape_call(call));
        }
        if let Some(field) = self.reasoning_field
            && !message.contains_key(field)
            && let Some(given) =
                REASONING_FIELDS.into_iter().find(|given| message.get(*given).is_some_and(Json::is_string))
            && let Some(reasoning) = message.remove(given)
        {
            message.insert(field.to_owned(), reasoning);
        }
        Ok(())
    }

    fn shape_content(&self, content: &mut Json) -> Result<(), String> {
        match content {
            Json::String(text) if !self.takes_text => *content = json!([{"type": "text", "text": text}]),
            Json::Array(parts) if !self.takes_parts => {
                let texts: Result<Vec<&str>, String> = parts.iter().map(text_of_part).collect();
                *content = texts?.join("\n").into();
            }
            _ => {}
        }
        Ok(())
    }

    fn shape_call(&self, call: &mut Json) {
        let function = if call.get("function").is_some() { call.get_mut("function") } else { Some(call) };
        let Some(arguments) = function.and_then(|function| function.get_mut("arguments")) else { return };
        let shaped = match (self.tool_arguments, &*arguments) {
            (ToolArguments::Object, Json::String(text)) if text.trim().is_empty() => Some(json!({})),
            (ToolArguments::Object, Json::String(text)) => {
                serde_json::from_str(text).ok().filter(Json::is_object)
            }
            (ToolArguments::Text, Json::Object(_)) => Some(python_json(arguments).into()),
            _ => None,
        };
        if let Some(shaped) = shaped {
            *arguments = shaped;
        }
    }
}

fn has_words(message: &Map<String, Json>) -> bool {
    match message.get("content") {
        None | Some(Json::Null) => false,
        Some(Json::String(text)) => !text.is_empty(),
        Some(Json::Array(parts)) => !parts.is_empty(),
        Some(_) => true,
    }
}

fn text_of_part(part: &Json) -> Result<&str, String> {
    let text = part.as_str().or_else(|| part.get("text")?.as_str());
    let kind = part.get("type").and_then(Json::as_str);
    match (text, kind) {
        (Some(text), None | Some("text")) => Ok(text),
        (_, kind) => {
            let kind = kind.unwrap_or("unknown");
            Err(format!("the chat template takes text only, so a part of type `{kind}` would be lost"))
        }
    }
}

/// JSON as Python's `json.dumps` spaces it, which is what models were trained on.
fn python_json(value: &Json) -> String {
    match value {
        Json::Array(items) => {
            let items: Vec<String> = items.iter().map(python_json).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(entries) => {
            let entry = |(key, value): (&String, &Json)| {
                format!("{}: {}", Json::from(key.as_str()), python_json(value))
            };
            let entries: Vec<String> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        _ => value.to_string(),
    }
}

struct Probe<'p> {
    render: &'p dyn Fn(&Json) -> Result<String, TemplateError>,
    needs_parts: bool,
}

impl Probe<'_> {
    fn content(&self, text: &str) -> Json {
        if self.needs_parts { json!([{"type": "text", "text": text}]) } else { text.into() }
    }

    fn message(&self, role: &str, text: &str) -> Json {
        json!({"role": role, "content": self.content(text)})
    }

    /// The text of a conversation, with or without a tool: with `tools` null, or if the template fails, absent.
    fn text(&self, messages: &[Json], has_tool: bool) -> Option<String> {
        let properties = json!({"city": {"type": "string", "description": "A city."}});
        let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
        let function = json!({"name": TOOL_NAME, "description": "A tool.", "parameters": parameters});
        let tools = if has_tool { json!([{"type": "function", "function": function}]) } else { Json::Null };
        let mut context = json!({
            "messages": messages, "tools": tools, "add_generation_prompt": false, "bos_token": "<s>", "eos_token": "</s>",
        });
        let text = (self.render)(&context).ok();
        text.or_else(|| {
            let variables = context.as_object_mut()?;
            variables.remove("tools").filter(Json::is_null)?;
            (self.render)(&context).ok()
        })
    }

    fn writes(&self, messages: &[Json], words: &str) -> bool {
        self.text(messages, false).is_some_and(|text| text.contains(words))
    }

    fn writes_tools(&self) -> bool {
        let alone = [self.message("user", "u")];
        let behind_system = [self.message("system", "s"), self.message("user", "u")];
        let writes =
            |messages: &[Json]| self.text(messages, true).is_some_and(|text| text.contains(TOOL_NAME));
        writes(&alone) || writes(&behind_system)
    }

    fn writes_reasoning(&self, field: &str) -> bool {
        let mut answer = self.message("assistant", "a");
        answer[field] = WORDS.into();
        self.writes(&[self.message("user", "u"), answer], WORDS)
    }

    /// The text of a conversation with a tool call.
    fn call(&self, content: &Json, arguments: &Json) -> Option<String> {
        let function = json!({"name": CALL_NAME, "arguments": arguments});
        let calls = json!([{"id": "abcdefghi", "type": "function", "function": function}]);
        let mut result = self.message("tool", "r");
        result["name"] = CALL_NAME.into();
        result["tool_call_id"] = "abcdefghi".into();
        let messages = [
            self.message("user", "u"),
            json!({"role": "assistant", "content": content, "tool_calls": calls}),
            result,
        ];
        let text = self.text(&messages, true).or_else(|| self.text(&messages, false))?;
        text.contains(CALL_NAME).then_some(text)
    }

    /// How tool calls are taken, and beside which empty content; None if they are not.
    fn tool_calls(&self) -> Option<(ToolArguments, Option<EmptyContent>)> {
        let beside_null = self.tool_calls_beside(&Json::Null);
        let beside_text = self.tool_calls_beside(&self.content(""));
        match (beside_null, beside_text) {
            (None, None) => None,
            (Some((arguments, _)), None) => Some((arguments, Some(EmptyContent::Null))),
            (None, Some((arguments, _))) => Some((arguments, Some(EmptyContent::Text))),
            (Some((of_null, null)), Some((of_text, text))) => {
                let is_null_better = of_text == ToolArguments::Unknown || !null.contains("None");
                Some(match is_null_better && of_null != ToolArguments::Unknown {
                    // Templates that ask whether the content is none write an empty answer beside the calls otherwise.
                    true => (of_null, (null != text).then_some(EmptyContent::Null)),
                    false => (of_text, (null != text).then_some(EmptyContent::Text)),
                })
            }
        }
    }

    /// How tool calls beside this content are taken, and what is written; None if they are not.
    fn tool_calls_beside(&self, content: &Json) -> Option<(ToolArguments, String)> {
        let object = json!({KEY: VALUE});
        let of_object = self.call(content, &object);
        let of_text = self.call(content, &python_json(&object).into());
        let has_arguments = |text: &&String| text.contains(KEY) && text.contains(VALUE);
        // Joined as it is, an object shows Python's notation; written as JSON, a text shows escaped quotes.
        let good_object = of_object.as_ref().filter(has_arguments).filter(|text| !text.contains("{'"));
        let good_text = of_text.as_ref().filter(has_arguments).filter(|text| !text.contains("\\\""));
        match (good_object, good_text) {
            (Some(text), _) => Some((ToolArguments::Object, text.clone())),
            (None, Some(text)) => Some((ToolArguments::Text, text.clone())),
            (None, None) => Some((ToolArguments::Unknown, of_object.or(of_text)?)),
        }
    }
}
