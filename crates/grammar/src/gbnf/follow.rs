//! What a grammar over lexemes can start with, and what can follow each lexeme.

use super::parts::{LexemeGrammar, Part};
use super::sets::{BitSet, ByteSet};
use std::collections::BTreeMap;

/// A set of terminals: the lexemes that have not been split, and [`TOKEN`].
pub(super) type TerminalSet = BitSet<7>;

/// All tokens that are matched by their ids, as one terminal.
pub(super) const TOKEN: usize = 0;
/// The lexemes that there is room for.
pub(super) const MAX_LEXEMES: usize = TerminalSet::CAPACITY - 1;
/// The first byte of a token that is matched by its id. No text has it.
const TOKEN_BYTE: usize = 0xFF;

/// What a part can start with, and whether it can be empty.
type First = (TerminalSet, bool);

/// First and follow sets. A split lexeme is treated as a rule.
pub(super) struct Follow<'g> {
    grammar: &'g LexemeGrammar,
    /// Lexemes by terminal, from 1.
    lexeme_of_terminal: Vec<usize>,
    first_of_rule: BTreeMap<usize, First>,
    first_of_lexeme: Vec<First>,
    after_rule: BTreeMap<usize, TerminalSet>,
    after_lexeme: Vec<TerminalSet>,
    after_token: TerminalSet,
    is_changed: bool,
    work: usize,
}

impl<'g> Follow<'g> {
    /// The sets, exact unless `work` runs out. The grammar must not have more than [`MAX_LEXEMES`].
    pub fn of(grammar: &'g LexemeGrammar, work: &mut usize) -> Self {
        let rules = || grammar.rules.keys();
        let mut sets = Self {
            grammar,
            lexeme_of_terminal: grammar.whole().collect(),
            first_of_rule: rules().map(|rule| (*rule, First::default())).collect(),
            first_of_lexeme: vec![First::default(); grammar.lexemes.len()],
            after_rule: rules().map(|rule| (*rule, TerminalSet::default())).collect(),
            after_lexeme: vec![TerminalSet::default(); grammar.lexemes.len()],
            after_token: TerminalSet::default(),
            is_changed: true,
            work: *work,
        };
        for (index, &lexeme) in sets.lexeme_of_terminal.iter().enumerate() {
            let first = TerminalSet::single(index + 1);
            sets.first_of_lexeme[lexeme] = (first, grammar.lexemes[lexeme].is_nullable);
        }
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

    /// What an output can start with.
    pub fn start(&self) -> TerminalSet {
        self.first_of_rule[&self.grammar.root].0
    }

    /// All terminals.
    pub fn terminals(&self) -> std::ops::RangeInclusive<usize> {
        TOKEN..=self.lexeme_of_terminal.len()
    }

    /// What can follow a terminal.
    pub fn after(&self, terminal: usize) -> TerminalSet {
        self.lexeme(terminal).map_or(self.after_token, |lexeme| self.after_lexeme[lexeme])
    }

    /// The lexeme of a terminal, unless it is the tokens.
    pub fn lexeme(&self, terminal: usize) -> Option<usize> {
        terminal.checked_sub(1).map(|index| self.lexeme_of_terminal[index])
    }

    /// The bytes that terminals start with.
    pub fn first_bytes(&self, terminals: TerminalSet) -> ByteSet {
        let mut bytes = ByteSet::default();
        for terminal in terminals.iter() {
            let automaton =
                self.lexeme(terminal).map(|lexeme| self.grammar.lexemes[lexeme].automaton.as_ref());
            bytes.extend(match automaton {
                None => ByteSet::single(TOKEN_BYTE),
                Some(automaton) => automaton.map(|automaton| automaton.first_bytes).unwrap_or_default(),
            });
        }
        bytes
    }

    fn update_first(&mut self) {
        for (rule, part) in &self.grammar.rules {
            let first = self.first(part);
            self.is_changed |= self.first_of_rule.insert(*rule, first) != Some(first);
        }
        for (index, lexeme) in self.grammar.lexemes.iter().enumerate() {
            if let Some(part) = &lexeme.split {
                let first = self.first(part);
                self.is_changed |= std::mem::replace(&mut self.first_of_lexeme[index], first) != first;
            }
        }
    }

    fn update_follow(&mut self) {
        for (rule, part) in &self.grammar.rules {
            self.walk(part, self.after_rule[rule]);
        }
        for (index, lexeme) in self.grammar.lexemes.iter().enumerate() {
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
            Part::Token(_) => (TerminalSet::single(TOKEN), false),
            Part::Sequence(parts) => {
                let mut all = TerminalSet::default();
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
                let mut all = First::default();
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
    fn walk(&mut self, part: &Part, mut after: TerminalSet) {
        self.work = self.work.saturating_sub(1);
        match part {
            Part::Lexeme(index) => self.is_changed |= self.after_lexeme[*index].extend(after),
            Part::Rule(rule) => {
                let after_rule = self.after_rule.entry(*rule).or_default();
                self.is_changed |= after_rule.extend(after);
            }
            Part::Token(_) => self.is_changed |= self.after_token.extend(after),
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
