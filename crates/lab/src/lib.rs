//! Measuring: the speed of a model on this machine ([`mod@bench`]), the perplexity of a text ([`evaluation`]), and models to
//! measure with ([`synth`]).
//!
//! Invariant: this crate looks at the engine from outside, through the interface that every caller has.

pub mod bench;
pub mod evaluation;
pub mod synth;
