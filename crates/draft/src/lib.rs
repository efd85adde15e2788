//! Speculative decoding: drafters, acceptance estimates, and the choice of draft lengths.
//!
//! A [`Drafter`] proposes tokens that may follow those of a request. The engine appends them to the request's next step, which
//! samples a token after each; draft tokens are accepted up to the first that differs from the token sampled for its position.
//! Tokens are sampled with noise keyed by position, so a request's text is the same with every drafter, draft length and
//! acceptance.
//!
//! How many draft tokens are worth verifying is a question of time: [`StepCosts`] measures the step time for each row count,
//! [`Acceptance`] how likely the draft tokens of each position are accepted, and [`draft_lengths`] weighs the two over all requests
//! of a step.

mod acceptance;
mod costs;
mod lengths;
mod ngram;
mod scripted;

pub use acceptance::Acceptance;
pub use costs::StepCosts;
pub use lengths::{Draft, draft_lengths};
pub use ngram::NgramDrafter;
pub use scripted::{Script, ScriptedDrafter};

/// The most draft tokens of a request in one step.
pub const MAX_DRAFT: usize = 15;

/// Proposes the next tokens of one request.
pub trait Drafter: Send + std::fmt::Debug {
    /// The method, by llama.cpp's name for it.
    fn method(&self) -> &'static str;

    /// Appends the tokens that may follow `history` to `draft`, at most `max`, the likeliest continuation first to last. `history`
    /// are all tokens of the request so far, prompt included; from call to call it only grows.
    fn propose(&mut self, history: &[u32], max: usize, draft: &mut Vec<u32>);
}
