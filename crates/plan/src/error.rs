use crate::check::CheckError;

/// Why a plan could not be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The values that are alive together need more than the machine can address.
    #[error("the step needs an arena beyond this machine's addresses; use fewer rows or a smaller context")]
    TooLarge,
    /// The layout is wrong. This is a fault of the planner, caught before it can do harm.
    #[error("the memory plan is wrong and was refused: {0}")]
    Refused(#[from] CheckError),
}
