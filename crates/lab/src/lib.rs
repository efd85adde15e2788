//! Measuring: the speed of a model on this machine ([`mod@bench`]), the perplexity of a text ([`evaluation`]), models to
//! measure with ([`synth`]), and what is recorded of the kernels' instruction counts ([`counts`]).
//!
//! Invariant: this crate looks at the engine from outside, through the interface that every caller has.

pub mod bench;
pub mod counts;
pub mod evaluation;
pub mod synth;
