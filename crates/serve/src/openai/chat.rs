//! `POST /v1/chat/completions`.

use crate::answer::{Completion, Ending, Piece, complete};
use crate::app::App;
use crate::error::{ApiError, ErrorForm};
use crate::fields::Fields;
use crate::generation::{repeated, take_n, take_request};
use crate::openai::{log_probs, messages};
use crate::options::ServedModel;
use crate::reply::{json as reply, warn};
use crate::stats::{ending_reason, timings, usage};
use crate::stream::{self, EVENT_STREAM, StreamForm, push_data};
use crate::submit::submit;
use crate::tools::choice::take_tools;
use crate::tools::format::ToolFormat;
use crate::tools::parser::ToolCall;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use verbatim_engine::{GenerationStats, Prompt, Request};
use verbatim_text::Tokenizer;

/// Fields that say nothing about the answer.
pub(crate) const WITHOUT_EFFECT: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "id_slot",
    "timings_per_token",
];

/// A chat request.
#[derive(Debug)]
pub(crate) struct ChatCall {
    pub(crate) request: Request,
    pub(crate) tools: Option<ToolFormat>,
    pub(crate) n: usize,
    pub(crate) streams: bool,
    pub(crate) includes_usage: bool,
}

impl ChatCall {
    /// Takes the fields of a chat request.
    ///
    /// # Errors
    /// If one is wrong.
    pub(crate) fn take(fields: &mut Fields, model: &ServedModel) -> Result<ChatCall, ApiError> {
        let mut conversation = messages::take_conversation(fields)?;
        let tools = take_tools(fields, model)?;
        conversation.tools = tools.definitions;
        let request = take_request(fields, &model.defaults, model.engine.tokenizer())?;
        let request = Request {
            prompt: Prompt::Conversation(Box::new(conversation)),
            log_probs: log_probs::take_of_chat(fields)?,
            grammar: tools.grammar.or_else(|| request.grammar.clone()),
            ..request
        };
        let (streams, includes_usage) = take_streaming(fields)?;
        let n = take_n(fields)?;
        fields.ignore(&WITHOUT_EFFECT);
        Ok(ChatCall { request, tools: tools.format, n, streams, includes_usage })
    }
}

/// Takes `stream` and `stream_options`: whether the answer is streamed, and whether its usage comes last.
///
/// # Errors
/// If one is of another type.
pub(crate) fn take_streaming(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let streams = fields.take("stream")?.unwrap_or(false);
    let mut includes_usage = false;
    if let Some(mut options) = fields.take_object("stream_options")? {
        includes_usage = options.take("include_usage")?.unwrap_or(false);
        options.ignore(&["include_obfuscation"]);
        fields.absorb(options);
    }
    Ok((streams, includes_usage))
}

pub(crate) async fn chat(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let call = ChatCall::take(&mut fields, model)?;
    app.check_count(call.n, &fields)?;
    let unknown = fields.unknown();
    let answers = submit(&app, repeated(&call.request, call.n), call.tools).await?;
    let head = Head::new("chatcmpl", model);
    let response = if call.streams {
        let form = ChatStream {
            head,
            tokenizer: Arc::clone(model.engine.tokenizer()),
            has_log_probs: call.request.log_probs.is_some(),
            includes_usage: call.includes_usage,
            stats: Vec::new(),
            calls: vec![0; call.n],
        };
        stream::response(answers, form, app.options.io_timeout)
    } else {
        let completions = complete(answers).await?;
        let tokenizer = model.engine.tokenizer();
        let choices = completions.iter().enumerate();
        let choices: Vec<Value> = choices
            .map(|(index, completion)| {
                let log_probs = call.request.log_probs.is_some();
                choice(index, completion, log_probs.then_some(&**tokenizer))
            })
            .collect();
        reply(&head.complete("chat.completion", choices, &completions, 1))
    };
    Ok(warn(response, &unknown))
}

/// What all objects of an answer begin with.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    created: i64,
    pub(crate) model: String,
}

impl Head {
    pub(crate) fn new(prefix: &str, model: &ServedModel) -> Head {
        Head {
            id: format!("{prefix}-{:016x}", fastrand::u64(..)),
            created: jiff::Timestamp::now().as_second(),
            model: model.info.name().to_owned(),
        }
    }

