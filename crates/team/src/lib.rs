//! A persistent thread pool, and the memory that its threads write concurrently.
//!
//! [`Team`] runs one closure on all threads, with barriers between phases and a [`TaskCounter`] that assigns chunks of
//! work. They write to [`AlignedBytes`] through a shared reference; its documentation states why that is sound.

mod memory;
mod team;

pub use memory::{AlignedBytes, Pod, physical_bytes};
pub use team::{MAX_THREADS, TaskCounter, Team, TeamError, ThreadContext};
