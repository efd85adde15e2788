//! Sampling: the chain of samplers, the noise by which a token is drawn, and the functions that the graph's sampling ops
//! call.
//!
//! The token is the argmax of its final logit plus Gumbel noise: a draw from the softmax of what the chain has left (the
//! Gumbel-max trick). The noise is a pure function of the request's seed, the position and the token id ([`Noise`]), so every
//! call for the same position, in any order, batch or attempt, returns the same token. Draft models can share it (arXiv
//! 2408.07978).
//!
//! Samplers, names, defaults and order are llama.cpp's. Everything is f32 arithmetic with one order (`math.rs`), the same on
//! every platform.
//!
//! Invariant: no state. Nothing here remembers an earlier draw; what mirostat and adaptive-p carry on is a value that the
//! caller keeps ([`SamplerState`]).

mod candidates;
mod filters;
mod log_probs;
mod log_softmax;
mod lowered;
mod math;
mod noise;
mod params;
mod penalties;
mod philox;
mod sampler;
mod settings;

pub use candidates::{Candidate, PART_TOKENS};
pub use log_probs::{LogProbs, TokenLogProbs};
pub use log_softmax::LogSoftmax;
pub use lowered::{
    MAX_EDITS, MAX_TOP_K, NO_TOKEN, PART_WORDS, PartScratch, ROW_WORDS, merge_parts, parts, sample_part,
};
pub use noise::Noise;
pub use penalties::{Change, Edit, SequenceBreakers};
pub use sampler::{SampleInput, SampleScratch, Sampled, Sampler, SamplerState};
pub use settings::{SamplerKind, Sampling, SamplingError, UnknownSampler};
