//! Models that answer requests, and the steps over rows that this is made of.
//!
//! An [`Engine`] is the API for clients, the command line and servers alike: a [`Request`] in, [`Event`]s out. Behind it one thread
//! owns a [`Stepper`]: models over shared sequences.
//!
//! A [`Row`] is a token, or an embedding, at a position of a sequence, and says what it wants back. [`Stepper::step`] runs any
//! mix of rows: a prefill chunk, one token of each of many sequences (decode), a chain or a tree of draft tokens. [`Stepper::advance`] is
//! the plain loop over it: compute tokens of one sequence, sample the next.
//!
//! What a row gets back depends on its sequence's tokens alone, bit for bit: not on the rows beside it, on how the tokens
//! were cut into steps, on threads or on the cells that the sequence lives in.
//!
//! Invariant: no backend is named here; a [`Stepper`] is made over whichever it is given.

mod chat;
mod engine;
mod error;
mod generate;
mod load;
mod options;
mod read_ahead;
mod request;
mod row;
mod sequences;
mod session;
mod stepper;

pub use chat::{ChatError, ChatFormat, Message, Role};
pub use engine::{Canceller, Engine, EngineOptions, EventStream, TextProcessor};
pub use error::EngineError;
pub use load::{LoadError, read_hyperparameters};
pub use options::{DraftOptions, LoadOptions};
pub use request::{Event, FinishReason, GenerationStats, Prompt, Request, RequestError, Sampling};
pub use row::{Next, Row, RowError, RowInput, StepError, StepOutputs, Want};
pub use sequences::SaveError;
pub use session::{OpenedSession, RestoredSession, SessionError, SessionId, SessionOptions};
pub use stepper::{SequenceMemory, Stepper};
pub use verbatim_backend::{
    Backend, KindTime, KvType, Outputs, PAGE_CELLS, ProductWork, Products, Profile, StateMemoryError,
};
pub use verbatim_models::{HiddenOutput, Hyperparameters, ModelError};
pub use verbatim_plan::Statistics;
pub use verbatim_sample::{LogSoftmax, Sampler};
pub use verbatim_state::{
    BatchError, CHECKPOINTS, ModelId, RestoreError, Restored, SavedFile, SavedFileError, SequenceExtension,
    SequenceId, StateError,
};

/// The most rows of one step.
pub const MAX_ROWS: usize = 512;
