//! Why a model file cannot be opened.

use verbatim_gguf::GgufError;

/// What is wrong, and where.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A key is missing or of the wrong type, or a tensor is missing.
    #[error(transparent)]
    File(#[from] GgufError),
    /// `general.architecture` is unknown.
    #[error("architecture {name:?} is not supported; supported are {known}")]
    UnknownArchitecture {
        /// The name found.
        name: String,
        /// The supported names.
        known: String,
    },
    /// A hyperparameter has an invalid or unsupported value.
    #[error("{key} is {found}, but must be {expected}")]
    Key {
        /// The metadata key.
        key: String,
        /// Its value.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A tensor's shape does not match the hyperparameters.
    #[error(
        "tensor {name} has the shape {found}, but must be {expected} (innermost dimension first, as in `gguf-dump`)"
    )]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: String,
        /// The shape that the hyperparameters imply.
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
    /// The factor on a weight is not usable.
    #[error("tensor {name} contains {found}, but must contain finite numbers")]
    Factor {
        /// The tensor.
        name: String,
        /// Its value.
        found: f32,
    },
    /// The experts of a layer have different factors on their weights.
    #[error(
        "tensor {name} has different factors for different experts, which is not supported; use another quantisation of this model"
    )]
    ExpertFactors {
        /// The tensor.
        name: String,
    },
    /// The file has weights that the architecture would ignore.
    #[error(
        "tensor {name} is not part of the supported {architecture} architecture; running without it would produce wrong text"
    )]
    Unused {
        /// The tensor.
        name: String,
        /// The architecture.
        architecture: String,
    },
}
