//! WordPiece (`tokenizer.ggml.model = bert`): text is divided into words and punctuation, without case and accents, and a
//! word is written with the longest tokens that fit, from left to right. Used by BERT and its kin (Devlin et al., arXiv
//! 1810.04805). In GGUF files a token that begins a word begins with `▁`, and others have lost their `##`.

use crate::error::TokenizerError;
use crate::sentencepiece::SPACE;
use crate::vocab::{TokenKind, Vocab};
use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};
use unicode_general_category::{GeneralCategory, get_general_category};
use unicode_normalization::UnicodeNormalization;

/// The longest token, in bytes. Each place in a word is compared with tokens up to this length.
const TOKEN_BYTES_MAX: usize = 512;

/// The encoder. Words are found as in llama.cpp, except that it keeps only the first character of a decomposition and so
/// loses vowels and finals of Korean syllables; here, as in the models' own tokenizers, accents alone are lost.
pub(crate) struct WordPieceEncoder {
    /// Finds the longest token at a place.
    tokens: AhoCorasick,
    /// Pattern number to token id.
    ids: Vec<u32>,
    unk: u32,
    lowercase: bool,
    strip_accents: bool,
}

impl WordPieceEncoder {
    pub fn new(vocab: &Vocab, unk: Option<u32>) -> Result<Self, TokenizerError> {
        let unk = unk.ok_or_else(|| TokenizerError::MissingKey {
            key: "tokenizer.ggml.unknown_token_id",
            model: vocab.source.model.clone(),
        })?;
        let (mut ids, mut texts) = (Vec::new(), Vec::new());
        for (&text, &id) in &vocab.ids {
            // Ordinary text never becomes a control or unknown token, whatever the characters spell.
            let kind = vocab.kinds_in_file[id as usize];
            if kind.is_control_or_unknown() || kind == TokenKind::Byte {
                continue;
            }
            if text.len() > TOKEN_BYTES_MAX {
                return Err(TokenizerError::TokenTooLong { id, bytes: text.len(), limit: TOKEN_BYTES_MAX });
            }
            ids.push(id);
            texts.push(text);
        }
        let tokens = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Anchored)
            .build(&texts)
            .map_err(|error| TokenizerError::Build {
                what: "search for tokens",
                reason: error.to_string(),
            })?;
        let lowercase = vocab.source.lowercase.unwrap_or(true);
        let strip_accents = vocab.source.strip_accents.unwrap_or(lowercase);
        Ok(Self { tokens, ids, unk, lowercase, strip_accents })
    }

    /// Appends the tokens of `text`.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut word = String::from(SPACE);
        let mut end_word = |word: &mut String| {
            if word.len() > SPACE.len() {
                self.encode_word(word, ids);
                word.truncate(SPACE.len());
            }
        };
        let mut add = |character: char| match self.class(character) {
            Class::Space => end_word(&mut word),
            Class::Nothing => {}
            class => {
                let alone = class == Class::Alone;
                if alone {
                    end_word(&mut word);
                }
                // A character whose lower case is several has them less its accents.
                let lower = self.lowercase.then(|| character.to_lowercase().next()).flatten();
                word.push(lower.unwrap_or(character));
                if alone {
                    end_word(&mut word);
                }
            }
        };
        match self.strip_accents {
            true => text.nfd().for_each(&mut add),
            false => text.chars().for_each(&mut add),
        }
        add(' ');
    }

    /// Appends the tokens of a word with its `▁`, or the unknown token if no tokens make up all of it.
    fn encode_word(&self, word: &str, ids: &mut Vec<u32>) {
        let first = ids.len();
        let mut position = 0;
        while position < word.len() {
            let input = Input::new(word).range(position..).anchored(Anchored::Yes);
            let Some(found) = self.tokens.find(input) else {
                ids.truncate(first);
                ids.push(self.unk);
                return;
            };
            ids.push(self.ids[found.pattern().as_usize()]);
            position = found.end();
        }
    }

    fn class(&self, character: char) -> Class {
        use GeneralCategory::*;
        if character.is_whitespace() {
            return Class::Space;
        }
        match get_general_category(character) {
            Control | Format | Surrogate | PrivateUse => Class::Nothing,
            _ if character == char::REPLACEMENT_CHARACTER => Class::Nothing,
            NonspacingMark | SpacingMark | EnclosingMark if self.strip_accents => Class::Nothing,
            ConnectorPunctuation | DashPunctuation | OpenPunctuation | ClosePunctuation
            | InitialPunctuation | FinalPunctuation | OtherPunctuation => Class::Alone,
            MathSymbol | CurrencySymbol | ModifierSymbol | OtherSymbol if character.is_ascii() => {
                Class::Alone
            }
            _ if is_ideograph(character) => Class::Alone,
            _ => Class::Word,
        }
    }
}

/// What a character does to words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// It ends a word.
    Space,
    /// It is left out.
    Nothing,
    /// It is a word of its own.
    Alone,
    /// It is part of a word.
    Word,
}

/// Chinese characters, as BERT defines them. The gap from 2B820 is that of Hugging Face's tokenizers.
fn is_ideograph(character: char) -> bool {
    matches!(character as u32,
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F | 0x2B740..=0x2B81F
        | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}
