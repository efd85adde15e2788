//! What every client may be told.

use std::io;

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Its thread could not be started.
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[from] io::Error),
    /// It has stopped, and what was asked for has not been done, or not to its end.
    #[error("the engine has stopped: {cause}")]
    Stopped {
        /// Why.
        cause: String,
    },
}
