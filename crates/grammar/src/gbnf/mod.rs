//! GBNF, the grammar notation of llama.cpp: parsed, checked and converted to Lark for llguidance.
//!
//! llguidance splits its input into lexemes and always takes the longest one, whereas in GBNF every split counts that
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

/// A grammar that has been converted to Lark.
pub(crate) struct Converted {
    /// The same grammar in Lark.
    pub lark: String,
    rules: Rules,
    /// For each line in Lark, its rule.
    line_rules: Vec<usize>,
}

impl Converted {
    /// Which rule a line in Lark, counted from 1, is for, in words for a message.
    pub fn describe(&self, line: usize) -> Option<String> {
        let Rule { name, position, .. } = &self.rules.rules[*self.line_rules.get(line.checked_sub(1)?)?];
        Some(format!("the rule `{name:.80}` (line {}, column {})", position.line, position.column))
    }
}

/// Converts a grammar. Token terminals are looked up in the tokenizer's vocabulary.
///
/// # Errors
/// Rules that no finite text matches, and tokens that the vocabulary does not have.
pub(crate) fn to_lark(mut rules: Rules, tokenizer: &Tokenizer) -> Result<Converted, GrammarError> {
    check::check_finite(&rules)?;
    let is_regular = regular::mark_regular(&mut rules);
    let grammar = lexemes::split(&rules, &is_regular);
    let lark::Printed { text, rules: line_rules } = lark::print(&rules, &grammar, tokenizer)?;
    Ok(Converted { lark: text, rules, line_rules })
}
