//! The parsed form of a GBNF grammar.

use super::class::CharClass;
use crate::error::GrammarError;

/// A grammar: every rule that is referred to is defined, and every rule that the root needs can finish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The rules in the order of the text.
    pub rules: Vec<Rule>,
    /// The index of `root`.
    pub root: usize,
}

/// `name ::= body`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The name, as written.
    pub name: String,
    /// What it stands for.
    pub body: Node,
    /// Where its name stands.
    pub position: Position,
}

/// What a rule's body is made of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Node {
    /// One character of a set.
    Class(CharClass),
    /// These characters. Never empty: an empty literal is an empty sequence.
    Literal(String),
    /// A rule, by its index.
    Rule(usize),
    /// A token of the vocabulary.
    Token(TokenTerminal),
    /// All nodes, one after the other.
    Sequence(Vec<Node>),
    /// One of the nodes.
    Alternatives(Vec<Node>),
    /// A node, repeated.
    Repeat {
        /// What is repeated.
        node: Box<Node>,
        /// How often at least.
        min: u32,
        /// How often at most.
        max: Option<u32>,
    },
}

impl Node {
    /// What matches the empty text only.
    pub const EMPTY: Self = Self::Sequence(Vec::new());

    /// Nodes one after the other.
    pub fn sequence(mut nodes: Vec<Self>) -> Self {
        match nodes.len() {
            1 => nodes.remove(0),
            _ => Self::Sequence(nodes),
        }
    }

    /// One of several nodes.
    pub fn alternatives(mut nodes: Vec<Self>) -> Self {
        match nodes.len() {
            1 => nodes.remove(0),
            _ => Self::Alternatives(nodes),
        }
    }

    /// The nodes directly within this one.
    pub fn children(&self) -> &[Self] {
        match self {
            Self::Class(_) | Self::Literal(_) | Self::Rule(_) | Self::Token(_) => &[],
            Self::Sequence(nodes) | Self::Alternatives(nodes) => nodes,
            Self::Repeat { node, .. } => std::slice::from_ref(node),
        }
    }
}

/// `<think>`, `<[1000]>`, `!<think>`: a token, or any token but one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenTerminal {
    /// Which token.
    pub token: TokenRef,
    /// Whether it stands for all other tokens.
    pub is_negated: bool,
    /// Where it stands.
    pub position: Position,
}

/// How a grammar names a token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TokenRef {
    /// `<[1000]>`.
    Id(u32),
    /// `<think>`, with its angle brackets.
    Text(String),
}

/// A place in the grammar's text. Lines and columns (in characters) count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl Position {
    /// An error at this place.
    pub(super) fn error(self, what: impl Into<String>) -> GrammarError {
        GrammarError::Gbnf { line: self.line, column: self.column, what: what.into() }
    }
}
