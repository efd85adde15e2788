//! Tools: what a request says about them, how models call them, and the calls in an answer.

pub(crate) mod choice;
pub(crate) mod format;
pub(crate) mod parser;
