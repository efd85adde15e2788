//! How a server is set up, and the model that it serves.

use serde_json::{Map, Value};
use std::time::Duration;
use verbatim_engine::{Engine, Request};

/// Who may use the server, and its limits.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Keys of which each request must have one; empty: none is needed.
    pub api_keys: Vec<String>,
    /// Names of this server in requests' `Host`, besides IP addresses and `localhost`; `*`: any. Where keys are needed, any is valid.
    pub allowed_hosts: Vec<String>,
    /// Origins of web pages of other sites that may use the server, such as `https://chat.example`; `*`: any.
    pub allowed_origins: Vec<String>,
    /// Requests that may wait for a slot.
    pub queue_max: usize,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Open connections.
    pub connections_max: usize,
    /// How long a client may take to send a request, and to read some of its answer.
    pub io_timeout: Duration,
    /// How long running answers may take once the server is told to stop.
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            queue_max: 256,
            body_bytes_max: 16 << 20,
            connections_max: 1024,
            io_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(60),
        }
    }
}

/// A loaded model, and what requests to it have in common.
#[derive(Clone, Debug)]
pub struct ServedModel {
    /// The engine.
    pub engine: Engine,
    /// Number of requests that it runs at once.
    pub slots: usize,
    /// The settings of requests that say nothing else. Its prompt is not used.
    pub defaults: Request,
    /// What it is.
    pub info: ModelInfo,
}

/// What a model is, for clients that ask.
#[derive(Clone, Debug, Default)]
pub struct ModelInfo {
    /// Its names; the first is the one in answers.
    pub names: Vec<String>,
    /// The file.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// When the file was changed, in seconds of Unix time.
    pub modified: i64,
    /// SHA-256 of the file, if it is known, in hexadecimal.
    pub sha256: Option<String>,
    /// Number of weights.
    pub parameters: u64,
    /// The architecture, such as `qwen3`.
    pub architecture: String,
    /// The format of the weights, such as `Q4_K_M`.
    pub quantization: String,
    /// Numbers of tokens, by the names of llama.cpp: `n_vocab`, `n_ctx_train`, `n_embd`.
    pub vocabulary: usize,
    /// The context that it was trained for.
    pub trained_context: usize,
    /// Elements of an embedding.
    pub embedding: usize,
    /// The keys of the file that are not long lists.
    pub metadata: Map<String, Value>,
}

impl ModelInfo {
    /// The name in answers.
    pub fn name(&self) -> &str {
        self.names.first().map_or("model", String::as_str)
    }

    /// Whether a client means this model. Ollama's tag `:latest` is optional.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        let plain = |name: &str| name.strip_suffix(":latest").unwrap_or(name).to_ascii_lowercase();
        self.names.iter().any(|own| plain(own) == plain(name))
    }
}
