//! What each command does, one file for each.

pub mod bench;
pub mod chat;
pub mod completions;
pub mod config;
pub mod cp;
pub mod inspect;
pub mod list;
pub mod logits;
pub mod man;
pub mod parallel;
pub mod perplexity;
pub mod pull;
pub mod rm;
pub mod run;
pub mod serve;
pub mod synth;
pub mod template;
pub mod tokenize;
pub mod verify;

use std::process::ExitCode;

use crate::flags::{Cli, Command};
use crate::store::Store;

/// Runs the command.
///
/// # Errors
/// Whatever the command reports; see [`crate::error::report`] for the exit status.
pub fn execute(cli: &Cli) -> anyhow::Result<ExitCode> {
    let store = || Store::new(cli.common.home.as_deref());
    match &cli.command {
        Command::Run(args) => run::run(args, &store()?),
        Command::Chat(args) => chat::run(args, &store()?),
        Command::Serve(args) => serve::run(args, &store()?),
        Command::Logits(args) => logits::run(args, &store()?),
        Command::Inspect(args) => inspect::run(args, &store()?),
        Command::Tokenize(args) => tokenize::run(args, &store()?),
        Command::Template(args) => template::run(args, &store()?),
        Command::Bench(args) => bench::run(args, &store()?),
        Command::Perplexity(args) => perplexity::run(args, &store()?),
        Command::Verify(args) => verify::run(args, &store()?),
        Command::Synth(args) => synth::run(args),
        Command::Pull(args) => pull::run(args, &store()?),
        Command::List(args) => list::run(args, &store()?),
        Command::Rm(args) => rm::run(args, &store()?),
        Command::Cp(args) => cp::run(args, &store()?),
        Command::Config(args) => config::run(args, &cli.common),
        Command::Man(args) => man::run(args),
        Command::Completions(args) => completions::run(args),
    }
}
