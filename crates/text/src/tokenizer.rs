//! The tokenizer: text to ids, ids to bytes.

use crate::bpe::{self, BytePairEncoder};
use crate::character_bpe::CharacterPairEncoder;
use crate::error::{TokenizerError, excerpt};
use crate::guard::{everywhere, guard, unguard};
use crate::pretokenize::PreTokenizer;
use crate::sentencepiece::{self, SentencePieceEncoder};
use crate::special::{SpecialMatcher, SpecialMatchers, SpecialSearch};
use crate::vocab::{SpecialIds, TokenKind, Vocab, VocabSource};
use crate::warning::{PromptWarning, TokenizerWarning};
use crate::wordpiece::WordPieceEncoder;
use serde_json::Value as Json;
use std::borrow::Cow;
use std::ops::Range;

/// The supported values of `tokenizer.ggml.model`.
const MODELS: &str =
    "gpt2 (byte-level BPE), llama (SentencePiece BPE), gemma4 (BPE over characters), bert (WordPiece)";

/// How to treat the spelling of a special token in a text (llama.cpp's `parse_special`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// `<|im_start|>` in the text is the control token. For prompts that their author wrote as a whole.
    Parse,
    /// `<|im_start|>` in the text is the control token, except in texts that have been through [`Tokenizer::guard`]. For
    /// rendered templates.
    ParseUnguarded,
    /// `<|im_start|>` in the text is twelve ordinary characters. For untrusted (user) text. User-defined tokens are
    /// recognised all the same: they are ordinary text that happens to be one token.
    Ignore,
}

/// Turns text into token ids and back, as the model's own tokenizer does.
///
/// The ids equal llama.cpp's, with these exceptions. Vocabularies whose models compose Unicode (NFC) get composed text,
/// Qwen's for one. A token that the file marks as ordinary text is ordinary text, even if it is spelled like a
/// control token (`</s>` in the vocabularies of Gemma and Qwen 2). Where files leave gaps, an absent EOS or BOS of a BPE
/// vocabulary stays absent (llama.cpp assumes token 11), and an absent `tokenizer.ggml.pre` is an error (llama.cpp assumes
/// `default`, and warns of degraded output). The channel markers of gpt-oss stay control tokens, so that user text cannot
/// forge them (llama.cpp makes them ordinary text). WordPiece keeps all of a Korean syllable.
///
/// A tokenizer is immutable and can be shared between threads.
pub struct Tokenizer {
    encoder: Encoder,
    tokens: Vec<Token>,
    special: SpecialMatchers,
    ids: SpecialIds,
    add_bos: bool,
    add_eos: bool,
    /// Whether SEP is appended to a text.
    add_sep: bool,
    warnings: Vec<TokenizerWarning>,
}

/// A prompt as tokens, for a model to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedPrompt {
    /// The tokens, with BOS prepended if the vocabulary asks for it.
    pub ids: Vec<u32>,
    /// What its author may not have meant.
    pub warning: Option<PromptWarning>,
}

