//! From arguments, environment variables and the config file to the parsed command line.
//!
//! In order of precedence: a flag on the command line, its environment variable, the chosen profile, the profile `default`.
//! Variables and settings become arguments in front of those that were typed, so one parser checks all of them, and [`Origins`]
//! remembers where they are from. What contradicts a flag of higher precedence is left out; an empty variable counts as unset.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::argv::{self, Rewritten};
use crate::config::{self, Config, Setting};
use crate::error;
use crate::flags::Cli;
use crate::origins::{Origin, Origins};
use crate::server_flags::llama_variable;
use crate::usage;

/// Mutually exclusive flags: one with higher precedence suppresses the others.
const EXCLUSIVE_FLAGS: &[&[&str]] = &[
    &["json_schema", "json_schema_file", "grammar", "grammar_file"],
    &["samplers", "sampler_letters"],
    &["backend_sampling", "no_backend_sampling"],
    &["spec_draft_backend_sampling", "no_spec_draft_backend_sampling"],
    &["context_shift", "no_context_shift"],
    &["chat_template", "chat_template_file", "no_template"],
    &["prompt", "file"],
    &["json", "json_lines"],
];

/// A parsed command line.
#[derive(Debug)]
pub struct CommandLine {
    /// The command and its flags.
    pub cli: Cli,
    /// Where flags are from that were not typed.
    pub origins: Origins,
    /// What to tell the user about options without effect.
    pub notes: Vec<String>,
}

/// Parses the arguments of the process.
///
/// # Errors
/// The exit status, after help was shown or an error was reported.
pub fn parse(arguments: Vec<OsString>) -> Result<CommandLine, ExitCode> {
    let program = Cli::command();
    let Rewritten { arguments, notes } = argv::rewrite(arguments, &program);
    let report = |error: &clap::Error, origins: &Origins| usage::report(error, &program, origins);
    // First the command line by itself: its errors come first, and it says which flags need no variable.
    let typed =
        without_variables(program.clone(), true).try_get_matches_from(&arguments).map_err(|error| {
            // Help names the variables.
            let shown = program.clone().try_get_matches_from(&arguments).err();
            let shown = shown.filter(|shown| shown.kind() == error.kind() && !error.use_stderr());
            report(shown.as_ref().unwrap_or(&error), &Origins::default())
        })?;
    let Some((name, matches)) = typed.subcommand() else {
        let error = without_variables(program.clone(), false).try_get_matches_from(&arguments);
        return Err(error.map_or_else(|error| report(&error, &Origins::default()), |_| ExitCode::from(2)));
    };
    let command = program.find_subcommand(name).expect("it was parsed");
    let mut defaults = Defaults::new(matches);
    let other_name = |id: &str| llama_variable(id).filter(|_| name == "serve");
    defaults.add_variables(other_name, command.get_arguments().chain(program.get_arguments()));
    if ["run", "chat", "serve"].contains(&name) {
        defaults.add_settings(
            command,
            &profiles(matches).map_err(|error| error::report(&error, &Origins::default()))?,
        );
    }
    let Defaults { arguments: more, origins, .. } = defaults;
    let index = match argv::command_index(&arguments, &program) {
        Some(Ok(index)) => index,
        _ => arguments.len() - 1,
    };
    let mut all = arguments;
    all.splice(index + 1..index + 1, more);
    let parsed = without_variables(program.clone(), false).try_get_matches_from(&all);
    let parsed = parsed.and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = parsed.map_err(|error| report(&error, &origins))?;
    Ok(CommandLine { cli, origins, notes })
}

/// The program without the variables of its flags; `relaxed`: nothing is required.
fn without_variables(command: Command, relaxed: bool) -> Command {
    let change = |command: Command| {
        let groups: Vec<_> = command.get_groups().filter(|group| group.is_required_set()).collect();
        let groups: Vec<_> = groups.iter().map(|group| group.get_id().clone()).collect();
        let command = command.mut_args(|flag| {
            // A negative number is a value, which the flag may reject, and no flag.
            let takes_value = matches!(flag.get_action(), ArgAction::Set | ArgAction::Append);
            let flag = flag.env(Resettable::Reset).allow_negative_numbers(takes_value);
            if relaxed { flag.required(false) } else { flag }
        });
        let relax =
            |command: Command, id: &clap::Id| command.mut_group(id.as_str(), |group| group.required(false));
        if relaxed { groups.iter().fold(command, relax) } else { command }
    };
    change(command).mut_subcommands(change)
}

/// A profile in words, and its settings.
type Profile = (String, Vec<Setting>);

/// The settings of the profile that was asked for, and of `default`, in this order.
fn profiles(matches: &ArgMatches) -> anyhow::Result<Vec<Profile>> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let path = matches.get_one::<PathBuf>("config_file").cloned();
    let path = path.or_else(|| variable("VERBATIM_CONFIG_FILE").map(PathBuf::from));
    let asked = matches.get_one::<String>("profile").cloned();
    let asked =
        asked.or_else(|| variable("VERBATIM_PROFILE").map(|name| name.to_string_lossy().into_owned()));
    if asked.as_deref() == Some("none") {
        return Ok(Vec::new());
    }
    let config = Config::open(path.as_deref())?;
    let mut found = Vec::new();
    for name in asked.as_deref().into_iter().chain([config::DEFAULT_PROFILE]) {
        let is_optional = name == config::DEFAULT_PROFILE;
        if let Some(settings) = config.profile(name, is_optional)? {
            found.push((format!("the profile {name} of {}", config.path().display()), settings));
        }
    }
    Ok(found)
}

