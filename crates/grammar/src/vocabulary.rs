//! A model's vocabulary, prepared for constrained decoding.

use crate::error::VocabularyError;
use crate::library::catch;
use llguidance::ParserFactory;
use llguidance::api::ParserLimits;
use std::sync::Arc;
use toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use verbatim_text::{TokenKind, Tokenizer};

/// A model's vocabulary, prepared for constrained decoding: once per model, in a fraction of a second. Clones share it.
#[derive(Clone)]
pub struct Vocabulary {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) factory: Arc<ParserFactory>,
    ends: Arc<[u32]>,
}

impl Vocabulary {
    /// Prepares a tokenizer's vocabulary.
    ///
    /// # Errors
    /// A vocabulary without end tokens, and one that is too large: 2^24 tokens, or tokens of more than 1024 bytes.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, VocabularyError> {
        let ends: Arc<[u32]> = ids(&tokenizer).filter(|id| tokenizer.is_eog(*id)).collect();
        let Some(&first_end) = ends.first() else { return Err(VocabularyError::NoEndToken) };
        let info = TokRxInfo {
            tok_bos: tokenizer.bos(),
            tok_pad: tokenizer.special_ids().pad,
            tok_unk: tokenizer.special_ids().unk,
            ..TokRxInfo::new(tokenizer.vocab_len() as u32, tokenizer.eos().unwrap_or(first_end))
        };
        let words: Vec<Vec<u8>> = ids(&tokenizer).map(|id| word(&tokenizer, id)).collect();
        let (source, trie_ends) = (Arc::clone(&tokenizer), Arc::clone(&ends));
        // llguidance checks its limits by assertions.
        let factory = catch(move || {
            let trie = TokTrie::from(&info, &words).with_eos_tokens(&trie_ends);
            let is_canonical = keeps_text(&source);
            let environment: TokEnv = Arc::new(Environment { tokenizer: source, trie, is_canonical });
            // With llguidance's slices. Measured: others, of 1 to 9 characters, do not make masks within bounded strings
            // faster, since tokens that are too long still have to be tried.
            let mut factory = ParserFactory::new_simple(&environment).map_err(|error| error.to_string())?;
            factory.quiet();
            *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
            Ok(factory)
        });
        let factory = factory.map_err(|what| VocabularyError::Unsupported { what })?;
        Ok(Self { tokenizer, factory: Arc::new(factory), ends })
    }

    /// The number of tokens, which is the number of bits of a mask.
    pub fn vocab_len(&self) -> usize {
        self.tokenizer.vocab_len()
    }

    /// The tokens that end an output, in ascending order.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Vocabulary").field("vocab_len", &self.vocab_len()).finish_non_exhaustive()
    }
}

fn ids(tokenizer: &Tokenizer) -> impl Iterator<Item = u32> + use<> {
    0..tokenizer.vocab_len() as u32
}

/// A token's bytes as the trie has them: tokens that are not text get a marker in front, which no text has.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let piece = tokenizer.piece(id);
    let is_text = !tokenizer.is_eog(id)
        && matches!(tokenizer.kind(id), Some(TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte));
    match is_text {
        _ if piece.is_empty() => Vec::new(),
        false => [&[TokTrie::SPECIAL_TOKEN_MARKER], piece].concat(),
        // A piece that starts with the marker's byte is never part of UTF-8 text.
        true if piece.starts_with(&[TokTrie::SPECIAL_TOKEN_MARKER]) => Vec::new(),
        true => piece.to_vec(),
    }
}

/// Whether encoding leaves a text as it is. SentencePiece vocabularies often put a space in front, with which the middle of
/// a text cannot be tokenized.
fn keeps_text(tokenizer: &Tokenizer) -> bool {
    let ids = tokenizer.encode_exact("a");
    tokenizer.decode(&ids, true) == b"a"
}

/// What llguidance asks of a tokenizer.
struct Environment {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    is_canonical: bool,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let encode = |text: &str| self.tokenizer.encode_exact(text);
        let ids = self.trie.tokenize_with_greedy_fallback(bytes, encode);
        // Some vocabularies lack tokens for rare bytes. Only tokens that stand for the bytes may be forced.
        let mut rest = bytes;
        let is_next = |id: &TokenId| {
            let matches = rest.strip_prefix(self.tokenizer.piece(*id));
            rest = matches.unwrap_or(rest);
            matches.is_some()
        };
        ids.into_iter().take_while(is_next).collect()
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.is_canonical
    }
}
