//! The n-gram drafter: what followed the last occurrence of a request's latest tokens, as in "prompt lookup decoding"
//! (Saxena, 2023) and llama.cpp's `ngram-simple`, but for the longest suffix of any length.
//!
//! A suffix automaton (Blumer et al., "The smallest automaton recognizing the subwords of a text", 1985) of all tokens so far
//! knows, after each token, the longest suffix that has occurred before, and where. Adding a token takes constant time on average,
//! and memory grows by at most two states and three transitions for each.

use crate::Drafter;
use std::collections::HashMap;

/// A suffix must have this many tokens to predict what follows.
const MIN_MATCH: usize = 2;
/// At this many tokens the automaton is cleared and starts over with the next token. About 100 bytes per token.
const MAX_TOKENS: usize = 1 << 18;

/// Maximum number of suffix links that [`Automaton::refresh`] follows per token.
const MAX_REFRESHED_SUFFIXES: usize = 32;

/// The root, which is the empty text.
const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// Proposes what followed the last occurrence of the latest tokens.
#[derive(Clone, Debug)]
pub struct NgramDrafter {
    automaton: Automaton,
    /// How many tokens of the history were added.
    added: usize,
    /// The index of the first one in the automaton.
    first: usize,
    min_match: usize,
}

impl Default for NgramDrafter {
    fn default() -> Self {
        NgramDrafter::new(MIN_MATCH)
    }
}

impl NgramDrafter {
    /// A drafter that proposes tokens where the last `min_match` tokens, at least 1, have occurred before.
    pub fn new(min_match: usize) -> NgramDrafter {
        NgramDrafter { automaton: Automaton::new(), added: 0, first: 0, min_match: min_match.max(1) }
    }

    fn catch_up(&mut self, history: &[u32]) {
        if history.len() < self.added {
            *self = NgramDrafter::new(self.min_match);
        }
        for &token in &history[self.added..] {
            if self.automaton.len == MAX_TOKENS {
                self.automaton = Automaton::new();
                self.first = self.added;
            }
            self.automaton.push(token);
            self.added += 1;
        }
    }
}

