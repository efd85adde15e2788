//! Per-sequence state of other crates: a detokenizer, a grammar, penalties, an n-gram index.

/// Per-sequence state of another crate, as hooks: it is committed, reset, forked, saved and restored with the sequence.
pub trait SequenceExtension: Send {
    /// The extension's name in saved states.
    fn name(&self) -> &'static str;

    /// These tokens were committed after the previous ones.
    fn commit(&mut self, tokens: &[u32]);

    /// The sequence was truncated or shifted; these are all its tokens now.
    fn reset(&mut self, tokens: &[u32]);

    /// A copy of the state, for a fork of the sequence.
    fn fork(&self) -> Box<dyn SequenceExtension>;

    /// Appends the state to `out`, in the format that [`SequenceExtension::load`] reads.
    fn save(&self, out: &mut Vec<u8>);

    /// Loads a state saved by an extension of the same name.
    ///
    /// # Errors
    /// A message for the user if the bytes are invalid; the extension is then unchanged.
    fn load(&mut self, from: &[u8]) -> Result<(), String>;
}
