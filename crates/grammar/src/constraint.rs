//! A request's state in its grammar.

use crate::error::ConstraintError;
use crate::library::plain_message;
use crate::mask::TokenMask;
use crate::vocabulary::Vocabulary;
use llguidance::Matcher;

/// How far a request's output has come in its grammar. What may come next depends on the accepted tokens only, not on how
/// often it was asked, or on tokens that have been taken back.
pub struct Constraint {
    vocabulary: Vocabulary,
    matcher: Matcher,
    /// Accepted tokens that the matcher has seen.
    matched: usize,
    /// End tokens accepted after them. The matcher does not see them, because it cannot go back over them.
    ended: usize,
    mask: TokenMask,
}

impl Constraint {
    pub(crate) fn new(vocabulary: Vocabulary, matcher: Matcher) -> Self {
        Self { vocabulary, matcher, matched: 0, ended: 0, mask: TokenMask::from_words(Vec::new()) }
    }

    /// The tokens that may come next, never none. End tokens are among them exactly when the output so far is complete.
    ///
    /// Where the grammar forces the text, only the token that the tokenizer would use for that text is allowed.
    ///
    /// # Errors
    /// The vocabulary cannot express what the grammar demands, or the grammar is too complex.
    pub fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        let mask = match self.is_stopped() && !self.matcher.is_error() {
            true => self.end_mask(),
            false => {
                let mask =
                    self.matcher.compute_mask().map_err(|error| constraint_error(&error.to_string()))?;
                let mut words = Vec::from(mask);
                words.truncate(self.vocabulary.vocab_len().div_ceil(32));
                TokenMask::from_words(words)
            }
        };
        self.mask = mask;
        Ok(&self.mask)
    }

    fn end_mask(&self) -> TokenMask {
        let mut words = vec![0; self.vocabulary.vocab_len().div_ceil(32)];
        for &token in self.vocabulary.ends() {
            words[token as usize / 32] |= 1 << (token % 32);
        }
        TokenMask::from_words(words)
    }

    /// Continues the output with a token.
    ///
    /// # Errors
    /// The grammar does not allow the token here, or is too complex.
    pub fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.vocabulary.tokenizer().is_eog(token) && self.is_accepting() {
            self.ended += 1;
            return Ok(());
        }
        let is_known = (token as usize) < self.vocabulary.vocab_len();
        if !is_known || self.is_stopped() {
            return Err(ConstraintError::NotAllowed { token });
        }
        let consumed = self.matcher.try_consume_tokens(&[token]);
        match consumed.map_err(|error| constraint_error(&error.to_string()))? {
            0 => Err(ConstraintError::NotAllowed { token }),
            _ => {
                self.matched += 1;
                Ok(())
            }
        }
    }

    /// Takes back the last accepted tokens.
    ///
    /// # Errors
    /// Fewer have been accepted, or the constraint has failed before.
    pub fn rollback(&mut self, tokens: usize) -> Result<(), ConstraintError> {
        let accepted = self.matched + self.ended;
        if tokens > accepted {
            return Err(ConstraintError::Rollback { tokens, accepted });
        }
        let ends = tokens.min(self.ended);
        self.ended -= ends;
        self.matched -= tokens - ends;
        self.matcher.rollback(tokens - ends).map_err(|error| constraint_error(&error.to_string()))
    }

    /// How many tokens at the start of a draft the grammar allows here. Nothing can follow an end token. The draft may spell
    /// forced text in ways that the [`mask`](Self::mask) excludes. After a failure, 0.
    pub fn validate(&mut self, draft: &[u32]) -> usize {
        let tokenizer = self.vocabulary.tokenizer();
        let known = draft.iter().take_while(|token| (**token as usize) < tokenizer.vocab_len()).count();
        if self.is_stopped() {
            return usize::from(known > 0 && tokenizer.is_eog(draft[0]) && !self.matcher.is_error());
        }
        self.matcher.validate_tokens(&draft[..known]).unwrap_or(0)
    }

    /// The tokens that must come next because the grammar leaves no choice: draft tokens that will be accepted. Often none.
    pub fn forced_tokens(&mut self) -> Vec<u32> {
        if self.is_stopped() {
            return Vec::new();
        }
        self.matcher.compute_ff_tokens()
    }

    /// Whether the output so far is complete, so that an end token is allowed.
    pub fn is_accepting(&mut self) -> bool {
        self.ended > 0 || self.matcher.is_accepting().unwrap_or(false)
    }

    /// Whether the output is finished: nothing but an end token can follow. Also after a failure.
    pub fn is_stopped(&self) -> bool {
        self.ended > 0 || self.matcher.is_stopped()
    }
}

impl Clone for Constraint {
    /// A constraint at the same place that shares nothing with this one.
    fn clone(&self) -> Self {
        Self {
            vocabulary: self.vocabulary.clone(),
            matcher: self.matcher.deep_clone(),
            mask: self.mask.clone(),
            ..*self
        }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let accepted = self.matched + self.ended;
        formatter.debug_struct("Constraint").field("accepted", &accepted).finish_non_exhaustive()
    }
}

fn constraint_error(message: &str) -> ConstraintError {
    match plain_message(message) {
        what if what.starts_with("NoExtensionBias") => ConstraintError::DeadEnd,
        what => ConstraintError::TooComplex { what: what.into_owned() },
    }
}
