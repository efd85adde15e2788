//! Block formats: bytes to f32 and back; the scalar reference for every kernel.

mod dtype;

pub use dtype::{ALL, DType};
