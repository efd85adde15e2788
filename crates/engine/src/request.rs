//! Requests, events, finish reasons and generation statistics.

use crate::chat::{ChatError, Conversation};
use crate::error::EngineError;
use crate::message::Message;
use crate::session::SessionId;
use crate::speculation::{DraftStats, Speculation};
use crate::{StateError, StepError};
use std::time::Duration;
use verbatim_grammar::{ConstraintError, Grammar, GrammarError};
use verbatim_sample::{LogProbs, Sampling, SamplingError, TokenLogProbs};
use verbatim_text::{PromptWarning, StopError};

/// The input to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Tokens, unchanged.
    Tokens(Vec<u32>),
    /// Plain text, after the model's initial tokens such as BOS.
    Text(String),
    /// A conversation, formatted with the model's chat template, for the assistant to continue.
    Chat(Vec<Message>),
    /// A conversation with all that APIs have: parts, tools, variables of the template.
    Conversation(Box<Conversation>),
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The input to continue.
    pub prompt: Prompt,
    /// Sampling settings. Without a seed, a random one is chosen and reported by [`Event::Started`].
    pub sampling: Sampling,
    /// Log-probabilities to return for each token.
    pub log_probs: Option<LogProbs>,
    /// What the answer must look like. It then ends where the grammar does.
    pub grammar: Option<Grammar>,
    /// How many tokens the model may think, from `<think>` on, before `</think>` is forced; `None`: any number.
    pub reasoning_budget: Option<usize>,
    /// Maximum number of tokens to generate; `None`: until an end-of-generation token or a full context.
    pub max_tokens: Option<usize>,
    /// Stop strings. They are not part of the answer.
    pub stop: Vec<String>,
    /// The session to continue; `None`: a temporary sequence.
    pub session: Option<SessionId>,
    /// Whether the prompt may come from the prefix cache, which changes no text. A session always continues where it is.
    pub cache_prompt: bool,
    /// Requests of a higher priority start first.
    pub priority: i32,
    /// How many draft tokens are verified in one step.
    pub speculation: Speculation,
}

impl Request {
    /// A greedy request without limits.
    pub fn new(prompt: Prompt) -> Request {
        Request {
            prompt,
            sampling: Sampling::greedy(),
            log_probs: None,
            grammar: None,
            reasoning_budget: None,
            max_tokens: None,
            stop: Vec::new(),
            session: None,
            cache_prompt: true,
            priority: 0,
            speculation: Speculation::default(),
        }
    }
}

/// The events of a request, in this order: started, then text, then finished. It may fail at any point, and a request that is
/// cancelled in the queue finishes without having started. No event follows after finished or failed.
#[derive(Debug)]
pub enum Event {
    /// The request is running.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Prompt tokens that were a prefix-cache hit.
        cached_tokens: usize,
        /// The seed of the sampler: the request with this seed repeats the answer.
        seed: u64,
        /// What the author of the prompt may not have meant.
        warning: Option<PromptWarning>,
    },
    /// More of the answer. The text never ends within a character.
    Text {
        /// The text, which can no longer become part of a stop string; may be empty in the last text event.
        text: String,
        /// What the model thinks before it answers a conversation, without the tags around it. It comes before all text. Stop
        /// strings do not apply to it.
        reasoning: String,
        /// The tokens generated since the previous text event, excluding the end-of-generation token. Text that may become a stop
        /// string is held back, so text may come later than its tokens.
        tokens: Vec<u32>,
        /// Their log-probabilities, if the request asked for them and the logits are a distribution.
        log_probs: Vec<Option<TokenLogProbs>>,
    },
    /// The answer is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Token counts and timings.
        stats: GenerationStats,
    },
    /// The request has failed. Other requests are unaffected, unless the engine has stopped.
    Failed(RequestError),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-generation (EOG) token.
    EndOfText,
    /// This stop string.
    StopString(String),
    /// The maximum number of tokens was generated.
    MaxTokens,
    /// The context has no room for another token.
    ContextFull,
    /// The client cancelled the request.
    Cancelled,
}

/// Token counts and timings of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were a prefix-cache hit.
    pub cached_tokens: usize,
    /// Generated tokens, excluding the end-of-generation token.
    pub generated_tokens: usize,
    /// Tokens that were sampled outside the graph because the graph cannot run their samplers, the end token included. See
    /// [`LoadOptions::backend_sampling`](crate::LoadOptions::backend_sampling).
    pub sampled_outside_graph: usize,
    /// Its speculation statistics.
    pub drafts: DraftStats,
    /// From the start of the request to its first token (TTFT), or to its end if there was none.
    pub time_to_first_token: Duration,
    /// From the first token to the end.
    pub generation_time: Duration,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The prompt is empty.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit, and the session does not shift its context.
    #[error("the prompt has {tokens} tokens, but the context has room for {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Size of the context.
        context: usize,
    },
    /// A sampling setting is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The grammar is invalid.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The grammar does not allow the answer to go on.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
    /// A stop string is invalid.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The conversation cannot be formatted.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The session was never opened, or is closed.
    #[error("the session is not open")]
    NoSuchSession,
    /// A step failed. The session keeps the steps before it.
    #[error(transparent)]
    Step(#[from] StepError),
    /// An operation on the sequence failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The engine has stopped.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
