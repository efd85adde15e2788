//! The reasoning budget: how many tokens a model may think before it must answer.

use verbatim_text::{SpecialTokens, Tokenizer};

const START: &str = "<think>";
const END: &str = "</think>";

/// Follows a request's tokens, and ends its reasoning when the budget is spent.
#[derive(Clone, Debug)]
pub(crate) struct ReasoningBudget {
    tokens: usize,
    start: Vec<u32>,
    end: Vec<u32>,
    /// The last tokens, enough to recognise a tag.
    recent: Vec<u32>,
    /// Tokens since the start tag, within reasoning.
    spent: Option<usize>,
}

impl ReasoningBudget {
    /// A budget of so many tokens. The prompt may have begun the reasoning.
    pub(crate) fn new(tokens: usize, tokenizer: &Tokenizer, prompt: &[u32]) -> ReasoningBudget {
        let tag = |tag| tokenizer.encode(tag, SpecialTokens::Parse, false);
        let (start, end) = (tag(START), tag(END));
        let mut budget = ReasoningBudget { tokens, start, end, recent: Vec::new(), spent: None };
        prompt.iter().for_each(|&token| budget.accept(token));
        // What the prompt itself says within the tag, such as a line break, is free.
        budget.spent = budget.spent.map(|_| 0);
        budget
    }

    pub(crate) fn accept(&mut self, token: u32) {
        let keep = self.start.len().max(self.end.len());
        if self.recent.len() >= keep {
            self.recent.remove(0);
        }
        self.recent.push(token);
        if self.recent.ends_with(&self.start) {
            self.spent = Some(0);
        } else if self.recent.ends_with(&self.end) {
            self.spent = None;
        } else if let Some(spent) = &mut self.spent {
            *spent += 1;
        }
    }

    /// The token that must come next: the rest of the end tag, once the budget is spent.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.spent.filter(|&spent| spent >= self.tokens)?;
        let begun = (0..self.end.len()).rev().find(|&n| self.recent.ends_with(&self.end[..n]));
        self.end.get(begun?).copied()
    }
}
