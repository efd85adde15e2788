//! One file per op family: kernels over the rows and heads of a step.
//!
//! Every function works on plain slices of one row (or of one query against one sequence), allocates nothing, and
//! returns the same bits on every instruction set and for every split of the work.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod hadamard;
pub(crate) mod norm;
pub(crate) mod recurrence;
pub(crate) mod rope;
