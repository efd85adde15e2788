//! `verbatim config`: the config file.

use std::process::ExitCode;

use clap::{CommandFactory, error::ErrorKind};

use crate::config::{Config, DEFAULT_PROFILE, is_switch, known_key};
use crate::error::UsageError;
use crate::flags::{Cli, CommonFlags, ConfigAction, ConfigArgs};
use crate::standard_io::{self, escape};

/// Shows or changes settings.
///
/// # Errors
/// When a key is not a setting, a value does not suit it, or the file cannot be read or written.
pub fn run(args: &ConfigArgs, common: &CommonFlags) -> anyhow::Result<ExitCode> {
    let mut config = Config::open(common.config_file.as_deref())?;
    let profile = args.profile.as_deref().unwrap_or(DEFAULT_PROFILE);
    match args.action.as_ref().unwrap_or(&ConfigAction::List) {
        ConfigAction::Path => standard_io::write(format!("{}\n", config.path().display()).as_bytes())?,
        ConfigAction::List => {
            let mut text = String::new();
            for name in config.names() {
                text.push_str(&format!("[{}]\n", escape(&name)));
                for (key, values) in config.profile(&name, false)?.unwrap_or_default() {
                    text.push_str(&format!("{key} = {}\n", escape(&values.join(", "))));
                }
            }
            standard_io::write(text.as_bytes())?;
        }
        ConfigAction::Get { key } => {
            let key = known_key(key)?;
            let settings = config.profile(profile, profile == DEFAULT_PROFILE)?.unwrap_or_default();
            let Some((_, values)) = settings.into_iter().find(|(known, _)| *known == key) else {
                anyhow::bail!("{key} is not set in the profile {profile}");
            };
            values.iter().try_for_each(|value| standard_io::write(format!("{value}\n").as_bytes()))?;
        }
        ConfigAction::Set { key, values } => {
            let key = known_key(key)?;
            check(&key, values)?;
            config.set(profile, &key, values)?;
            config.save()?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Rejects values that the flag would reject.
fn check(key: &str, values: &[String]) -> anyhow::Result<()> {
    if is_switch(key) {
        let is_truth = values.iter().all(|value| value == "true" || value == "false");
        let problem = format!("{key} is true or false");
        return if is_truth && values.len() < 2 { Ok(()) } else { Err(UsageError(problem).into()) };
    }
    let program = Cli::command();
    let Some(run) = program.find_subcommand("run") else { return Ok(()) };
    let arguments = values.iter().map(|value| format!("--{key}={value}"));
    let parsed = run
        .clone()
        .args_override_self(false)
        .try_get_matches_from(["run".to_owned()].into_iter().chain(arguments));
    let Err(error) = parsed else { return Ok(()) };
    let problem = match error.kind() {
        ErrorKind::ArgumentConflict => format!("{key} takes one value"),
        _ => error.to_string().lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned(),
    };
    Err(UsageError(problem).into())
}
