//! A persistent team of threads, and the memory that its threads fill together.
//!
//! [`Team`] runs one closure on all threads, with barriers between phases and a [`TaskCounter`] that hands out chunks of
//! work. [`AlignedBytes`] is what they write to through a shared reference: it says what keeps that sound.

mod memory;
mod team;

pub use memory::{AlignedBytes, Pod, physical_bytes};
pub use team::{MAX_THREADS, TaskCounter, Team, TeamError, ThreadContext};
