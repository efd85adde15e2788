//! `verbatim completions`: a shell's completion script, which asks this program for what it offers.

use std::process::ExitCode;

use anyhow::Context;
use clap_complete::env::Shells;

use crate::completer::VARIABLE;
use crate::flags::CompletionsArgs;
use crate::standard_io;

/// Writes the script to standard output.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell.to_string()).context("there is no script for this shell")?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "verbatim", "verbatim", "verbatim", &mut script)?;
    standard_io::write(&script)?;
    Ok(ExitCode::SUCCESS)
}
