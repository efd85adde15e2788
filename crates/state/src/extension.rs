//! Per-sequence state of other crates: a detokenizer, a grammar, penalties, an n-gram index.

/// State that another crate keeps per sequence. It is committed, reset, forked, saved and restored with the sequence.
pub trait SequenceExtension: Send {
    /// Names the extension in saved states.
    fn name(&self) -> &'static str;

    /// These tokens were committed, after those before.
    fn commit(&mut self, tokens: &[u32]);

    /// The sequence has these tokens now: it was truncated or shifted.
    fn reset(&mut self, tokens: &[u32]);

    /// The same state, for a fork of the sequence.
    fn fork(&self) -> Box<dyn SequenceExtension>;

    /// Writes what [`SequenceExtension::load`] needs to `out`.
    fn save(&self, out: &mut Vec<u8>);

    /// Loads what an extension of this name has saved.
    ///
    /// # Errors
    /// What is wrong with it, in words. The extension is as it was then.
    fn load(&mut self, from: &[u8]) -> Result<(), String>;
}
