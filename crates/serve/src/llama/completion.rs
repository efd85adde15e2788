//! `POST /completion`.

use crate::answer::{Completion, Ending, Piece, complete};
use crate::app::App;
use crate::error::{ApiError, ErrorForm};
use crate::fields::Fields;
use crate::generation::{repeated, take_n, take_request};
use crate::llama::server::sampling_settings;
use crate::openai::completions::take_prompts;
use crate::options::ServedModel;
use crate::reply::{json as reply, warn};
use crate::stats::timings;
use crate::stream::{self, EVENT_STREAM, StreamForm, push_data};
use crate::submit::submit;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use verbatim_engine::{FinishReason, LogProbs, Request, Sampling, TokenLogProbs};
use verbatim_text::Tokenizer;

/// The most alternatives to a token.
const PROBS_MAX: usize = 128;
/// Fields that llama.cpp's clients send and that change no text here.
const WITHOUT_EFFECT: [&str; 5] =
    ["id_slot", "timings_per_token", "t_max_predict_ms", "n_keep", "return_progress"];

/// What all parts of an answer need.
struct Form {
    model: String,
    tokenizer: Arc<Tokenizer>,
    sampling: Sampling,
    returns_tokens: bool,
    /// Whether probabilities are of what the samplers leave; `None`: there are none.
    after_chain: Option<bool>,
}

pub(crate) async fn completion(
    State(app): State<Arc<App>>,
    mut fields: Fields,
) -> Result<Response, ApiError> {
    let model = app.model_for(&mut fields)?;
    let prompts = take_prompts(&mut fields, model.engine.tokenizer())?;
    let log_probs = take_probs(&mut fields)?;
    let request =
        Request { log_probs, ..take_request(&mut fields, &model.defaults, model.engine.tokenizer())? };
    let n = take_n(&mut fields)?;
    app.check_count(prompts.len() * n, &fields)?;
    let streams: bool = fields.take("stream")?.unwrap_or(false);
    let form = Form {
        model: model.info.name().to_owned(),
        tokenizer: Arc::clone(model.engine.tokenizer()),
        sampling: request.sampling.clone(),
        returns_tokens: fields.take("return_tokens")?.unwrap_or(false),
        after_chain: log_probs.map(|log_probs| log_probs.after_chain),
    };
    fields.ignore(&WITHOUT_EFFECT);
    let unknown = fields.unknown();
    let requests: Vec<Request> = prompts
        .iter()
        .flat_map(|prompt| repeated(&Request { prompt: prompt.clone(), ..request.clone() }, n))
        .collect();
    let count = requests.len();
    let answers = submit(&app, requests, None).await?;
    let response = if streams {
        stream::response(
            answers,
            CompletionStream { form, counts: vec![[0; 3]; count] },
            app.options.io_timeout,
        )
    } else {
        let completions = complete(answers).await?;
        let whole = completions.iter().enumerate().map(|(index, found)| form.whole(index, found, model));
        let mut whole: Vec<Value> = whole.collect();
        let body = if count == 1 { whole.remove(0) } else { whole.into() };
        reply(&body)
    };
    Ok(warn(response, &unknown))
}

fn take_probs(fields: &mut Fields) -> Result<Option<LogProbs>, ApiError> {
    let after_chain = fields.take("post_sampling_probs")?.unwrap_or(false);
    match fields.take_any::<i64>(&["n_probs", "logprobs"])?.unwrap_or(0) {
        top if top > PROBS_MAX as i64 => {
            Err(fields.error("n_probs", format!("it must be at most {PROBS_MAX}, not {top}")))
        }
        top if top > 0 => Ok(Some(LogProbs { top: top as usize, after_chain })),
        _ => Ok(None),
    }
}

/// Why an answer ended, by llama.cpp's names, and the stop string.
fn stop_type(reason: &FinishReason) -> (&'static str, &str) {
    match reason {
        FinishReason::EndOfText => ("eos", ""),
        FinishReason::StopString(text) => ("word", text),
        FinishReason::MaxTokens | FinishReason::ContextFull => ("limit", ""),
        FinishReason::Cancelled => ("none", ""),
    }
}

