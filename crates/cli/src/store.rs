//! The model store: `models/NAME.gguf` in the user's data folder, each with a small `NAME.json` of
//! metadata. A split model is `models/NAME-00001-of-0000N.gguf` and so on, as its files must be named.
//!
//! A model appears in the store complete and verified, or not at all: it is written as `NAME.gguf.part` and
//! renamed when its SHA-256 is right. Code that changes a model holds its lock (`locks/NAME.lock`); readers
//! need none. Plain files that the user puts into `models/` are models too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use verbatim_gguf::split_file_name;

use crate::catalogue;
use crate::source::{Remote, SourceError, SplitName};

/// The folder with the models.
#[derive(Debug, Clone)]
pub struct Store {
    home: PathBuf,
}

/// A model that is in the store.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub name: ModelName,
    /// The GGUF file; the first one if the model is split.
    pub path: PathBuf,
    /// Number of its files.
    pub parts: usize,
    /// Size of its files.
    pub bytes: u64,
    /// Where it came from; `None` for a file that was added by hand.
    pub record: Option<Record>,
}

/// A model that is not complete yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialEntry {
    /// Its name.
    pub name: ModelName,
    /// Bytes that are on the disk.
    pub bytes: u64,
    /// Bytes that it will have, if the server said so for all its files.
    pub total_bytes: Option<u64>,
    /// Where it comes from.
    pub url: Option<String>,
}

/// Metadata of a partial download, stored as JSON next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialRecord {
    /// Where it comes from.
    pub url: String,
    /// The version of the file that the bytes are of.
    pub version: String,
    /// Size of the complete file, if the server sent it.
    #[serde(default)]
    pub total_bytes: Option<u64>,
}

/// Metadata of a model, stored as JSON next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where the bytes came from: `hf:…`, `ms:…`, `https://…`, `package:…` or `file:…`; the first file of a split model.
    pub source: String,
    /// What was requested, if different: a known model's location on the hub, or a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<String>,
    /// SHA-256 of the (first) file.
    pub sha256: Sha256Hex,
    /// SHA-256 of the other files of a split model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_sha256: Vec<Sha256Hex>,
    /// Size of all files.
    pub bytes: u64,
    /// When it was pulled.
    pub date: jiff::Timestamp,
}

