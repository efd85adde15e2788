//! How models are loaded.

use verbatim_backend::KvType;

/// How a model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// The most positions of a sequence; `None` for what the model was trained for, up to 8192.
    pub context: Option<usize>,
    /// Sequences at a time.
    pub sequences: usize,
    /// Storage of K.
    pub k: KvType,
    /// Storage of V.
    pub v: KvType,
    /// Quantised K and V are stored after a Hadamard transform, which costs little and mostly loses less.
    pub hadamard: bool,
    /// Size of the prefix cache in bytes.
    pub cache_bytes: usize,
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
        }
    }
}

/// How a draft is appended.
#[derive(Clone, Copy, Debug)]
pub struct DraftOptions {
    /// Storage of K.
    pub k: KvType,
    /// Storage of V.
    pub v: KvType,
    /// As [`LoadOptions::hadamard`].
    pub hadamard: bool,
}
