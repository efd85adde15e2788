//! Measuring: the speed of a model on this machine ([`mod@bench`]), the perplexity of a text ([`evaluation`]), whether answers are
//! those of plain decoding ([`mod@verify`]), and models to measure with ([`synth`]).
//!
//! Invariant: this crate uses only the engine's public API.

pub mod bench;
pub mod evaluation;
pub mod synth;
pub mod verify;
