//! `POST /v1/completions`.

use crate::answer::{Completion, Ending, Piece, complete};
use crate::app::App;
use crate::error::{ApiError, ErrorForm};
use crate::fields::Fields;
use crate::generation::{repeated, take_n, take_request};
use crate::openai::chat::{Head, WITHOUT_EFFECT, take_streaming};
use crate::openai::log_probs;
use crate::options::ServedModel;
use crate::reply::{json as reply, warn};
use crate::stats::{finish_reason, timings, usage};
use crate::stream::{self, EVENT_STREAM, StreamForm, push_data};
use crate::submit::submit;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use verbatim_engine::{GenerationStats, Prompt, Request};
use verbatim_text::Tokenizer;

/// The most prompts of a request.
const PROMPTS_MAX: usize = 128;

/// A prompt or several, as text or tokens.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, an array of strings, an array of token ids, or an array of such arrays"
)]
enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    Lists(Vec<Vec<u32>>),
}

impl Prompts {
    fn list(self) -> Vec<Prompt> {
        match self {
            Prompts::Text(text) => vec![Prompt::Text(text)],
            Prompts::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Prompts::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Prompts::Lists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

/// Takes the field `prompt`.
///
/// # Errors
/// If there is none, or a token is not in the vocabulary.
pub(crate) fn take_prompts(fields: &mut Fields, tokenizer: &Tokenizer) -> Result<Vec<Prompt>, ApiError> {
    let prompts = fields.require::<Prompts>("prompt")?.list();
    if prompts.is_empty() || prompts.len() > PROMPTS_MAX {
        let problem = format!("there must be from 1 to {PROMPTS_MAX} prompts, not {}", prompts.len());
        return Err(fields.error("prompt", problem));
    }
    for prompt in &prompts {
        let Prompt::Tokens(tokens) = prompt else { continue };
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= tokenizer.vocab_len()) {
            return Err(fields.error("prompt", format!("there is no token {token}")));
        }
    }
    Ok(prompts)
}

struct Call {
    requests: Vec<Request>,
    prompts: usize,
    echoes: Vec<String>,
    streams: bool,
    includes_usage: bool,
    has_log_probs: bool,
}

impl Call {
    fn take(fields: &mut Fields, model: &ServedModel, app: &App) -> Result<Call, ApiError> {
        let tokenizer = model.engine.tokenizer();
        let prompts = take_prompts(fields, tokenizer)?;
        let request = Request {
            log_probs: log_probs::take_of_completion(fields)?,
            ..take_request(fields, &model.defaults, tokenizer)?
        };
        let n = take_n(fields)?;
        app.check_count(prompts.len() * n, fields)?;
        if fields.take::<usize>("best_of")?.is_some_and(|best| best > n) {
            return Err(fields.error("best_of", "ranking answers is not supported: leave it out"));
        }
        if fields.take::<String>("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(fields.error("suffix", "filling in is not supported: leave it out"));
        }
        let echo = fields.take("echo")?.unwrap_or(false);
        if echo && request.log_probs.is_some() {
            return Err(
                fields.error("echo", "log-probabilities of prompts are not supported: leave out one of both")
            );
        }
        let (streams, includes_usage) = take_streaming(fields)?;
        fields.ignore(&WITHOUT_EFFECT);
        let text = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(tokens) => String::from_utf8_lossy(&tokenizer.decode(tokens, true)).into_owned(),
            Prompt::Chat(_) | Prompt::Conversation(_) => String::new(),
        };
        let echoes = prompts
            .iter()
            .flat_map(|prompt| std::iter::repeat_n(if echo { text(prompt) } else { String::new() }, n));
        let echoes = echoes.collect();
        let requests = prompts
            .iter()
            .flat_map(|prompt| repeated(&Request { prompt: prompt.clone(), ..request.clone() }, n));
        let has_log_probs = request.log_probs.is_some();
        let (requests, prompts) = (requests.collect(), prompts.len());
        Ok(Call { requests, prompts, echoes, streams, includes_usage, has_log_probs })
    }
}

pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let call = Call::take(&mut fields, model, &app)?;
    let unknown = fields.unknown();
    let Call { requests, prompts, echoes, streams, includes_usage, has_log_probs } = call;
    let count = requests.len();
    let answers = submit(&app, requests, None).await?;
    let head = Head::new("cmpl", model);
    let tokenizer = Arc::clone(model.engine.tokenizer());
    let response = if streams {
        let each = count / prompts;
        let (offsets, stats) = (vec![0; count], vec![None; count]);
        let form =
            CompletionStream { head, tokenizer, has_log_probs, includes_usage, echoes, offsets, stats, each };
        stream::response(answers, form, app.options.io_timeout)
    } else {
        let completions = complete(answers).await?;
        let choices = completions.iter().zip(&echoes).enumerate();
        let choices = choices.map(|(index, (completion, echo))| {
            choice(index, completion, echo, has_log_probs.then_some(&*tokenizer))
        });
        reply(&head.complete("text_completion", choices.collect(), &completions, prompts))
    };
    Ok(warn(response, &unknown))
}

