//! Constrained decoding: an output that must satisfy a JSON schema, a regular expression or a context-free grammar.
//!
//! 1. [`Vocabulary`] prepares a model's tokenizer, once per model.
//! 2. [`Grammar`] says what outputs must look like; compiled for a vocabulary it is a [`CompiledGrammar`].
//! 3. [`Constraint`] follows one request's output: the [`TokenMask`] of what may come next, accepted tokens, rollback,
//!    draft tokens that the grammar allows, and forced tokens.
//!
//! Invariants: a grammar that cannot be enforced exactly is an error, never an output that is less constrained. Grammars
//! come from outside, so every error and limit is reported and nothing panics, hangs or overflows the stack. A mask depends
//! on the accepted tokens only. No IO.
//!
//! Limits: a grammar's text has at most 4 MiB. A JSON schema is nested at most 128 deep, the groups of a GBNF grammar at
//! most 200. A GBNF grammar has at most 5000 rules, a Lark grammar at most 20,000 symbols, of which at most 3000 are names of
//! terminals. Compiling a grammar finds that no
//! output can satisfy it if not even a first token is possible, if a JSON schema contradicts itself in one place or requires
//! itself, or if a GBNF rule never ends. Otherwise the constraint may reach a [`ConstraintError::DeadEnd`], or never allow an
//! end token.

mod compile;
mod constraint;
mod endless;
mod error;
pub mod gbnf;
mod grammar;
mod lark;
mod library;
mod limits;
mod mask;
mod numbers;
mod pattern;
mod regex;
mod rewrite;
mod schema;
mod vocabulary;

pub use compile::CompiledGrammar;
pub use constraint::Constraint;
pub use error::{ConstraintError, GrammarError, VocabularyError};
pub use grammar::Grammar;
pub use mask::TokenMask;
pub use vocabulary::Vocabulary;