impl Drafter for NgramDrafter {
    fn method(&self) -> &'static str {
        "ngram-simple"
    }

    fn propose(&mut self, history: &[u32], max: usize, draft: &mut Vec<u32>) {
        self.catch_up(history);
        let Some((length, end)) = self.automaton.earlier_suffix() else { return };
        if length >= self.min_match {
            let next = self.first + end + 1;
            // The continuation may run into the suffix itself: a periodic text is continued periodically.
            let period = history.len() - next;
            draft.extend((0..max).map(|i| history[next + i % period]));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Length of the longest text of this state.
    len: u32,
    /// The state of its longest suffix that occurs elsewhere too.
    link: u32,
    /// Where an occurrence ends: the latest known one.
    end: u32,
}

#[derive(Clone, Debug)]
struct Automaton {
    states: Vec<State>,
    transitions: HashMap<(u32, u32), u32>,
    /// The outgoing tokens of each state, to copy them when it is split.
    outgoing: Vec<Vec<u32>>,
    /// The state of the whole text.
    last: u32,
    len: usize,
}

impl Automaton {
    fn new() -> Automaton {
        let root = State { len: 0, link: NONE, end: 0 };
        Automaton {
            states: vec![root],
            transitions: HashMap::new(),
            outgoing: vec![vec![]],
            last: ROOT,
            len: 0,
        }
    }

    /// The longest suffix of the text that has occurred before, as its length and where that occurrence ends.
    fn earlier_suffix(&self) -> Option<(usize, usize)> {
        let suffix = self.states[self.last as usize].link;
        let state = self.states.get(suffix as usize).filter(|state| state.len > 0)?;
        Some((state.len as usize, state.end as usize))
    }

    fn push(&mut self, token: u32) {
        self.refresh();
        let end = self.len as u32;
        self.len += 1;
        let new = self.add(State { len: end + 1, link: ROOT, end });
        let mut at = self.last;
        self.last = new;
        let next = loop {
            if at == NONE {
                return;
            }
            match self.transitions.get(&(at, token)) {
                Some(&next) => break next,
                None => self.set(at, token, new),
            }
            at = self.states[at as usize].link;
        };
        if self.states[next as usize].len == self.states[at as usize].len + 1 {
            self.states[new as usize].link = next;
        } else {
            let shorter = self.split(at, token, next);
            self.states[new as usize].link = shorter;
        }
    }

    /// Splits off the texts of `next` that are `at` and the token, or shorter.
    fn split(&mut self, mut at: u32, token: u32, next: u32) -> u32 {
        let State { link, end, .. } = self.states[next as usize];
        let shorter = self.add(State { len: self.states[at as usize].len + 1, link, end });
        for token in self.outgoing[next as usize].clone() {
            let to = self.transitions[&(next, token)];
            self.set(shorter, token, to);
        }
        self.states[next as usize].link = shorter;
        while at != NONE && self.transitions.get(&(at, token)) == Some(&next) {
            self.transitions.insert((at, token), shorter);
            at = self.states[at as usize].link;
        }
        shorter
    }

    /// Moves `end` of the longest suffixes to the end of the text, so that a later match continues from the most recent occurrence.
    /// Only the longest, because there can be one per token. Call it before the next token is appended: until then the current
    /// match must still point to the earlier occurrence.
    fn refresh(&mut self) {
        let Some(end) = self.len.checked_sub(1) else { return };
        let mut at = self.states[self.last as usize].link;
        for _ in 0..MAX_REFRESHED_SUFFIXES {
            if at == ROOT || at == NONE {
                return;
            }
            self.states[at as usize].end = end as u32;
            at = self.states[at as usize].link;
        }
    }

    fn add(&mut self, state: State) -> u32 {
        self.states.push(state);
        self.outgoing.push(Vec::new());
        self.states.len() as u32 - 1
    }

    fn set(&mut self, from: u32, token: u32, to: u32) {
        if self.transitions.insert((from, token), to).is_none() {
            self.outgoing[from as usize].push(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(history: &[u32], max: usize) -> Vec<u32> {
        let mut draft = Vec::new();
        NgramDrafter::default().propose(history, max, &mut draft);
        draft
    }

    #[test]
    fn what_followed_is_proposed() {
        assert_eq!(draft(&[1, 2, 3, 4, 5, 6, 2, 3], 3), [4, 5, 6]);
        assert_eq!(draft(&[1, 2, 3, 4], 3), []);
        assert_eq!(draft(&[1, 2, 1], 3), [], "one token is not enough");
        assert_eq!(draft(&[], 3), []);
        // The longest suffix decides, then the latest occurrence.
        assert_eq!(draft(&[9, 2, 3, 4, 8, 2, 3, 5, 9, 2, 3], 1), [4]);
        assert_eq!(draft(&[7, 2, 3, 4, 8, 2, 3, 5, 9, 2, 3], 1), [5]);
    }

    #[test]
    fn a_loop_goes_on() {
        assert_eq!(draft(&[1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(draft(&[5, 5, 5], 4), [5, 5, 5, 5]);
    }

    /// The length of the longest suffix that occurs earlier, and where its latest earlier occurrence ends.
    fn by_search(text: &[u32]) -> Option<(usize, usize)> {
        (1..text.len()).rev().find_map(|length| {
            let suffix = &text[text.len() - length..];
            let start = (0..text.len() - length).rev().find(|&start| text[start..].starts_with(suffix));
            start.map(|start| (length, start + length - 1))
        })
    }

    #[test]
    fn suffixes_are_those_of_a_search() {
        let mut random = 1u64;
        for letters in [2, 3, 10] {
            let mut automaton = Automaton::new();
            let mut text = Vec::new();
            for _ in 0..400 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push((random >> 33) as u32 % letters);
                automaton.push(text[text.len() - 1]);
                assert_eq!(automaton.earlier_suffix(), by_search(&text), "{text:?}");
            }
            assert!(
                automaton.states.len() <= 2 * text.len() && automaton.transitions.len() <= 3 * text.len()
            );
        }
    }

    #[test]
    fn history_may_come_in_pieces_or_begin_anew() {
        let text: Vec<u32> = (0..300).map(|i| i * i % 7).collect();
        let mut drafter = NgramDrafter::default();
        for len in [3, 4, 9, 100, 101, 300, 50, 51] {
            let mut found = Vec::new();
            drafter.propose(&text[..len], 5, &mut found);
            assert_eq!(found, draft(&text[..len], 5), "{len}");
        }
    }
}
