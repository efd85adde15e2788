//! `verbatim completions`: a shell's completion script, made from the definitions of the flags.

use std::process::ExitCode;

use clap::CommandFactory;

use crate::flags::{Cli, CompletionsArgs};
use crate::standard_io;

/// Writes the script to standard output.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "verbatim", &mut script);
    standard_io::write(&script)?;
    Ok(ExitCode::SUCCESS)
}
