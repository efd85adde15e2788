//! The tokenizer: text to ids, ids to bytes.

use crate::bpe::{self, BytePairEncoder};
use crate::error::{TokenizerError, excerpt};
use crate::pretokenize::PreTokenizer;
use crate::sentencepiece::{self, SentencePieceEncoder};
use crate::special::SpecialMatcher;
use crate::vocab::{SpecialIds, TokenKind, Vocab, VocabSource};

/// The supported values of `tokenizer.ggml.model`.
const MODELS: &str = "gpt2 (byte-level BPE), llama (SentencePiece BPE)";

/// How to treat the spelling of a special token in a text (llama.cpp's `parse_special`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// `<|im_start|>` in the text is the control token. For rendered templates.
    Parse,
    /// `<|im_start|>` in the text is twelve ordinary characters. For untrusted (user) text. User-defined tokens are
    /// recognised all the same: they are ordinary text that happens to be one token.
    Ignore,
}

/// Turns text into token ids and back, as the model's own tokenizer does.
///
/// The ids equal llama.cpp's, which means: no Unicode normalisation is applied, and well-known control tokens that a
/// file marks as ordinary text (`</s>` in Qwen 2's vocabulary) are control tokens. Where files leave gaps this differs
/// from llama.cpp: an absent EOS or BOS of a BPE vocabulary stays absent (llama.cpp assumes token 11), and an absent
/// `tokenizer.ggml.pre` is an error (llama.cpp assumes `default`, and warns of degraded output). The channel markers of
/// gpt-oss stay control tokens, so that user text cannot forge them (llama.cpp makes them ordinary text).
///
/// A tokenizer is immutable and can be shared between threads.
pub struct Tokenizer {
    encoder: Encoder,
    tokens: Vec<Token>,
    /// Finds every special token.
    special: SpecialMatcher,
    /// Finds the user-defined ones only.
    user_defined: SpecialMatcher,
    ids: SpecialIds,
    add_bos: bool,
    add_eos: bool,
}

enum Encoder {
    BytePair(BytePairEncoder),
    SentencePiece(SentencePieceEncoder),
}

struct Token {
    /// The bytes it stands for; for control and unknown tokens their name.
    piece: Box<[u8]>,
    kind: TokenKind,
    /// Whether generation ends at it (EOG, end of generation).
    is_eog: bool,
    /// Whether whitespace after it in a text is removed (`rstrip` in tokenizer.json, LLAMA_TOKEN_ATTR_RSTRIP).
    rstrip: bool,
}

impl Tokenizer {
    /// Checks a vocabulary and builds its tokenizer.
    ///
    /// Tolerated, as in llama.cpp: empty token texts (they are never made from text), missing token types (all tokens
    /// are then ordinary, and known control tokens are recognised by name), unknown type numbers (ordinary), repeated
    /// merge rules (the first counts), and bytes without a token in a byte-level vocabulary (they encode to nothing).
    ///
    /// # Errors
    /// An unsupported model or pre-tokenizer, by name; missing arrays and arrays of the wrong length; duplicate
    /// tokens; special ids outside the vocabulary; malformed merges and merges of unknown tokens; scores that are not
    /// numbers; malformed or missing byte tokens.
    pub fn new(source: &VocabSource) -> Result<Self, TokenizerError> {
        match source.model.as_str() {
            "gpt2" => Self::byte_pair(source),
            "llama" => Self::sentencepiece(source),
            other => Err(TokenizerError::UnsupportedModel {
                model: excerpt(other.as_bytes()),
                known: MODELS.to_owned(),
            }),
        }
    }

    fn byte_pair(source: &VocabSource) -> Result<Self, TokenizerError> {
        let pre = source.pre.as_deref().ok_or_else(|| TokenizerError::MissingKey {
            key: "tokenizer.ggml.pre",
            model: source.model.clone(),
        })?;
        let pre_tokenizer = PreTokenizer::named(pre)?;
        let add_bos = pre_tokenizer.adds_bos();
        let vocab = Vocab::new(source)?;
        let encoder = Encoder::BytePair(BytePairEncoder::new(&vocab, pre_tokenizer)?);
        Self::assemble(&vocab, encoder, source.special, add_bos)
    }

    fn sentencepiece(source: &VocabSource) -> Result<Self, TokenizerError> {
        let vocab = Vocab::new(source)?;
        // SentencePiece numbers its own control tokens from 0 unless a model asks for something else.
        let default_id = |id: u32, kind| (vocab.kinds_in_file.get(id as usize) == Some(&kind)).then_some(id);
        let ids = SpecialIds {
            unk: source.special.unk.or(default_id(0, TokenKind::Unknown)),
            bos: source.special.bos.or(default_id(1, TokenKind::Control)),
            eos: source.special.eos.or(default_id(2, TokenKind::Control)),
            ..source.special
        };
        let encoder = Encoder::SentencePiece(SentencePieceEncoder::new(&vocab, ids.unk)?);
        Self::assemble(&vocab, encoder, ids, true)
    }

