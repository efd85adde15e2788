//! Decides which parts of a grammar become lexemes.
//!
//! llguidance reads its input as a sequence of lexemes, each a regular expression, and ends a lexeme only
//! where it cannot be continued. GBNF has no such rule: in `root ::= [a-z]+ "x"`, whose `[a-z]+` could swallow every `x`,
//! every way of dividing the text between `[a-z]+` and `"x"` is a match. Lexemes of one character each would always be
//! right, but slow: a lexeme is the unit in which masks are computed and cached.
//!
//! So each largest regular part of a rule is made a lexeme, and then split as far as necessary. A lexeme A must not be cut
//! off by a lexeme B (which may be A itself) that can be allowed at the same place: whenever a whole match of A could be
//! continued as a match of B, the next byte must not be one that can follow A in the grammar. Otherwise B is split: into its
//! alternatives, the last of its parts and the rest, or single characters. That ends, because lexemes of one character cut
//! off nothing.

use super::ast::{Node, Rules};
use super::automaton::Automaton;
use super::check::{holds, nullable_rules};
use super::class::CharClass;
use super::conflicts::conflicts;
use super::follow::MAX_LEXEMES;
use super::parts::{Lexeme, LexemeGrammar, Part, used_rules};
use std::collections::{BTreeMap, HashMap};

/// A longer sequence is split into all of its parts at once.
const MAX_SEQUENCE: usize = 64;
/// Work for all comparisons together, in pairs of lexemes, pairs of automaton states and visited parts. When it is used up,
/// all lexemes are split into characters.
const MAX_WORK: usize = 20_000_000;

/// The grammar over lexemes that has the same language as the rules.
pub(super) fn split(rules: &Rules, is_regular: &[bool]) -> LexemeGrammar {
    let is_nullable = nullable_rules(rules);
    let grammar = LexemeGrammar { root: rules.root, rules: BTreeMap::new(), lexemes: Vec::new() };
    let mut splitter = Splitter { rules, is_regular, is_nullable, indices: HashMap::new(), grammar };
    let mut stack = vec![rules.root];
    while let Some(rule) = stack.pop() {
        if splitter.grammar.rules.contains_key(&rule) {
            continue;
        }
        let body = match is_regular[rule] {
            true => splitter.lexeme(Node::Rule(rule)),
            false => splitter.part(&rules.rules[rule].body),
        };
        stack.extend(used_rules(&body));
        splitter.grammar.rules.insert(rule, body);
    }
    // One lexeme alone cannot be cut off: nothing follows it.
    if !is_regular[rules.root] {
        splitter.split_where_necessary();
    }
    splitter.grammar
}

struct Splitter<'r> {
    rules: &'r Rules,
    is_regular: &'r [bool],
    is_nullable: Vec<bool>,
    indices: HashMap<Node, usize>,
    grammar: LexemeGrammar,
}

