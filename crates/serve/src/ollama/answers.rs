//! `POST /api/chat` and `/api/generate`. Unlike in the other APIs, answers are streamed unless a request says otherwise.

use crate::answer::{Completion, Ending, Piece, complete};
use crate::app::App;
use crate::error::{ApiError, ErrorForm};
use crate::fields::Fields;
use crate::generation::take_request;
use crate::openai::messages::conversation;
use crate::options::ServedModel;
use crate::reply::{json as reply, warn};
use crate::stats::finish_reason;
use crate::stream::{self, NDJSON, StreamForm};
use crate::submit::submit;
use crate::tools::choice::{Tools, take_tools};
use crate::tools::parser::ToolCall;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use verbatim_engine::{Conversation, Grammar, Prompt, Request};

/// Settings of the runner, which the server has from its own command line.
const OF_RUNNER: [&str; 7] =
    ["num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "num_keep"];

/// Where the text of an answer is.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In a message.
    Chat,
    /// In the field `response`.
    Generate,
}

pub(crate) async fn chat(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = named_model(&app, &mut fields)?;
    let messages: Vec<Value> = fields.take("messages")?.unwrap_or_default();
    if messages.is_empty() {
        return Ok(loaded(model, Place::Chat));
    }
    if let Some(index) = messages.iter().position(|message| has_entries(message, "images")) {
        return Err(fields.error(&format!("messages[{index}].images"), "images are not supported"));
    }
    let mut tools = take_tools(&mut fields, model)?;
    let mut conversation = conversation(messages, &mut fields)?;
    conversation.variables = take_think(&mut fields)?;
    conversation.tools = tools.definitions.take();
    answer(&app, model, fields, Prompt::Conversation(Box::new(conversation)), (Place::Chat, tools)).await
}

pub(crate) async fn generate(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = named_model(&app, &mut fields)?;
    let prompt: String = fields.take("prompt")?.unwrap_or_default();
    if prompt.is_empty() {
        return Ok(loaded(model, Place::Generate));
    }
    if fields.take_value("images").is_some_and(|images| images.as_array().is_none_or(|list| !list.is_empty()))
    {
        return Err(fields.error("images", "images are not supported"));
    }
    if fields.take::<String>("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields.error("suffix", "filling in is not supported: leave it out"));
    }
    let is_raw = fields.take("raw")?.unwrap_or(false);
    let system = fields.take::<String>("system")?.filter(|system| !system.is_empty());
    let variables = take_think(&mut fields)?;
    let prompt = if is_raw || !model.engine.has_chat_template() {
        Prompt::Text(system.map_or_else(String::new, |system| system + "\n\n") + &prompt)
    } else {
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        let messages = system.into_iter().chain([json!({ "role": "user", "content": prompt })]).collect();
        Prompt::Conversation(Box::new(Conversation { messages, variables, ..Conversation::default() }))
    };
    answer(&app, model, fields, prompt, (Place::Generate, Tools::default())).await
}

/// The model, which must be named.
fn named_model<'a>(app: &'a App, fields: &mut Fields) -> Result<&'a ServedModel, ApiError> {
    let name: String = fields.require("model")?;
    let model = app.model()?;
    if model.info.is_named(&name) { Ok(model) } else { Err(crate::app::unknown_model(&name, model)) }
}

fn has_entries(message: &Value, key: &str) -> bool {
    message
        .get(key)
        .is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty()) && !value.is_null())
}

/// Takes `think`: whether, or how hard, the model thinks.
fn take_think(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    match fields.take_value("think") {
        None => {}
        Some(Value::Bool(thinks)) => {
            variables.insert("enable_thinking".to_owned(), thinks.into());
        }
        Some(Value::String(effort)) => {
            variables.insert("enable_thinking".to_owned(), true.into());
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(_) => return Err(fields.error("think", "it must be true, false or a string such as \"low\"")),
    }
    Ok(variables)
}

fn take_format(fields: &mut Fields) -> Result<Option<Grammar>, ApiError> {
    match fields.take_value("format") {
        None => Ok(None),
        Some(Value::String(name)) if name.is_empty() => Ok(None),
        Some(Value::String(name)) if name == "json" => Ok(Some(Grammar::json_object())),
        Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema))),
        Some(_) => Err(fields.error("format", "it must be \"json\" or a JSON schema")),
    }
}

