//! Errors that any call may return.

use std::io;

/// Why the engine is not available.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The thread could not be started.
    #[error("the engine's thread could not be started: {0}")]
    Thread(#[from] io::Error),
    /// It has stopped before the operation was complete.
    #[error("the engine has stopped: {cause}")]
    Stopped {
        /// The reason.
        cause: String,
    },
}
