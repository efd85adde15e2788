//! The CPU backend: lowering, the KV cache and recurrent state, the kernels of all ops except matmuls, and the executor.
//!
//! It depends on [`verbatim_simd`], the portable SIMD layer; [`verbatim_team`], the threads and the memory that they share;
//! and [`verbatim_matrix`], packed weights and their matmuls.
//!
//! [`Cpu`] is a [`verbatim_backend::Backend`]. [`Cpu::prepare`] lowers a graph to this backend's ops ([`CpuOp`]), plans it and
//! compiles a [`CpuProgram`]; [`CpuProgram::bind`] fills its inputs in a [`CpuArena`]; [`Cpu::run_bound`] runs it on a
//! [`verbatim_team::Team`] of threads and returns [`CpuOutputs`].
//!
//! Invariants: kernels allocate nothing; every reduction has one order, whatever the rows, threads or instruction set;
//! `unsafe` is confined to memory and what threads share.

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
pub use program::{BoundProgram, CpuArena, CpuOutputs, CpuProgram};
pub use state::CpuState;
pub use weights::{Weight, Weights};
