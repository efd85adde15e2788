//! Tokenizers, chat templates and incremental detokenising, built from GGUF metadata.
//!
//! From request to answer:
//!
//! 1. [`ChatTemplate`] renders messages to a prompt, as the Python template engine would.
//! 2. [`Tokenizer`] turns the prompt into token ids, and each sampled id back into the bytes it stands for.
//! 3. [`Detokenizer`] joins those bytes into whole characters as they arrive.
//! 4. [`ReasoningSplitter`] separates reasoning from the answer.
//! 5. [`StopMatcher`] ends the text at a stop string, and holds back what may become one.
//!
//! Invariants: this crate does no IO (except for the clock in templates), never panics on bad metadata, bad
//! templates or bad text, and takes time and memory near linear in its input. What it cannot do exactly is rejected with
//! an error that names it.

mod bpe;
mod capabilities;
mod character_bpe;
mod detokenize;
mod error;
mod gguf;
mod guard;
mod jinja;
mod merge;
mod pretokenize;
mod reasoning;
mod sentencepiece;
mod special;
mod stop;
mod template;
mod tokenizer;
mod vocab;
mod warning;
mod wordpiece;

pub use capabilities::{Capabilities, EmptyContent, ToolArguments};
pub use detokenize::Detokenizer;
pub use error::{TemplateError, TokenizerError};
pub use reasoning::{ReasoningSplitter, SplitText};
pub use stop::{StopError, StopMatcher, StopOutput};
pub use template::{ChatTemplate, Clock};
pub use tokenizer::{EncodedPrompt, SpecialTokens, Tokenizer};
pub use vocab::{SpecialIds, TokenKind, VocabSource};
pub use warning::{PromptWarning, TokenizerWarning};