/// A model is loaded by a request without a prompt, which this one is already.
fn loaded(model: &ServedModel, place: Place) -> Response {
    let mut body = Form { model: model.info.name().to_owned(), place }.part("", "");
    body["done"] = true.into();
    body["done_reason"] = "load".into();
    reply(&body)
}

async fn answer(
    app: &Arc<App>,
    model: &ServedModel,
    mut fields: Fields,
    prompt: Prompt,
    (place, tools): (Place, Tools),
) -> Result<Response, ApiError> {
    let options = fields.take_object("options")?;
    let mut options = options.unwrap_or_else(|| Fields::of(Map::new(), "options.".to_owned()));
    let request = take_request(&mut options, &model.defaults, model.engine.tokenizer())?;
    options.ignore(&OF_RUNNER);
    fields.absorb(options);
    let grammar = take_format(&mut fields)?.or(tools.grammar).or_else(|| request.grammar.clone());
    let request = Request { prompt, grammar, ..request };
    let streams = fields.take("stream")?.unwrap_or(true);
    fields.ignore(&["keep_alive"]);
    let unknown = fields.unknown();
    let answers = submit(app, vec![request], tools.format).await?;
    let form = Form { model: model.info.name().to_owned(), place };
    let response = if streams {
        stream::response(answers, form, app.options.io_timeout)
    } else {
        let completions = complete(answers).await?;
        let body = completions.last().map(|Completion { whole, ending, .. }| {
            let mut body = form.part(&whole.text, &whole.reasoning);
            add_calls(&mut body, &whole.calls);
            finish(&mut body, ending);
            body
        });
        reply(&body.unwrap_or_default())
    };
    Ok(warn(response, &unknown))
}

/// How answers are written.
struct Form {
    model: String,
    place: Place,
}

impl Form {
    fn part(&self, text: &str, reasoning: &str) -> Value {
        let mut part = json!({ "model": self.model, "created_at": jiff::Timestamp::now().to_string() });
        match self.place {
            Place::Chat => {
                part["message"] = json!({ "role": "assistant", "content": text });
                if !reasoning.is_empty() {
                    part["message"]["thinking"] = reasoning.into();
                }
            }
            Place::Generate => {
                part["response"] = text.into();
                if !reasoning.is_empty() {
                    part["thinking"] = reasoning.into();
                }
            }
        }
        part["done"] = false.into();
        part
    }
}

fn add_calls(body: &mut Value, calls: &[ToolCall]) {
    if !calls.is_empty() {
        let call =
            |call: &ToolCall| json!({ "function": { "name": call.name, "arguments": call.arguments } });
        body["message"]["tool_calls"] = calls.iter().map(call).collect();
    }
}

fn finish(body: &mut Value, ending: &Ending) {
    let Ending { reason, stats, .. } = ending;
    let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    body["done"] = true.into();
    body["done_reason"] = finish_reason(reason).into();
    body["total_duration"] = nanoseconds(stats.time_to_first_token + stats.generation_time).into();
    body["load_duration"] = 0.into();
    body["prompt_eval_count"] = stats.prompt_tokens.into();
    body["prompt_eval_duration"] = nanoseconds(stats.time_to_first_token).into();
    body["eval_count"] = stats.generated_tokens.into();
    body["eval_duration"] = nanoseconds(stats.generation_time).into();
}

fn push_line(out: &mut String, value: &Value) {
    out.push_str(&value.to_string());
    out.push('\n');
}

impl StreamForm for Form {
    const CONTENT_TYPE: &'static str = NDJSON;
    const KEEP_ALIVE: Option<&'static str> = None;

    fn started(&mut self, _index: usize, _prompt_tokens: usize, _cached_tokens: usize, _out: &mut String) {}

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut String) {
        if piece.text.is_empty() && piece.reasoning.is_empty() && piece.calls.is_empty() {
            return;
        }
        let mut part = self.part(&piece.text, &piece.reasoning);
        add_calls(&mut part, &piece.calls);
        push_line(out, &part);
    }

    fn finished(&mut self, _index: usize, ending: &Ending, out: &mut String) {
        let mut last = self.part("", "");
        finish(&mut last, ending);
        push_line(out, &last);
    }

    fn end(&mut self, _out: &mut String) {}

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        push_line(out, &error.body(ErrorForm::Ollama));
    }
}
