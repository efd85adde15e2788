//! The config file: profiles of settings for `run` and `chat`.
//!
//! Each table of the TOML file is a profile, and its keys are flags without their dashes. [`DEFAULT_PROFILE`] always applies.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{ArgAction, Command, CommandFactory};
use toml_edit::{Array, DocumentMut, Item, Table, Value};

use crate::argv;
use crate::error::UsageError;
use crate::flags::Cli;

/// The profile that applies to every command.
pub const DEFAULT_PROFILE: &str = "default";
/// Flags that are not settings: they are about one command line.
const NOT_SETTINGS: [&str; 6] = ["prompt", "file", "profile", "config-file", "help", "version"];
/// A larger file is not a config file.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A setting: a key and its values, several for a flag that may be given several times.
pub type Setting = (String, Vec<String>);

/// An open config file.
#[derive(Debug)]
pub struct Config {
    path: PathBuf,
    document: DocumentMut,
}

impl Config {
    /// Opens the file at `path`, or `verbatim/config.toml` in the user's config folder. A file that does not exist is empty.
    ///
    /// # Errors
    /// When it cannot be read, is not TOML, or has something else than profiles.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let path = match path {
            Some(path) => path.to_path_buf(),
            None => dirs::config_dir()
                .context("there is no config folder for this user: use --config-file FILE")?
                .join("verbatim")
                .join("config.toml"),
        };
        let shown = path.display();
        let text = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {shown}")),
            Ok(found) => {
                ensure!(found.is_file(), "cannot read {shown}: it is not a regular file");
                ensure!(found.len() <= MAX_FILE_BYTES, "{shown} is too large for a config file");
                fs::read_to_string(&path).with_context(|| format!("cannot read {shown}"))?
            }
        };
        let document: DocumentMut = text.parse().with_context(|| format!("{shown} is not valid TOML"))?;
        if let Some((key, _)) = document.iter().find(|(_, item)| !item.is_table()) {
            bail!("{shown}: {key} is outside of a profile; write it below [{DEFAULT_PROFILE}]");
        }
        Ok(Self { path, document })
    }

    /// Where the file is, or would be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the profiles, in the file's order.
    pub fn names(&self) -> Vec<String> {
        self.document.iter().map(|(name, _)| name.to_owned()).collect()
    }

    /// The settings of a profile; `None` if there is none of this name and it `is_optional`.
    ///
    /// # Errors
    /// When it does not exist, or has a key that is not a setting or an invalid value.
    pub fn profile(&self, name: &str, is_optional: bool) -> anyhow::Result<Option<Vec<Setting>>> {
        let Some(table) = self.document.get(name).and_then(Item::as_table) else {
            if is_optional {
                return Ok(None);
            }
            let tip = nearest(name, self.names().into_iter());
            bail!(UsageError(format!("--profile {name}: {} has no such profile{tip}", self.path.display())));
        };
        let place = || format!("{}, profile {name}", self.path.display());
        let setting = |(key, item): (&str, &Item)| {
            let key = known_key(key).with_context(place)?;
            let values = item.as_value().and_then(texts);
            let values = values.with_context(|| {
                format!("{}: {key} must be a text, a number, true or false, or a list of these", place())
            })?;
            Ok((key, values))
        };
        table.iter().map(setting).collect::<anyhow::Result<_>>().map(Some)
    }

    /// Changes a setting; without values, removes it. Comments and everything else stay as they are.
    ///
    /// # Errors
    /// When the key is not a setting.
    pub fn set(&mut self, profile: &str, key: &str, values: &[String]) -> anyhow::Result<()> {
        ensure!(profile != "none", UsageError("the profile none has no settings".to_owned()));
        let key = known_key(key)?;
        let table = self.document.entry(profile).or_insert(Item::Table(Table::new()));
        let table = table.as_table_mut().context("the profile is not a table")?;
        match values {
            [] => drop(table.remove(&key)),
            [value] => table[&key] = Item::Value(value_of(value)),
            values => {
                table[&key] =
                    Item::Value(Value::Array(values.iter().map(|value| value_of(value)).collect::<Array>()))
            }
        }
        Ok(())
    }

    /// Writes the file, whole or not at all.
    ///
    /// # Errors
    /// When it or its folder cannot be written.
    pub fn save(&self) -> anyhow::Result<()> {
        let problem = || format!("cannot write {}", self.path.display());
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        fs::create_dir_all(folder).with_context(problem)?;
        let mut file = tempfile::NamedTempFile::new_in(folder).with_context(problem)?;
        file.write_all(self.document.to_string().as_bytes()).with_context(problem)?;
        file.persist(&self.path).with_context(problem).map(drop)
    }
}

