//! The CPU backend: packed weights, kernels, the thread team and the executor.
//!
//! [`Executor::prepare`] rewrites a graph for this backend, plans it and makes a [`Program`]; [`Program::bind`] fills its
//! inputs in an [`Arena`]; [`Executor::run`] runs it on a [`team::Team`] of threads and gives [`Outputs`].
//!
//! Invariants: kernels allocate nothing; every reduction has one order, whatever the rows, threads or instruction set;
//! `unsafe` is confined to vector instructions, the arena and the rows that threads share.

mod executor;
pub mod isa;
mod kv;
mod lower;
pub mod matrix;
mod memory;
mod ops;
mod profile;
mod program;
mod recurrent;
mod shares;
pub mod team;
mod vector;
mod weights;

pub use executor::{Executor, ExecutorError};
pub use isa::{Isa, IsaError};
pub use kv::{KvLayer, KvMemory, KvMemoryError, KvSpec, KvType, PAGE_CELLS, StateMemory, Turn};
pub use matrix::{PackError, PackedExperts, PackedMatrix};
pub use profile::{KindTime, ProductWork, Profile};
pub use program::{Arena, BindError, Bound, Filled, Outputs, PrepareError, Program, Slot};
pub use recurrent::{RecurrentMemory, RecurrentMemoryError, RecurrentSpec};
pub use weights::{Weight, Weights};

/// The version of the numbers that the kernels compute. It is raised with every change that may change the bits of a
/// result; saved sequence states carry it, because a state continued by other kernels would not be what a fresh run gives.
pub const NUMERICS: u32 = 2;