impl Form {
    fn whole(&self, index: usize, completion: &Completion, model: &ServedModel) -> Value {
        let Completion { whole, seed, ending } = completion;
        let Piece { text, reasoning, tokens, log_probs, .. } = whole;
        let mut value = self.last(index, ending);
        value["content"] = format!("{reasoning}{text}").into();
        value["tokens"] = if self.returns_tokens { tokens.clone().into() } else { json!([]) };
        let mut settings = sampling_settings(&self.sampling);
        settings["seed"] = (*seed).into();
        settings["n_ctx"] = model.engine.context().into();
        value["generation_settings"] = settings;
        if self.after_chain.is_some() {
            value["completion_probabilities"] = self.probabilities(tokens, log_probs);
        }
        value
    }

    /// What is known at the end.
    fn last(&self, index: usize, ending: &Ending) -> Value {
        let Ending { reason, stats, .. } = ending;
        let (kind, word) = stop_type(reason);
        json!({
            "index": index,
            "content": "",
            "stop": true,
            "model": self.model,
            "tokens_predicted": stats.generated_tokens,
            "tokens_evaluated": stats.prompt_tokens,
            "tokens_cached": stats.cached_tokens,
            "truncated": *reason == FinishReason::ContextFull,
            "stop_type": kind,
            "stopping_word": word,
            "timings": timings(stats),
        })
    }

    fn probabilities(&self, tokens: &[u32], log_probs: &[Option<TokenLogProbs>]) -> Value {
        let (value_name, list_name) = match self.after_chain {
            Some(true) => ("prob", "top_probs"),
            _ => ("logprob", "top_logprobs"),
        };
        let number = |log_prob: f32| match self.after_chain {
            Some(true) => libm::exp(f64::from(log_prob)),
            _ => f64::from(log_prob),
        };
        let entry = |token: u32, log_prob: f32| {
            let piece = self.tokenizer.piece(token);
            let mut value = json!({ "id": token, "token": String::from_utf8_lossy(piece), "bytes": piece });
            value[value_name] = number(log_prob).into();
            value
        };
        let entries = tokens.iter().zip(log_probs).filter_map(|(&token, found)| {
            let found = found.as_ref()?;
            let mut value = entry(token, found.log_prob);
            value[list_name] = found.top.iter().map(|&(token, log_prob)| entry(token, log_prob)).collect();
            Some(value)
        });
        entries.collect()
    }
}

/// A completion as a stream.
struct CompletionStream {
    form: Form,
    /// For each answer, the tokens of its prompt, those from the cache, and those generated.
    counts: Vec<[usize; 3]>,
}

impl StreamForm for CompletionStream {
    const CONTENT_TYPE: &'static str = EVENT_STREAM;
    const KEEP_ALIVE: Option<&'static str> = Some(":\n\n");

    fn started(&mut self, index: usize, prompt_tokens: usize, cached_tokens: usize, _out: &mut String) {
        self.counts[index] = [prompt_tokens, cached_tokens, 0];
    }

    fn piece(&mut self, index: usize, piece: Piece, out: &mut String) {
        let counts = &mut self.counts[index];
        counts[2] += piece.tokens.len();
        let mut chunk = json!({
            "index": index,
            "content": format!("{}{}", piece.reasoning, piece.text),
            "tokens": if self.form.returns_tokens { piece.tokens.clone() } else { Vec::new() },
            "stop": false,
            "id_slot": -1,
            "tokens_predicted": counts[2],
            "tokens_evaluated": counts[0],
        });
        if self.form.after_chain.is_some() {
            chunk["completion_probabilities"] = self.form.probabilities(&piece.tokens, &piece.log_probs);
        }
        push_data(out, &chunk);
    }

    fn finished(&mut self, index: usize, ending: &Ending, out: &mut String) {
        push_data(out, &self.form.last(index, ending));
    }

    fn end(&mut self, _out: &mut String) {}

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        push_data(out, &error.body(ErrorForm::LlamaCpp));
    }
}
