//! What the server and its model are and do: `/health`, `/props`, `/slots` and `/metrics`.

use crate::app::{App, engine_status};
use crate::error::ApiError;
use crate::options::ServedModel;
use crate::reply::json as reply;
use crate::slots::Progress;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use verbatim_engine::Sampling;

pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    match app.model()?.engine.stopped() {
        None => Ok(reply(&json!({ "status": "ok" }))),
        Some(error) => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    }
}

pub(crate) async fn props(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.model()?;
    let format = model.engine.chat_format();
    let piece = |id: Option<u32>| {
        id.map(|id| String::from_utf8_lossy(model.engine.tokenizer().piece(id)).into_owned())
            .unwrap_or_default()
    };
    let capabilities = format.template().ok().map(|template| *template.capabilities());
    let has = |found: Option<bool>| found.unwrap_or(false);
    Ok(reply(&json!({
        "default_generation_settings": {
            "n_ctx": model.engine.context(),
            "params": generation_settings(model),
        },
        "total_slots": model.slots,
        "model_alias": model.info.name(),
        "model_path": model.info.path,
        "modalities": { "vision": false, "audio": false },
        "chat_template": format.template_source().unwrap_or_default(),
        "chat_template_caps": {
            "supports_system_role": has(capabilities.map(|found| found.supports_system)),
            "supports_tools": has(capabilities.map(|found| found.supports_tools)),
            "supports_tool_calls": has(capabilities.map(|found| found.supports_tool_calls)),
        },
        "bos_token": piece(model.engine.tokenizer().bos()),
        "eos_token": piece(model.engine.tokenizer().eos()),
        "build_info": concat!("verbatim ", env!("CARGO_PKG_VERSION")),
    })))
}

/// What each slot does. No text of a request is shown.
pub(crate) async fn slots(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let context = app.model()?.engine.context();
    let slots = app.slots.list();
    let slots = slots.iter().enumerate().map(|(index, progress)| slot(index, context, progress.as_deref()));
    Ok(reply(&slots.collect()))
}

fn slot(index: usize, context: usize, progress: Option<&Progress>) -> Value {
    let Some(progress) = progress else {
        return json!({ "id": index, "n_ctx": context, "is_processing": false });
    };
    let generated = progress.generated_tokens.load(Ordering::Relaxed);
    json!({
        "id": index,
        "id_task": progress.task,
        "n_ctx": context,
        "is_processing": true,
        "n_prompt_tokens": progress.prompt_tokens,
        "n_prompt_tokens_cache": progress.cached_tokens,
        "next_token": [{ "n_decoded": generated }],
    })
}

/// The metrics as text for Prometheus.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let engine = &app.model()?.engine;
    let status = engine_status(engine).await?;
    let text = app.metrics.encode(&status, engine.context());
    let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text).into_response())
}

/// The settings of requests that say nothing else.
fn generation_settings(model: &ServedModel) -> Value {
    let limit = |tokens: Option<usize>| tokens.map_or(-1, |tokens| tokens as i64);
    let mut settings = sampling_settings(&model.defaults.sampling);
    settings["n_predict"] = limit(model.defaults.max_tokens).into();
    settings["max_tokens"] = limit(model.defaults.max_tokens).into();
    settings["stop"] = model.defaults.stop.clone().into();
    settings
}

/// Sampling settings by llama.cpp's names.
pub(crate) fn sampling_settings(sampling: &Sampling) -> Value {
    let last = |tokens: Option<usize>| tokens.map_or(-1, |tokens| tokens as i64);
    json!({
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": sampling.dynatemp_range,
        "dynatemp_exponent": sampling.dynatemp_exponent,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "top_n_sigma": sampling.top_n_sigma,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "repeat_last_n": last(sampling.repeat_last_n),
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": last(sampling.dry_penalty_last_n),
        "dry_sequence_breakers": sampling.dry_sequence_breakers,
        "mirostat": if sampling.mirostat { 2 } else { 0 },
        "mirostat_tau": sampling.mirostat_tau,
        "mirostat_eta": sampling.mirostat_eta,
        "min_keep": sampling.min_keep,
        "samplers": sampling.samplers.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
    })
}
