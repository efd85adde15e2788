//! llama.cpp's own API.

pub(crate) mod completion;
pub(crate) mod server;
pub(crate) mod tokens;
