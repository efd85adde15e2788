//! The lines of `run --parallel`: a prompt with its settings, or a request of OpenAI's batch API; and their answers.

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value, json};
use verbatim_engine::{Engine, FinishReason, GenerationStats, Message, Prompt, Request, Role};
use verbatim_serve::{finish_reason, parse_request, usage};

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

/// What a line asks.
#[derive(Debug)]
pub struct Body(Map<String, Value>);

/// One line.
#[derive(Debug)]
pub struct BatchLine {
    /// Its id.
    pub id: LineId,
    /// Whether it is a request of OpenAI's batch API, which is answered in kind.
    pub is_openai: bool,
    /// What is asked, or what is wrong with it: other lines are answered all the same.
    pub request: anyhow::Result<Body>,
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
        let request = if is_openai { body(fields) } else { Ok(Body(fields)) };
        Ok(BatchLine { id, is_openai, request })
    }
}

fn body(mut fields: Map<String, Value>) -> anyhow::Result<Body> {
    if let Some(url) = fields.get("url") {
        let known = ["/v1/chat/completions", "/v1/completions"];
        ensure!(
            url.as_str().is_some_and(|url| known.contains(&url)),
            "the url {url} is not supported; {} are",
            known.join(" and ")
        );
    }
    match fields.remove("body") {
        Some(Value::Object(body)) => Ok(Body(body)),
        _ => bail!("the body must be an object"),
    }
}

impl Body {
    /// The request, with the command line's settings where the line has none.
    ///
    /// # Errors
    /// When it has no prompt or two, or a field is wrong or has no meaning here.
    pub fn request(self, engine: &Engine, defaults: &Defaults) -> anyhow::Result<Request> {
        let mut request = parse_request(self.0, &defaults.request, engine.tokenizer())?;
        request.prompt = match request.prompt {
            Prompt::Text(content) if !defaults.is_raw && engine.has_chat_template() => {
                let system = defaults.system.clone().map(|content| Message::new(Role::System, content));
                Prompt::Chat(system.into_iter().chain([Message::new(Role::User, content)]).collect())
            }
            other => other,
        };
        Ok(request)
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
    let reason = finish_reason(reason);
    let usage = usage(std::iter::once(stats), std::iter::once(stats));
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
        assert_eq!(line.request.unwrap().0["max_tokens"], 5);
        let openai = r#"{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 7}}"#;
        let line = BatchLine::parse(openai, 0).unwrap();
        assert_eq!((line.id, line.is_openai), (LineId::Custom("a".into()), true));
        assert_eq!(line.request.unwrap().0["max_completion_tokens"], 7);
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
            (r#"{"custom_id": "a", "body": 7}"#, "must be an object"),
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
