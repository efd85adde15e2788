//! Why loading fails.

use verbatim_backend::{PackError, StateMemoryError};
use verbatim_gguf::GgufError;
use verbatim_models::ModelError;
use verbatim_quant::QuantError;
use verbatim_state::AppendError;

/// Positions are i32 in graphs.
pub(crate) const MAX_CONTEXT: usize = 1 << 30;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is not a supported model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tensor is missing, or the file cannot be read, or has changed since it was opened.
    #[error(transparent)]
    File(#[from] GgufError),
    /// A weight could not be packed.
    #[error("tensor {name}: {error}")]
    Pack {
        /// The tensor.
        name: String,
        /// The error.
        error: PackError,
    },
    /// A vector could not be decoded.
    #[error("tensor {name}: {error}")]
    Decode {
        /// The tensor.
        name: String,
        /// The error.
        error: QuantError,
    },
    /// A weight of a draft model is not usable.
    #[error("tensor {name} of the draft model {problem}; the file is damaged")]
    DraftWeight {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A draft model's layers cannot be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// Not enough memory for the sequences.
    #[error(transparent)]
    Memory(#[from] StateMemoryError),
    /// The machine has less memory than the weights take.
    #[error(
        "the weights take {}, but there are only {} of memory; use a smaller model, or one that is quantised further",
        size_text(*.weight_bytes), size_text(*.memory_bytes)
    )]
    WeightMemory {
        /// Bytes of the weights.
        weight_bytes: u64,
        /// Bytes of memory.
        memory_bytes: u64,
    },
    /// The machine has less memory than the context takes.
    #[error(
        "a context of {context} tokens takes {}{} beside {} of weights, but there are only {} of memory: {}",
        size_text(*.state_bytes), of_sequences(*.sequences), size_text(*.weight_bytes), size_text(*.memory_bytes),
        advice(*.fitting)
    )]
    ContextMemory {
        /// Tokens of each sequence.
        context: usize,
        /// Sequences.
        sequences: usize,
        /// Bytes of the KV cache and recurrent state of all sequences.
        state_bytes: u64,
        /// Bytes of the weights.
        weight_bytes: u64,
        /// Bytes of memory.
        memory_bytes: u64,
        /// The largest context that would fit; 0 if none would.
        fitting: usize,
    },
    /// The context size is out of range.
    #[error("context size {0} is out of range (1 to {MAX_CONTEXT})")]
    Context(usize),
}

fn size_text(bytes: u64) -> String {
    match bytes {
        0..10_000_000_000 => format!("{} MB", bytes.div_ceil(1_000_000)),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

fn of_sequences(sequences: usize) -> String {
    if sequences == 1 { String::new() } else { format!(" for {sequences} sequences") }
}

fn advice(fitting: usize) -> String {
    match fitting {
        0 => "use fewer sequences, or a smaller model".to_owned(),
        fitting => format!("{fitting} tokens fit; smaller KV types make room for more"),
    }
}
