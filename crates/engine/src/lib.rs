//! Models that run steps over rows.
//!
//! A [`Row`] is a token, or an embedding, at a position of a sequence, and says what it wants back. [`Stepper::step`] runs any
//! mix of rows: a prompt's chunk, one token of each of many sequences, a chain or a tree of draft tokens. [`Stepper::advance`] is
//! the plain loop over it: feed tokens to one sequence, draw the next.
//!
//! What a row gets back depends on its sequence's tokens alone, bit for bit: not on the rows beside it, on how the tokens
//! were cut into steps, on threads or on the cells that the sequence lives in.
//!
//! Invariant: no backend is named here; a [`Stepper`] is made over whichever it is given.

mod load;
mod reading;
mod row;
mod sequences;
mod stepper;

pub use load::{DraftOptions, LoadError, LoadOptions, check};
pub use row::{Next, Row, RowError, RowInput, StepError, StepOutputs, Want};
pub use sequences::SaveError;
pub use stepper::{Sequences, Stepper};
pub use verbatim_backend::{Backend, KindTime, KvType, Outputs, PAGE_CELLS, ProductWork, Products, Profile};
pub use verbatim_models::{Hyperparameters, ModelError, Tap};
pub use verbatim_plan::Statistics;
pub use verbatim_sample::{LogSoftmax, Sampler};
pub use verbatim_state::{
    CHECKPOINTS, Extension, OwnerId, RestoreError, Restored, RowError as PlaceError, Saved, SavedError,
    SequenceId, StateError,
};

/// The most rows of one step.
pub const MAX_ROWS: usize = 512;
