//! The model store: `models/NAME.gguf` in the user's data folder, each with a small `NAME.json` of
//! metadata.
//!
//! A model appears in the store complete and verified, or not at all: it is written as `NAME.gguf.part` and
//! renamed when its SHA-256 is right. Code that changes a model holds its lock (`locks/NAME.lock`); readers
//! need none. Plain files that the user puts into `models/` are models too.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::catalogue;
use crate::source::{HubFile, SourceError};

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
    /// The GGUF file.
    pub path: PathBuf,
    /// Size of the file.
    pub bytes: u64,
    /// Where it came from; `None` for a file that was added by hand.
    pub record: Option<Record>,
}

/// Metadata of a model, stored as JSON next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where the bytes came from: `hf:…`, `package:…` or `file:…`.
    pub source: String,
    /// What was requested, if different: a known model's location on the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<String>,
    /// SHA-256 of the file.
    pub sha256: Sha256Hex,
    /// Size of the file.
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
        "{name:?} is not a model name: use at most {} letters, digits, '.', '_' and '-', and begin with a letter \
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
         (`verbatim list --known`)"
    )]
    Unknown {
        /// What was requested.
        name: String,
    },
    /// A path without a file.
    #[error("there is no file {}", path.display())]
    NoFile {
        /// The path.
        path: PathBuf,
    },
    /// Nothing to remove.
    #[error("{name} is not in the store: `verbatim list` shows the models that are")]
    Absent {
        /// The requested name.
        name: ModelName,
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
        let folder = self.models();
        let files = match fs::read_dir(&folder) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("read the folder", &folder)(error)),
        };
        let mut entries = Vec::new();
        for file in files {
            let file = file.map_err(io_error("read the folder", &folder))?;
            let name = file.file_name();
            let name = name.to_str().and_then(|name| name.strip_suffix(".gguf")).map(str::parse::<ModelName>);
            if let Some(Ok(name)) = name
                && let Some(entry) = self.get(&name)
            {
                entries.push(entry);
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// The model of this name, if it is in the store. An unreadable record counts as none.
    pub fn get(&self, name: &ModelName) -> Option<Entry> {
        let path = self.model_path(name);
        let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let record =
            fs::read(self.record_path(name)).ok().and_then(|json| serde_json::from_slice(&json).ok());
        Some(Entry { name: name.clone(), path, bytes: metadata.len(), record })
    }

    /// The file that `-m` refers to: a path, a name in the store, or a hub file that was pulled. Fetches nothing.
    ///
    /// An argument with a separator or ending in `.gguf` is a path. Anything else is looked up as a name first, then as a
    /// file in the current folder.
    ///
    /// # Errors
    /// When there is no such model; the message says how to get it.
    pub fn resolve(&self, model: &str) -> Result<PathBuf, StoreError> {
        if model.starts_with(HubFile::SCHEME) {
            let source = model.parse::<HubFile>()?.to_string();
            let entries = self.list()?;
            let pulled = entries.into_iter().find(|entry| entry.comes_from(&source));
            return pulled.map(|entry| entry.path).ok_or(StoreError::NotPulled { model: source });
        }
        let path = Path::new(model);
        if is_path(model) {
            return if path.exists() {
                Ok(path.into())
            } else {
                Err(StoreError::NoFile { path: path.into() })
            };
        }
        if let Ok(name) = model.parse::<ModelName>()
            && let Some(entry) = self.get(&name)
        {
            return Ok(entry.path);
        }
        if path.is_file() {
            return Ok(path.into());
        }
        Err(match catalogue::find(model) {
            Some(known) => StoreError::NotPulled { model: known.name.to_owned() },
            None => StoreError::Unknown { name: model.to_owned() },
        })
    }

    /// Removes a model and its partial download.
    ///
    /// # Errors
    /// When it does not exist, is being pulled, or cannot be removed.
    pub fn remove(&self, name: &ModelName) -> Result<(), StoreError> {
        let left_over = [self.part_path(name), self.part_record_path(name), self.packages_path(name)];
        if self.get(name).is_none() && !left_over.iter().any(|path| path.exists()) {
            return Err(StoreError::Absent { name: name.clone() });
        }
        let lock = self.open_lock(name)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy { name: name.clone() }),
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &self.lock_path(name))(error)),
        }
        remove_if_present(&self.model_path(name))?;
        remove_if_present(&self.record_path(name))?;
        left_over.iter().try_for_each(|path| remove_if_present(path))
    }

    /// Takes the lock of a model and creates the store's folders. Calls `on_wait` once if another process has
    /// the lock, and then waits for it.
    ///
    /// # Errors
    /// When the folders or the lock file cannot be created.
    pub fn lock(&self, name: &ModelName, on_wait: impl FnOnce()) -> Result<ModelLock, StoreError> {
        let models = self.models();
        fs::create_dir_all(&models).map_err(io_error("create the folder", &models))?;
        let file = self.open_lock(name)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                on_wait();
                file.lock().map_err(io_error("lock", &self.lock_path(name)))?;
            }
            Err(TryLockError::Error(error)) => return Err(io_error("lock", &self.lock_path(name))(error)),
        }
        Ok(ModelLock { _file: file })
    }

    /// Renames the finished `.part` file to the model and writes its record. The caller holds the lock and has verified
    /// the bytes.
    ///
    /// # Errors
    /// When a file cannot be written or renamed; the model is then not in the store.
    pub fn commit(&self, _lock: &ModelLock, name: &ModelName, record: &Record) -> Result<Entry, StoreError> {
        let part = self.part_path(name);
        // A rename may reach the disk before the bytes do, so they are fsynced first. Windows requires write access for that.
        let file = File::options().write(true).open(&part);
        file.and_then(|file| file.sync_all()).map_err(io_error("write", &part))?;
        write_json(&self.record_path(name), record)?;
        let path = self.model_path(name);
        fs::rename(&part, &path).map_err(io_error("create", &path))?;
        remove_if_present(&self.part_record_path(name))?;
        Ok(Entry { name: name.clone(), path, bytes: record.bytes, record: Some(record.clone()) })
    }

    /// Path of a model.
    pub fn model_path(&self, name: &ModelName) -> PathBuf {
        self.models().join(format!("{name}.gguf"))
    }

    /// Path of a partial download.
    pub fn part_path(&self, name: &ModelName) -> PathBuf {
        self.models().join(format!("{name}.gguf.part"))
    }

    /// Path of the metadata of a partial download.
    pub fn part_record_path(&self, name: &ModelName) -> PathBuf {
        self.models().join(format!("{name}.gguf.part.json"))
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
}

