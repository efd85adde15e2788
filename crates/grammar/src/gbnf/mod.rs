//! GBNF, the grammar notation of llama.cpp: parsed, checked and converted to Lark for the constraint library.
//!
//! The library splits its input into lexemes and always takes the longest one, whereas in GBNF every split counts that
//! leads to a match. So the conversion decides which parts of a grammar may become lexemes without changing the language
//! (see `lexemes.rs`).

mod ast;
mod automaton;
mod check;
mod class;
mod conflicts;
mod follow;
mod lark;
mod lexemes;
mod parse;
mod parts;
mod regular;
mod sets;

pub use ast::{Node, Position, Rule, Rules, TokenRef, TokenTerminal};
pub use class::CharClass;
pub use parse::parse;

use crate::error::GrammarError;
use verbatim_text::Tokenizer;

/// The same grammar in Lark. Token terminals are looked up in the tokenizer's vocabulary.
///
/// # Errors
/// Rules that no finite text matches, and tokens that the vocabulary does not have.
pub(crate) fn to_lark(mut rules: Rules, tokenizer: &Tokenizer) -> Result<String, GrammarError> {
    check::check_finite(&rules)?;
    let is_regular = regular::mark_regular(&mut rules);
    let grammar = lexemes::split(&rules, &is_regular);
    lark::print(&rules, &grammar, tokenizer)
}
