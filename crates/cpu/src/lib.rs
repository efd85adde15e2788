//! The CPU backend: packed weights, kernels, the thread team and the executor.
//!
//! [`Cpu`] is a [`verbatim_backend::Backend`]. [`Cpu::prepare`] lowers a graph to this backend's ops ([`CpuOp`]), plans it and
//! makes a [`CpuProgram`]; [`CpuProgram::bind`] fills its inputs in a [`CpuArena`]; [`Cpu::run_bound`] runs it on a
//! [`team::Team`] of threads and gives [`CpuOutputs`].
//!
//! Invariants: kernels allocate nothing; every reduction has one order, whatever the rows, threads or instruction set;
//! `unsafe` is confined to vector instructions, the arena and the rows that threads share.

mod backend;
mod executor;
mod fused;
pub mod isa;
mod kv;
mod lower;
pub mod matrix;
mod memory;
mod op;
mod ops;
mod program;
mod recurrent;
mod shares;
mod state;
pub mod team;
mod vector;
mod weights;

pub use executor::{Cpu, CpuError};
pub use isa::{Isa, IsaError};
pub use kv::{KvLayer, KvMemory};
pub use matrix::{PackedExperts, PackedMatrix};
pub use op::CpuOp;
pub use program::{Bound, CpuArena, CpuOutputs, CpuProgram};
pub use state::CpuState;
pub use weights::{Weight, Weights};
