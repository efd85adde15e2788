//! SentencePiece BPE (`tokenizer.ggml.model = llama`): text is split into characters, and adjacent symbols are merged, highest
//! score first. Characters that the vocabulary lacks become byte tokens.
//! Used by Llama 1 and 2, Mistral, Gemma 1 to 3. Source: Kudo and Richardson, arXiv 1808.06226.

use crate::error::TokenizerError;
use crate::merge::{Merge, Merger, NO_TOKEN};
use crate::vocab::{TokenKind, Vocab, occurs_in_utf8, parse_byte_token};
use foldhash::{HashMap, HashMapExt};

/// How the vocabulary writes a space.
pub(crate) const SPACE: &str = "▁";

/// The encoder.
pub(crate) struct SentencePieceEncoder {
    /// A token's text, to the merge of two symbols into that text.
    tokens: HashMap<Box<[u8]>, Merge>,
    /// No merge is longer than this, in bytes.
    longest_token_bytes: usize,
    /// The token of each byte, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    unk: Option<u32>,
    add_space_prefix: bool,
    /// Whether a token has a space after a different character. Without such tokens no merge crosses the beginning of a
    /// word, so that words can be encoded one by one, which is faster and gives the same.
    has_tokens_across_words: bool,
}

impl SentencePieceEncoder {
    pub fn new(vocab: &Vocab, unk: Option<u32>) -> Result<Self, TokenizerError> {
        let Some(scores) = &vocab.source.scores else {
            return Err(TokenizerError::MissingKey {
                key: "tokenizer.ggml.scores",
                model: vocab.source.model.clone(),
            });
        };
        let mut tokens: HashMap<Box<[u8]>, Merge> = HashMap::with_capacity(vocab.ids.len());
        for (&text, &id) in &vocab.ids {
            if scores[id as usize].is_nan() {
                return Err(TokenizerError::ScoreNotANumber { id });
            }
            // Ordinary text never becomes a control, unknown or byte token, whatever the characters spell.
            let kind = vocab.kinds_in_file[id as usize];
            if !kind.is_control_or_unknown() && kind != TokenKind::Byte {
                tokens.insert(text.into(), Merge { priority: priority(scores[id as usize]), id });
            }
        }
        let longest_token_bytes = tokens.keys().map(|text| text.len()).max().unwrap_or(0);
        let byte_ids = byte_ids(vocab, unk)?;
        let add_space_prefix = vocab.source.add_space_prefix.unwrap_or(true);
        let across = |text: &[u8]| words(&String::from_utf8_lossy(text)).nth(1).is_some();
        let has_tokens_across_words = tokens.keys().any(|text| across(text));
        Ok(Self { tokens, longest_token_bytes, byte_ids, unk, add_space_prefix, has_tokens_across_words })
    }

    /// Appends the tokens of `text`, which nothing or a special token comes before. A space is prepended if the
    /// vocabulary wants one.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let prefix = if self.add_space_prefix { SPACE } else { "" };
        let text = prefix.to_owned() + &text.replace(' ', SPACE);
        let mut merger = Merger::default();
        if self.has_tokens_across_words {
            self.encode_word(&text, &mut merger, ids);
        } else {
            words(&text).for_each(|word| self.encode_word(word, &mut merger, ids));
        }
    }

    fn encode_word(&self, word: &str, merger: &mut Merger, ids: &mut Vec<u32>) {
        merger.clear();
        for character in word.chars() {
            let token = self.tokens.get(character.encode_utf8(&mut [0; 4]).as_bytes());
            merger.push(character.len_utf8(), token.map_or(NO_TOKEN, |token| token.id));
        }
        merger.run(|left, right| {
            let len = left.len + right.len;
            if len > self.longest_token_bytes {
                return None;
            }
            self.tokens.get(&word.as_bytes()[left.start..left.start + len]).copied()
        });
        for symbol in merger.symbols() {
            if symbol.id != NO_TOKEN {
                ids.push(symbol.id);
            } else {
                self.push_bytes(&word.as_bytes()[symbol.start..symbol.start + symbol.len], ids);
            }
        }
    }

    /// Appends the byte tokens of a character that is not in the vocabulary, or one unknown token if it has none.
    fn push_bytes(&self, character: &[u8], ids: &mut Vec<u32>) {
        let byte_ids = character.iter().map(|&byte| self.byte_ids[byte as usize]);
        if byte_ids.clone().all(|id| id != NO_TOKEN) {
            ids.extend(byte_ids);
        } else {
            ids.extend(self.unk);
        }
    }
}

/// Splits text where a run of spaces follows a different character.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let spaces = rest.len() - rest.trim_start_matches(SPACE).len();
        let end = rest[spaces..].find(SPACE).map_or(rest.len(), |word| spaces + word);
        let (word, after) = rest.split_at(end);
        rest = after;
        (!word.is_empty()).then_some(word)
    })
}

/// The token of each byte, or [`NO_TOKEN`].
pub(crate) fn byte_ids(vocab: &Vocab, unk: Option<u32>) -> Result<[u32; 256], TokenizerError> {
    let mut byte_ids = [NO_TOKEN; 256];
    for (id, text) in vocab.source.tokens.iter().enumerate() {
        if vocab.kinds_in_file[id] == TokenKind::Byte {
            let byte = parse_byte_token(id as u32, text)?;
            byte_ids[byte as usize] = id as u32;
        }
    }
    let missing = (0..=255).find(|&byte| occurs_in_utf8(byte) && byte_ids[byte as usize] == NO_TOKEN);
    match (missing, unk) {
        (Some(byte), None) => Err(TokenizerError::MissingByte { byte }),
        _ => Ok(byte_ids),
    }
}

/// Maps scores to integers so that a higher score is a lower number.
fn priority(score: f32) -> u32 {
    // IEEE 754 floats order like sign-magnitude integers; adding 0.0 makes -0.0 equal to 0.0.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

/// The bytes that a token of a SentencePiece vocabulary stands for.
pub(crate) fn token_bytes(id: u32, text: &[u8], kind: TokenKind) -> Result<Vec<u8>, TokenizerError> {
    match kind {
        TokenKind::Byte => Ok(vec![parse_byte_token(id, text)?]),
        TokenKind::Normal | TokenKind::Unused => match std::str::from_utf8(text) {
            Ok(text) => Ok(text.replace(SPACE, " ").into_bytes()),
            Err(_) => Ok(text.to_vec()),
        },
        TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => Ok(text.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_begin_with_their_spaces() {
        let cut = |text| words(text).collect::<Vec<_>>();
        assert_eq!(cut("▁▁a▁b▁▁"), ["▁▁a", "▁b", "▁▁"]);
        assert_eq!(cut("ab"), ["ab"]);
        assert!(cut("").is_empty());
    }

    #[test]
    fn a_higher_score_comes_sooner() {
        let ordered = [f32::INFINITY, 3.5, 0.0, -1.0, -2.5, -1e30, f32::NEG_INFINITY];
        assert!(ordered.windows(2).all(|pair| priority(pair[0]) < priority(pair[1])));
        assert_eq!(priority(0.0), priority(-0.0));
    }
}
