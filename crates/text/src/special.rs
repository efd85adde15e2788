//! Finds special tokens that are spelled out in text.

use crate::error::TokenizerError;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use std::ops::Range;

/// The special tokens of a vocabulary.
pub(crate) struct SpecialMatchers {
    /// Control and unknown tokens: only looked for where the text is trusted.
    pub control: SpecialMatcher,
    /// User-defined tokens: looked for everywhere.
    pub user_defined: SpecialMatcher,
}

/// Finds the leftmost, and of those the longest, of a set of tokens in one pass over the text.
pub(crate) struct SpecialMatcher {
    /// `None` for an empty set.
    automaton: Option<AhoCorasick>,
    /// Pattern number to token id.
    ids: Vec<u32>,
}

/// A special token in a text.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub start: usize,
    pub end: usize,
    pub id: u32,
}

impl SpecialMatcher {
    /// `tokens` are ids and texts; empty texts are left out, they would match everywhere.
    pub fn new<'t>(tokens: impl Iterator<Item = (u32, &'t str)>) -> Result<Self, TokenizerError> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = tokens.filter(|(_, text)| !text.is_empty()).unzip();
        let automaton = match ids.is_empty() {
            true => None,
            false => {
                Some(AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&texts).map_err(
                    |error| TokenizerError::Build {
                        what: "search for special tokens",
                        reason: error.to_string(),
                    },
                )?)
            }
        };
        Ok(Self { automaton, ids })
    }

    /// The first token that lies within `range` of `text`.
    pub fn find(&self, text: &str, range: Range<usize>) -> Option<Found> {
        let found = self.automaton.as_ref()?.find(Input::new(text).range(range))?;
        let id = self.ids[found.pattern().as_usize()];
        Some(Found { start: found.start(), end: found.end(), id })
    }
}

/// The special tokens of one text, from left to right: the leftmost, and of those the longest, as if all of them were
/// searched for at once.
pub(crate) struct SpecialSearch<'a> {
    matchers: &'a SpecialMatchers,
    text: &'a str,
    /// Where control tokens may be, in order.
    trusted: &'a [Range<usize>],
    /// The next token of each set, `None` once there are no more.
    control: Option<Found>,
    user_defined: Option<Found>,
}

impl<'a> SpecialSearch<'a> {
    pub fn new(matchers: &'a SpecialMatchers, text: &'a str, trusted: &'a [Range<usize>]) -> Self {
        let user_defined = matchers.user_defined.find(text, 0..text.len());
        let mut search = Self { matchers, text, trusted, control: None, user_defined };
        search.control = search.find_control(0);
        search
    }

    /// The first token that starts at `from` or later. `from` must not decrease.
    pub fn next(&mut self, from: usize) -> Option<Found> {
        if self.user_defined.is_some_and(|found| found.start < from) {
            self.user_defined = self.matchers.user_defined.find(self.text, from..self.text.len());
        }
        if self.control.is_some_and(|found| found.start < from) {
            self.control = self.find_control(from);
        }
        let both = self.control.into_iter().chain(self.user_defined);
        both.min_by_key(|found| (found.start, std::cmp::Reverse(found.end)))
    }

    fn find_control(&mut self, from: usize) -> Option<Found> {
        while let Some((range, later)) = self.trusted.split_first() {
            if range.end > from
                && let Some(found) = self.matchers.control.find(self.text, range.start.max(from)..range.end)
            {
                return Some(found);
            }
            self.trusted = later;
        }
        None
    }
}
