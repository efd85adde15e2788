//! The lines of `run --parallel`: a prompt with its settings, or a request of OpenAI's batch API; and their answers.

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};
use verbatim_engine::{Engine, FinishReason, GenerationStats, Grammar, Message, Prompt, Request, Role};

use crate::session::Defaults;

/// How an answer is matched to its line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LineId {
    /// Lines without an id: their number among the requests, from 0.
    Index(usize),
    /// The line's `id` or `custom_id`.
    Custom(String),
}

impl LineId {
    /// The id in a line of the output.
    pub fn of_answer(answer: &Value) -> Option<LineId> {
        let text =
            |key: &str| answer.get(key).and_then(Value::as_str).map(|id| LineId::Custom(id.to_owned()));
        let index = || answer.get("index").and_then(Value::as_u64).map(|index| LineId::Index(index as usize));
        text("custom_id").or_else(|| text("id")).or_else(index)
    }
}

/// One line.
#[derive(Debug)]
pub struct BatchLine {
    /// Its id.
    pub id: LineId,
    /// Whether it is a request of OpenAI's batch API, which is answered in kind.
    pub is_openai: bool,
    /// What is asked, or what is wrong with it: other lines are answered all the same.
    pub request: anyhow::Result<Fields>,
}

/// The fields of a request that have a meaning here. Those that have none are errors: an answer without them would be another.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fields {
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
    /// Checked by nobody: one model answers all.
    #[serde(rename = "model")]
    _model: Option<String>,
    #[serde(alias = "max_completion_tokens")]
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    seed: Option<u64>,
    stop: Option<Stop>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    response_format: Option<ResponseFormat>,
    priority: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: Value },
}

impl BatchLine {
    /// Parses a line; `index` is its number among the requests, from 0.
    ///
    /// # Errors
    /// When it is not a JSON object, or its id is not a text.
    pub fn parse(line: &str, index: usize) -> anyhow::Result<BatchLine> {
        let value: Value = serde_json::from_str(line).context("this is not JSON")?;
        let Value::Object(mut fields) = value else { bail!("this is not a JSON object") };
        let is_openai = fields.contains_key("body");
        let id = match fields.remove("custom_id").or_else(|| fields.remove("id")) {
            Some(Value::String(id)) => LineId::Custom(id),
            Some(other) => bail!("the id must be a text, not {other}"),
            None if is_openai => bail!("a request with a body needs a custom_id"),
            None => LineId::Index(index),
        };
        let request = if is_openai { body(fields) } else { fields_of(Value::Object(fields)) };
        Ok(BatchLine { id, is_openai, request })
    }
}

fn body(mut fields: serde_json::Map<String, Value>) -> anyhow::Result<Fields> {
    if let Some(url) = fields.get("url") {
        let known = ["/v1/chat/completions", "/v1/completions"];
        ensure!(
            url.as_str().is_some_and(|url| known.contains(&url)),
            "the url {url} is not supported; {} are",
            known.join(" and ")
        );
    }
    fields_of(fields.remove("body").unwrap_or_default())
}

fn fields_of(value: Value) -> anyhow::Result<Fields> {
    Ok(serde_json::from_value(value)?)
}

impl Fields {
    /// The request, with the command line's settings where the line has none.
    ///
    /// # Errors
    /// When it has no prompt or two, or a setting is out of range.
    pub fn request(self, engine: &Engine, defaults: &Defaults) -> anyhow::Result<Request> {
        let prompt = match (self.prompt, self.messages) {
            (Some(text), None) if defaults.is_raw || !engine.has_chat_template() => Prompt::Text(text),
            (Some(content), None) => {
                let system = defaults.system.clone().map(|content| Message { role: Role::System, content });
                Prompt::Chat(system.into_iter().chain([Message { role: Role::User, content }]).collect())
            }
            (None, Some(messages)) => Prompt::Chat(messages),
            _ => bail!("there must be either a prompt or messages"),
        };
        let mut sampling = defaults.request.sampling.clone();
        let set = |setting: &mut f32, value: Option<f32>| *setting = value.unwrap_or(*setting);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        if let Some(k) = self.top_k {
            sampling.top_k = usize::try_from(k).unwrap_or(0);
        }
        sampling.seed = self.seed.or(sampling.seed);
        let grammar = match self.response_format {
            None => defaults.request.grammar.clone(),
            Some(ResponseFormat::Text) => None,
            Some(ResponseFormat::JsonObject) => Some(Grammar::JsonSchema(json!({ "type": "object" }))),
            Some(ResponseFormat::JsonSchema { json_schema }) => {
                let schema =
                    json_schema.get("schema").context("response_format.json_schema has no schema")?;
                Some(Grammar::JsonSchema(schema.clone()))
            }
        };
        let stop = match self.stop {
            None => defaults.request.stop.clone(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Several(texts)) => texts,
        };
        Ok(Request {
            prompt,
            sampling,
            grammar,
            stop,
            max_tokens: self.max_tokens.or(defaults.request.max_tokens),
            priority: self.priority.unwrap_or(0),
            session: None,
            ..defaults.request.clone()
        })
    }
}

