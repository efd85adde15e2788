//! The CPU backend: packed weights, kernels, the thread team and the executor.

mod isa;
mod kv;
mod memory;
mod ops;
mod vector;

pub use isa::{Isa, IsaError};
pub use kv::{KvLayer, KvMemory, KvMemoryError, KvSpec, KvType, PAGE_CELLS};
