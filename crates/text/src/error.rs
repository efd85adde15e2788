//! What can be wrong with a vocabulary or a chat template.

use thiserror::Error;
use verbatim_gguf::GgufError;

/// Why a vocabulary cannot be used. Each message says what is wrong, where, and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A metadata key that this kind of vocabulary needs is absent.
    #[error("the model file has no `{key}`, which its `{model}` tokenizer needs; convert the model again")]
    MissingKey {
        /// The GGUF key.
        key: &'static str,
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// A metadata key is absent or has a value of a type that the tokenizer does not accept.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// `tokenizer.ggml.model` names an algorithm that is not implemented.
    #[error("tokenizer model `{model}` is not supported; supported are: {known}")]
    UnsupportedModel {
        /// The name in the file.
        model: String,
        /// The supported names, separated by commas.
        known: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not implemented.
    #[error("pre-tokenizer `{name}` is not supported and will not be guessed; supported are: {known}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// The supported names, separated by commas.
        known: String,
    },
    /// `tokenizer.ggml.tokens` is empty, or longer than a token id can count.
    #[error("the vocabulary has {count} tokens; from 1 to 2^31 are possible")]
    VocabularySize {
        /// The number of tokens.
        count: usize,
    },
    /// An array beside the token list is not as long as the token list.
    #[error("`{key}` has {found} entries but the vocabulary has {expected} tokens; convert the model again")]
    LengthMismatch {
        /// The GGUF key.
        key: &'static str,
        /// The number of tokens.
        expected: usize,
        /// The length of the array.
        found: usize,
    },
    /// Two ids have the same text, so text cannot be mapped to one id.
    #[error("tokens {first} and {second} are both \"{text}\"; convert the model again")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// The beginning of the token's text.
        text: String,
    },
    /// A merge rule is not two token texts separated by a space.
    #[error("merge {index} (\"{merge}\") is not two tokens separated by a space; convert the model again")]
    MalformedMerge {
        /// Its index in `tokenizer.ggml.merges`.
        index: usize,
        /// The beginning of its text.
        merge: String,
    },
    /// A merge rule takes or makes a token that is not in the vocabulary.
    #[error(
        "merge {index} (\"{merge}\") needs the token \"{token}\", which the vocabulary lacks; convert the model again"
    )]
    MergeOfUnknownToken {
        /// Its index in `tokenizer.ggml.merges`.
        index: usize,
        /// The beginning of its text.
        merge: String,
        /// The missing token.
        token: String,
    },
    /// A score is NaN, so it has no place in the merge order.
    #[error("the score of token {id} is not a number; convert the model again")]
    ScoreNotANumber {
        /// The token.
        id: u32,
    },
    /// A token of type byte is not written `<0x00>` to `<0xFF>`.
    #[error(
        "token {id} (\"{text}\") is marked as a byte but is not written like <0x0A>; convert the model again"
    )]
    MalformedByteToken {
        /// The token.
        id: u32,
        /// The beginning of its text.
        text: String,
    },
    /// Nothing in the vocabulary can stand for a byte that text may contain.
    #[error(
        "the vocabulary has no token for the byte 0x{byte:02X} and no unknown token, so not all text can be encoded"
    )]
    MissingByte {
        /// The first such byte.
        byte: u8,
    },
    /// The token of a byte is a control or unknown token, so ordinary text would turn into one.
    #[error(
        "token {id} stands for the byte 0x{byte:02X} and is marked as a control or unknown token; convert the model again"
    )]
    ByteIsStructure {
        /// The byte.
        byte: u8,
        /// Its token.
        id: u32,
    },
    /// The vocabulary has not a single byte token, so hardly any text could be encoded.
    #[error(
        "the vocabulary has no byte tokens; the file is not a byte-level BPE vocabulary, although its `tokenizer.ggml.model` says so"
    )]
    NoByteTokens,
    /// A token is so long that looking for it everywhere would take unbounded time.
    #[error("token {id} has {bytes} bytes; at most {limit} are accepted in a WordPiece vocabulary")]
    TokenTooLong {
        /// The token.
        id: u32,
        /// The length of its text.
        bytes: usize,
        /// The longest accepted.
        limit: usize,
    },
    /// A search structure over the vocabulary could not be built.
    #[error("the {what} could not be built: {reason}")]
    Build {
        /// What was built.
        what: &'static str,
        /// The library's message.
        reason: String,
    },
}

/// The beginning of a token's text for an error message: printable, and short however long the token is.
pub(crate) fn excerpt(text: &[u8]) -> String {
    const SHOWN_CHARS: usize = 40;
    let head = String::from_utf8_lossy(&text[..text.len().min(4 * SHOWN_CHARS)]);
    head.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect()
}

/// Why a chat template could not be compiled or rendered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template rejected the conversation, with its own message (`raise_exception`).
    #[error("the chat template rejects this conversation: {message}")]
    Raised {
        /// The template's message.
        message: String,
    },
    /// The template uses something of Jinja that is not supported.
    #[error("the chat template uses {what} (line {line}), which is not supported")]
    Unsupported {
        /// The line, from 1; 0 if unknown.
        line: usize,
        /// What is not supported.
        what: String,
    },
    /// The template is not valid Jinja.
    #[error("the chat template cannot be compiled (line {line}): {reason}")]
    Syntax {
        /// The line, from 1; 0 if unknown.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// Rendering failed: the template and the conversation do not fit each other.
    #[error("the chat template failed (line {line}): {reason}")]
    Render {
        /// The line, from 1; 0 if unknown.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// Rendering took more work or memory than any real template needs.
    #[error(
        "the chat template did not finish within its budget (line {line}); it loops or builds huge values"
    )]
    OutOfBudget {
        /// The line, from 1; 0 if unknown.
        line: usize,
    },
    /// The template is longer than any real template.
    #[error("the chat template has {bytes} bytes; at most {limit} are accepted")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The longest accepted.
        limit: usize,
    },
    /// A message has something that the template would drop.
    #[error("message {index} does not fit the chat template: {reason}")]
    Message {
        /// Its index, from 0.
        index: usize,
        /// What would be lost, and what to do.
        reason: String,
    },
    /// The context is not an object, so it names no variables.
    #[error("the context of a chat template must be an object with the template's variables")]
    ContextNotAnObject,
}
