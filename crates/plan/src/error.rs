//! Errors of planning.

use crate::check::CheckError;

/// Why planning failed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The live values need more than the machine can address.
    #[error("the step needs an arena that exceeds the address space; use fewer rows or a smaller context")]
    TooLarge,
    /// The layout is wrong. This is a planner bug, caught before it can do harm.
    #[error("the memory plan is wrong and was rejected: {0}")]
    Rejected(#[from] CheckError),
}
