//! Why a file is not a model that can be run.

use verbatim_gguf::GgufError;

/// What is wrong, and where.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A key is missing or of the wrong type, or a tensor is missing.
    #[error(transparent)]
    File(#[from] GgufError),
    /// `general.architecture` names none that is known.
    #[error("architecture {name:?} is not supported; supported are {known}")]
    UnknownArchitecture {
        /// The name found.
        name: String,
        /// The names that would do.
        known: String,
    },
    /// A hyperparameter has a value that no working model has, or that is not supported.
    #[error("{key} is {found}, but must be {expected}")]
    Key {
        /// The metadata key.
        key: String,
        /// Its value.
        found: String,
        /// What would do.
        expected: String,
    },
    /// A tensor has another shape than the hyperparameters say.
    #[error("tensor {name} has the shape {found}, but must be {expected} (fastest dimension first)")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: String,
        /// The shape that the hyperparameters demand.
        expected: String,
    },
    /// A tensor has a type that cannot hold weights.
    #[error("tensor {name} is of type {found}, which cannot hold weights")]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// The file has weights that the architecture would ignore.
    #[error(
        "tensor {name} is not part of the {architecture} architecture as supported; running without it would give wrong text"
    )]
    Unused {
        /// The tensor.
        name: String,
        /// The architecture.
        architecture: String,
    },
}