/// Why a store operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system reports no data folder for this user.
    #[error("there is no data folder for this user: set VERBATIM_HOME or use --home DIR")]
    NoHome,
    /// A name that could not be a file name everywhere.
    #[error(
        "{name:?} is not a model name: use at most {} letters, digits, '.', '_', '-' and ':', and begin with a letter \
         or digit",
        ModelName::BYTES_MAX
    )]
    Name {
        /// The rejected name.
        name: String,
    },
    /// Not 64 hexadecimal digits.
    #[error("{text:?} is not a SHA-256: it must have 64 hexadecimal digits")]
    Sha256 {
        /// The rejected text.
        text: String,
    },
    /// A malformed hub file.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A model that could be pulled but was not.
    #[error("{model} is not in the store: run `verbatim pull {model}` first")]
    NotPulled {
        /// The known name or hub file.
        model: String,
    },
    /// Neither a file nor a name in the store.
    #[error(
        "there is no model {name:?}: it is not a file, not in the store (`verbatim list`) and not a known name \
         (`verbatim list --known`){}",
        did_you_mean(suggestions)
    )]
    Unknown {
        /// What was requested.
        name: String,
        /// Names that may be meant.
        suggestions: Vec<String>,
    },
    /// A known model that the engine cannot run.
    #[error(
        "{name} is not supported: no model of the architecture {architecture} is, yet (see docs/supported.md){}",
        did_you_mean(suggestions)
    )]
    Unsupported {
        /// What was requested.
        name: String,
        /// Its architecture.
        architecture: String,
        /// Names that may do instead.
        suggestions: Vec<String>,
    },
    /// The new name of a copy is in use.
    #[error("{name} is in the store already: choose another name, or `verbatim rm {name}` first")]
    Exists {
        /// The name.
        name: ModelName,
    },
    /// A path without a file.
    #[error("there is no file {}", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// Nothing to remove.
    #[error(
        "{name} is not in the store: `verbatim list` shows the models that are{}",
        did_you_mean(suggestions)
    )]
    Absent {
        /// The requested name.
        name: ModelName,
        /// Names that may be meant.
        suggestions: Vec<String>,
    },
    /// Another process holds the lock.
    #[error("{name} is being pulled by another process: wait for it, or stop it")]
    Busy {
        /// The model.
        name: ModelName,
    },
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Suggestions at the end of a message.
fn did_you_mean(suggestions: &[String]) -> String {
    match suggestions {
        [] => String::new(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

/// Adds an action and a path to the error of a file operation.
pub(crate) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_path_buf();
    move |source| StoreError::Io { action, path, source }
}

impl Store {
    /// The store in `home`, or in the user's data folder: `$XDG_DATA_HOME/verbatim` or
    /// `~/.local/share/verbatim` on Linux, `~/Library/Application Support/verbatim` on macOS,
    /// `%LOCALAPPDATA%\verbatim` on Windows. Creates nothing.
    ///
    /// # Errors
    /// When there is no `home` and the system reports no data folder.
    pub fn new(home: Option<&Path>) -> Result<Self, StoreError> {
        let home = match home {
            Some(home) => home.to_path_buf(),
            None => dirs::data_local_dir().ok_or(StoreError::NoHome)?.join("verbatim"),
        };
        Ok(Self { home })
    }

    /// The store's folder.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Every model in the store, by name.
    ///
    /// # Errors
    /// When the folder exists but cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, StoreError> {
        let names = self.file_names()?.into_iter().filter_map(|file| {
            let stem = file.strip_suffix(".gguf")?;
            SplitName::parse(&file).map_or(stem, |split| split.prefix).parse().ok()
        });
        let names: BTreeSet<ModelName> = names.collect();
        Ok(names.iter().filter_map(|name| self.get(name)).collect())
    }

    /// The names of the models in the store.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.list()?.into_iter().map(|entry| entry.name.0).collect())
    }

    /// Every partial download, by name.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub fn partial_downloads(&self) -> Result<Vec<PartialEntry>, StoreError> {
        let mut entries: BTreeMap<ModelName, PartialEntry> = BTreeMap::new();
        for file in self.file_names()? {
            let Some(model) = file.strip_suffix(".part") else { continue };
            let split = SplitName::parse(model);
            let Ok(name) =
                split.map_or(model.trim_end_matches(".gguf"), |split| split.prefix).parse::<ModelName>()
            else {
                continue;
            };
            let path = self.models().join(&file);
            let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            let record = fs::read(path.with_extension("part.json")).ok();
            let record: Option<PartialRecord> = record.and_then(|json| serde_json::from_slice(&json).ok());
            let total_bytes =
                record.as_ref().and_then(|record| record.total_bytes).filter(|_| split.is_none());
            let entry = entries.entry(name.clone());
            let entry = entry.or_insert(PartialEntry { name, bytes: 0, total_bytes, url: None });
            entry.bytes += bytes;
            entry.url = entry.url.take().or(record.map(|record| record.url));
        }
        Ok(entries.into_values().collect())
    }

    /// The names of the files in the store's folder that are text, in no order.
    fn file_names(&self) -> Result<Vec<String>, StoreError> {
        let folder = self.models();
        let files = match fs::read_dir(&folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("read the folder", &folder)(error)),
        };
        let names = files.map(|file| file.map(|file| file.file_name().into_string().ok()));
        names
            .filter_map(Result::transpose)
            .collect::<io::Result<_>>()
            .map_err(io_error("read the folder", &folder))
    }

    /// The model of this name, if it is in the store. An unreadable record counts as none.
    pub fn get(&self, name: &ModelName) -> Option<Entry> {
        let paths = self.paths(name)?;
        let sizes: Option<Vec<u64>> =
            paths.iter().map(|path| fs::metadata(path).ok().map(|file| file.len())).collect();
        let record =
            fs::read(self.record_path(name)).ok().and_then(|json| serde_json::from_slice(&json).ok());
        let parts = paths.len();
        // A split model of which a file is missing is still there: opening it reports the missing file.
        let bytes = sizes.map_or(0, |sizes| sizes.iter().sum());
        Some(Entry { name: name.clone(), path: paths.into_iter().next()?, parts, bytes, record })
    }

    /// The files of a model, if it is in the store.
    fn paths(&self, name: &ModelName) -> Option<Vec<PathBuf>> {
        let path = self.model_path(name.as_str());
        if path.is_file() {
            return Some(vec![path]);
        }
        let files = self.file_names().ok()?;
        let count = files.iter().find_map(|file| {
            SplitName::parse(file).filter(|split| split.prefix == name.as_str()).map(|split| split.count)
        })?;
        Some(self.part_stems(name, count).iter().map(|stem| self.model_path(stem)).collect())
    }

    /// The names, without `.gguf`, of the files of a model with this number of files.
    pub fn part_stems(&self, name: &ModelName, count: usize) -> Vec<String> {
        if count == 1 {
            return vec![name.to_string()];
        }
        let file = |index| split_file_name(name.as_str(), index, count).trim_end_matches(".gguf").to_owned();
        (0..count).map(file).collect()
    }

    /// The file that `-m` refers to: a path, a name in the store, or a remote model that was pulled. Fetches nothing.
    ///
    /// An argument with a separator or ending in `.gguf` is a path. Anything else is looked up as a name first, then as a
    /// file in the current folder.
    ///
    /// # Errors
    /// When there is no such model; the message says how to get it.
    pub fn resolve(&self, model: &str) -> Result<PathBuf, StoreError> {
        if let Some(remote) = Remote::parse(model) {
            let remote = remote?;
            let pulled = self.list()?.into_iter().find(|entry| entry.is_of(&remote));
            return pulled.map(|entry| entry.path).ok_or(StoreError::NotPulled { model: remote.to_string() });
        }
        let path = Path::new(model);
        if is_path(model) {
            return if path.exists() {
                Ok(path.into())
            } else {
                Err(StoreError::NoFile { path: path.into() })
            };
        }
        let known = catalogue::find(model);
        let names = [Some(model), known.map(|known| known.name.as_str())];
        let names = names.into_iter().flatten().filter_map(|name| name.parse::<ModelName>().ok());
        if let Some(entry) = names.into_iter().find_map(|name| self.get(&name)) {
            return Ok(entry.path);
        }
        if path.is_file() {
            return Ok(path.into());
        }
        Err(match known {
            Some(known) => StoreError::NotPulled { model: known.name.clone() },
            None => self.unknown(model),
        })
    }

    /// The error for a name that is neither in the store nor in the catalogue.
    pub fn unknown(&self, name: &str) -> StoreError {
        let suggestions = catalogue::suggestions(name, &self.names().unwrap_or_default());
        let name = name.to_owned();
        match catalogue::find_unsupported(&name) {
            Some(model) => {
                StoreError::Unsupported { architecture: model.architecture.clone(), name, suggestions }
            }
            None => StoreError::Unknown { name, suggestions },
        }
    }

    fn absent(&self, name: &ModelName) -> StoreError {
        let names = self.names().unwrap_or_default();
        let near = catalogue::suggestions(name.as_str(), &names);
        let suggestions = near.into_iter().filter(|near| names.contains(near)).collect();
        StoreError::Absent { name: name.clone(), suggestions }
    }

    /// Removes a model and its partial download.
    ///
    /// # Errors
    /// When it does not exist, is being pulled, or cannot be removed.
    pub fn remove(&self, name: &ModelName) -> Result<(), StoreError> {
        let files = self.all_files(name)?;
        if files.is_empty() {
            return Err(self.absent(name));
        }
        let _lock = self.try_lock(name)?;
        files.iter().try_for_each(|path| remove_if_present(path))
    }

    /// Everything in the store that belongs to a model.
    fn all_files(&self, name: &ModelName) -> Result<Vec<PathBuf>, StoreError> {
        let belongs = |file: &String| {
            let Some(rest) = file.strip_prefix(name.as_str()) else { return false };
            let is_own = matches!(rest, ".gguf" | ".json" | ".gguf.part" | ".gguf.part.json" | ".packages");
            let model = file.trim_end_matches(".json").trim_end_matches(".part");
            is_own || SplitName::parse(model).is_some_and(|split| split.prefix == name.as_str())
        };
        Ok(self
            .file_names()?
            .iter()
            .filter(|file| belongs(file))
            .map(|file| self.models().join(file))
            .collect())
    }

    /// Adds a model under another name too. Both share their bytes on the disk where the file system allows it.
    ///
    /// # Errors
    /// When the model does not exist, the new name does, one of them is being pulled, or a file cannot be created.
    pub fn copy(&self, from: &ModelName, to: &ModelName) -> Result<Entry, StoreError> {
        let entry = self.get(from).ok_or_else(|| self.absent(from))?;
        if self.get(to).is_some() {
            return Err(StoreError::Exists { name: to.clone() });
        }
        let _locks = (self.try_lock(from)?, self.try_lock(to)?);
        let stems = self.part_stems(from, entry.parts).into_iter().zip(self.part_stems(to, entry.parts));
        // The first file last: with it, the model is in the store.
        for (from, to) in stems.rev() {
            let (from, to) = (self.model_path(&from), self.model_path(&to));
            fs::hard_link(&from, &to)
                .or_else(|_| fs::copy(&from, &to).map(drop))
                .map_err(io_error("create", &to))?;
        }
        entry.record.iter().try_for_each(|record| write_json(&self.record_path(to), record))?;
        self.get(to).ok_or_else(|| self.absent(to))
    }

    /// Takes the lock of a model and creates the store's folders. Calls `on_wait` once if another process has
    /// the lock, and then waits for it.
    ///
    /// # Errors
    /// When the folders or the lock file cannot be created.
    pub fn lock(&self, name: &ModelName, on_wait: impl FnOnce()) -> Result<ModelLock, StoreError> {
        let models = self.models();
        fs::create_dir_all(&models).map_err(io_error("create the folder", &models))?;
        match self.try_lock(name) {
            Err(StoreError::Busy { .. }) => {
                on_wait();
                let file = self.open_lock(name)?;
                file.lock().map_err(io_error("lock", &self.lock_path(name)))?;
                Ok(ModelLock { _file: file })
            }
            locked => locked,
        }
    }

    fn try_lock(&self, name: &ModelName) -> Result<ModelLock, StoreError> {
        let file = self.open_lock(name)?;
        match file.try_lock() {
            Ok(()) => Ok(ModelLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StoreError::Busy { name: name.clone() }),
            Err(TryLockError::Error(error)) => Err(io_error("lock", &self.lock_path(name))(error)),
        }
    }

    /// Renames the finished `.part` files to the model and writes its record. The caller holds the lock and has verified
    /// the bytes.
    ///
    /// # Errors
    /// When a file cannot be written or renamed; the model is then not in the store.
    pub fn commit(
        &self,
        _lock: &ModelLock,
        name: &ModelName,
        parts: usize,
        record: &Record,
    ) -> Result<Entry, StoreError> {
        let stems = self.part_stems(name, parts);
        // A rename may reach the disk before the bytes do, so they are fsynced first. Windows requires write access for that.
        for stem in &stems {
            let part = self.part_path(stem);
            let file = File::options().write(true).open(&part);
            file.and_then(|file| file.sync_all()).map_err(io_error("write", &part))?;
        }
        write_json(&self.record_path(name), record)?;
        for stem in stems.iter().rev() {
            let path = self.model_path(stem);
            fs::rename(self.part_path(stem), &path).map_err(io_error("create", &path))?;
            remove_if_present(&self.part_record_path(stem))?;
        }
        let path = self.model_path(&stems[0]);
        Ok(Entry { name: name.clone(), path, parts, bytes: record.bytes, record: Some(record.clone()) })
    }

    /// Path of a model's file; `stem` is the model's name, with a part number if it is split.
    pub fn model_path(&self, stem: &str) -> PathBuf {
        self.models().join(format!("{stem}.gguf"))
    }

    /// Path of a partial download.
    pub fn part_path(&self, stem: &str) -> PathBuf {
        self.models().join(format!("{stem}.gguf.part"))
    }

    /// Path of the metadata of a partial download.
    pub fn part_record_path(&self, stem: &str) -> PathBuf {
        self.models().join(format!("{stem}.gguf.part.json"))
    }

    /// Folder for the Python packages that a model is taken from.
    pub fn packages_path(&self, name: &ModelName) -> PathBuf {
        self.models().join(format!("{name}.packages"))
    }

    fn models(&self) -> PathBuf {
        self.home.join("models")
    }

    fn record_path(&self, name: &ModelName) -> PathBuf {
        self.models().join(format!("{name}.json"))
    }

    fn lock_path(&self, name: &ModelName) -> PathBuf {
        self.home.join("locks").join(format!("{name}.lock"))
    }

    /// Lock files stay where they are: removing one would let two processes lock different files of the same
    /// name.
    fn open_lock(&self, name: &ModelName) -> Result<File, StoreError> {
        let path = self.lock_path(name);
        let folder = self.home.join("locks");
        fs::create_dir_all(&folder).map_err(io_error("create the folder", &folder))?;
        File::options().create(true).append(true).open(&path).map_err(io_error("open", &path))
    }
}

