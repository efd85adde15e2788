//! Architectures: from a GGUF file's metadata and tensor table to a list of weights and a builder of graphs.
//!
//! [`open`] reads no weights. It looks the architecture up by name, checks every hyperparameter and the presence, type
//! and shape of every tensor, and returns a [`Model`]: what the engine has to load, and how to build the graph of a step.
//!
//! [`open_draft`] does the same for a draft model that reads the hidden states of a target, which it must fit.
//!
//! One file in `arch/` per architecture, and in `draft/` per method; what they share is in [`graph_context`] (layer blocks), [`ffn`] (gated FFNs
//! and MoE) and [`metadata`].

mod arch;
mod draft;
mod error;
mod ffn;
mod follow;
mod graph_context;
mod metadata;
mod model;
mod step;
mod table;

pub use arch::{architectures, open};
pub use draft::{OpenedDraft, open_draft};
pub use error::{ModelError, PairError};
pub use follow::{Drafting, FeatureDraft, Follower};
pub use graph_context::{inputs, outputs};
pub use model::{Hyperparameters, KeyRope, KvShape, Model, RecurrentShape};
pub use step::{HadamardKv, HiddenOutput, ModelOffsets, NextOutputs, StepShape};
pub use table::{SharedWeights, WeightSpec};