fn choice(index: usize, completion: &Completion, echo: &str, tokenizer: Option<&Tokenizer>) -> Value {
    let Completion { whole, ending, .. } = completion;
    let log_probs =
        tokenizer.map(|tokenizer| log_probs::of_completion(&whole.tokens, &whole.log_probs, tokenizer, 0));
    let text = format!("{echo}{}", whole.text);
    let reason = finish_reason(&ending.reason);
    json!({ "index": index, "text": text, "logprobs": log_probs, "finish_reason": reason })
}

/// Completions as a stream.
struct CompletionStream {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    has_log_probs: bool,
    includes_usage: bool,
    echoes: Vec<String>,
    /// Characters of each answer's tokens so far.
    offsets: Vec<usize>,
    stats: Vec<Option<GenerationStats>>,
    /// Answers to each prompt.
    each: usize,
}

impl CompletionStream {
    fn chunk(&self, index: usize, text: &str, reason: Option<&'static str>) -> Value {
        let choice = json!({ "index": index, "text": text, "logprobs": null, "finish_reason": reason });
        self.head.object("text_completion", json!([choice]))
    }
}

impl StreamForm for CompletionStream {
    const CONTENT_TYPE: &'static str = EVENT_STREAM;
    const KEEP_ALIVE: Option<&'static str> = Some(":\n\n");

    fn started(&mut self, index: usize, _prompt_tokens: usize, _cached_tokens: usize, out: &mut String) {
        let echo = std::mem::take(&mut self.echoes[index]);
        if !echo.is_empty() {
            push_data(out, &self.chunk(index, &echo, None));
        }
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut String) {
        let mut chunk = self.chunk(index, &piece.text, None);
        if self.has_log_probs {
            let log_probs = log_probs::of_completion(
                &piece.tokens,
                &piece.log_probs,
                &self.tokenizer,
                self.offsets[index],
            );
            let texts = log_probs["tokens"].as_array().into_iter().flatten().filter_map(Value::as_str);
            self.offsets[index] += texts.map(|text| text.chars().count()).sum::<usize>();
            chunk["choices"][0]["logprobs"] = log_probs;
        }
        push_data(out, &chunk);
    }

    fn finished(&mut self, index: usize, ending: &Ending, out: &mut String) {
        let mut chunk = self.chunk(index, "", Some(finish_reason(&ending.reason)));
        chunk["timings"] = timings(&ending.stats);
        self.stats[index] = Some(ending.stats);
        push_data(out, &chunk);
    }

    fn end(&mut self, out: &mut String) {
        if self.includes_usage {
            let mut last = self.head.object("text_completion", json!([]));
            let firsts = self.stats.iter().step_by(self.each.max(1));
            last["usage"] = usage(self.stats.iter().flatten(), firsts.flatten());
            push_data(out, &last);
        }
        out.push_str("data: [DONE]\n\n");
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        push_data(out, &error.body(ErrorForm::OpenAi));
    }
}
