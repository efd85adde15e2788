//! Byte-level BPE (`tokenizer.ggml.model = gpt2`): text is split into pre-tokens, a pre-token into bytes, and bytes are merged
//! by a ranked list of pairs. Introduced with GPT-2; used by Llama 3, Qwen, SmolLM, DeepSeek and most others.

use crate::error::{TokenizerError, excerpt};
use crate::merge::{Merge, Merger, NO_TOKEN};
use crate::pretokenize::PreTokenizer;
use crate::vocab::{TokenKind, Vocab, parse_byte_token};
use foldhash::{HashMap, HashMapExt};
use std::borrow::Cow;

/// The encoder.
///
/// A byte that has no token (SmolLM2 lacks some control characters, for one) yields nothing, as in the model's own
/// tokenizer and in llama.cpp.
pub(crate) struct BytePairEncoder {
    pre_tokenizer: PreTokenizer,
    /// The token of each byte, or [`NO_TOKEN`].
    byte_ids: [u32; 256],
    merges: Merges,
    /// Pre-tokens that are one token regardless of merges; empty unless the pre-tokenizer requires it.
    words: HashMap<Box<[u8]>, u32>,
}

/// The result of merging a pair of tokens.
pub(crate) type Merges = HashMap<(u32, u32), Merge>;

impl BytePairEncoder {
    pub fn new(vocab: &Vocab, pre_tokenizer: PreTokenizer) -> Result<Self, TokenizerError> {
        let byte_ids = byte_ids(vocab)?;
        let merges = merges(vocab)?;
        let words = if pre_tokenizer.ignore_merges() { whole_words(vocab) } else { HashMap::new() };
        Ok(Self { pre_tokenizer, byte_ids, merges, words })
    }

    /// `text` in the form that the vocabulary was made for.
    pub fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.pre_tokenizer.normalize(text)
    }

    /// Appends the tokens of `text`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut merger = Merger::default();
        self.pre_tokenizer.split(text, &mut |word| self.encode_word(word.as_bytes(), &mut merger, ids));
    }

    fn encode_word(&self, word: &[u8], merger: &mut Merger, ids: &mut Vec<u32>) {
        if let Some(&id) = self.words.get(word) {
            ids.push(id);
            return;
        }
        merger.clear();
        for &byte in word {
            merger.push(1, self.byte_ids[byte as usize]);
        }
        merger.run(|left, right| self.merges.get(&(left.id, right.id)).copied());
        ids.extend(merger.symbols().map(|symbol| symbol.id).filter(|&id| id != NO_TOKEN));
    }
}

fn byte_ids(vocab: &Vocab) -> Result<[u32; 256], TokenizerError> {
    let mut byte_ids = [NO_TOKEN; 256];
    for byte in 0..=255u8 {
        let mut buffer = [0; 4];
        if let Some(id) = vocab.id(byte_to_char(byte).encode_utf8(&mut buffer)) {
            if vocab.kinds_in_file[id as usize].is_control_or_unknown() {
                return Err(TokenizerError::ByteIsStructure { byte, id });
            }
            byte_ids[byte as usize] = id;
        }
    }
    if byte_ids.iter().all(|&id| id == NO_TOKEN) {
        return Err(TokenizerError::NoByteTokens);
    }
    Ok(byte_ids)
}

/// Merges, except into control and unknown tokens: no ordinary text may turn into one.
pub(crate) fn merges(vocab: &Vocab) -> Result<Merges, TokenizerError> {
    let Some(rules) = &vocab.source.merges else {
        return Err(TokenizerError::MissingKey {
            key: "tokenizer.ggml.merges",
            model: vocab.source.model.clone(),
        });
    };
    let mut merges = HashMap::with_capacity(rules.len());
    for (index, rule) in rules.iter().enumerate() {
        let shown = || excerpt(rule.as_bytes());
        // The left side is never empty, so a space in front belongs to it.
        let space = rule.bytes().skip(1).position(|byte| byte == b' ').map(|position| position + 1);
        let (left, right) = space
            .map(|space| (&rule[..space], &rule[space + 1..]))
            .filter(|(_, right)| !right.is_empty())
            .ok_or_else(|| TokenizerError::MalformedMerge { index, merge: shown() })?;
        let id = |token: &str| {
            vocab.id(token).ok_or_else(|| TokenizerError::MergeOfUnknownToken {
                index,
                merge: shown(),
                token: excerpt(token.as_bytes()),
            })
        };
        let merge = Merge { priority: index as u32, id: id(&[left, right].concat())? };
        let pair = (id(left)?, id(right)?);
        if !vocab.kinds_in_file[merge.id as usize].is_control_or_unknown() {
            // Of two rules for one pair the one with the higher priority counts.
            merges.entry(pair).or_insert(merge);
        }
    }
    Ok(merges)
}

/// Vocabulary texts that are matched as whole pre-tokens, except control and unknown tokens.
fn whole_words(vocab: &Vocab) -> HashMap<Box<[u8]>, u32> {
    let ordinary =
        vocab.ids.iter().filter(|&(_, &id)| !vocab.kinds_in_file[id as usize].is_control_or_unknown());
    ordinary.map(|(text, &id)| (decode_text(text).into_boxed_slice(), id)).collect()
}

/// The bytes that a token of a byte-level vocabulary stands for.
pub(crate) fn token_bytes(text: &[u8], kind: TokenKind) -> Vec<u8> {
    match kind {
        TokenKind::Normal | TokenKind::Unused => decode_text(text),
        TokenKind::Byte => parse_byte_token(0, text).map_or_else(|_| text.to_vec(), |byte| vec![byte]),
        TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => text.to_vec(),
    }
}

/// Undoes [`byte_to_char`] for every character of a token's text. Characters outside the alphabet stay as they are.
fn decode_text(text: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(text) else { return text.to_vec() };
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match char_to_byte(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend(character.encode_utf8(&mut [0; 4]).bytes()),
        }
    }
    bytes
}

/// The printable character that GPT-2's vocabulary notation uses for a byte: printable Latin-1 bytes are themselves,
/// the 68 others are counted up from U+0100.
fn byte_to_char(byte: u8) -> char {
    let offset = match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => return byte as char,
        0..=b' ' => byte as u32,
        0x7F..=0xA0 => byte as u32 - 0x7F + 33,
        0xAD => 67,
    };
    char::from_u32(0x100 + offset).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn char_to_byte(character: char) -> Option<u8> {
    match character as u32 {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection_with_the_known_fixed_points() {
        for byte in 0..=255 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(byte_to_char(0xAD), 'Ń');
        assert_eq!(byte_to_char(b'a'), 'a');
        assert_eq!(char_to_byte('€'), None);
    }
}
