//! What answers report about themselves: why they ended, token counts and timings.

use crate::answer::Ending;
use serde_json::{Value, json};
use verbatim_engine::{FinishReason, GenerationStats};

/// Why an answer ended, by OpenAI's names.
pub fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::MaxTokens | FinishReason::ContextFull => "length",
        FinishReason::EndOfText | FinishReason::StopString(_) | FinishReason::Cancelled => "stop",
    }
}

/// Why an answer ended that may call tools.
pub(crate) fn ending_reason(ending: &Ending) -> &'static str {
    if ending.calls_tools { "tool_calls" } else { finish_reason(&ending.reason) }
}

/// OpenAI's `usage` of a request with these answers. Its prompt counts once for each different prompt: `prompts` are the first
/// answers to each.
pub fn usage<'a>(
    answers: impl Iterator<Item = &'a GenerationStats> + Clone,
    prompts: impl Iterator<Item = &'a GenerationStats> + Clone,
) -> Value {
    let generated: usize = answers.clone().map(|stats| stats.generated_tokens).sum();
    let prompt: usize = prompts.clone().map(|stats| stats.prompt_tokens).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": { "cached_tokens": prompts.map(|stats| stats.cached_tokens).sum::<usize>() },
        "completion_tokens_details": {
            "drafted_tokens": answers.clone().map(|stats| stats.drafts.drafted).sum::<usize>(),
            "accepted_tokens": answers.map(|stats| stats.drafts.accepted).sum::<usize>(),
        },
    })
}

/// llama.cpp's `timings` of an answer.
pub(crate) fn timings(stats: &GenerationStats) -> Value {
    let computed = stats.prompt_tokens - stats.cached_tokens;
    let (prompt, generation) = (stats.time_to_first_token.as_secs_f64(), stats.generation_time.as_secs_f64());
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    // The first token comes from the prompt's last step.
    let decoded = stats.generated_tokens.saturating_sub(1) as f64;
    json!({
        "cache_n": stats.cached_tokens,
        "prompt_n": computed,
        "prompt_ms": prompt * 1e3,
        "prompt_per_token_ms": ratio(prompt * 1e3, computed as f64),
        "prompt_per_second": ratio(computed as f64, prompt),
        "predicted_n": stats.generated_tokens,
        "predicted_ms": generation * 1e3,
        "predicted_per_token_ms": ratio(generation * 1e3, decoded),
        "predicted_per_second": ratio(decoded, generation),
        "draft_n": stats.drafts.drafted,
        "draft_n_accepted": stats.drafts.accepted,
    })
}