/// The lock of one model, held until it is dropped (or the process ends).
#[derive(Debug)]
pub struct ModelLock {
    _file: File,
}

impl Entry {
    /// True when the model was pulled as this source, wherever its bytes came from.
    pub fn comes_from(&self, source: &str) -> bool {
        self.record
            .as_ref()
            .is_some_and(|record| record.source == source || record.requested.as_deref() == Some(source))
    }

    /// True when the model is what this source means: a repository without a quantisation type means every file of it.
    pub fn is_of(&self, remote: &Remote) -> bool {
        let is_from_repository =
            |prefix: &str| self.record.as_ref().is_some_and(|record| record.source.starts_with(prefix));
        match remote {
            _ if self.comes_from(&remote.to_string()) => true,
            Remote::Repository(repository, None) if repository.revision.is_none() => {
                is_from_repository(&format!("{repository}/"))
            }
            _ => false,
        }
    }
}

/// Name of a model in the store: a plain file name on every system. A colon, as in Ollama's names, is read as a hyphen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName(String);

impl ModelName {
    /// Maximum length, so that file names derived from it fit.
    pub const BYTES_MAX: usize = 128;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModelName {
    type Err = StoreError;

    fn from_str(name: &str) -> Result<Self, StoreError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        let begins_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins_well || name.len() > Self::BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(StoreError::Name { name: name.to_owned() });
        }
        Ok(Self(name.replace(':', "-")))
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A SHA-256 in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256Hex(String);

impl Sha256Hex {
    /// The hash of everything that `reader` returns.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn from_reader(mut reader: impl Read, mut on_bytes: impl FnMut(u64)) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 18];
        loop {
            match reader.read(&mut buffer)? {
                0 => return Ok(Self(format!("{:x}", hasher.finalize()))),
                count => {
                    hasher.update(&buffer[..count]);
                    on_bytes(count as u64);
                }
            }
        }
    }
}

