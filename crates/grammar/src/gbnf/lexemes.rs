//! Decides which parts of a grammar become lexemes.
//!
//! The constraint library reads its input as a sequence of lexemes, each a regular expression, and ends a lexeme only
//! where it cannot be continued. GBNF has no such rule: in `root ::= [a-z]+ "x"`, whose `[a-z]+` could swallow every `x`,
//! every way of dividing the text between `[a-z]+` and `"x"` is a match. Lexemes of one character each would always be
//! right, but slow: a lexeme is the unit in which masks are computed and cached.
//!
//! So each largest regular part of a rule is made a lexeme, and then split as far as necessary. A lexeme A must not be cut
//! off by a lexeme B (which may be A itself): whenever a whole match of A could be continued as a match of B, the next byte
//! must not be one that can follow A in the grammar. Otherwise B is split: into its alternatives, the last of its parts and
//! the rest, or single characters. That ends, because lexemes of one character cut off nothing.

use super::ast::{Node, Rules, TokenTerminal};
use super::automaton::Automaton;
use super::bytes::ByteSet;
use super::check::{holds, nullable_rules};
use super::class::CharClass;
use std::collections::{BTreeMap, HashMap};

/// Lexemes that are compared with each other. With more, all are split into characters.
const MAX_COMPARED: usize = 400;
/// A longer sequence is split into all of its parts at once.
const MAX_SEQUENCE: usize = 64;
/// Work for all comparisons together, in pairs of automaton states and visited parts.
const MAX_WORK: usize = 20_000_000;
/// The first byte of a token that is matched by its id. No text has it.
const TOKEN_BYTE: u8 = 0xFF;

/// The rules that are not regular, over lexemes.
pub(super) struct LexemeGrammar {
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
    /// What takes its place.
    pub split: Option<Part>,
    /// Whether the empty text matches.
    pub is_nullable: bool,
    automaton: Option<Automaton>,
}

/// The grammar over lexemes that has the same language as the rules.
pub(super) fn split(rules: &Rules, is_regular: &[bool]) -> LexemeGrammar {
    let is_nullable = nullable_rules(rules);
    let mut splitter =
        Splitter { rules, is_regular, is_nullable, indices: HashMap::new(), lexemes: Vec::new() };
    let mut grammar = BTreeMap::new();
    let mut stack = vec![rules.root];
    while let Some(rule) = stack.pop() {
        if grammar.contains_key(&rule) {
            continue;
        }
        let body = match is_regular[rule] {
            true => splitter.lexeme(Node::Rule(rule)),
            false => splitter.part(&rules.rules[rule].body),
        };
        stack.extend(used_rules(&body));
        grammar.insert(rule, body);
    }
    // One lexeme alone cannot be cut off: nothing follows it.
    if !is_regular[rules.root] {
        splitter.split_where_necessary(&grammar);
    }
    LexemeGrammar { rules: grammar, lexemes: splitter.lexemes }
}

fn used_rules(part: &Part) -> Vec<usize> {
    match part {
        Part::Rule(rule) => vec![*rule],
        Part::Lexeme(_) | Part::Token(_) => vec![],
        Part::Sequence(parts) | Part::Alternatives(parts) => parts.iter().flat_map(used_rules).collect(),
        Part::Repeat { part, .. } => used_rules(part),
    }
}