enum Encoder {
    BytePair(BytePairEncoder),
    SentencePiece(SentencePieceEncoder),
    CharacterPair(CharacterPairEncoder),
    WordPiece(WordPieceEncoder),
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
    /// [`warnings`](Self::warnings) has two more: special ids outside the vocabulary, which are ignored, and Gemma 4 files that
    /// deny BOS, which is added.
    ///
    /// # Errors
    /// An unsupported model or pre-tokenizer, by name; missing arrays and arrays of the wrong length; duplicate
    /// tokens; malformed merges and merges of unknown tokens; scores that are not numbers; malformed or missing byte
    /// tokens; a WordPiece vocabulary without an unknown token, or with an endless token.
    pub fn new(source: &VocabSource) -> Result<Self, TokenizerError> {
        match source.model.as_str() {
            "gpt2" => Self::byte_pair(source),
            "llama" => Self::sentencepiece(source),
            "gemma4" => Self::character_pair(source),
            "bert" => Self::wordpiece(source),
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
        Self::assemble(&vocab, encoder, vocab.special, add_bos)
    }

    fn sentencepiece(source: &VocabSource) -> Result<Self, TokenizerError> {
        let vocab = Vocab::new(source)?;
        // SentencePiece numbers its own control tokens from 0 unless a model asks for something else.
        let default_id = |id: u32, kind| (vocab.kinds_in_file.get(id as usize) == Some(&kind)).then_some(id);
        let ids = SpecialIds {
            unk: vocab.special.unk.or(default_id(0, TokenKind::Unknown)),
            bos: vocab.special.bos.or(default_id(1, TokenKind::Control)),
            eos: vocab.special.eos.or(default_id(2, TokenKind::Control)),
            ..vocab.special
        };
        let encoder = Encoder::SentencePiece(SentencePieceEncoder::new(&vocab, ids.unk)?);
        Self::assemble(&vocab, encoder, ids, true)
    }

    fn character_pair(source: &VocabSource) -> Result<Self, TokenizerError> {
        let vocab = Vocab::new(source)?;
        let encoder = Encoder::CharacterPair(CharacterPairEncoder::new(&vocab)?);
        let mut tokenizer = Self::assemble(&vocab, encoder, vocab.special, true)?;
        // Early files say that there is no BOS, and the model writes nonsense without it (llama.cpp #21500).
        if !tokenizer.add_bos {
            tokenizer.add_bos = true;
            tokenizer.warnings.push(TokenizerWarning::BosNeeded);
        }
        Ok(tokenizer)
    }

    fn wordpiece(source: &VocabSource) -> Result<Self, TokenizerError> {
        let vocab = Vocab::new(source)?;
        // The ids of the vocabulary that BERT was published with.
        let default_id = |id: u32| {
            let kind = vocab.kinds_in_file.get(id as usize)?;
            (source.token_types.is_none() || kind.is_control_or_unknown()).then_some(id)
        };
        let ids = SpecialIds {
            bos: vocab.special.bos.or(default_id(101)),
            unk: vocab.special.unk.or(default_id(100)),
            sep: vocab.special.sep.or(default_id(102)),
            pad: vocab.special.pad.or(default_id(0)),
            mask: vocab.special.mask.or(default_id(103)),
            ..vocab.special
        };
        let encoder = Encoder::WordPiece(WordPieceEncoder::new(&vocab, ids.unk)?);
        let tokenizer = Self::assemble(&vocab, encoder, ids, true)?;
        Ok(Self { add_sep: source.add_sep.unwrap_or(true), ..tokenizer })
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
                Encoder::SentencePiece(_) | Encoder::CharacterPair(_) | Encoder::WordPiece(_) => {
                    sentencepiece::token_bytes(id as u32, text, kind)?
                }
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
        let special = SpecialMatchers {
            control: SpecialMatcher::new(texts(TokenKind::is_control_or_unknown))?,
            user_defined: SpecialMatcher::new(texts(|kind| kind == TokenKind::UserDefined))?,
        };
        Ok(Self {
            encoder,
            tokens,
            special,
            ids,
            add_bos: source.add_bos.unwrap_or(add_bos),
            add_eos: source.add_eos.unwrap_or(false),
            add_sep: false,
            warnings: vocab.warnings.clone(),
        })
    }

    /// The token ids of `text`. With `add_bos_eos`, BOS is prepended and EOS (in WordPiece vocabularies SEP) appended where
    /// the vocabulary asks for them and has them: for a text that is complete. A text to be continued is a
    /// [prompt](Self::encode_prompt).
    ///
    /// Takes time in proportion to `n log n` for a text of `n` bytes, whatever it contains.
    pub fn encode(&self, text: &str, special: SpecialTokens, add_bos_eos: bool) -> Vec<u32> {
        let (text, trusted) = match special {
            SpecialTokens::Parse => (Cow::Borrowed(text), everywhere(text)),
            SpecialTokens::ParseUnguarded => unguard(text),
            SpecialTokens::Ignore => (Cow::Borrowed(text), Vec::new()),
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        if add_bos_eos && self.add_bos {
            ids.extend(self.ids.bos);
        }
        self.encode_parts(&text, &trusted, &mut ids);
        if add_bos_eos && self.add_eos {
            ids.extend(self.ids.eos);
        }
        if add_bos_eos && self.add_sep {
            ids.extend(self.ids.sep);
        }
        ids
    }

    /// The tokens of a text for a model to continue. BOS is prepended where the vocabulary asks for it, unless the text
    /// begins with it, as many templates' do; EOS is not appended, since generation would not continue after it.
    pub fn encode_prompt(&self, text: &str, special: SpecialTokens) -> EncodedPrompt {
        let mut ids = self.encode(text, special, false);
        let Some(bos) = self.ids.bos.filter(|_| self.add_bos) else {
            return EncodedPrompt { ids, warning: None };
        };
        let brings_bos = ids.first() == Some(&bos);
        if !brings_bos {
            ids.insert(0, bos);
        }
        EncodedPrompt { ids, warning: brings_bos.then_some(PromptWarning::OwnBos) }
    }

    /// The tokens of exactly this text: no control tokens, and no Unicode composition, so that they decode to the same bytes
    /// where the vocabulary can express them.
    pub fn encode_exact(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        self.encode_between(text, &[], &mut ids, |encoder, text, ids| encoder.encode(text, ids));
        ids
    }

    /// A text that a template may join with its own control tokens, and that stays text: in a prompt that is encoded with
    /// [`SpecialTokens::ParseUnguarded`], none of it is part of a control token. Borrowed, and unchanged, unless it
    /// spells a control token; then a mark, the noncharacter U+10FFFE, stands before each of them.
    ///
    /// ```no_run
    /// # fn f(tokenizer: &verbatim_text::Tokenizer, message: &str) -> Vec<u32> {
    /// use verbatim_text::SpecialTokens;
    /// let prompt = format!("<|im_start|>user\n{}<|im_end|>\n", tokenizer.guard(message));
    /// tokenizer.encode_prompt(&prompt, SpecialTokens::ParseUnguarded).ids
    /// # }
    /// ```
    pub fn guard<'t>(&self, text: &'t str) -> Cow<'t, str> {
        guard(&self.special.control, text)
    }

