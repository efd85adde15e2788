//! Models of a known shape with random weights, to measure and to test with when the real ones are out of reach.
//!
//! A [`ModelSkeleton`] is a model without its weights: metadata, a vocabulary and the list of tensors, made from the name of a
//! known shape or from a `config.json` as Hugging Face keeps them. [`write()`] turns it into a GGUF file with a [`QuantType`],
//! tensor by tensor, so that the model is never in memory. The same skeleton, quantisation type and seed give the same bytes on
//! every machine, whatever the number of threads.
//!
//! To add an architecture: a file in `arch/` with the keys and tensors of its files, and a line in its table.

mod arch;
mod config;
mod file;
mod from_config;
mod quant_type;
mod shapes;
mod skeleton;
mod vocabulary;
mod weights;

pub use config::ConfigError;
pub use file::{Progress, SynthError, WriteOptions, write};
pub use quant_type::{QuantType, UnknownQuantType};
pub use shapes::{UnknownShape, known_shapes};
pub use skeleton::ModelSkeleton;

/// The supported architectures, by their names in GGUF files.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    arch::names()
}

/// A well-mixed function of a number: the finaliser of SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