struct Splitter<'r> {
    rules: &'r Rules,
    is_regular: &'r [bool],
    is_nullable: Vec<bool>,
    indices: HashMap<Node, usize>,
    lexemes: Vec<Lexeme>,
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
        self.indices.insert(node.clone(), self.lexemes.len());
        self.lexemes.push(Lexeme { node, split: None, is_nullable, automaton });
        Part::Lexeme(self.lexemes.len() - 1)
    }

    /// Splits a lexeme into smaller ones; whether it could be split.
    fn split_lexeme(&mut self, index: usize) -> bool {
        let node = self.lexemes[index].node.clone();
        let split = self.smaller(node);
        let is_split = split.is_some();
        self.lexemes[index].split = split;
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

    fn split_where_necessary(&mut self, grammar: &BTreeMap<usize, Part>) {
        let mut work = MAX_WORK;
        loop {
            // What is too large to compare is split first.
            let mut split: Vec<usize> =
                self.whole().filter(|&index| self.lexemes[index].automaton.is_none()).collect();
            if split.is_empty() {
                let follow = Follow::of(grammar, &self.lexemes, &mut work);
                split = self.conflicts(&follow, &mut work);
            }
            if work == 0 || self.whole().count() > MAX_COMPARED {
                split = self.whole().collect();
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

    /// The lexemes that have not been split.
    fn whole(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.lexemes.len()).filter(|&index| self.lexemes[index].split.is_none())
    }

    /// The lexemes that cut off another one.
    fn conflicts(&self, follow: &Follow, work: &mut usize) -> Vec<usize> {
        let automaton = |index: usize| self.lexemes[index].automaton.as_ref();
        let cuts_off = |longer: &usize, work: &mut usize| {
            self.whole().any(|index| match (automaton(index), automaton(*longer)) {
                (Some(lexeme), Some(longer)) => {
                    lexeme.is_cut_off_by(longer, &follow.after_lexeme[index], work)
                }
                _ => false,
            })
        };
        self.whole().filter(|longer| cuts_off(longer, work)).collect()
    }
}

/// What a part can start with, and whether it can be empty.
type First = (ByteSet, bool);

/// First and follow sets, as bytes. A split lexeme is treated as a rule.
struct Follow<'g> {
    grammar: &'g BTreeMap<usize, Part>,
    lexemes: &'g [Lexeme],
    first_of_rule: BTreeMap<usize, First>,
    first_of_lexeme: Vec<First>,
    after_rule: BTreeMap<usize, ByteSet>,
    after_lexeme: Vec<ByteSet>,
    is_changed: bool,
    work: usize,
}

impl<'g> Follow<'g> {
    /// The sets, exact unless `work` runs out.
    fn of(grammar: &'g BTreeMap<usize, Part>, lexemes: &'g [Lexeme], work: &mut usize) -> Self {
        let first = |lexeme: &Lexeme| match (&lexeme.split, &lexeme.automaton) {
            (None, Some(automaton)) => (automaton.first_bytes, automaton.is_nullable),
            _ => First::default(),
        };
        let mut sets = Self {
            grammar,
            lexemes,
            first_of_rule: grammar.keys().map(|rule| (*rule, First::default())).collect(),
            first_of_lexeme: lexemes.iter().map(first).collect(),
            after_rule: grammar.keys().map(|rule| (*rule, ByteSet::default())).collect(),
            after_lexeme: vec![ByteSet::default(); lexemes.len()],
            is_changed: true,
            work: *work,
        };
        while std::mem::take(&mut sets.is_changed) && sets.work > 0 {
            sets.update_first();
        }
        sets.is_changed = true;
        while std::mem::take(&mut sets.is_changed) && sets.work > 0 {
            sets.update_follow();
        }
        *work = sets.work;
        sets
    }

    fn update_first(&mut self) {
        for (rule, part) in self.grammar {
            let first = self.first(part);
            self.is_changed |= self.first_of_rule.insert(*rule, first) != Some(first);
        }
        for (index, lexeme) in self.lexemes.iter().enumerate() {
            if let Some(part) = &lexeme.split {
                let first = self.first(part);
                self.is_changed |= std::mem::replace(&mut self.first_of_lexeme[index], first) != first;
            }
        }
    }

    fn update_follow(&mut self) {
        for (rule, part) in self.grammar {
            self.walk(part, self.after_rule[rule]);
        }
        for (index, lexeme) in self.lexemes.iter().enumerate() {
            if let Some(part) = &lexeme.split {
                self.walk(part, self.after_lexeme[index]);
            }
        }
    }

    fn first(&mut self, part: &Part) -> First {
        self.work = self.work.saturating_sub(1);
        match part {
            Part::Lexeme(index) => self.first_of_lexeme[*index],
            Part::Rule(rule) => self.first_of_rule[rule],
            Part::Token(_) => {
                let mut token = ByteSet::default();
                token.insert(TOKEN_BYTE);
                (token, false)
            }
            Part::Sequence(parts) => {
                let mut all = ByteSet::default();
                for part in parts {
                    let (first, is_nullable) = self.first(part);
                    all.extend(first);
                    if !is_nullable {
                        return (all, false);
                    }
                }
                (all, true)
            }
            Part::Alternatives(parts) => {
                let mut all = (ByteSet::default(), false);
                for part in parts {
                    let (first, is_nullable) = self.first(part);
                    all.0.extend(first);
                    all.1 |= is_nullable;
                }
                all
            }
            Part::Repeat { part, min, .. } => {
                let (first, is_nullable) = self.first(part);
                (first, is_nullable || *min == 0)
            }
        }
    }

    /// Notes that `after` can follow a part.
    fn walk(&mut self, part: &Part, mut after: ByteSet) {
        self.work = self.work.saturating_sub(1);
        match part {
            Part::Lexeme(index) => self.is_changed |= self.after_lexeme[*index].extend(after),
            Part::Rule(rule) => {
                let after_rule = self.after_rule.entry(*rule).or_default();
                self.is_changed |= after_rule.extend(after);
            }
            Part::Token(_) => {}
            Part::Sequence(parts) => {
                for part in parts.iter().rev() {
                    self.walk(part, after);
                    let (mut first, is_nullable) = self.first(part);
                    if is_nullable {
                        first.extend(after);
                    }
                    after = first;
                }
            }
            Part::Alternatives(parts) => parts.iter().for_each(|part| self.walk(part, after)),
            Part::Repeat { part, max, .. } => {
                if *max != Some(1) {
                    after.extend(self.first(part).0);
                }
                self.walk(part, after);
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
    fn lexemes_that_would_cut_off_others_are_split() {
        // Trailing blanks of the number could swallow the newline.
        let text = "root ::= expr \"\\n\"\nexpr ::= \"(\" expr \")\" | [0-9]+ [ \\n]*";
        // `\n`, `(`, `)`, `[0-9]+`, `[ \n]`.
        assert_eq!(lexemes(text), 5);
    }
}
