//! Ollama's API.

pub(crate) mod answers;
pub(crate) mod models;
