//! Why a model file cannot be opened.

use verbatim_gguf::GgufError;

/// Why a draft model does not fit a target.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// Different vocabulary sizes.
    #[error("its vocabulary has {draft} tokens, the target's {target}")]
    Vocabulary {
        /// The draft model's.
        draft: usize,
        /// The target's.
        target: usize,
    },
    /// Different tokens.
    #[error("its tokenizer differs: token {token} is {draft:?}, but {target:?} in the target")]
    Tokenizer {
        /// The first token that differs.
        token: usize,
        /// Its text in the draft model.
        draft: String,
        /// Its text in the target.
        target: String,
    },
    /// A file has no tokens, so that the two cannot be compared.
    #[error("the {0} has no tokenizer to compare")]
    NoTokenizer(&'static str),
    /// Different hidden sizes.
    #[error("it reads hidden states of {draft} elements ({key}), but the target's hidden size is {target}")]
    HiddenSize {
        /// What the draft model reads.
        draft: usize,
        /// The metadata key.
        key: String,
        /// The target's hidden size.
        target: usize,
    },
    /// A feature layer that the target does not have.
    #[error("it reads the hidden state that enters layer {layer}, but the target has {layers} layers")]
    FeatureLayer {
        /// The layer.
        layer: usize,
        /// Layers of the target.
        layers: usize,
    },
    /// It shares a weight that the target does not have in that form.
    #[error("it has no {0} of its own, and the target's cannot be shared")]
    NotShared(&'static str),
}

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
    /// The tokens of a draft vocabulary are not tokens of the target.
    #[error("tensor d2t contains {found}, but must contain different token ids below {vocabulary}, as i64")]
    DraftVocabulary {
        /// What is wrong.
        found: String,
        /// Size of the target's vocabulary.
        vocabulary: usize,
    },
    /// The file is a model, but not a draft model that reads hidden states.
    #[error(
        "architecture {name:?} is not that of a draft model that reads its target's hidden states; supported are eagle3 and dflash"
    )]
    NotADraft {
        /// The architecture.
        name: String,
    },
    /// A draft model does not fit the target.
    #[error("the draft model does not fit the target: {0}")]
    Pair(#[from] PairError),
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