    /// [Guards](Self::guard) all texts of a JSON value, keys included: messages, tool calls, definitions of tools.
    pub fn guard_json(&self, value: &mut Json) {
        match value {
            Json::String(text) => {
                if let Cow::Owned(guarded) = self.guard(text) {
                    *text = guarded;
                }
            }
            Json::Array(items) => items.iter_mut().for_each(|item| self.guard_json(item)),
            Json::Object(entries) => {
                let guarded = std::mem::take(entries).into_iter().map(|(key, mut value)| {
                    self.guard_json(&mut value);
                    (self.guard(&key).into_owned(), value)
                });
                *entries = guarded.collect();
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }

    /// Appends the tokens of `text`. Control tokens are recognised in its `trusted` ranges.
    fn encode_parts(&self, text: &str, trusted: &[Range<usize>], ids: &mut Vec<u32>) {
        self.encode_between(text, trusted, ids, |encoder, text, ids| {
            encoder.encode(&encoder.normalize(text), ids);
        });
    }

    /// Appends the special tokens of `text`, and what `ordinary` appends for the texts between them.
    fn encode_between(
        &self,
        text: &str,
        trusted: &[Range<usize>],
        ids: &mut Vec<u32>,
        ordinary: impl Fn(&Encoder, &str, &mut Vec<u32>),
    ) {
        let mut search = SpecialSearch::new(&self.special, text, trusted);
        let mut position = 0;
        while let Some(found) = search.next(position) {
            ordinary(&self.encoder, &text[position..found.start], ids);
            ids.push(found.id);
            position = found.end;
            if self.tokens[found.id as usize].rstrip {
                let rest = &text[position..];
                let stripped = rest.trim_start_matches([' ', '\t', '\n', '\x0B', '\x0C', '\r']);
                position += rest.len() - stripped.len();
            }
        }
        ordinary(&self.encoder, &text[position..], ids);
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
    /// encoding prepended.
    pub fn decode(&self, ids: &[u32], render_special: bool) -> Vec<u8> {
        let piece = |&id| if render_special { self.piece(id) } else { self.visible_piece(id) };
        ids.iter().map(piece).collect::<Vec<_>>().concat()
    }

    /// What was corrected or ignored when the tokenizer was built.
    pub fn warnings(&self) -> &[TokenizerWarning] {
        &self.warnings
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

    /// Whether BOS is prepended to a prompt, and by [`encode`](Self::encode) when asked to add BOS and EOS.
    pub fn adds_bos(&self) -> bool {
        self.add_bos && self.ids.bos.is_some()
    }

    /// Whether [`encode`](Self::encode) appends EOS when asked to add BOS and EOS.
    pub fn adds_eos(&self) -> bool {
        self.add_eos && self.ids.eos.is_some()
    }
}

impl Encoder {
    /// The text in the form that the vocabulary was made for.
    fn normalize<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self {
            Encoder::BytePair(encoder) => encoder.normalize(text),
            Encoder::SentencePiece(_) | Encoder::CharacterPair(_) | Encoder::WordPiece(_) => {
                Cow::Borrowed(text)
            }
        }
    }

    /// Appends the tokens of a text without special tokens.
    fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        match self {
            _ if text.is_empty() => {}
            Encoder::BytePair(encoder) => encoder.encode(text, ids),
            Encoder::SentencePiece(encoder) => encoder.encode(text, ids),
            Encoder::CharacterPair(encoder) => encoder.encode(text, ids),
            Encoder::WordPiece(encoder) => encoder.encode(text, ids),
        }
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
