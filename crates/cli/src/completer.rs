//! What a shell offers for a half-typed model. Its script asks the program, which knows the models in the store.

use std::ffi::OsStr;
use std::path::Path;

use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};

use crate::catalogue;
use crate::store::Store;

/// The variable that the script sets when it asks. Its value is the name of the shell.
pub const VARIABLE: &str = "VERBATIM_COMPLETE";

/// Names in the store, and files.
pub fn models(current: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = store_names(current);
    found.extend(PathCompleter::file().complete(current));
    found
}

/// Names in the store.
pub fn store_names(current: &OsStr) -> Vec<CompletionCandidate> {
    // The script is asked before the command line is parsed, so --home is not known.
    let home = std::env::var_os("VERBATIM_HOME").filter(|home| !home.is_empty());
    let names = Store::new(home.as_deref().map(Path::new)).and_then(|store| store.names());
    beginning_with(current, names.unwrap_or_default())
}

/// Names of the catalogue, and files.
pub fn sources(current: &OsStr) -> Vec<CompletionCandidate> {
    // Bash ends a word at a colon.
    let names = catalogue::models().iter().map(|model| model.name.replace(':', "-"));
    let mut found = beginning_with(current, names);
    found.extend(PathCompleter::file().complete(current));
    found
}

fn beginning_with(current: &OsStr, names: impl IntoIterator<Item = String>) -> Vec<CompletionCandidate> {
    let Some(current) = current.to_str() else { return Vec::new() };
    names.into_iter().filter(|name| name.starts_with(current)).map(CompletionCandidate::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_offered_by_their_beginning() {
        let offered = sources(OsStr::new("qwen3-0"));
        let names: Vec<&OsStr> = offered.iter().map(CompletionCandidate::get_value).collect();
        assert_eq!(names, ["qwen3-0.6b"]);
    }
}
