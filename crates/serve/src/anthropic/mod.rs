//! Anthropic's API.

pub(crate) mod call;
pub(crate) mod messages;
mod parts;
mod stream;
