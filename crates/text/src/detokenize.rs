//! Turns the bytes of tokens into text as they arrive, never showing half a character.

/// Joins token bytes to text.
///
/// Whatever way the bytes are split into pieces, all that [`push`](Self::push) and [`finish`](Self::finish) return,
/// joined, is exactly what [`String::from_utf8_lossy`] makes of all the bytes: each invalid sequence becomes one
/// U+FFFD. It holds back at most three bytes, and can be cloned to return to an earlier point of the text.
///
/// ```
/// let mut detokenizer = verbatim_text::Detokenizer::new();
/// assert_eq!(detokenizer.push(b"caf\xC3"), "caf");
/// assert_eq!(detokenizer.push(b"\xA9"), "é");
/// assert_eq!(detokenizer.finish(), "");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// The beginning of a character whose end has not arrived.
    pending: Vec<u8>,
    text: String,
}

impl Detokenizer {
    /// A detokenizer at the beginning of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of the next token and returns the text that is now complete, which may be empty.
    pub fn push(&mut self, piece: &[u8]) -> &str {
        self.text.clear();
        self.pending.extend_from_slice(piece);
        let mut consumed = 0;
        loop {
            let rest = &self.pending[consumed..];
            let error = match std::str::from_utf8(rest) {
                Ok(valid) => {
                    self.text.push_str(valid);
                    consumed = self.pending.len();
                    break;
                }
                Err(error) => error,
            };
            let (valid, _) = rest.split_at(error.valid_up_to());
            self.text.push_str(&String::from_utf8_lossy(valid));
            consumed += valid.len();
            match error.error_len() {
                Some(invalid_bytes) => {
                    self.text.push(char::REPLACEMENT_CHARACTER);
                    consumed += invalid_bytes;
                }
                // The bytes so far may be the beginning of a character.
                None => break,
            }
        }
        self.pending.drain(..consumed);
        &self.text
    }

    /// Ends the text: returns U+FFFD if it ended inside a character, and is ready for a new text.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.pending.is_empty() {
            self.pending.clear();
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
        &self.text
    }

    /// The bytes held back: the beginning of a character, at most three.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }
}
