//! What can be wrong with a grammar, and with what is done under it.

use thiserror::Error;

/// Why a grammar cannot be used. Each message says what is wrong, where, and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The text is not GBNF, or says something that cannot be matched.
    #[error("GBNF grammar, line {line}, column {column}: {what}")]
    Gbnf {
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// What is wrong and what to do.
        what: String,
    },
    /// The JSON schema is not JSON.
    #[error("the JSON schema is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The JSON schema says something that is not supported, or that contradicts itself.
    #[error("JSON schema: {what}")]
    Schema {
        /// What is wrong.
        what: String,
    },
    /// The regular expression is malformed, or uses something that is not supported.
    #[error("regular expression: {what}")]
    Regex {
        /// What is wrong.
        what: String,
    },
    /// The Lark grammar is malformed, or uses something that is not supported.
    #[error("Lark grammar: {what}")]
    Lark {
        /// What is wrong.
        what: String,
    },
    /// The grammar's text is too long.
    #[error("the {kind} has {bytes} bytes; at most {max_bytes} are possible; simplify it")]
    TooLarge {
        /// What kind of grammar it is.
        kind: &'static str,
        /// The length of its text.
        bytes: usize,
        /// The longest possible text.
        max_bytes: usize,
    },
    /// The grammar is nested too deep.
    #[error("the {kind} is nested more than {max_depth} deep; define parts of it by name and refer to them")]
    TooDeep {
        /// What kind of grammar it is.
        kind: &'static str,
        /// The deepest possible nesting.
        max_depth: usize,
    },
    /// No output satisfies the grammar.
    #[error("no output of this model can satisfy the {kind}: {what}")]
    Empty {
        /// What kind of grammar it is.
        kind: &'static str,
        /// Why, as far as is known, and what to do.
        what: String,
    },
    /// The grammar exceeds a limit on the work for compiling it.
    #[error("the {kind} is too complex: {what}; simplify it")]
    TooComplex {
        /// What kind of grammar it is.
        kind: &'static str,
        /// Which limit it exceeds.
        what: String,
    },
    /// The model's vocabulary cannot be used with grammars.
    #[error(transparent)]
    Vocabulary(#[from] VocabularyError),
    /// The grammar could not be compiled for a reason that is not in the grammar.
    #[error("the {kind} cannot be compiled: {what}; please report it")]
    Internal {
        /// What kind of grammar it is.
        kind: &'static str,
        /// What has failed.
        what: String,
    },
}

/// Why a vocabulary cannot be used for constrained decoding.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// No token ends an output, so no grammar could ever be finished.
    #[error("the vocabulary has no end token, which a grammar needs to finish; convert the model again")]
    NoEndToken,
    /// There are more tokens, or longer ones, than token sets can be computed for.
    #[error("the vocabulary cannot be used with grammars: {what}")]
    Unsupported {
        /// What is wrong.
        what: String,
    },
}

/// Why a step under a constraint is not possible.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The grammar does not allow this token here. The constraint is unchanged.
    #[error("the grammar does not allow token {token} here; sample with the mask")]
    NotAllowed {
        /// The token.
        token: u32,
    },
    /// More tokens are to be taken back than have been accepted. The constraint is unchanged.
    #[error("{tokens} tokens cannot be taken back: only {accepted} have been accepted")]
    Rollback {
        /// How many tokens were to be taken back.
        tokens: usize,
        /// How many have been accepted.
        accepted: usize,
    },
    /// The vocabulary has no token that continues the output as the grammar demands. The constraint cannot be used any more.
    #[error("the grammar demands text here that the model's vocabulary cannot express; change the grammar")]
    DeadEnd,
    /// The grammar is too ambiguous or complex at this point. The constraint cannot be used any more.
    #[error("the grammar is too complex here: {what}; simplify it")]
    TooComplex {
        /// Which limit was exceeded.
        what: String,
    },
}
