//! The models that `verbatim pull` knows by name: `catalogue.json`.
//!
//! Names are those of Ollama's library, so that what people type there works here; a colon and a hyphen are the same. Repositories,
//! sizes and SHA-256 were collected from public lists of downloads (LocalAI's gallery, and applications that pin the files that they
//! fetch), each digest from at least one of them with its size; what no list gave is left out. Where the revision is known it
//! is pinned, so that a repository that replaces a file does not break the entry. Models of architectures that the engine does
//! not support are listed only to say so.

use std::sync::LazyLock;

use serde::Deserialize;

/// A model that is known by name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownModel {
    /// Its name, such as `qwen3:0.6b`.
    pub name: String,
    /// Other names of it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Number of parameters, for people.
    pub parameters: String,
    /// Quantisation type of the file.
    pub quant: String,
    /// Licence of the weights.
    pub license: String,
    /// `general.architecture` of the file.
    pub architecture: String,
    /// Its location on the model hub, as `hf:OWNER/REPO/FILE.gguf[@REVISION]`.
    pub hub_file: String,
    /// Size of the file.
    pub bytes: Option<u64>,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: Option<String>,
    /// Python packages whose files, concatenated in this order, are the model.
    #[serde(default)]
    pub packages: Vec<PackageFile>,
}

/// One file inside a Python package.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageFile {
    /// The package's name.
    pub package: String,
    /// Its version.
    pub version: String,
    /// Path of the file inside the wheel.
    pub path: String,
}

/// A model that is known not to work.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsupportedModel {
    /// Its name, without the size.
    pub name: String,
    /// Its architecture.
    pub architecture: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    models: Vec<KnownModel>,
    unsupported: Vec<UnsupportedModel>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    // A test reads the same bytes.
    serde_json::from_str(include_str!("catalogue.json")).expect("the catalogue is valid")
});

/// The model that is used when none is specified.
pub const DEFAULT_MODEL: &str = "qwen3:0.6b";
/// The one that takes its place where the hub cannot be reached: it is also in a Python package.
pub const OFFLINE_MODEL: &str = "smollm2:135m";

/// Suggestions of a message.
const SUGGESTIONS_MAX: usize = 3;

/// The known models, by family and size.
pub fn models() -> &'static [KnownModel] {
    &CATALOGUE.models
}

/// The known model of this name.
pub fn find(name: &str) -> Option<&'static KnownModel> {
    let name = normal_form(name);
    models().iter().find(|model| model.names().any(|known| normal_form(known) == name))
}

/// The known model that does not work and has this name, whatever its size.
pub fn find_unsupported(name: &str) -> Option<&'static UnsupportedModel> {
    let name = normal_form(name);
    CATALOGUE.unsupported.iter().find(|model| {
        name.strip_prefix(&normal_form(&model.name))
            .is_some_and(|size| size.is_empty() || size.starts_with('-'))
    })
}

/// The names nearest to a misspelt one among the known models and `others`, the nearest first.
pub fn suggestions(name: &str, others: &[String]) -> Vec<String> {
    let wanted = normal_form(name);
    // A typo in every third letter is still the same word.
    let distance_max = wanted.chars().count() / 3;
    let known = models().iter().flat_map(KnownModel::names).map(str::to_owned);
    let mut near: Vec<(usize, String)> = others
        .iter()
        .cloned()
        .chain(known)
        .filter_map(|candidate| {
            let form = normal_form(&candidate);
            let distance = strsim::damerau_levenshtein(&wanted, &form);
            let is_beginning = wanted.len() >= 3 && (form.starts_with(&wanted) || wanted.starts_with(&form));
            (is_beginning || distance <= distance_max).then_some((distance, candidate))
        })
        .collect();
    near.sort();
    let mut names: Vec<String> = Vec::new();
    for (_, name) in near {
        if !names.iter().any(|other| normal_form(other) == normal_form(&name)) {
            names.push(name);
        }
    }
    names.truncate(SUGGESTIONS_MAX);
    names
}

/// The form in which names are compared: lower case, a hyphen for every colon, and without the tag `latest`.
fn normal_form(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    name.strip_suffix(":latest").unwrap_or(&name).replace(':', "-")
}

impl KnownModel {
    /// All names of the model, the main one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::HubFile;
    use crate::store::{ModelName, Sha256Hex};

    #[test]
    fn every_entry_is_well_formed() {
        let supported = verbatim_models::architectures();
        let mut names = std::collections::BTreeSet::new();
        for model in models() {
            for name in model.names() {
                assert!(name.parse::<ModelName>().is_ok(), "{name}");
                assert!(names.insert(normal_form(name)), "{name} is given twice");
                assert!(find_unsupported(name).is_none(), "{name} is said not to work");
            }
            assert!(model.hub_file.parse::<HubFile>().is_ok(), "{}", model.hub_file);
            assert!(supported.contains(&model.architecture.as_str()), "{}", model.name);
            assert!(model.bytes.is_none_or(|bytes| bytes > 50_000_000), "{}", model.name);
            let hash = model.sha256.as_ref().map(|hash| hash.parse::<Sha256Hex>());
            assert!(hash.as_ref().is_none_or(Result::is_ok), "{}", model.name);
            // What comes from packages can only be checked against the catalogue.
            assert!(model.packages.is_empty() || hash.is_some() && model.bytes.is_some(), "{}", model.name);
        }
        assert!(models().len() >= 25);
        for model in &CATALOGUE.unsupported {
            assert!(!supported.contains(&model.architecture.as_str()), "{} is supported", model.name);
        }
        assert!(find(DEFAULT_MODEL).is_some());
        assert!(find(OFFLINE_MODEL).is_some_and(|model| !model.packages.is_empty()));
    }

    #[test]
    fn names_are_found_in_every_spelling() {
        for name in ["qwen3:0.6b", "qwen3-0.6b", "Qwen3-0.6B", "QWEN3:0.6B"] {
            assert_eq!(find(name).map(|model| model.name.as_str()), Some("qwen3:0.6b"), "{name}");
        }
        assert_eq!(find("llama3.2:latest").map(|model| model.name.as_str()), Some("llama3.2:3b"));
        assert_eq!(find("qwen3:0"), None);
        assert_eq!(find_unsupported("gemma3n:e4b").map(|model| model.architecture.as_str()), Some("gemma3n"));
        assert_eq!(find_unsupported("gemma3"), None);
        assert_eq!(find_unsupported("llama40"), None);
    }

    #[test]
    fn near_names_are_suggested() {
        assert_eq!(suggestions("qwen3:0.6", &[])[0], "qwen3:0.6b");
        assert_eq!(suggestions("lama3.2:1b", &[])[0], "llama3.2:1b");
        assert_eq!(suggestions("qwen3:4", &["qwen3-4-mine".into()])[0], "qwen3:4b");
        assert_eq!(suggestions("my-model", &["my-models".into()]), ["my-models"]);
        assert!(suggestions("smollm", &[]).iter().all(|name| name.starts_with("smollm")));
        assert!(suggestions("gpt-9000-turbo", &[]).is_empty());
        assert!(suggestions("", &[]).is_empty());
    }
}
