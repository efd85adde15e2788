//! The vocabulary: the tokens of a model file and their properties.

use crate::error::{TokenizerError, excerpt};
use crate::warning::TokenizerWarning;
use foldhash::{HashMap, HashMapExt};

/// A tokenizer as a model file describes it, before anything is checked. The fields are the values of the
/// `tokenizer.*` keys of a GGUF file; absent keys are `None`.
#[derive(Debug, Clone, Default)]
pub struct VocabSource {
    /// `general.name`. Read only to recognise Phi-3 files, whose special tokens have `rstrip` (whitespace after them is
    /// removed) without a key for it.
    pub name: Option<String>,
    /// `tokenizer.ggml.model`: the algorithm.
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of a BPE vocabulary.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`: the token texts in id order, in the notation of the algorithm.
    pub tokens: Vec<Vec<u8>>,
    /// `tokenizer.ggml.scores`: SentencePiece merges the pair with the highest score first.
    pub scores: Option<Vec<f32>>,
    /// `tokenizer.ggml.token_type`, see [`TokenKind`].
    pub token_types: Option<Vec<i32>>,
    /// `tokenizer.ggml.merges`: BPE merge rules `left right`, in order of priority (rank).
    pub merges: Option<Vec<String>>,
    /// The `tokenizer.ggml.*_token_id` keys.
    pub special: SpecialIds,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_sep_token`: whether WordPiece appends SEP to a text.
    pub add_sep: Option<bool>,
    /// `tokenizer.ggml.normalizer.lowercase`: whether WordPiece ignores case.
    pub lowercase: Option<bool>,
    /// `tokenizer.ggml.normalizer.strip_accents`: whether WordPiece ignores accents.
    pub strip_accents: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

/// The ids of tokens with a role.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Beginning of sequence.
    pub bos: Option<u32>,
    /// End of sequence.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Stands for text the vocabulary cannot express.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Mask.
    pub mask: Option<u32>,
}

impl SpecialIds {
    /// The ids that are in the vocabulary. The others are left out, with a warning: converters write -1, or the size of
    /// the vocabulary, for a token that does not exist.
    fn in_vocabulary(mut self, vocab_len: usize, warnings: &mut Vec<TokenizerWarning>) -> Self {
        let all = [
            ("tokenizer.ggml.bos_token_id", &mut self.bos),
            ("tokenizer.ggml.eos_token_id", &mut self.eos),
            ("tokenizer.ggml.eot_token_id", &mut self.eot),
            ("tokenizer.ggml.eom_token_id", &mut self.eom),
            ("tokenizer.ggml.unknown_token_id", &mut self.unk),
            ("tokenizer.ggml.seperator_token_id", &mut self.sep),
            ("tokenizer.ggml.padding_token_id", &mut self.pad),
            ("tokenizer.ggml.mask_token_id", &mut self.mask),
        ];
        for (key, field) in all {
            if let Some(id) = field.take_if(|id| *id as usize >= vocab_len) {
                warnings.push(TokenizerWarning::IdOutOfRange { key, id, vocab_len });
            }
        }
        self
    }

    /// The tokens that the file says end an answer or a part of it.
    fn ends(self) -> impl Iterator<Item = u32> {
        [self.eos, self.eot, self.eom].into_iter().flatten()
    }
}

/// What a token is for (`tokenizer.ggml.token_type`, numbered as in llama.cpp's `llama_token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Text. Also every type number that is not listed here.
    Normal,
    /// Stands for text the vocabulary cannot express.
    Unknown,
    /// Marks the structure of a prompt (`<|im_start|>`); it is never made from ordinary text.
    Control,
    /// Text that is always one token, recognised before everything else.
    UserDefined,
    /// Present but not trained.
    Unused,
    /// One byte, written `<0x0A>`.
    Byte,
}

/// The number of [`TokenKind::Normal`].
const NORMAL_TYPE: i32 = 1;

impl TokenKind {
    fn from_type(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }

