//! An engine that serves requests, built on batched forward passes (steps).
//!
//! An [`Engine`] is the API for clients such as the command line or a server: a [`Request`] in, [`Event`]s out. One thread owns a
//! [`Stepper`]: the loaded models, and the KV cache and recurrent states of all sequences.
//!
//! A [`Row`] is a token, or an embedding, at a position of a sequence, and specifies the outputs it wants. [`Stepper::step`] runs any
//! mix of rows: a prefill chunk, one token of each of many sequences (decode), a chain or a tree of draft tokens. [`Stepper::advance`] is
//! the basic loop over it: compute tokens of one sequence, sample the next.
//!
//! A row's outputs depend, bit for bit, only on its sequence's tokens: not on the other rows of the step, on how the tokens were
//! chunked into steps, on threads or on the cells in which the sequence is stored.
//!
//! Invariant: this crate depends on no concrete backend; a [`Stepper`] is generic over it.

mod breakers;
mod chat;
mod commands;
mod drafting;
mod engine;
mod error;
mod events;
mod generate;
mod load;
mod load_error;
mod memory;
mod message;
mod model_drafts;
mod options;
mod outbox;
mod read_ahead;
mod reasoning;
mod recommended;
mod request;
mod requirements;
mod row;
mod sampler_rows;
mod scheduler;
mod sequence_spec;
mod sequences;
mod session;
mod speculation;
mod status;
mod stepper;
mod worker;

pub use chat::{ChatError, ChatFormat, Conversation};
pub use drafting::DraftRequest;
pub use engine::{Engine, EngineOptions, TextProcessor};
pub use error::EngineError;
pub use events::{Canceller, EventStream, PromptProgress};
pub use load::read_hyperparameters;
pub use load_error::LoadError;
pub use memory::{Memory, MemoryProbe};
pub use message::{FunctionCall, Message, Role, ToolCall, ToolCallKind};
pub use model_drafts::DraftModel;
pub use options::{DraftOptions, LoadOptions};
pub use recommended::recommended_sampling;
pub use request::{Event, FinishReason, GenerationStats, Prompt, Request, RequestError};
pub use requirements::Requirements;
pub use row::{Draw, NextOutput, Row, RowError, RowInput, RowOutputs, Sample, StepError, StepOutputs};
pub use sequences::SaveError;
pub use session::{OpenedSession, RestoredSession, SessionError, SessionId, SessionOptions};
pub use speculation::{DraftStats, DrafterFactory, NotDrafted, Speculation};
pub use status::EngineStatus;
pub use stepper::{SequenceMemory, Stepper};
pub use verbatim_backend::{
    Backend, KvType, MatmulKind, MatmulWork, OpTime, Outputs, PAGE_CELLS, Profile, StateMemoryError,
};
pub use verbatim_draft::{Drafter, MAX_DRAFT, NgramDrafter, Script, ScriptedDrafter};
pub use verbatim_grammar::{ConstraintError, Grammar, GrammarError, VocabularyError};
pub use verbatim_models::{HiddenOutput, Hyperparameters, ModelError};
pub use verbatim_plan::CacheStatistics;
pub use verbatim_sample::{
    LogProbs, LogSoftmax, Sampled, Sampler, SamplerKind, SamplerState, Sampling, SamplingError,
    TokenLogProbs, UnknownSampler,
};
pub use verbatim_state::{
    BatchError, MAX_STATE_CHECKPOINTS, ModelId, RestoreError, Restored, SavedFile, SavedFileError,
    SequenceExtension, SequenceId, StateError,
};

/// Maximum number of rows of one step.
pub const MAX_ROWS: usize = 512;
