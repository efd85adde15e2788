//! What a token advances besides the backend's memory: a detokenizer, a grammar, penalties, an index of n-grams.

/// A part of a sequence's state that another crate keeps. It is advanced, forked, saved and restored with the sequence, so
/// that no transaction can leave it behind.
pub trait Extension: Send {
    /// Names the extension in saved states.
    fn name(&self) -> &'static str;

    /// These tokens were committed, after those before.
    fn commit(&mut self, tokens: &[u32]);

    /// The sequence has these tokens now: it was cut, or some were removed from its middle.
    fn reset(&mut self, tokens: &[u32]);

    /// The same state, for a sequence that begins as this one.
    fn fork(&self) -> Box<dyn Extension>;

    /// Writes what [`Extension::load`] needs to `out`.
    fn save(&self, out: &mut Vec<u8>);

    /// Takes up what another one of this name has saved.
    ///
    /// # Errors
    /// What is wrong with it, in words. The extension is as it was then.
    fn load(&mut self, from: &[u8]) -> Result<(), String>;
}
