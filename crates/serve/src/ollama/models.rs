//! What models there are: `/api/tags`, `/api/show`, `/api/ps` and `/api/version`.

use crate::app::{App, unknown_model};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::options::{ModelInfo, ServedModel};
use crate::reply::{json as reply, warn};
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn version() -> Response {
    reply(&json!({ "version": env!("CARGO_PKG_VERSION") }))
}

pub(crate) async fn tags(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let info = &app.model()?.info;
    Ok(reply(&json!({ "models": info.names.iter().map(|name| entry(name, info)).collect::<Vec<_>>() })))
}

pub(crate) async fn ps(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let model = app.model()?;
    let mut running = entry(model.info.name(), &model.info);
    // It stays loaded as long as the server runs; no client reads a year as late as this.
    running["expires_at"] = "2318-01-01T00:00:00Z".into();
    running["size_vram"] = 0.into();
    running["context_length"] = model.engine.context().into();
    Ok(reply(&json!({ "models": [running] })))
}

fn entry(name: &str, info: &ModelInfo) -> Value {
    let modified = Timestamp::from_second(info.modified).unwrap_or_default();
    json!({
        "name": name,
        "model": name,
        "modified_at": modified.to_string(),
        "size": info.bytes,
        "digest": info.sha256.as_deref().unwrap_or_default(),
        "details": details(info),
    })
}

fn details(info: &ModelInfo) -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": parameter_size(info.parameters),
        "quantization_level": info.quantization,
    })
}

/// A number of weights as Ollama writes it.
fn parameter_size(parameters: u64) -> String {
    match parameters {
        0..1_000_000 => format!("{:.2}K", parameters as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}M", parameters as f64 / 1e6),
        _ => format!("{:.1}B", parameters as f64 / 1e9),
    }
}

pub(crate) async fn show(State(app): State<Arc<App>>, mut fields: Fields) -> Result<Response, ApiError> {
    let model = app.model()?;
    let name: String = match fields.take_any(&["model", "name"])? {
        Some(name) => name,
        None => return Err(fields.error("model", "this field is required")),
    };
    if !model.info.is_named(&name) {
        return Err(unknown_model(&name, model));
    }
    fields.ignore(&["verbose"]);
    Ok(warn(reply(&shown(model)), &fields.unknown()))
}

fn shown(model: &ServedModel) -> Value {
    let format = model.engine.chat_format();
    let mut capabilities = vec!["completion"];
    if let Ok(template) = format.template() {
        let found = template.capabilities();
        if found.supports_tools {
            capabilities.push("tools");
        }
        if found.reasoning_field.is_some() {
            capabilities.push("thinking");
        }
    }
    json!({
        "modelfile": format!("FROM {}\n", model.info.name()),
        "parameters": "",
        "template": format.template_source().unwrap_or_default(),
        "details": details(&model.info),
        "model_info": model.info.metadata,
        "capabilities": capabilities,
        "modified_at": Timestamp::from_second(model.info.modified).unwrap_or_default().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::parameter_size;

    #[test]
    fn sizes_are_written_as_ollama_does() {
        assert_eq!(parameter_size(596_049_920), "596.05M");
        assert_eq!(parameter_size(8_030_000_000), "8.0B");
        assert_eq!(parameter_size(12_345), "12.35K");
    }
}
