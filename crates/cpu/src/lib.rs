//! The CPU backend: lowering, K/V and recurrent memory, the kernels of all ops but products, and the executor.
//!
//! Below it lie [`verbatim_simd`], what kernels are written in; [`verbatim_team`], the threads and the memory that they share;
//! and [`verbatim_matrix`], packed weights and their products.
//!
//! [`Cpu`] is a [`verbatim_backend::Backend`]. [`Cpu::prepare`] lowers a graph to this backend's ops ([`CpuOp`]), plans it and
//! makes a [`CpuProgram`]; [`CpuProgram::bind`] fills its inputs in a [`CpuArena`]; [`Cpu::run_bound`] runs it on a
//! [`verbatim_team::Team`] of threads and gives [`CpuOutputs`].
//!
//! Invariants: kernels allocate nothing; every reduction has one order, whatever the rows, threads or instruction set;
//! `unsafe` is confined to vector instructions, the arena and the rows that threads share.

mod backend;
mod executor;
mod kv;
mod lower;
mod op;
mod ops;
mod partition;
mod program;
mod recurrent;
mod state;
mod weights;
mod work;

pub use executor::{Cpu, CpuError};
pub use kv::{KvLayer, KvMemory};
pub use op::CpuOp;
pub use program::{Bound, CpuArena, CpuOutputs, CpuProgram};
pub use state::CpuState;
pub use weights::{Weight, Weights};