/// Name of a model in the store: a plain file name on every system.
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
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let begins_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !begins_well || name.len() > Self::BYTES_MAX || !name.bytes().all(is_plain) {
            return Err(StoreError::Name { name: name.to_owned() });
        }
        Ok(Self(name.to_owned()))
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
            bytes: bytes.len() as u64,
            date: jiff::Timestamp::from_second(1_700_000_000).unwrap(),
        }
    }

    fn add(store: &Store, model: &str, source: &str) {
        let lock = store.lock(&name(model), || panic!("nobody else has the lock")).unwrap();
        fs::write(store.part_path(&name(model)), b"GGUF").unwrap();
        store.commit(&lock, &name(model), &record(source, b"GGUF")).unwrap();
    }

    #[test]
    fn names_that_are_not_plain_file_names_are_rejected() {
        for wrong in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a\\b",
            ".hidden",
            "-x",
            "a b",
            "a:b",
            "ä",
            "a\0",
            &"x".repeat(129),
        ] {
            assert!(matches!(wrong.parse::<ModelName>(), Err(StoreError::Name { .. })), "{wrong:?}");
        }
        for right in ["a", "smollm2-135m", "Model_1.5-Q4_K_M", &"x".repeat(128)] {
            assert_eq!(name(right).as_str(), right);
        }
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
        assert!(!store.part_path(&name("a")).exists());
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
        fs::write(store.part_path(&name("a")), b"GG").unwrap();
        store.remove(&name("a")).unwrap();
        assert_eq!(fs::read_dir(store.models()).unwrap().count(), 0);
        assert!(matches!(store.remove(&name("a")), Err(StoreError::Absent { .. })));
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
        let path = store.model_path(&name("a"));
        assert_eq!(store.resolve("a").unwrap(), path);
        assert_eq!(store.resolve("hf:o/r/A.gguf@main").unwrap(), path);
        assert_eq!(store.resolve(path.to_str().unwrap()).unwrap(), path);
        assert!(matches!(store.resolve("hf:o/r/A.gguf"), Err(StoreError::NotPulled { .. })));
        assert!(matches!(store.resolve(catalogue::DEFAULT_MODEL), Err(StoreError::NotPulled { .. })));
        assert!(matches!(store.resolve("nobody-knows-me"), Err(StoreError::Unknown { .. })));
        let missing = folder.path().join("missing.gguf");
        assert!(matches!(store.resolve(missing.to_str().unwrap()), Err(StoreError::NoFile { .. })));
        assert!(matches!(store.resolve("../x"), Err(StoreError::NoFile { .. })));
    }
}