    fn assemble(
        vocab: &Vocab,
        encoder: Encoder,
        ids: SpecialIds,
        add_bos: bool,
    ) -> Result<Self, TokenizerError> {
        let source = vocab.source;
        let strip = StripRule::new(source);
        let mut tokens = Vec::with_capacity(source.tokens.len());
        for (id, text) in source.tokens.iter().enumerate() {
            let kind = vocab.kinds[id];
            let piece = match encoder {
                Encoder::BytePair(_) => bpe::token_bytes(text, kind),
                Encoder::SentencePiece(_) => sentencepiece::token_bytes(id as u32, text, kind)?,
            };
            tokens.push(Token {
                piece: piece.into_boxed_slice(),
                kind,
                is_eog: vocab.is_eog[id] || ids.eos == Some(id as u32),
                rstrip: strip.applies_to(text, kind),
            });
        }
        let texts = |wanted: fn(TokenKind) -> bool| {
            let texts = source.tokens.iter().enumerate();
            // Text is UTF-8, so a token that is not cannot occur in it.
            texts.filter_map(move |(id, text)| {
                wanted(vocab.kinds[id]).then(|| Some((id as u32, std::str::from_utf8(text).ok()?)))?
            })
        };
        let user_defined = SpecialMatcher::new(texts(|kind| kind == TokenKind::UserDefined))?;
        let special = SpecialMatcher::new(texts(|kind| {
            kind == TokenKind::UserDefined || kind.is_control_or_unknown()
        }))?;
        Ok(Self {
            encoder,
            tokens,
            special,
            user_defined,
            ids,
            add_bos: source.add_bos.unwrap_or(add_bos),
            add_eos: source.add_eos.unwrap_or(false),
        })
    }

    /// The token ids of `text`. With `add_bos_eos`, BOS is put in front and EOS behind where the vocabulary asks for
    /// them and has them; a template that writes BOS itself wants `false`.
    ///
    /// Takes time in proportion to `n log n` for a text of `n` bytes, whatever it contains.
    pub fn encode(&self, text: &str, special: SpecialTokens, add_bos_eos: bool) -> Vec<u32> {
        let matcher = match special {
            SpecialTokens::Parse => &self.special,
            SpecialTokens::Ignore => &self.user_defined,
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_bos_eos && self.add_bos {
            ids.extend(self.ids.bos);
        }
        let mut rest = text;
        let mut is_first = true;
        while let Some((start, end, id)) = matcher.find(rest) {
            self.encode_ordinary(&rest[..start], is_first, &mut ids);
            ids.push(id);
            rest = &rest[end..];
            if self.tokens[id as usize].rstrip {
                rest = rest.trim_start_matches([' ', '\t', '\n', '\x0B', '\x0C', '\r']);
            }
            is_first = true;
        }
        self.encode_ordinary(rest, is_first, &mut ids);
        if add_bos_eos && self.add_eos {
            ids.extend(self.ids.eos);
        }
        ids
    }

    fn encode_ordinary(&self, text: &str, is_first: bool, ids: &mut Vec<u32>) {
        match &self.encoder {
            _ if text.is_empty() => {}
            Encoder::BytePair(encoder) => encoder.encode(text, ids),
            Encoder::SentencePiece(encoder) => encoder.encode(text, is_first, ids),
        }
    }

    /// The bytes that a token stands for, which may be part of a character; for control and unknown tokens their
    /// name. Empty for an id outside the vocabulary.
    pub fn piece(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |token| &token.piece)
    }

    /// What a reader sees of a token: its [`piece`](Self::piece), but nothing of control and unknown tokens.
    pub fn visible_piece(&self, id: u32) -> &[u8] {
        if self.is_control(id) { &[] } else { self.piece(id) }
    }

    /// The bytes of a token sequence: its pieces, joined. A SentencePiece vocabulary's text starts with the space that
    /// encoding put in front.
    pub fn decode(&self, ids: &[u32], render_special: bool) -> Vec<u8> {
        let piece = |&id| if render_special { self.piece(id) } else { self.visible_piece(id) };
        ids.iter().map(piece).collect::<Vec<_>>().concat()
    }

    /// The number of tokens. The model's logits may have more rows, which stand for nothing.
    pub fn vocab_len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether generation ends at a token (EOG, end of generation): EOS, end of turn, end of message, and all well-known tokens of
    /// that kind (`<|im_end|>`, `<|eot_id|>`, `<end_of_turn>`, `<|endoftext|>` ...).
    pub fn is_eog(&self, id: u32) -> bool {
        self.tokens.get(id as usize).is_some_and(|token| token.is_eog)
    }

    /// Whether a token is not text: a control or unknown token.
    pub fn is_control(&self, id: u32) -> bool {
        self.kind(id).is_some_and(TokenKind::is_control_or_unknown)
    }

    /// What a token is for; `None` for an id outside the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.tokens.get(id as usize).map(|token| token.kind)
    }

    /// The token with exactly these bytes. Looks through the whole vocabulary: meant for setting up, not for each step.
    pub fn find(&self, piece: &[u8]) -> Option<u32> {
        self.tokens.iter().position(|token| *token.piece == *piece).map(|id| id as u32)
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// All tokens with a role.
    pub fn special_ids(&self) -> SpecialIds {
        self.ids
    }

    /// Whether [`encode`](Self::encode) puts BOS in front when asked to add BOS and EOS.
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.ids.bos.is_some()
    }

    /// Whether [`encode`](Self::encode) puts EOS behind when asked to add BOS and EOS.
    pub fn adds_eos(&self) -> bool {
        self.add_eos && self.ids.eos.is_some()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Tokenizer")
            .field("vocab_len", &self.vocab_len())
            .field("ids", &self.ids)
            .finish()
    }
}

/// Which special tokens have `rstrip`: whitespace after them is removed. GGUF has no key for it; llama.cpp recognises Phi-3 by the
/// model's name, and so does this.
struct StripRule {
    is_phi3: bool,
}

impl StripRule {
    fn new(source: &VocabSource) -> Self {
        let name = source.name.as_deref().unwrap_or_default().to_lowercase();
        Self { is_phi3: name.contains("phi-3") || name.contains("phi3") }
    }

    fn applies_to(&self, text: &[u8], kind: TokenKind) -> bool {
        let is_special = kind.is_control_or_unknown() || kind == TokenKind::UserDefined;
        self.is_phi3 && is_special && !matches!(text, b"<unk>" | b"<s>" | b"<|endoftext|>")
    }
}
