//! How an error ends the program: one message with its causes, and the right exit status.

use std::io;
use std::process::ExitCode;

use crate::origins::Origins;
use crate::standard_io;

/// A command-line error that the parser cannot detect. Exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Prints `error: message` with each cause on a line of its own and the origin of the flags that it names, and returns the exit
/// status.
///
/// A broken pipe is a silent success: the reader of our output has seen enough.
pub fn report(error: &anyhow::Error, origins: &Origins) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let mut text = describe(error);
    for note in origins.notes(&text) {
        text.push_str(&format!("\n  note: {note}"));
    }
    standard_io::notify(&text);
    if error.is::<UsageError>() {
        standard_io::notify("\nFor more information, try '--help'.");
        return ExitCode::from(2);
    }
    ExitCode::FAILURE
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_pipe = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(is_pipe)
            || cause
                .downcast_ref::<serde_json::Error>()
                .is_some_and(|error| error.io_error_kind() == Some(io::ErrorKind::BrokenPipe))
    })
}

/// The message and its causes. A cause that the previous message already ends with is not repeated.
fn describe(error: &anyhow::Error) -> String {
    let mut last = error.to_string();
    let mut text = format!("error: {last}");
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !last.ends_with(&cause) {
            text.push_str(&format!("\n  because: {cause}"));
        }
        last = cause;
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_are_listed_once() {
        let error =
            anyhow::Error::new(io::Error::other("the disk is on fire")).context("cannot write a.gguf");
        assert_eq!(describe(&error), "error: cannot write a.gguf\n  because: the disk is on fire");
        let error = error.context("pull failed: cannot write a.gguf");
        assert_eq!(
            describe(&error),
            "error: pull failed: cannot write a.gguf\n  because: the disk is on fire"
        );
    }

    #[test]
    fn a_broken_pipe_is_found_below_its_context() {
        let pipe = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&Err::<(), _>(pipe()).context("cannot write the list").unwrap_err()));
        assert!(is_broken_pipe(&anyhow::Error::new(serde_json::Error::io(pipe()))));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken")));
    }
}
