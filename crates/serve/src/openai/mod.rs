//! OpenAI's API, with llama.cpp's extensions.

pub(crate) mod chat;
pub(crate) mod completions;
mod log_probs;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod responses;