/// Arguments for flags that were not typed.
struct Defaults {
    given: HashSet<String>,
    arguments: Vec<OsString>,
    origins: Origins,
}

impl Defaults {
    fn new(typed: &ArgMatches) -> Self {
        let is_typed = |id: &&clap::Id| typed.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        // A flag's struct is a group of the same matches, which has no value source of its own.
        let given = typed.ids().filter(is_typed).map(|id| id.as_str().to_owned()).collect();
        Self { given, arguments: Vec::new(), origins: Origins::default() }
    }

    /// Adds the values of the flags' variables. `other_name` is that of another program's variable, by the flag's id.
    fn add_variables<'a>(
        &mut self,
        other_name: impl Fn(&str) -> Option<&'static str>,
        flags: impl Iterator<Item = &'a Arg>,
    ) {
        let mut found = Vec::new();
        for flag in flags {
            let Some(variable) = flag.get_env() else { continue };
            let names = [Some(variable), other_name(flag.get_id().as_str()).map(OsStr::new)];
            let set = names
                .into_iter()
                .flatten()
                .find_map(|name| Some((name, std::env::var_os(name).filter(|value| !value.is_empty())?)));
            let Some((variable, value)) = set.filter(|_| !self.is_decided(flag)) else { continue };
            let origin = Origin::Variable(variable.to_string_lossy().into_owned());
            found.push(flag.get_id().to_string());
            self.push(flag, several(flag, value), origin);
        }
        self.given.extend(found);
    }

    fn add_settings(&mut self, command: &Command, profiles: &[Profile]) {
        for (origin, settings) in profiles {
            let mut found = Vec::new();
            for (key, values) in settings {
                let flag = argv::find(command, &format!("--{key}"));
                if let Some(flag) = flag.filter(|flag| !self.is_decided(flag)) {
                    let values = values.iter().map(OsString::from).collect();
                    found.push(flag.get_id().to_string());
                    self.push(flag, values, Origin::Profile(origin.clone()));
                }
            }
            self.given.extend(found);
        }
    }

    /// Whether this flag, or one that excludes it, is given with higher precedence.
    fn is_decided(&self, flag: &Arg) -> bool {
        let id = flag.get_id().as_str();
        let others =
            EXCLUSIVE_FLAGS.iter().filter(|flags| flags.contains(&id)).flat_map(|flags| flags.iter());
        self.given.contains(id) || others.into_iter().any(|other| self.given.contains(*other))
    }

    fn push(&mut self, flag: &Arg, values: Vec<OsString>, origin: Origin) {
        let Some(long) = flag.get_long() else { return };
        self.origins.insert(long, origin);
        if matches!(flag.get_action(), ArgAction::SetTrue) {
            if values.iter().all(|value| is_true(value)) {
                self.arguments.push(format!("--{long}").into());
            }
            return;
        }
        for value in values {
            let mut argument = OsString::from(format!("--{long}="));
            argument.push(value);
            self.arguments.push(argument);
        }
    }
}

/// Whether the variable of a switch is on: `0`, `false`, `no`, `off`, `n` and `f` mean no, everything else yes.
fn is_true(value: &OsStr) -> bool {
    let value = value.to_string_lossy().trim().to_ascii_lowercase();
    !["0", "false", "no", "off", "n", "f"].contains(&&*value)
}

/// The values of a variable: for a flag that may be given several times, a JSON array of texts is several.
fn several(flag: &Arg, value: OsString) -> Vec<OsString> {
    let texts = value.to_str().filter(|_| matches!(flag.get_action(), ArgAction::Append));
    match texts.and_then(|text| serde_json::from_str::<Vec<String>>(text).ok()) {
        Some(texts) => texts.into_iter().map(OsString::from).collect(),
        None => vec![value],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rivals_are_flags() {
        let program = Cli::command();
        let run = program.find_subcommand("run").unwrap();
        for id in EXCLUSIVE_FLAGS.iter().flat_map(|flags| flags.iter()) {
            assert!(run.get_arguments().any(|flag| flag.get_id() == id), "{id}");
        }
    }

    #[test]
    fn switches_are_off_by_these_words() {
        assert!(["0", "FALSE", "no", " off ", "n", "f"].iter().all(|word| !is_true(OsStr::new(word))));
        assert!(["1", "yes", "on", "x"].iter().all(|word| is_true(OsStr::new(word))));
    }

    #[test]
    fn a_json_array_is_several_values() {
        let program = Cli::command();
        let run = program.find_subcommand("run").unwrap();
        let values = |flag: &str, value: &str| several(argv::find(run, flag).unwrap(), value.into());
        assert_eq!(values("--stop", r#"["a","b c"]"#), ["a", "b c"]);
        assert_eq!(values("--stop", "[a"), ["[a"]);
        assert_eq!(values("--system", r#"["a"]"#), [r#"["a"]"#]);
    }
}
