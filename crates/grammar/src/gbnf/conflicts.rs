//! Finds lexemes that cut off others: those whose longest match (maximal munch) would run past the end of another one and swallow
//! what follows it.
//!
//! llguidance only looks for lexemes that the grammar allows where the last one has ended, so only lexemes that can be allowed at
//! the same place need to be compared. It does not choose between lexemes that have matched the same text, though: it goes on
//! after all of them, and what can follow any of them is allowed at the same place.

use super::automaton::Automaton;
use super::follow::{Follow, TerminalSet};
use super::parts::LexemeGrammar;
use super::sets::ByteSet;

/// The lexemes whose longest match would run past the end of a lexeme allowed at the same place. Meaningless once `work` is 0.
pub(super) fn conflicts(grammar: &LexemeGrammar, work: &mut usize) -> Vec<usize> {
    let comparison = Comparison { grammar, follow: Follow::of(grammar, work) };
    let together = comparison.allowed_together(work);
    let terminals = comparison.follow.terminals();
    let after: Vec<ByteSet> = terminals.clone().map(|terminal| comparison.bytes_after(terminal)).collect();
    let cuts_off = |longer: usize, work: &mut usize| {
        together[longer].iter().any(|terminal| {
            comparison
                .both(terminal, longer)
                .is_some_and(|(lexeme, longer)| lexeme.is_cut_off_by(longer, &after[terminal], work))
        })
    };
    let longer = terminals.filter(|longer| cuts_off(*longer, work));
    longer.filter_map(|terminal| comparison.follow.lexeme(terminal)).collect()
}

struct Comparison<'g> {
    grammar: &'g LexemeGrammar,
    follow: Follow<'g>,
}

impl Comparison<'_> {
    /// For each terminal, those that can be allowed at the same place; at least these.
    fn allowed_together(&self, work: &mut usize) -> Vec<TerminalSet> {
        let mut together = vec![TerminalSet::default(); self.follow.terminals().count()];
        let mut pairs = Vec::new();
        let start = self.follow.start();
        let mut allow = |left: TerminalSet, right: TerminalSet, pairs: &mut Vec<(usize, usize)>| {
            for terminal in left.iter() {
                let new = right.without(&together[terminal]);
                together[terminal].extend(right);
                pairs.extend(new.iter().map(|other| (terminal, other)));
            }
        };
        allow(start, start, &mut pairs);
        while let Some((left, right)) = pairs.pop() {
            if *work == 0 {
                break;
            }
            *work -= 1;
            if self.match_the_same(left, right, work) {
                allow(self.follow.after(left), self.follow.after(right), &mut pairs);
            }
        }
        together
    }

    /// Whether there is a text that both terminals match.
    fn match_the_same(&self, left: usize, right: usize, work: &mut usize) -> bool {
        let both = || self.both(left, right);
        left == right || both().is_some_and(|(left, right)| left.matches_the_same(right, work))
    }

    /// The automata of two lexemes. A token that is matched by its id is not made of characters, and has none.
    fn both(&self, left: usize, right: usize) -> Option<(&Automaton, &Automaton)> {
        Some((self.automaton(left)?, self.automaton(right)?))
    }

    fn automaton(&self, terminal: usize) -> Option<&Automaton> {
        self.grammar.lexemes[self.follow.lexeme(terminal)?].automaton.as_ref()
    }

    fn bytes_after(&self, terminal: usize) -> ByteSet {
        self.follow.first_bytes(self.follow.after(terminal))
    }
}
