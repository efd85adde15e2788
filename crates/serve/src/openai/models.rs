//! `GET /v1/models` and `/v1/models/{model}`.

use crate::app::{App, unknown_model};
use crate::error::ApiError;
use crate::options::ServedModel;
use crate::reply::json as reply;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn list(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.model()?;
    let data: Vec<Value> = model.info.names.iter().map(|name| entry(name, model, &app)).collect();
    Ok(reply(&json!({ "object": "list", "data": data })))
}

pub(crate) async fn get(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let model = app.model()?;
    if !model.info.is_named(&name) {
        return Err(unknown_model(&name, model));
    }
    Ok(reply(&entry(&name, model, &app)))
}

/// A model as OpenAI's API lists it, with llama.cpp's `meta` and vLLM's `max_model_len`.
fn entry(name: &str, model: &ServedModel, app: &App) -> Value {
    let info = &model.info;
    json!({
        "id": name,
        "object": "model",
        "created": app.started,
        "owned_by": "verbatim",
        "max_model_len": model.engine.context(),
        "meta": {
            "n_vocab": info.vocabulary,
            "n_ctx_train": info.trained_context,
            "n_ctx": model.engine.context(),
            "n_embd": info.embedding,
            "n_params": info.parameters,
            "size": info.bytes,
        },
    })
}
