//! What an output may be required to look like.

use crate::error::GrammarError;
use crate::schema;
use serde_json::{Value, json};

/// What an output must look like as a whole, from its first token to its last. It comes from outside and is checked by
/// [`compile`](Self::compile).
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// A JSON document that a JSON schema (draft 2020-12) describes. Keys come in the order of the schema, and between two
    /// parts of the document there are at most 64 characters of whitespace. Patterns are regular expressions of ECMA 262
    /// with its flag `u`. A keyword that is not supported is an error. Of llguidance's options, a schema may set
    /// `whitespace_flexible` only.
    JsonSchema(Value),
    /// A regular expression in the notation of Rust's `regex` crate, without look-around. It must match the whole output, so
    /// a `^` at its start and a `$` at its end change nothing.
    Regex(String),
    /// A context-free grammar in llguidance's dialect of Lark, from its rule `start`.
    Lark(String),
    /// A context-free grammar in GBNF, the notation of llama.cpp, from its rule `root`.
    Gbnf(String),
}

impl Grammar {
    /// A JSON schema, given as text.
    ///
    /// # Errors
    /// The text is too long, not JSON, or nested more than 128 deep, or has a number that cannot be represented exactly.
    pub fn json_schema(text: &str) -> Result<Self, GrammarError> {
        Ok(Self::JsonSchema(schema::parse(text)?))
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({ "type": "object" }))
    }

    /// What kind of grammar it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark grammar",
            Self::Gbnf(_) => "GBNF grammar",
        }
    }
}