    /// An object with these choices.
    pub(crate) fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("verbatim-", env!("CARGO_PKG_VERSION")),
            "choices": choices,
        })
    }

    /// The whole answer, with `prompts` prompts and as many completions of each.
    pub(crate) fn complete(
        &self,
        object: &str,
        choices: Vec<Value>,
        completions: &[Completion],
        prompts: usize,
    ) -> Value {
        let mut whole = self.object(object, choices.into());
        let stats = completions.iter().map(|completion| &completion.ending.stats);
        let each = completions.len() / prompts.max(1);
        whole["usage"] = usage(stats.clone(), stats.step_by(each.max(1)));
        if let Some(first) = completions.first() {
            whole["timings"] = timings(&first.ending.stats);
            whole["seed"] = first.seed.into();
        }
        whole
    }
}

fn choice(index: usize, completion: &Completion, tokenizer: Option<&Tokenizer>) -> Value {
    let Completion { whole, ending, .. } = completion;
    let mut message = json!({ "role": "assistant", "content": whole.text, "refusal": null });
    if !whole.reasoning.is_empty() {
        message["reasoning_content"] = whole.reasoning.as_str().into();
    }
    if !whole.calls.is_empty() {
        message["tool_calls"] = whole.calls.iter().map(tool_call).collect();
        if whole.text.is_empty() {
            message["content"] = Value::Null;
        }
    }
    let log_probs = tokenizer.map(|tokenizer| log_probs::of_chat(&whole.tokens, &whole.log_probs, tokenizer));
    json!({ "index": index, "message": message, "logprobs": log_probs, "finish_reason": ending_reason(ending) })
}

fn tool_call(call: &ToolCall) -> Value {
    let function = json!({ "name": call.name, "arguments": call.arguments_text() });
    json!({ "id": call.id, "type": "function", "function": function })
}

/// A chat as a stream.
struct ChatStream {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    has_log_probs: bool,
    includes_usage: bool,
    /// Of the answers that are complete.
    stats: Vec<GenerationStats>,
    /// The number of tool calls of each answer so far.
    calls: Vec<usize>,
}

impl ChatStream {
    fn chunk(&self, index: usize, delta: Value, reason: Option<&'static str>) -> Value {
        let choice = json!({ "index": index, "delta": delta, "logprobs": null, "finish_reason": reason });
        self.head.object("chat.completion.chunk", json!([choice]))
    }
}

impl StreamForm for ChatStream {
    const CONTENT_TYPE: &'static str = EVENT_STREAM;
    const KEEP_ALIVE: Option<&'static str> = Some(":\n\n");

    fn started(&mut self, index: usize, _prompt_tokens: usize, _cached_tokens: usize, out: &mut String) {
        push_data(out, &self.chunk(index, json!({ "role": "assistant", "content": "" }), None));
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut String) {
        let mut delta = json!({});
        if !piece.reasoning.is_empty() {
            delta["reasoning_content"] = piece.reasoning.into();
        }
        if !piece.text.is_empty() {
            delta["content"] = piece.text.into();
        }
        if !piece.calls.is_empty() {
            let calls = piece.calls.iter().map(|call| {
                let mut value = tool_call(call);
                value["index"] = self.calls[index].into();
                self.calls[index] += 1;
                value
            });
            delta["tool_calls"] = calls.collect();
        }
        // Text that may become a tool call is held back.
        if delta.as_object().is_none_or(serde_json::Map::is_empty) && !self.has_log_probs {
            return;
        }
        let mut chunk = self.chunk(index, delta, None);
        if self.has_log_probs {
            chunk["choices"][0]["logprobs"] =
                log_probs::of_chat(&piece.tokens, &piece.log_probs, &self.tokenizer);
        }
        push_data(out, &chunk);
    }

    fn finished(&mut self, index: usize, ending: &Ending, out: &mut String) {
        let mut chunk = self.chunk(index, json!({}), Some(ending_reason(ending)));
        chunk["timings"] = timings(&ending.stats);
        self.stats.push(ending.stats);
        push_data(out, &chunk);
    }

    fn end(&mut self, out: &mut String) {
        if self.includes_usage {
            let mut last = self.head.object("chat.completion.chunk", json!([]));
            last["usage"] = usage(self.stats.iter(), self.stats.iter().take(1));
            push_data(out, &last);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        push_data(out, &error.body(ErrorForm::OpenAi));
    }
}