impl Splitter<'_> {
    /// A node whose regular parts are lexemes, as large as possible.
    fn part(&mut self, node: &Node) -> Part {
        if self.is_regular(node) {
            return self.lexeme(node.clone());
        }
        match node {
            Node::Rule(rule) => Part::Rule(*rule),
            Node::Token(token) => Part::Token(token.clone()),
            Node::Sequence(nodes) => {
                let runs = nodes.chunk_by(|left, right| self.is_regular(left) && self.is_regular(right));
                let runs: Vec<Node> = runs.map(|run| Node::sequence(run.to_vec())).collect();
                Part::Sequence(runs.iter().map(|run| self.part(run)).collect())
            }
            Node::Alternatives(nodes) => {
                let (regular, rest): (Vec<Node>, Vec<Node>) =
                    nodes.iter().cloned().partition(|node| self.is_regular(node));
                let mut parts: Vec<Part> = rest.iter().map(|node| self.part(node)).collect();
                if !regular.is_empty() {
                    parts.push(self.lexeme(Node::alternatives(regular)));
                }
                Part::Alternatives(parts)
            }
            Node::Repeat { node, min, max } => {
                Part::Repeat { part: Box::new(self.part(node)), min: *min, max: *max }
            }
            Node::Class(_) | Node::Literal(_) => unreachable!("they are regular"),
        }
    }

    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Rule(rule) => self.is_regular[*rule],
            Node::Token(_) => false,
            node => node.children().iter().all(|node| self.is_regular(node)),
        }
    }

    fn lexeme(&mut self, node: Node) -> Part {
        if matches!(&node, Node::Sequence(nodes) if nodes.is_empty()) {
            return Part::Sequence(vec![]);
        }
        if let Some(&index) = self.indices.get(&node) {
            return Part::Lexeme(index);
        }
        let automaton = Automaton::new(&node, self.rules);
        let is_nullable = holds(&node, false, &self.is_nullable);
        self.indices.insert(node.clone(), self.grammar.lexemes.len());
        self.grammar.lexemes.push(Lexeme { node, split: None, is_nullable, automaton });
        Part::Lexeme(self.grammar.lexemes.len() - 1)
    }

    /// Splits a lexeme into smaller ones; whether it could be split.
    fn split_lexeme(&mut self, index: usize) -> bool {
        let node = self.grammar.lexemes[index].node.clone();
        let split = self.smaller(node);
        let is_split = split.is_some();
        self.grammar.lexemes[index].split = split;
        is_split
    }

    fn smaller(&mut self, node: Node) -> Option<Part> {
        match node {
            Node::Class(_) | Node::Token(_) => None,
            Node::Literal(text) => {
                let parts = text.chars().map(|c| self.lexeme(Node::Class(CharClass::single(c))));
                Some(Part::Sequence(parts.collect()))
            }
            Node::Rule(rule) => {
                let body = self.rules.rules[rule].body.clone();
                Some(self.lexeme(body))
            }
            Node::Sequence(nodes) if nodes.len() > MAX_SEQUENCE => {
                Some(Part::Sequence(nodes.into_iter().map(|node| self.lexeme(node)).collect()))
            }
            Node::Sequence(mut nodes) => {
                let last = nodes.pop()?;
                let rest = self.lexeme(Node::sequence(nodes));
                Some(Part::Sequence(vec![rest, self.lexeme(last)]))
            }
            Node::Alternatives(nodes) => {
                Some(Part::Alternatives(nodes.into_iter().map(|node| self.lexeme(node)).collect()))
            }
            Node::Repeat { node, min, max } => {
                Some(Part::Repeat { part: Box::new(self.lexeme(*node)), min, max })
            }
        }
    }

    fn split_where_necessary(&mut self) {
        let mut work = MAX_WORK;
        loop {
            // What is too large to compare is split first.
            let is_too_large = |index: &usize| self.grammar.lexemes[*index].automaton.is_none();
            let mut split: Vec<usize> = self.grammar.whole().filter(is_too_large).collect();
            let are_too_many = self.grammar.whole().count() > MAX_LEXEMES;
            if split.is_empty() && !are_too_many {
                split = conflicts(&self.grammar, &mut work);
            }
            if are_too_many || work == 0 {
                split = self.grammar.whole().collect();
            }
            let mut is_changed = false;
            for index in split {
                is_changed |= self.split_lexeme(index);
            }
            if !is_changed {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{parse, regular};
    use super::*;

    /// How many lexemes of a grammar are matched as a whole.
    fn lexemes(text: &str) -> usize {
        let mut rules = parse(text).unwrap();
        let is_regular = regular::mark_regular(&mut rules);
        let grammar = split(&rules, &is_regular);
        grammar.lexemes.iter().filter(|lexeme| lexeme.split.is_none()).count()
    }

    #[test]
    fn a_regular_grammar_is_one_lexeme() {
        assert_eq!(lexemes("root ::= [a-z]+ \"x\" [a-z]*"), 1);
    }

    #[test]
    fn lexemes_that_cut_nothing_off_stay_whole() {
        let text = "root ::= list\nlist ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= list | [0-9]+ | \"\\\"\" [^\"]* \"\\\"\"";
        // `[`, `]`, `,` and the rest of `item`.
        assert_eq!(lexemes(text), 4);
    }

    #[test]
    fn lexemes_that_are_never_allowed_together_stay_whole() {
        let text = "root ::= \"{x: \" args \"}\"\nargs ::= \"{\" ([a-z]+ \": \" value)? \"}\"\nvalue ::= [a-z :]+ | args";
        // `{x: `, `}`, `{`, `[a-z]+ ": "` and the rest of `value`.
        assert_eq!(lexemes(text), 5);
    }

    #[test]
    fn lexemes_after_different_ones_of_the_same_text_are_compared() {
        // After the first `a`, both `b` and `bc` are possible, although no lexeme is followed by both.
        let text = "root ::= left | right\nleft ::= \"a\" one\none ::= \"b\" one \"c\" | \"c\"\nright ::= [a] two\ntwo ::= \"bc\" two \"d\" | \"d\"";
        assert_eq!(lexemes(text), 7);
    }

    #[test]
    fn lexemes_that_would_cut_off_others_are_split() {
        // Trailing blanks of the number could swallow the newline.
        let text = "root ::= expr \"\\n\"\nexpr ::= \"(\" expr \")\" | [0-9]+ [ \\n]*";
        // `\n`, `(`, `)`, `[0-9]+`, `[ \n]`.
        assert_eq!(lexemes(text), 5);
    }
}
