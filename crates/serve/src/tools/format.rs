//! How families of models write tool calls.

use serde_json::{Value, json};
use verbatim_engine::Grammar;

/// A way to write tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen 2.5 and 3 and their relatives. Qwen3-Coder's and Qwen 3.5's
    /// `<function=…><parameter=…>` within the same tags is read too.
    Hermes,
    /// `{"name": …, "parameters": {…}}` as the whole answer: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]`: Mistral.
    Mistral,
}

impl ToolFormat {
    /// The format that a chat template teaches its model.
    pub(crate) fn of_template(source: &str) -> Option<ToolFormat> {
        let has = |text: &str| source.contains(text);
        if has("<tool_call>") {
            Some(ToolFormat::Hermes)
        } else if has("[TOOL_CALLS]") {
            Some(ToolFormat::Mistral)
        } else if has("<|start_header_id|>") && has("\"parameters\"") {
            Some(ToolFormat::Llama3)
        } else {
            None
        }
    }

    /// Whether the template writes the calls of its model in tags of XML, which no JSON schema describes.
    pub(crate) fn is_xml(source: &str) -> bool {
        source.contains("<function=")
    }

    /// A grammar of answers that call tools and do nothing else: one of these, or several.
    pub(crate) fn grammar(self, functions: &[&Value], is_parallel: bool) -> Grammar {
        let calls: Vec<Value> = functions.iter().map(|function| self.call_schema(function)).collect();
        let call = if calls.len() == 1 { calls[0].clone() } else { json!({ "anyOf": calls }) };
        let most = if is_parallel { CALLS_MAX } else { 1 };
        match self {
            ToolFormat::Hermes => {
                let more =
                    if is_parallel { format!(" (\"\\n\" call){{0,{}}}", most - 1) } else { String::new() };
                Grammar::Lark(format!(
                    "start: call{more}\ncall: \"<tool_call>\\n\" object \"\\n</tool_call>\"\nobject: %json {call}\n"
                ))
            }
            ToolFormat::Llama3 => Grammar::JsonSchema(call),
            ToolFormat::Mistral => Grammar::JsonSchema(
                json!({ "type": "array", "items": call, "minItems": 1, "maxItems": most }),
            ),
        }
    }

    fn call_schema(self, function: &Value) -> Value {
        let arguments = match self {
            ToolFormat::Llama3 => "parameters",
            ToolFormat::Hermes | ToolFormat::Mistral => "arguments",
        };
        let parameters = function.get("parameters").filter(|schema| schema.is_object()).cloned();
        json!({
            "type": "object",
            "properties": {
                "name": { "const": function["name"] },
                arguments: parameters.unwrap_or_else(|| json!({ "type": "object" })),
            },
            "required": ["name", arguments],
            "additionalProperties": false,
        })
    }
}

/// The most calls of an answer that must call.
const CALLS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_tell_the_format() {
        let format = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/templates");
            let source = std::fs::read_to_string(format!("{folder}/{name}.jinja")).expect("a template");
            ToolFormat::of_template(&source)
        };
        for name in
            ["Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"]
        {
            assert_eq!(format(name), Some(ToolFormat::Hermes), "{name}");
        }
        assert_eq!(format("meta-llama-Llama-3.1-8B-Instruct"), Some(ToolFormat::Llama3));
        assert_eq!(format("meta-llama-Llama-3.2-3B-Instruct"), Some(ToolFormat::Llama3));
        assert_eq!(format("mistralai-Mistral-Nemo-Instruct-2407"), Some(ToolFormat::Mistral));
        assert_eq!(format("google-gemma-2-2b-it"), None);
    }
}
