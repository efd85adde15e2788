//! What is odd about a vocabulary or a prompt, but no reason to refuse it. Callers decide whether to show it.

use thiserror::Error;

/// Something in a model file's vocabulary that was corrected or ignored.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenizerWarning {
    /// A key names a token that does not exist. Converters write such ids for "none".
    #[error("`{key}` is {id} but the vocabulary has {vocab_len} tokens; the key is ignored")]
    IdOutOfRange {
        /// The GGUF key.
        key: &'static str,
        /// The id it names.
        id: u32,
        /// The number of tokens.
        vocab_len: usize,
    },
    /// The file says that prompts of a Gemma 4 model have no BOS, but the model needs it.
    #[error("`tokenizer.ggml.add_bos_token` is false, but Gemma 4 needs BOS; it is added")]
    BosNeeded,
}

/// Something in a prompt that its author may not have meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PromptWarning {
    /// The text spells BOS at its beginning, where it is added anyway.
    #[error("the prompt begins with the model's BOS token, which is added to every prompt; it is there once")]
    OwnBos,
}
