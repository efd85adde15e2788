//! The fields by which every API says how an answer is generated.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::sampling::{take_max_tokens, take_sampling, take_stop};
use serde::Deserialize;
use serde_json::Value;
use verbatim_engine::{Grammar, MAX_DRAFT, Prompt, Request, Speculation};
use verbatim_text::Tokenizer;

/// Names of fields that mean the maximum number of tokens.
const MAX_TOKENS: [&str; 4] = ["max_tokens", "max_completion_tokens", "n_predict", "num_predict"];

/// Takes the fields of a request that all APIs share; the prompt is left empty. `defaults` are the server's settings.
///
/// # Errors
/// If one is wrong.
pub(crate) fn take_request(
    fields: &mut Fields,
    defaults: &Request,
    tokenizer: &Tokenizer,
) -> Result<Request, ApiError> {
    let speculation = match fields.take::<SpeculationField>("speculation")? {
        None => defaults.speculation,
        Some(field) => field.speculation().map_err(|problem| fields.error("speculation", problem))?,
    };
    Ok(Request {
        prompt: Prompt::Tokens(Vec::new()),
        sampling: take_sampling(fields, &defaults.sampling, tokenizer)?,
        log_probs: None,
        grammar: take_grammar(fields)?.or_else(|| defaults.grammar.clone()),
        reasoning_budget: take_reasoning_budget(fields)?.or(defaults.reasoning_budget),
        max_tokens: take_max_tokens(fields, &MAX_TOKENS, defaults.max_tokens)?,
        stop: take_stop(fields, "stop", &defaults.stop)?,
        session: None,
        cache_prompt: fields.take("cache_prompt")?.unwrap_or(true),
        priority: fields.take("priority")?.unwrap_or(0),
        speculation,
    })
}

fn take_reasoning_budget(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let names = ["reasoning_budget", "thinking_budget_tokens"];
    let budget = fields.take_any::<i64>(&names)?;
    Ok(budget.and_then(|budget| usize::try_from(budget).ok()))
}

/// `response_format` of OpenAI's API, `json_schema` and `grammar` of llama.cpp's.
fn take_grammar(fields: &mut Fields) -> Result<Option<Grammar>, ApiError> {
    let mut found = Vec::new();
    if let Some(format) = fields.take::<ResponseFormat>("response_format")? {
        found.extend(format.grammar().map_err(|problem| fields.error("response_format", problem))?);
    }
    if let Some(schema) = fields.take_value("json_schema") {
        found.push(("json_schema", Grammar::JsonSchema(schema)));
    }
    if let Some(grammar) = fields.take::<String>("grammar")?.filter(|text| !text.trim().is_empty()) {
        found.push(("grammar", Grammar::Gbnf(grammar)));
    }
    match found.len() {
        0 | 1 => Ok(found.pop().map(|(_, grammar)| grammar)),
        _ => Err(fields.error(found[1].0, format!("{} already says what the answer looks like", found[0].0))),
    }
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with a type")]
struct ResponseFormat {
    #[serde(rename = "type")]
    kind: String,
    json_schema: Option<JsonSchema>,
    /// llama.cpp's place for it.
    schema: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object with a schema")]
struct JsonSchema {
    schema: Option<Value>,
}

impl ResponseFormat {
    fn grammar(self) -> Result<Option<(&'static str, Grammar)>, String> {
        let schema = self.json_schema.and_then(|inner| inner.schema).or(self.schema);
        let grammar = match (&*self.kind, schema) {
            ("text", _) => return Ok(None),
            ("json_object", None) => Grammar::json_object(),
            ("json_object" | "json_schema", Some(schema)) => Grammar::JsonSchema(schema),
            ("json_schema", None) => return Err("json_schema.schema: this field is required".to_owned()),
            (kind, _) => {
                return Err(format!("type {kind:?} is not one of text, json_object and json_schema"));
            }
        };
        Ok(Some(("response_format", grammar)))
    }
}

/// How answers are drafted: `"off"`, `"auto"` or a number of tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"off\", \"auto\" or a number of draft tokens")]
enum SpeculationField {
    Name(String),
    Tokens(usize),
}

impl SpeculationField {
    fn speculation(self) -> Result<Speculation, String> {
        match self {
            SpeculationField::Tokens(0) => Ok(Speculation::Off),
            SpeculationField::Tokens(tokens) if tokens <= MAX_DRAFT => Ok(Speculation::Fixed(tokens)),
            SpeculationField::Tokens(tokens) => {
                Err(format!("{tokens} draft tokens are more than {MAX_DRAFT}"))
            }
            SpeculationField::Name(name) => match &*name {
                "off" => Ok(Speculation::Off),
                "auto" => Ok(Speculation::AUTO),
                _ => Err(format!("{name:?} is neither \"off\" nor \"auto\"")),
            },
        }
    }
}

/// How many answers a request may ask for.
const ANSWERS_MAX: usize = 128;

/// Takes `n`, the number of answers.
///
/// # Errors
/// If it is 0 or too large.
pub(crate) fn take_n(fields: &mut Fields) -> Result<usize, ApiError> {
    match fields.take::<usize>("n")?.unwrap_or(1) {
        n @ 1..=ANSWERS_MAX => Ok(n),
        n => Err(fields.error("n", format!("it must be from 1 to {ANSWERS_MAX}, not {n}"))),
    }
}

/// The same request `n` times; if it has a seed, the seeds count up.
pub(crate) fn repeated(request: &Request, n: usize) -> Vec<Request> {
    let with_seed = |index: usize| {
        let mut request = request.clone();
        request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(index as u64));
        request
    };
    (0..n).map(with_seed).collect()
}