/// The line of an answer.
pub fn success(
    id: &LineId,
    is_openai: bool,
    model: &str,
    text: &str,
    seed: u64,
    reason: &FinishReason,
    stats: &GenerationStats,
) -> Value {
    let reason = match reason {
        FinishReason::MaxTokens | FinishReason::ContextFull => "length",
        _ => "stop",
    };
    let usage = json!({
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": stats.generated_tokens,
        "total_tokens": stats.prompt_tokens + stats.generated_tokens,
        "prompt_tokens_details": { "cached_tokens": stats.cached_tokens },
    });
    if is_openai {
        let message = json!({ "role": "assistant", "content": text });
        let choice = json!({ "index": 0, "message": message, "finish_reason": reason });
        let body = json!({
            "object": "chat.completion", "model": model, "choices": [choice], "usage": usage, "seed": seed,
        });
        let response = json!({ "status_code": 200, "body": body });
        return json!({ "custom_id": id_value(id), "response": response, "error": null });
    }
    let mut line = json!({ "text": text, "finish_reason": reason, "seed": seed, "usage": usage });
    insert_id(&mut line, id);
    line
}

/// The line of a request that failed.
pub fn failure(id: &LineId, is_openai: bool, message: &str) -> Value {
    if is_openai {
        return json!({ "custom_id": id_value(id), "response": null, "error": { "message": message } });
    }
    let mut line = json!({ "error": { "message": message } });
    insert_id(&mut line, id);
    line
}

fn insert_id(line: &mut Value, id: &LineId) {
    let key = if matches!(id, LineId::Index(_)) { "index" } else { "id" };
    line[key] = id_value(id);
}

fn id_value(id: &LineId) -> Value {
    match id {
        LineId::Index(index) => json!(index),
        LineId::Custom(id) => json!(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prompts_or_requests_of_the_batch_api() {
        let line = BatchLine::parse(r#"{"prompt": "hello", "max_tokens": 5}"#, 3).unwrap();
        assert_eq!((line.id, line.is_openai), (LineId::Index(3), false));
        assert_eq!(line.request.unwrap().max_tokens, Some(5));
        let openai = r#"{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 7}}"#;
        let line = BatchLine::parse(openai, 0).unwrap();
        assert_eq!((line.id, line.is_openai), (LineId::Custom("a".into()), true));
        let fields = line.request.unwrap();
        assert_eq!((fields.max_tokens, fields.messages.unwrap().len()), (Some(7), 1));
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        for (line, what) in [
            ("", "not JSON"),
            ("[1]", "not a JSON object"),
            (r#"{"id": 7}"#, "must be a text"),
            (r#"{"body": {}}"#, "custom_id"),
        ] {
            let error = format!("{:#}", BatchLine::parse(line, 0).unwrap_err());
            assert!(error.contains(what), "{error}");
        }
        for (line, what) in [
            (r#"{"promt": "x"}"#, "promt"),
            (r#"{"prompt": "x", "temperature": "hot"}"#, "f32"),
            (r#"{"custom_id": "a", "url": "/v1/embeddings", "body": {}}"#, "/v1/embeddings"),
        ] {
            let error = format!("{:#}", BatchLine::parse(line, 0).unwrap().request.unwrap_err());
            assert!(error.contains(what), "{error}");
        }
    }

    #[test]
    fn answers_are_found_again() {
        let (stats, reason) = (GenerationStats::default(), FinishReason::MaxTokens);
        for (id, is_openai) in [
            (LineId::Index(4), false),
            (LineId::Custom("x".into()), false),
            (LineId::Custom("y".into()), true),
        ] {
            let line = success(&id, is_openai, "m", "text", 1, &reason, &stats);
            assert_eq!(LineId::of_answer(&line), Some(id.clone()));
            assert_eq!(LineId::of_answer(&failure(&id, is_openai, "no")), Some(id));
            assert!(line.to_string().contains(r#""finish_reason":"length""#));
        }
    }
}
