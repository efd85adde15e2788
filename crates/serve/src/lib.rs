//! The HTTP server: the APIs of OpenAI, Anthropic, llama.cpp and Ollama over one engine.
//!
//! A request becomes one or more requests to the [`Engine`](verbatim_engine::Engine), and their events become a response or a
//! stream. The way of a request: `observe` (an id, a log line, errors in the form of its API), `access` (key, host, origin),
//! `Fields` (JSON, whose fields are taken one by one), a handler of an API, `submit` (the queue), and then
//! `answer::complete` or `stream::response`.
//!
//! Invariants: the text of an answer is the engine's. A handler neither blocks nor computes: tokenizing and compiling grammars happen on
//! threads that may block, and all else on the engine's. A response that is dropped cancels its requests. No path of a
//! request reaches the file system.

mod access;
mod answer;
mod anthropic;
mod app;
mod batch;
mod error;
mod fields;
mod generation;
mod llama;
mod metrics;
mod observe;
mod ollama;
mod openai;
mod options;
mod reply;
mod sampling;
mod server;
mod slots;
mod stats;
mod stream;
mod submit;
mod tools;

pub use batch::{InvalidRequest, parse_request};
pub use options::{ModelInfo, ServedModel, ServerOptions};
pub use server::Server;
pub use stats::{finish_reason, usage};
