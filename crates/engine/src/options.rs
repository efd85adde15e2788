//! Options for loading models.

use crate::MemoryProbe;
use verbatim_backend::KvType;

/// Options for loading the target.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Maximum number of positions of a sequence; `None`: the model's training context, or the largest that fits if `memory` says
    /// that this does not.
    pub context: Option<usize>,
    /// Maximum number of concurrent sequences.
    pub sequences: usize,
    /// KV cache type of K.
    pub k: KvType,
    /// KV cache type of V.
    pub v: KvType,
    /// Applies a Hadamard transform to K and V before quantisation, which costs little and usually reduces the error.
    pub hadamard: bool,
    /// Size of the prefix cache in bytes.
    pub cache_bytes: usize,
    /// Samples in the graph where a sampler allows it, rather than outside it. The tokens are the same.
    pub backend_sampling: bool,
    /// Reports the memory of the machine. With it, what can never fit is an error when a model is loaded, and so is a growing KV
    /// cache that the memory no longer suffices for. Without it, memory that the system has promised and does not have ends the
    /// process.
    pub memory: Option<MemoryProbe>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            context: None,
            sequences: 1,
            k: KvType::F16,
            v: KvType::F16,
            hadamard: true,
            cache_bytes: 0,
            backend_sampling: true,
            memory: None,
        }
    }
}

/// Options for loading a draft model.
#[derive(Clone, Copy, Debug)]
pub struct DraftOptions {
    /// KV cache type of K.
    pub k: KvType,
    /// KV cache type of V.
    pub v: KvType,
    /// As [`LoadOptions::hadamard`].
    pub hadamard: bool,
    /// As [`LoadOptions::backend_sampling`].
    pub backend_sampling: bool,
}

impl Default for DraftOptions {
    fn default() -> Self {
        DraftOptions { k: KvType::F16, v: KvType::F16, hadamard: true, backend_sampling: true }
    }
}
