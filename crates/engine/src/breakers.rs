//! The token sequences of DRY's sequence breakers.

use verbatim_sample::SequenceBreakers;
use verbatim_text::{SpecialTokens, Tokenizer};

/// A breaker's tokens after the first are cut here, as in llama.cpp.
const MAX_TAIL: usize = 20;

/// Every way in which one of the texts can begin within a token: a token that contains it, or whose end is its beginning and
/// that is followed by the tokens of the rest.
pub(crate) fn sequence_breakers(tokenizer: &Tokenizer, texts: &[String]) -> SequenceBreakers {
    let mut breakers = SequenceBreakers::default();
    for text in texts.iter().filter(|text| !text.is_empty()) {
        for id in 0..tokenizer.vocab_len() as u32 {
            let piece = tokenizer.piece(id);
            if contains(piece, text.as_bytes()) {
                breakers.add(id, Vec::new());
                continue;
            }
            let overlaps = (1..text.len())
                .filter(|&n| text.is_char_boundary(n) && piece.ends_with(&text.as_bytes()[..n]));
            for overlap in overlaps {
                let mut tail = tokenizer.encode(&text[overlap..], SpecialTokens::Ignore, false);
                tail.truncate(MAX_TAIL);
                breakers.add(id, tail);
            }
        }
    }
    breakers
}

fn contains(piece: &[u8], text: &[u8]) -> bool {
    piece.windows(text.len()).any(|window| window == text)
}
