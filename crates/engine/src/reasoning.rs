//! Reasoning: where a model thinks, between `<think>` and `</think>`, and how many tokens it may think.

use verbatim_text::{SpecialTokens, Tokenizer};

const START: &str = "<think>";
const END: &str = "</think>";

/// Follows a request's tokens, and ends its reasoning when the budget is spent.
#[derive(Clone, Debug)]
pub(crate) struct Reasoning {
    budget: usize,
    /// The tokens to end it with, and how many of them were generated.
    end: Vec<u32>,
    end_matched: usize,
    /// The last bytes of the text, fewer than the longest tag has. Tags are found in the text, since their tokens may have merged
    /// with what is before or after them.
    recent: Vec<u8>,
    /// Tokens since the start tag, within reasoning.
    spent: Option<usize>,
}

impl Reasoning {
    /// A budget of so many tokens. The prompt may have begun the reasoning.
    pub(crate) fn new(budget: usize, tokenizer: &Tokenizer, prompt: &[u32]) -> Reasoning {
        let end = tokenizer.encode(END, SpecialTokens::Parse, false);
        let mut reasoning = Reasoning { budget, end, end_matched: 0, recent: Vec::new(), spent: None };
        prompt.iter().for_each(|&token| reasoning.accept(token, tokenizer));
        // What the prompt itself says within the tag, such as a line break, is free.
        reasoning.spent = reasoning.spent.map(|_| 0);
        reasoning
    }

    /// Whether the next token is part of the reasoning.
    pub(crate) fn is_thinking(&self) -> bool {
        self.spent.is_some()
    }

    pub(crate) fn accept(&mut self, token: u32, tokenizer: &Tokenizer) {
        if let Some(spent) = &mut self.spent {
            *spent += 1;
        }
        self.end_matched =
            if self.end.get(self.end_matched) == Some(&token) { self.end_matched + 1 } else { 0 };
        self.recent.extend_from_slice(tokenizer.piece(token));
        let end_of = |tag: &str| {
            let start = self.recent.windows(tag.len()).rposition(|window| window == tag.as_bytes());
            start.map(|start| start + tag.len())
        };
        let (start, end) = (end_of(START), end_of(END));
        match (start, end) {
            (None, None) => {}
            _ if start > end => self.spent = Some(0),
            _ => (self.spent, self.end_matched) = (None, 0),
        }
        // A tag that was found is not found again.
        let done = start.max(end).unwrap_or(0).max(self.recent.len().saturating_sub(END.len() - 1));
        self.recent.drain(..done);
    }

    /// The token that must come next: the rest of the end tag, once the budget is spent.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.spent.filter(|&spent| spent >= self.budget)?;
        self.end.get(self.end_matched).copied()
    }
}
