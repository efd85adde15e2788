//! What a client asks for and what it is told: requests, events, finish reasons, generation statistics.

use crate::chat::{ChatError, Message};
use crate::error::EngineError;
use crate::session::SessionId;
use crate::{StateError, StepError};
use std::time::Duration;
use verbatim_text::StopError;

/// What is to be continued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Tokens as they are.
    Tokens(Vec<u32>),
    /// A text as it is, after the tokens that the model puts in front of every text.
    Text(String),
    /// A conversation, written as the model's chat template says, for the assistant to continue.
    Chat(Vec<Message>),
}

/// Sampling parameters. The same seed gives the same text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// A finite number from 0 on; 0 is greedy.
    pub temperature: f32,
    /// Seed of the sampler.
    pub seed: u64,
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What is to be continued.
    pub prompt: Prompt,
    /// Sampling parameters.
    pub sampling: Sampling,
    /// The most tokens to generate; `None`: until an end token or a full context.
    pub max_tokens: Option<usize>,
    /// Stop strings. They are not part of the answer.
    pub stop: Vec<String>,
    /// The session to continue; `None` for a sequence of the request's own.
    pub session: Option<SessionId>,
}

impl Request {
    /// A greedy request without limits.
    pub fn new(prompt: Prompt) -> Request {
        Request { prompt, sampling: Sampling::default(), max_tokens: None, stop: Vec::new(), session: None }
    }
}

/// What happens to a request, in this order: started, then text, then finished. Instead of any of these it may fail, and one
/// that is cancelled while it waits finishes without having started. Nothing follows after it has finished or failed.
#[derive(Debug)]
pub enum Event {
    /// It is running.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Those of them that were a prefix-cache hit.
        cached_tokens: usize,
    },
    /// More of the answer. No piece ends within a character.
    Text {
        /// The text, which no stop string can take back any more; may be empty in the last of these events.
        text: String,
        /// The tokens generated since the event before, the end token not included. Text that may become a stop string is held
        /// back, so text may come later than its tokens.
        tokens: Vec<u32>,
    },
    /// The answer is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        stats: GenerationStats,
    },
    /// The request has failed. Other requests are unaffected, unless the engine has stopped.
    Failed(RequestError),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model's end token.
    EndOfText,
    /// This stop string.
    StopString(String),
    /// As many tokens as were asked for.
    MaxTokens,
    /// The context has no room for another token.
    ContextFull,
    /// The client wanted no more.
    Cancelled,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GenerationStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were a prefix-cache hit.
    pub cached_tokens: usize,
    /// Tokens generated, the end token not counted.
    pub generated_tokens: usize,
    /// From the start of the request to its first token; to its end if there was none.
    pub time_to_first_token: Duration,
    /// From the first token to the end.
    pub generation_time: Duration,
}

/// Why a request fails.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// The prompt does not fit, and the session does not shift its context.
    #[error("the prompt has {tokens} tokens and the context has room for {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens that the context has room for.
        context: usize,
    },
    /// Not a temperature.
    #[error("a temperature is a finite number from 0 on, not {0}")]
    Temperature(f32),
    /// A stop string that cannot be used.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The conversation has no tokens.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The session was never opened, or is closed.
    #[error("the session is not open")]
    NoSuchSession,
    /// A step has failed. A session is as it was after the step before.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The sequence cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// There is no engine any more.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
