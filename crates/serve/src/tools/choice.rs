//! What a request says about tools: which there are, and whether the model must call one.

use crate::error::ApiError;
use crate::fields::{Fields, kind};
use crate::options::ServedModel;
use crate::tools::format::ToolFormat;
use serde_json::{Value, json};
use verbatim_engine::Grammar;

/// The most tools of a request.
const TOOLS_MAX: usize = 128;

/// The tools of a request.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Their definitions in OpenAI's form, for the template; `Null`: none.
    pub(crate) definitions: Value,
    /// How their calls are written; `None`: there are none to be called.
    pub(crate) format: Option<ToolFormat>,
    /// What the answer must look like if it must call.
    pub(crate) grammar: Option<Grammar>,
}

/// Which tools the model may or must call.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Auto,
    None,
    Required,
    Named(String),
}

/// Takes the tools of a request in OpenAI's, Anthropic's or Ollama's form.
///
/// # Errors
/// If they are wrong, or the model cannot call tools.
pub(crate) fn take_tools(fields: &mut Fields, model: &ServedModel) -> Result<Tools, ApiError> {
    let given: Vec<Value> = fields.take("tools")?.unwrap_or_default();
    let choice = take_choice(fields)?;
    let is_parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
    if fields.take_value("functions").is_some() {
        return Err(fields.error("functions", "this form is no longer in use: send \"tools\""));
    }
    if given.len() > TOOLS_MAX {
        return Err(fields.error("tools", format!("{} tools are more than {TOOLS_MAX}", given.len())));
    }
    if given.is_empty() {
        return match choice {
            Choice::Required | Choice::Named(_) => Err(fields.error("tool_choice", "there are no tools")),
            Choice::Auto | Choice::None => Ok(Tools::default()),
        };
    }
    let mut functions = Vec::with_capacity(given.len());
    for (index, tool) in given.into_iter().enumerate() {
        let function = function_of(tool);
        functions.push(
            function.map_err(|(place, problem)| fields.error(&format!("tools[{index}]{place}"), problem))?,
        );
    }
    if choice == Choice::None {
        return Ok(Tools::default());
    }
    let (format, is_xml) = format_of(model).map_err(|problem| fields.error("tools", problem))?;
    let wanted: Vec<&Value> = match &choice {
        Choice::Auto | Choice::None => Vec::new(),
        Choice::Required => functions.iter().collect(),
        Choice::Named(name) => functions.iter().filter(|function| function["name"] == **name).collect(),
    };
    if wanted.is_empty() && choice != Choice::Auto {
        return Err(fields.error("tool_choice", "there is no tool of this name"));
    }
    if is_xml && !wanted.is_empty() {
        return Err(fields.error("tool_choice", "this model's calls cannot be enforced: use \"auto\""));
    }
    let grammar = (!wanted.is_empty()).then(|| format.grammar(&wanted, is_parallel));
    let definitions = functions.iter().map(|function| json!({ "type": "function", "function": function }));
    Ok(Tools { definitions: definitions.collect(), format: Some(format), grammar })
}

fn format_of(model: &ServedModel) -> Result<(ToolFormat, bool), &'static str> {
    let format = model.engine.chat_format();
    let supports = format.template().is_ok_and(|template| template.capabilities().supports_tools);
    let source = format.template_source().unwrap_or_default();
    let found = ToolFormat::of_template(source).filter(|_| supports);
    let found = found
        .ok_or("the chat template of this model writes no tools, or calls in a form that is not supported")?;
    Ok((found, ToolFormat::is_xml(source)))
}

fn take_choice(fields: &mut Fields) -> Result<Choice, ApiError> {
    let Some(choice) = fields.take_value("tool_choice") else { return Ok(Choice::Auto) };
    let word = choice.as_str().or_else(|| choice.get("type")?.as_str());
    let name = choice.pointer("/function/name").or_else(|| choice.get("name")).and_then(Value::as_str);
    match (word, name) {
        (Some("auto"), _) => Ok(Choice::Auto),
        (Some("none"), _) => Ok(Choice::None),
        (Some("required" | "any"), _) => Ok(Choice::Required),
        (Some("function" | "tool"), Some(name)) => Ok(Choice::Named(name.to_owned())),
        _ => Err(fields.error("tool_choice", "it must be auto, none, required or the name of a function")),
    }
}

/// A tool's function with its name, description and parameters; on error, where it is wrong and why.
fn function_of(tool: Value) -> Result<Value, (&'static str, String)> {
    let Value::Object(mut entries) = tool else {
        return Err(("", format!("a tool must be an object, not {}", kind(&tool))));
    };
    let (mut function, place) = match entries.remove("function") {
        Some(Value::Object(function)) => (function, ".function.name"),
        Some(_) => return Err((".function", "it must be an object".to_owned())),
        // Anthropic's form.
        None => (entries, ".name"),
    };
    let Some(Value::String(name)) = function.remove("name") else {
        return Err((place, "a tool needs a name".to_owned()));
    };
    let parameters = function.remove("parameters").or_else(|| function.remove("input_schema"));
    if parameters.as_ref().is_some_and(|schema| !schema.is_object() && !schema.is_null()) {
        return Err((place, "its parameters must be a JSON schema".to_owned()));
    }
    let mut checked = json!({ "name": name });
    if let Some(Value::String(description)) = function.remove("description") {
        checked["description"] = description.into();
    }
    checked["parameters"] =
        parameters.filter(Value::is_object).unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
    Ok(checked)
}
