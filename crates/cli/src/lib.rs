//! The `verbatim` command: flags, the model store, and one module for each command.
//!
//! [`flags`] defines the command line; [`commands`] holds what each command does; [`store`] is where models
//! are kept and [`pull`] how they come there, from a model hub ([`hub`]) or from Python packages
//! ([`packages`]).
//!
//! Exit status: 0 for success, 1 for an error, 2 for a command line that makes no sense. A reader that goes
//! away (`verbatim … | head`) is no error.

pub mod catalogue;
pub mod commands;
pub mod cpu_mask;
pub mod error;
pub mod flags;
pub mod hub;
pub mod interrupt;
pub mod model_file;
pub mod packages;
pub mod pull;
pub mod repl;
pub mod session;
pub mod source;
pub mod standard_io;
pub mod store;

use std::process::ExitCode;

use clap::Parser;

/// Runs the command line of this process and reports its error, if any, on standard error.
pub fn main() -> ExitCode {
    let cli = flags::Cli::parse();
    match commands::execute(&cli) {
        Ok(code) => code,
        Err(error) => error::report(&error),
    }
}
