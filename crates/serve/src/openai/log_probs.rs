//! Log-probabilities in OpenAI's forms.

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Value, json};
use verbatim_engine::{LogProbs, TokenLogProbs};
use verbatim_text::Tokenizer;

/// The most alternatives to a token.
pub(crate) const TOP_MAX: usize = 20;

/// Takes `logprobs` and `top_logprobs` of a chat.
///
/// # Errors
/// If there are too many, or `top_logprobs` comes alone.
pub(crate) fn take_of_chat(fields: &mut Fields) -> Result<Option<LogProbs>, ApiError> {
    let is_on = fields.take::<bool>("logprobs")?.unwrap_or(false);
    let top = fields.take::<usize>("top_logprobs")?;
    match top {
        Some(top) if top > TOP_MAX => {
            Err(fields.error("top_logprobs", format!("it must be at most {TOP_MAX}, not {top}")))
        }
        Some(top) if top > 0 && !is_on => Err(fields.error("top_logprobs", "it needs \"logprobs\": true")),
        top => Ok(is_on.then(|| LogProbs { top: top.unwrap_or(0), after_chain: false })),
    }
}

/// Takes `logprobs` of a completion, a number.
///
/// # Errors
/// If it is too large.
pub(crate) fn take_of_completion(fields: &mut Fields) -> Result<Option<LogProbs>, ApiError> {
    match fields.take::<usize>("logprobs")? {
        Some(top) if top > TOP_MAX => {
            Err(fields.error("logprobs", format!("it must be at most {TOP_MAX}, not {top}")))
        }
        top => Ok(top.map(|top| LogProbs { top, after_chain: false })),
    }
}

/// The entries of a chat's `logprobs.content`.
pub(crate) fn of_chat(tokens: &[u32], log_probs: &[Option<TokenLogProbs>], tokenizer: &Tokenizer) -> Value {
    let entry = |token: u32, log_prob: f32| {
        let piece = tokenizer.piece(token);
        json!({ "token": String::from_utf8_lossy(piece), "logprob": log_prob, "bytes": piece })
    };
    let entries = tokens.iter().zip(log_probs).filter_map(|(&token, found)| {
        let found = found.as_ref()?;
        let mut value = entry(token, found.log_prob);
        value["top_logprobs"] = found.top.iter().map(|&(token, log_prob)| entry(token, log_prob)).collect();
        Some(value)
    });
    json!({ "content": entries.collect::<Vec<_>>(), "refusal": null })
}

/// A completion's `logprobs`; `offset` is the length of the text before, in characters.
pub(crate) fn of_completion(
    tokens: &[u32],
    log_probs: &[Option<TokenLogProbs>],
    tokenizer: &Tokenizer,
    mut offset: usize,
) -> Value {
    let text = |token: u32| String::from_utf8_lossy(tokenizer.piece(token)).into_owned();
    let (mut texts, mut own, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (&token, found) in tokens.iter().zip(log_probs) {
        let alternatives = found.as_ref().map(|found| {
            let entries = found.top.iter().map(|&(token, log_prob)| (text(token), json!(log_prob)));
            entries.collect::<serde_json::Map<_, _>>()
        });
        own.push(found.as_ref().map(|found| found.log_prob));
        top.push(alternatives);
        offsets.push(offset);
        offset += text(token).chars().count();
        texts.push(text(token));
    }
    json!({ "tokens": texts, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets })
}