impl FromStr for Sha256Hex {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(StoreError::Sha256 { text: text.to_owned() });
        }
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl TryFrom<String> for Sha256Hex {
    type Error = StoreError;

    fn try_from(text: String) -> Result<Self, StoreError> {
        text.parse()
    }
}

impl From<Sha256Hex> for String {
    fn from(hash: Sha256Hex) -> Self {
        hash.0
    }
}

impl fmt::Display for Sha256Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Writes a JSON file so that readers see the old content or the new, never half of it.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), StoreError> {
    let mut json = serde_json::to_vec_pretty(value).map_err(|error| io_error("write", path)(error.into()))?;
    json.push(b'\n');
    let new = path.with_extension("json.new");
    let write = || -> io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(&json)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(io_error("write", path))
}

/// Removes a file or a folder with all that is in it. A missing one is not an error.
pub(crate) fn remove_if_present(path: &Path) -> Result<(), StoreError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// True for an argument that can only be a path.
pub(crate) fn is_path(model: &str) -> bool {
    model.contains(['/', std::path::MAIN_SEPARATOR]) || model.ends_with(".gguf")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(Some(folder.path())).unwrap();
        (folder, store)
    }

    fn name(text: &str) -> ModelName {
        text.parse().unwrap()
    }

    fn record(source: &str, bytes: &[u8]) -> Record {
        Record {
            source: source.to_owned(),
            requested: None,
            sha256: Sha256Hex::from_reader(bytes, |_| ()).unwrap(),
            more_sha256: Vec::new(),
            bytes: bytes.len() as u64,
            date: jiff::Timestamp::from_second(1_700_000_000).unwrap(),
        }
    }

    fn add(store: &Store, model: &str, source: &str) {
        let lock = store.lock(&name(model), || panic!("nobody else has the lock")).unwrap();
        fs::write(store.part_path(model), b"GGUF").unwrap();
        store.commit(&lock, &name(model), 1, &record(source, b"GGUF")).unwrap();
    }

    #[test]
    fn names_that_are_not_plain_file_names_are_rejected() {
        for wrong in
            ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "-x", "a b", ":b", "ä", "a\0", &"x".repeat(129)]
        {
            assert!(matches!(wrong.parse::<ModelName>(), Err(StoreError::Name { .. })), "{wrong:?}");
        }
        for right in ["a", "smollm2-135m", "Model_1.5-Q4_K_M", &"x".repeat(128)] {
            assert_eq!(name(right).as_str(), right);
        }
        assert_eq!(name("qwen3:0.6b").as_str(), "qwen3-0.6b");
    }

    #[test]
    fn sha256_matches_the_standard() {
        // FIPS 180-2, appendix B.1.
        let hash = Sha256Hex::from_reader(&b"abc"[..], |_| ()).unwrap();
        assert_eq!(hash.to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hash.to_string().to_uppercase().parse::<Sha256Hex>().unwrap(), hash);
        assert!("ba78".parse::<Sha256Hex>().is_err());
    }

    #[test]
    fn a_missing_store_is_empty() {
        let (_folder, store) = store();
        let store = Store::new(Some(&store.home().join("nowhere"))).unwrap();
        assert!(store.list().unwrap().is_empty());
        assert!(!store.home().exists());
    }

    #[test]
    fn committed_models_are_listed_with_their_record() {
        let (_folder, store) = store();
        add(&store, "b", "hf:o/r/b.gguf");
        add(&store, "a", "file:/a.gguf");
        fs::write(store.models().join("by-hand.gguf"), b"GGUF").unwrap();
        fs::write(store.models().join("c.gguf.part"), b"GG").unwrap();
        let entries = store.list().unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "by-hand"]);
        assert_eq!(entries[1].record, Some(record("hf:o/r/b.gguf", b"GGUF")));
        assert_eq!(entries[2].record, None);
        assert!(!store.part_path("a").exists());
    }

    #[test]
    fn a_corrupt_record_does_not_hide_its_model() {
        let (_folder, store) = store();
        add(&store, "a", "file:/a.gguf");
        fs::write(store.record_path(&name("a")), b"{\"source\":").unwrap();
        assert_eq!(store.list().unwrap()[0].record, None);
    }

    #[test]
    fn removing_deletes_every_file_and_a_missing_model_is_an_error() {
        let (_folder, store) = store();
        add(&store, "a", "file:/a.gguf");
        fs::write(store.part_path("a"), b"GG").unwrap();
        store.remove(&name("a")).unwrap();
        assert_eq!(fs::read_dir(store.models()).unwrap().count(), 0);
        assert!(matches!(store.remove(&name("a")), Err(StoreError::Absent { .. })));
    }

    #[test]
    fn a_known_model_is_found_by_every_name() {
        let (_folder, store) = store();
        add(&store, "llama3.2-3b", "hf:o/r/A.gguf");
        let path = store.model_path("llama3.2-3b");
        for name in ["llama3.2:3b", "llama3.2-3b", "llama3.2", "Llama3.2:3B", "llama3.2:latest", "hf:o/r"] {
            assert_eq!(store.resolve(name).unwrap(), path, "{name}");
        }
        let error = store.resolve("llama3.2:3").unwrap_err().to_string();
        assert!(error.ends_with("; did you mean llama3.2-3b or llama3.2 or llama3.2:1b?"), "{error}");
    }

    #[test]
    fn a_split_model_is_one_entry() {
        let (_folder, store) = store();
        let model = name("m");
        let lock = store.lock(&model, || ()).unwrap();
        let stems = store.part_stems(&model, 2);
        assert_eq!(stems, ["m-00001-of-00002", "m-00002-of-00002"]);
        stems.iter().for_each(|stem| fs::write(store.part_path(stem), b"GGUF").unwrap());
        assert_eq!(store.partial_downloads().unwrap()[0].bytes, 8);
        store
            .commit(&lock, &model, 2, &Record { bytes: 8, ..record("hf:o/r/m-00001-of-00002.gguf", b"GGUF") })
            .unwrap();
        drop(lock);
        let entries = store.list().unwrap();
        assert_eq!(
            (entries.len(), entries[0].name.as_str(), entries[0].parts, entries[0].bytes),
            (1, "m", 2, 8)
        );
        assert_eq!(store.resolve("m").unwrap(), store.model_path("m-00001-of-00002"));
        assert_eq!(store.copy(&model, &name("n")).unwrap().parts, 2);
        store.remove(&model).unwrap();
        assert_eq!(store.names().unwrap(), ["n"]);
        store.remove(&name("n")).unwrap();
        assert_eq!(fs::read_dir(store.models()).unwrap().count(), 0);
    }

    #[test]
    fn copies_are_models_of_their_own() {
        let (_folder, store) = store();
        add(&store, "a", "file:/a.gguf");
        assert_eq!(store.copy(&name("a"), &name("b")).unwrap().record, Some(record("file:/a.gguf", b"GGUF")));
        assert!(matches!(store.copy(&name("a"), &name("b")), Err(StoreError::Exists { .. })));
        assert!(matches!(store.copy(&name("x"), &name("y")), Err(StoreError::Absent { .. })));
        store.remove(&name("a")).unwrap();
        assert_eq!(fs::read(store.model_path("b")).unwrap(), b"GGUF");
    }

    #[test]
    fn a_model_that_is_being_pulled_is_not_removed() {
        let (_folder, store) = store();
        add(&store, "a", "file:/a.gguf");
        let lock = store.lock(&name("a"), || ()).unwrap();
        assert!(matches!(store.remove(&name("a")), Err(StoreError::Busy { .. })));
        drop(lock);
        store.remove(&name("a")).unwrap();
    }

    #[test]
    fn a_model_is_found_by_path_name_and_source() {
        let (folder, store) = store();
        add(&store, "a", "hf:o/r/A.gguf@main");
        let path = store.model_path("a");
        assert_eq!(store.resolve("a").unwrap(), path);
        assert_eq!(store.resolve("hf:o/r/A.gguf@main").unwrap(), path);
        assert_eq!(store.resolve(path.to_str().unwrap()).unwrap(), path);
        assert!(matches!(store.resolve("hf:o/r/A.gguf"), Err(StoreError::NotPulled { .. })));
        assert_eq!(
            store.resolve("hf:o/x").unwrap_err().to_string(),
            "hf:o/x is not in the store: run `verbatim pull hf:o/x` first"
        );
        assert!(matches!(store.resolve(catalogue::DEFAULT_MODEL), Err(StoreError::NotPulled { .. })));
        assert!(matches!(store.resolve("nobody-knows-me"), Err(StoreError::Unknown { .. })));
        assert!(matches!(store.resolve("gemma3n:e2b"), Err(StoreError::Unsupported { .. })));
        let missing = folder.path().join("missing.gguf");
        assert!(matches!(store.resolve(missing.to_str().unwrap()), Err(StoreError::NoFile { .. })));
        assert!(matches!(store.resolve("../x"), Err(StoreError::NoFile { .. })));
    }
}