    /// Whether the token is not text: control and unknown tokens.
    pub fn is_control_or_unknown(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// Control tokens that end generation (EOG), by their text, for files that do not name them all by key; see
/// [`Vocab::well_known`]. Source: the list of end-of-generation texts in llama.cpp's `llama-vocab.cpp`.
const EOG_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Fill-in-the-middle tokens after which a model starts a new file: generation ends there too. Same source.
const FIM_EOG_TEXTS: &[&str] = &[
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Fill-in-the-middle markers: control tokens, too. Same source.
const FIM_TEXTS: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];

/// Those of the well-known texts that are also HTML tags.
const HTML_TAGS: &[&str] = &["</s>", "<PRE>"];

/// The checked vocabulary, while a tokenizer is built from it.
pub(crate) struct Vocab<'s> {
    pub source: &'s VocabSource,
    /// The special ids that are in the vocabulary.
    pub special: SpecialIds,
    pub warnings: Vec<TokenizerWarning>,
    /// Token text to id; empty texts are left out.
    pub ids: HashMap<&'s [u8], u32>,
    /// The kinds as the file has them. What ordinary text may become is decided by these.
    pub kinds_in_file: Vec<TokenKind>,
    /// The kinds after well-known control tokens have been recognised by their text.
    pub kinds: Vec<TokenKind>,
    /// Whether generation ends at the token.
    pub is_eog: Vec<bool>,
}

impl<'s> Vocab<'s> {
    pub fn new(source: &'s VocabSource) -> Result<Self, TokenizerError> {
        let count = source.tokens.len();
        if count == 0 || count > 1 << 31 {
            return Err(TokenizerError::VocabularySize { count });
        }
        check_length("tokenizer.ggml.token_type", source.token_types.as_deref(), count)?;
        check_length("tokenizer.ggml.scores", source.scores.as_deref(), count)?;
        let mut warnings = Vec::new();
        let special = source.special.in_vocabulary(count, &mut warnings);

        let kinds_in_file = match &source.token_types {
            Some(types) => types.iter().map(|&number| TokenKind::from_type(number)).collect(),
            None => vec![TokenKind::Normal; count],
        };
        let mut vocab = Self {
            source,
            special,
            warnings,
            ids: index_texts(&source.tokens)?,
            kinds: kinds_in_file.clone(),
            kinds_in_file,
            is_eog: vec![false; count],
        };
        vocab.recognise_control_texts();
        vocab.mark_eog();
        Ok(vocab)
    }

    pub fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text.as_bytes()).copied()
    }

    /// The token of a well-known text, if it is the token that the text is known for. A file that calls it ordinary text is
    /// believed (`</s>` is an HTML tag in the vocabularies of Qwen 2 and Gemma 4), and so is one that calls a tag
    /// user-defined, as it does all tags (Gemma 3). Files without token types, or with other types, often mean control
    /// tokens, and so does a key that names the token.
    fn well_known(&self, text: &str) -> Option<u32> {
        let id = self.id(text)?;
        let is_text = self.source.token_types.as_ref().is_some_and(|types| match types[id as usize] {
            NORMAL_TYPE => true,
            number => TokenKind::from_type(number) == TokenKind::UserDefined && HTML_TAGS.contains(&text),
        });
        (!is_text || self.special.ends().any(|end| end == id)).then_some(id)
    }

    fn recognise_control_texts(&mut self) {
        for text in [EOG_TEXTS, FIM_EOG_TEXTS, FIM_TEXTS].concat() {
            if let Some(id) = self.well_known(text) {
                self.kinds[id as usize] = TokenKind::Control;
            }
        }
    }

    fn mark_eog(&mut self) {
        let by_text = EOG_TEXTS.iter().chain(FIM_EOG_TEXTS).filter_map(|text| self.well_known(text));
        let eog: Vec<u32> = by_text.chain(self.special.ends()).collect();
        for id in eog {
            self.is_eog[id as usize] = true;
        }

        // In the Harmony and Solar formats `<|end|>` closes one message of an answer, not the answer.
        let has = |text| self.id(text).is_some();
        let harmony = has("<|return|>") && has("<|call|>");
        let solar = has("<|flush|>") && (has("<|call|>") || has("<|calls|>"));
        let gemma4 = has("<|tool_response>");
        if (harmony || solar)
            && let Some(id) = self.id("<|end|>")
        {
            self.is_eog[id as usize] = false;
        }
        // In Gemma 4 `</s>` is an ordinary HTML tag, also where the file has no types.
        if gemma4 && let Some(id) = self.id("</s>") {
            self.is_eog[id as usize] = false;
            self.kinds[id as usize] = TokenKind::Normal;
        }
    }
}

fn check_length<T>(key: &'static str, values: Option<&[T]>, expected: usize) -> Result<(), TokenizerError> {
    match values {
        Some(values) if values.len() != expected => {
            Err(TokenizerError::LengthMismatch { key, expected, found: values.len() })
        }
        _ => Ok(()),
    }
}

fn index_texts(tokens: &[Vec<u8>]) -> Result<HashMap<&[u8], u32>, TokenizerError> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, text) in tokens.iter().enumerate() {
        if text.is_empty() {
            continue;
        }
        let id = id as u32;
        if let Some(first) = ids.insert(text.as_slice(), id) {
            return Err(TokenizerError::DuplicateToken { first, second: id, text: excerpt(text) });
        }
    }
    Ok(ids)
}

/// The byte that a token written `<0x0A>` stands for.
pub(crate) fn parse_byte_token(id: u32, text: &[u8]) -> Result<u8, TokenizerError> {
    let digits = text.strip_prefix(b"<0x").and_then(|rest| rest.strip_suffix(b">"));
    digits
        .filter(|digits| digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit))
        .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())
        .ok_or_else(|| TokenizerError::MalformedByteToken { id, text: excerpt(text) })
}

/// Whether a byte can occur in UTF-8 text.
pub(crate) fn occurs_in_utf8(byte: u8) -> bool {
    !matches!(byte, 0xC0 | 0xC1 | 0xF5..=0xFF)
}