/// The key as a flag's long name.
///
/// # Errors
/// When it is none, with the most similar one.
pub fn known_key(key: &str) -> anyhow::Result<String> {
    let wanted = key.trim_start_matches('-').replace('_', "-");
    let program = Cli::command();
    let commands = ["run", "chat"].map(|name| program.find_subcommand(name).expect("a command"));
    let is_setting = |long: &str| !NOT_SETTINGS.contains(&long);
    let find = |command: &&Command| {
        let flag = argv::find(command, &format!("--{wanted}"))?;
        flag.get_long().filter(|long| is_setting(long)).map(str::to_owned)
    };
    if let Some(long) = commands.iter().find_map(find) {
        return Ok(long);
    }
    let known = commands.iter().flat_map(|command| command.get_arguments());
    let known = known.filter_map(|flag| flag.get_long()).filter(|long| is_setting(long)).map(str::to_owned);
    bail!(UsageError(format!(
        "there is no setting {key:?}{}; settings are the flags of `verbatim run` without their dashes",
        nearest(&wanted, known)
    )))
}

/// Whether a setting is a switch, with the values true and false.
pub fn is_switch(key: &str) -> bool {
    let program = Cli::command();
    let run = program.find_subcommand("run").expect("a command");
    argv::find(run, &format!("--{key}")).is_some_and(|flag| matches!(flag.get_action(), ArgAction::SetTrue))
}

/// A question after the most similar name, if one is similar.
fn nearest(name: &str, known: impl Iterator<Item = String>) -> String {
    let scored = known.map(|known| (strsim::jaro_winkler(name, &known), known));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(score, _)| *score > 0.75);
    best.map_or(String::new(), |(_, known)| format!(" (is it {known}?)"))
}

/// The values of a setting as a command line has them.
fn texts(value: &Value) -> Option<Vec<String>> {
    Some(match value {
        Value::String(text) => vec![text.value().clone()],
        Value::Integer(number) => vec![number.value().to_string()],
        Value::Float(number) => vec![number.value().to_string()],
        Value::Boolean(switch) => vec![switch.value().to_string()],
        Value::Array(values) => {
            let values: Option<Vec<_>> = values.iter().map(texts).collect();
            values?.into_iter().flatten().collect()
        }
        _ => return None,
    })
}

/// A value in TOML: a number or a truth value where it reads back as typed, else a text.
fn value_of(text: &str) -> Value {
    if let Ok(switch) = text.parse::<bool>() {
        return switch.into();
    }
    if let Some(number) = text.parse::<i64>().ok().filter(|number| number.to_string() == text) {
        return number.into();
    }
    match text.parse::<f64>().ok().filter(|number| number.to_string() == text && number.is_finite()) {
        Some(number) => number.into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> (tempfile::TempDir, anyhow::Result<Config>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.toml");
        fs::write(&path, text).unwrap();
        let opened = Config::open(Some(&path));
        (folder, opened)
    }

    #[test]
    fn settings_are_read_as_arguments() {
        let (_folder, config) =
            config("[code] # mine\ntemp = 0.2\ntop_k = 5\nstop = ['a', 'b']\nignore-eos = true\nctx = 64\n");
        let settings = config.unwrap().profile("code", false).unwrap().unwrap();
        let expected = [
            ("temp", vec!["0.2"]),
            ("top-k", vec!["5"]),
            ("stop", vec!["a", "b"]),
            ("ignore-eos", vec!["true"]),
            ("ctx-size", vec!["64"]),
        ];
        let expected = expected
            .map(|(key, values)| (key.to_owned(), values.into_iter().map(str::to_owned).collect::<Vec<_>>()));
        assert_eq!(settings, expected);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, problem) in [
            ("temp = 1", "temp is outside of a profile"),
            ("[default]\ntemprature = 1", "is it temp?"),
            ("[default]\nprompt = 'x'", "there is no setting"),
            ("[default]\ntemp = {a = 1}", "temp must be a text"),
            ("[default", "is not valid TOML"),
        ] {
            let (_folder, config) = config(text);
            let error = config.and_then(|config| config.profile("default", false).map(drop)).unwrap_err();
            assert!(format!("{error:#}").contains(problem), "{text}: {error:#}");
        }
        let (_folder, config) = config("[code]\n");
        let error = config.unwrap().profile("cod", false).unwrap_err().to_string();
        assert!(error.contains("has no such profile (is it code?)"), "{error}");
    }

    #[test]
    fn what_is_set_is_read_again_and_comments_stay() {
        let (_folder, config) = config("# about\n[default]\ntemp = 1 # warm\n");
        let mut config = config.unwrap();
        config.set("default", "seed", &["7".into()]).unwrap();
        config.set("code", "stop", &["a".into(), "1.50".into()]).unwrap();
        config.set("code", "json", &["true".into()]).unwrap();
        config.set("code", "json", &[]).unwrap();
        config.save().unwrap();
        let text = fs::read_to_string(config.path()).unwrap();
        assert_eq!(
            text,
            "# about\n[default]\ntemp = 1 # warm\nseed = 7\n\n[code]\nstop = [\"a\", \"1.50\"]\n"
        );
        assert!(is_switch("json") && !is_switch("temp"));
    }
}
