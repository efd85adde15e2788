//! A grammar over lexemes.

use super::ast::{Node, TokenTerminal};
use super::automaton::Automaton;
use std::collections::BTreeMap;

/// The rules that are not regular, over lexemes.
pub(super) struct LexemeGrammar {
    /// The rule where the output starts.
    pub root: usize,
    /// Bodies by rule index, of the rules that the root needs.
    pub rules: BTreeMap<usize, Part>,
    /// All lexemes, split ones included.
    pub lexemes: Vec<Lexeme>,
}

/// What a body over lexemes is made of. As [`Node`], with lexemes for all that is regular.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Lexeme(usize),
    Rule(usize),
    Token(TokenTerminal),
    Sequence(Vec<Part>),
    Alternatives(Vec<Part>),
    Repeat { part: Box<Part>, min: u32, max: Option<u32> },
}

/// A regular expression that is matched as a whole, unless it has been split.
pub(super) struct Lexeme {
    pub node: Node,
    /// The parts that take its place, if it had to be split so as not to cut off another lexeme.
    pub split: Option<Part>,
    /// Whether the empty text matches.
    pub is_nullable: bool,
    /// `None` if it would be too large.
    pub automaton: Option<Automaton>,
}

impl LexemeGrammar {
    /// The lexemes that have not been split.
    pub fn whole(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.lexemes.len()).filter(|&index| self.lexemes[index].split.is_none())
    }
}

/// The rules that a part refers to.
pub(super) fn used_rules(part: &Part) -> Vec<usize> {
    match part {
        Part::Rule(rule) => vec![*rule],
        Part::Lexeme(_) | Part::Token(_) => vec![],
        Part::Sequence(parts) | Part::Alternatives(parts) => parts.iter().flat_map(used_rules).collect(),
        Part::Repeat { part, .. } => used_rules(part),
    }
}
