//! Finds special tokens that are spelled out in text.

use crate::error::TokenizerError;
use aho_corasick::{AhoCorasick, MatchKind};

/// Finds the leftmost, and of those the longest, of a set of tokens in one pass over the text.
pub(crate) struct SpecialMatcher {
    /// `None` for an empty set.
    automaton: Option<AhoCorasick>,
    /// Pattern number to token id.
    ids: Vec<u32>,
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

    /// The first special token in `text`: where it starts and ends, and its id.
    pub fn find(&self, text: &str) -> Option<(usize, usize, u32)> {
        let found = self.automaton.as_ref()?.find(text)?;
        Some((found.start(), found.end(), self.ids[found.pattern().as_usize()]))
    }
}
