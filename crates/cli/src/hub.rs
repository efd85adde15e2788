//! Downloading one file from a model hub or another server, so that a broken connection costs only what was not yet received; and
//! the list of files of a repository.
//!
//! The Hugging Face hub responds to `GET /OWNER/REPO/resolve/REVISION/FILE` with a redirect to its storage; the redirect's `X-Linked-Etag` is the
//! SHA-256 of a large file. Redirects are followed here and not by the HTTP library, because that header is on the first response
//! only and because the user's token is for the hub's own address and no other.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Deserialize;
use ureq::http::{HeaderMap, Response, StatusCode, Uri, header};
use ureq::{Agent, Body};

use crate::source::{HubFile, HubRepository, Site};
use crate::standard_io::human_bytes;
use crate::store::{PartialRecord, Sha256Hex, StoreError, io_error, remove_if_present, write_json};

/// Looking a host up and connecting to it take at most their sum.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A hub that sends no response within this time is not waited for if another source will do.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// A server that has not responded after this long is considered unreachable.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// A download in which nothing arrives for this long has failed.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How many attempts in a row may fail before the user is asked to try again.
const ATTEMPTS_MAX: u32 = 4;
/// An attempt that received at least this much resets the count: a large file still arrives over a bad
/// connection.
const PROGRESS_BYTES: u64 = 1 << 20;
const PAUSE_BETWEEN_ATTEMPTS: Duration = Duration::from_millis(250);
const REDIRECTS_MAX: usize = 10;
/// Size of the list of a repository's files.
const LIST_BYTES_MAX: u64 = 16 << 20;

/// The model hubs, and other servers.
#[derive(Debug)]
pub struct Hub {
    agent: Agent,
    endpoint: Uri,
    modelscope: Uri,
    token: Option<String>,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryFile {
    /// Its path in the repository.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, if the hub reports it.
    pub sha256: Option<Sha256Hex>,
}

/// What is known of a complete download.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Downloaded {
    /// SHA-256 that the server reports.
    pub sha256: Option<Sha256Hex>,
    /// Whether the server reported the size. If it did not, the file may be incomplete.
    pub is_size_known: bool,
}

/// A partial download plus its metadata.
#[derive(Debug)]
pub struct Partial {
    /// The file with the bytes so far.
    pub path: PathBuf,
    /// JSON file with the URL and version that the bytes are of.
    pub record_path: PathBuf,
}

/// Why a file cannot be fetched from a server.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The hub's address is not a URL.
    #[error("{endpoint:?} is not a hub URL: it must start with https:// or http:// (see --hub)")]
    Endpoint {
        /// What was given.
        endpoint: String,
    },
    /// No connection, or no response in time.
    #[error("cannot reach {host}: {reason}")]
    Unreachable {
        /// Host of the request.
        host: String,
        /// What went wrong.
        reason: String,
    },
    /// Status 404.
    #[error("there is no such file: {url} (404); check the repository, the file's name and the revision")]
    NotFound {
        /// The requested URL.
        url: String,
    },
    /// Status 401 or 403.
    #[error(
        "access to {url} denied ({status}): the repository does not exist, or it needs a token in HF_TOKEN and \
         perhaps its licence accepted"
    )]
    AccessDenied {
        /// The requested URL.
        url: String,
        /// The status.
        status: u16,
    },
    /// Any other status that is not a success.
    #[error("the server responds with status {status} for {url}; try again later")]
    Status {
        /// The requested URL.
        url: String,
        /// The status.
        status: u16,
    },
    /// The server reports a different SHA-256.
    #[error("SHA-256 mismatch at {url}: the server reports {found}, expected {wanted}")]
    ChecksumMismatch {
        /// The requested URL.
        url: String,
        /// The expected SHA-256.
        wanted: Sha256Hex,
        /// The SHA-256 that the server reports.
        found: Sha256Hex,
    },
    /// A redirect without a target, or to a forbidden one.
    #[error("the server redirects {url} {problem}")]
    Redirect {
        /// The requested URL.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A contradictory response.
    #[error("the server's response for {url} is invalid: {problem}")]
    InvalidResponse {
        /// The requested URL.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The connection failed repeatedly.
    #[error(
        "the download failed after {} of {}: {reason}; pull again to resume",
        human_bytes(*received_bytes),
        total_bytes.map_or("an unknown size".to_owned(), human_bytes)
    )]
    Interrupted {
        /// Bytes that are on the disk.
        received_bytes: u64,
        /// Size of the file, if the server sent it.
        total_bytes: Option<u64>,
        /// What went wrong.
        reason: String,
    },
    /// No space left.
    #[error(
        "the disk is full: {} of the model are in {}; free some space and pull again to resume, or remove \
         that file",
        human_bytes(*received_bytes),
        path.display()
    )]
    DiskFull {
        /// Bytes that are on the disk.
        received_bytes: u64,
        /// The unfinished file.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl HubError {
    /// True when the server or the network failed, so that another source of the same file may work.
    pub fn is_remote(&self) -> bool {
        !matches!(self, Self::DiskFull { .. } | Self::Store(_) | Self::Endpoint { .. })
    }
}

impl Hub {
    /// The hubs at these addresses, such as `https://huggingface.co` and `https://modelscope.cn`, with the token of the variable
    /// `HF_TOKEN` for the first if it is set. Does not connect yet.
    ///
    /// # Errors
    /// When an address is not a URL.
    pub fn new(endpoint: &str, modelscope: &str) -> Result<Self, HubError> {
        let (endpoint, modelscope) = (endpoint_uri(endpoint)?, endpoint_uri(modelscope)?);
        let agent = Agent::config_builder()
            .user_agent(concat!("verbatim/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(RESOLVE_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .build()
            .new_agent();
        let token = std::env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
        Ok(Self { agent, endpoint, modelscope, token })
    }

    /// The URL of a file.
    pub fn url(&self, file: &HubFile) -> String {
        self.site_url(file.repository.site, &file.url_path())
    }

    fn site_url(&self, site: Site, path: &str) -> String {
        let endpoint = match site {
            Site::HuggingFace => &self.endpoint,
            Site::ModelScope => &self.modelscope,
        };
        format!("{}/{path}", endpoint.to_string().trim_end_matches('/'))
    }

    /// Checks that the Hugging Face hub responds, for at most three seconds.
    ///
    /// # Errors
    /// [`HubError::Unreachable`].
    pub fn probe(&self) -> Result<(), HubError> {
        let request = self.agent.head(self.endpoint.clone()).config();
        let request = request.timeout_global(Some(PROBE_TIMEOUT)).build();
        request.call().map(drop).map_err(|error| unreachable(&self.endpoint, &error))
    }

    /// The files of a repository.
    ///
    /// # Errors
    /// When the hub does not respond with a list.
    pub fn list(&self, repository: &HubRepository) -> Result<Vec<RepositoryFile>, HubError> {
        let url = self.site_url(repository.site, &repository.list_path());
        let (response, _) = self.follow(&url, 0)?;
        check_status(&url, response.status())?;
        let invalid = |problem: String| HubError::InvalidResponse { url: url.clone(), problem };
        let body = response.into_body().into_with_config().limit(LIST_BYTES_MAX).read_to_vec();
        let body = body.map_err(|error| invalid(error.to_string()))?;
        let entries = match repository.site {
            Site::HuggingFace => serde_json::from_slice::<Vec<Entry>>(&body),
            Site::ModelScope => serde_json::from_slice(&body).map(|list: ModelScopeList| list.data.files),
        };
        let entries = entries.map_err(|error| invalid(format!("it is not a list of files: {error}")))?;
        Ok(entries.into_iter().filter_map(Entry::file).collect())
    }

    /// Downloads a file into `partial`, resuming an earlier download of the same version, and returns what the server
    /// reports. The caller verifies the bytes. If the server reports a SHA-256 other than `wanted`, nothing is downloaded.
    ///
    /// # Errors
    /// When the download is incomplete. What was received stays in `partial` for the next attempt.
    pub fn download(
        &self,
        url: &str,
        wanted: Option<&Sha256Hex>,
        partial: &Partial,
        progress: &ProgressBar,
    ) -> Result<Downloaded, HubError> {
        let (mut attempt, mut counted_bytes) = (1, 0);
        loop {
            match self.download_once(url, wanted, partial, progress) {
                Err(HubError::Interrupted { received_bytes, .. }) if attempt < ATTEMPTS_MAX => {
                    if received_bytes >= counted_bytes + PROGRESS_BYTES {
                        (attempt, counted_bytes) = (0, received_bytes);
                    }
                    attempt += 1;
                    std::thread::sleep(PAUSE_BETWEEN_ATTEMPTS * attempt);
                }
                // The connection was good enough for an earlier attempt.
                Err(HubError::Unreachable { .. }) if (2..ATTEMPTS_MAX).contains(&attempt) => {
                    attempt += 1;
                    std::thread::sleep(PAUSE_BETWEEN_ATTEMPTS * attempt);
                }
                outcome => return outcome,
            }
        }
    }

    fn download_once(
        &self,
        url: &str,
        wanted: Option<&Sha256Hex>,
        partial: &Partial,
        progress: &ProgressBar,
    ) -> Result<Downloaded, HubError> {
        let have = partial.read(url);
        let have_bytes = have.as_ref().map_or(0, |have| have.bytes);
        let mut response = self.request_from(url, have_bytes)?;
        if let (Some(wanted), Some(found)) = (wanted, &response.sha256)
            && wanted != found
        {
            let (wanted, found) = (wanted.clone(), found.clone());
            return Err(HubError::ChecksumMismatch { url: url.to_owned(), wanted, found });
        }
        if have.is_some_and(|have| response.start != have.bytes || response.version != Some(have.version)) {
            // A different version of the file, or a server without range requests: from the start.
            partial.clear()?;
            if response.start != 0 {
                response = self.request_from(url, 0)?;
            }
        }
        let mut file = partial.open(url, &response)?;
        progress.set_position(response.start);
        progress.reset_eta();
        if let Some(total_bytes) = response.total_bytes {
            progress.set_length(total_bytes);
        }
        let downloaded =
            Downloaded { sha256: response.sha256.take(), is_size_known: response.total_bytes.is_some() };
        receive(response, &mut file, partial, progress)?;
        Ok(downloaded)
    }

    /// Requests the bytes starting at `start`.
    fn request_from(&self, url: &str, start: u64) -> Result<RangeResponse, HubError> {
        let (response, linked) = self.follow(url, start)?;
        RangeResponse::new(url, response, linked, start)
    }

    /// The response at the end of the redirects, to a request for the bytes starting at `start`.
    fn follow(&self, url: &str, start: u64) -> Result<(Response<Body>, Linked), HubError> {
        let mut uri: Uri = url.parse().map_err(|_| HubError::Endpoint { endpoint: url.to_owned() })?;
        let mut linked = Linked::default();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.get(&uri, start)?;
            linked.note(response.headers());
            if !response.status().is_redirection() {
                return Ok((response, linked));
            }
            uri = redirect_target(url, &uri, response.headers())?;
        }
        Err(HubError::Redirect { url: url.to_owned(), problem: format!("more than {REDIRECTS_MAX} times") })
    }

    fn get(&self, uri: &Uri, start: u64) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(uri.clone());
        if start > 0 {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        let is_hub = uri.authority() == self.endpoint.authority() && uri.scheme() == self.endpoint.scheme();
        if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.call().map_err(|error| unreachable(uri, &error))
    }
}

fn endpoint_uri(endpoint: &str) -> Result<Uri, HubError> {
    let wrong = || HubError::Endpoint { endpoint: endpoint.to_owned() };
    let uri: Uri = endpoint.trim_end_matches('/').parse().map_err(|_| wrong())?;
    let is_web = matches!(uri.scheme_str(), Some("http" | "https"));
    if is_web && uri.authority().is_some() && uri.query().is_none() { Ok(uri) } else { Err(wrong()) }
}

fn unreachable(uri: &Uri, error: &ureq::Error) -> HubError {
    let host = uri.authority().map(ToString::to_string).unwrap_or_default();
    let reason = match error {
        ureq::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    };
    HubError::Unreachable { host, reason }
}

fn check_status(url: &str, status: StatusCode) -> Result<(), HubError> {
    let url = url.to_owned();
    match status {
        status if status.is_success() => Ok(()),
        StatusCode::NOT_FOUND => Err(HubError::NotFound { url }),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(HubError::AccessDenied { url, status: status.as_u16() })
        }
        status => Err(HubError::Status { url, status: status.as_u16() }),
    }
}

/// ModelScope's list of files.
#[derive(Deserialize)]
struct ModelScopeList {
    #[serde(rename = "Data")]
    data: ModelScopeFiles,
}

#[derive(Deserialize)]
struct ModelScopeFiles {
    #[serde(rename = "Files")]
    files: Vec<Entry>,
}

/// An entry of a list of files, of either site.
#[derive(Deserialize)]
struct Entry {
    #[serde(alias = "Type")]
    r#type: String,
    #[serde(alias = "Path")]
    path: String,
    #[serde(alias = "Size", default)]
    size: u64,
    #[serde(rename = "Sha256")]
    sha256: Option<String>,
    lfs: Option<Lfs>,
}

/// Where the hub keeps a large file.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Entry {
    /// `None` for a folder.
    fn file(self) -> Option<RepositoryFile> {
        if matches!(self.r#type.as_str(), "directory" | "tree") {
            return None;
        }
        let bytes = self.lfs.as_ref().map_or(self.size, |lfs| lfs.size);
        let sha256 = self.lfs.map(|lfs| lfs.oid).or(self.sha256).and_then(|hash| hash.parse().ok());
        Some(RepositoryFile { path: self.path, bytes, sha256 })
    }
}

/// Headers about the file from the responses along the redirects.
#[derive(Default)]
struct Linked {
    etag: Option<String>,
    bytes: Option<u64>,
}

impl Linked {
    fn note(&mut self, headers: &HeaderMap) {
        if self.etag.is_none() {
            self.etag = text(headers, "x-linked-etag").map(unquote);
            self.bytes = text(headers, "x-linked-size").and_then(|bytes| bytes.parse().ok());
        }
    }
}

/// The final response, with the bytes.
struct RangeResponse {
    /// Position in the file of the first byte.
    start: u64,
    /// Size of the whole file.
    total_bytes: Option<u64>,
    /// Identifies the version of the file (its ETag).
    version: Option<String>,
    sha256: Option<Sha256Hex>,
    /// `None` when there is nothing left to receive.
    body: Option<Body>,
}

impl RangeResponse {
    fn new(
        url: &str,
        response: Response<Body>,
        linked: Linked,
        requested_start: u64,
    ) -> Result<Self, HubError> {
        let url = url.to_owned();
        let headers = response.headers();
        let range = text(headers, "content-range").and_then(parse_content_range);
        let length = text(headers, "content-length").and_then(|length| length.parse::<u64>().ok());
        let version = linked.etag.clone().or_else(|| text(headers, "etag").map(unquote));
        let sha256 = linked.etag.and_then(|etag| etag.parse().ok());
        let (start, total_bytes, has_body) = match response.status() {
            StatusCode::OK => (0, length.or(linked.bytes), true),
            StatusCode::PARTIAL_CONTENT => match range {
                Some((Some(start), total)) if start == requested_start => {
                    (start, total.or(linked.bytes), true)
                }
                _ => {
                    return Err(HubError::InvalidResponse {
                        url,
                        problem: "it contains a different range of the file than requested".into(),
                    });
                }
            },
            // Requested the bytes after the last one: the file is complete. Otherwise ours is too long, and
            // `start` past its end reports that.
            StatusCode::RANGE_NOT_SATISFIABLE if requested_start > 0 => match range {
                Some((None, Some(total))) if total == requested_start => {
                    (requested_start, Some(total), false)
                }
                _ => (requested_start + 1, None, false),
            },
            status => {
                check_status(&url, status)?;
                return Err(HubError::Status { url, status: status.as_u16() });
            }
        };
        Ok(Self { start, total_bytes, version, sha256, body: has_body.then(|| response.into_body()) })
    }
}

/// Appends what arrives to the file.
fn receive(
    response: RangeResponse,
    file: &mut File,
    partial: &Partial,
    progress: &ProgressBar,
) -> Result<(), HubError> {
    let RangeResponse { start, total_bytes, body: Some(body), .. } = response else { return Ok(()) };
    let wanted = total_bytes.map_or(u64::MAX, |total| total.saturating_sub(start));
    let mut reader = body.into_with_config().limit(u64::MAX).reader().take(wanted);
    let mut received_bytes = start;
    let mut buffer = vec![0; 1 << 18];
    let broken = |received_bytes, reason| HubError::Interrupted { received_bytes, total_bytes, reason };
    loop {
        let count = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(received_bytes, error.to_string())),
        };
        file.write_all(&buffer[..count]).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                HubError::DiskFull { received_bytes, path: partial.path.clone() }
            }
            _ => io_error("write", &partial.path)(error).into(),
        })?;
        received_bytes += count as u64;
        progress.inc(count as u64);
    }
    match total_bytes {
        Some(total) if received_bytes < total => {
            Err(broken(received_bytes, "the connection was closed".into()))
        }
        _ => Ok(()),
    }
}

struct Have {
    bytes: u64,
    version: String,
}

impl Partial {
    /// The partial download of this URL, if any.
    fn read(&self, url: &str) -> Option<Have> {
        let record: PartialRecord = serde_json::from_slice(&fs::read(&self.record_path).ok()?).ok()?;
        let bytes = fs::metadata(&self.path).ok()?.len();
        (record.url == url && bytes > 0).then_some(Have { bytes, version: record.version })
    }

    /// Removes the partial download and its metadata.
    ///
    /// # Errors
    /// When a file exists and cannot be removed.
    pub fn clear(&self) -> Result<(), StoreError> {
        remove_if_present(&self.record_path)?;
        remove_if_present(&self.path)
    }

    /// Opens the file to receive the response: to resume, or from the start.
    fn open(&self, url: &str, response: &RangeResponse) -> Result<File, StoreError> {
        let mut options = File::options();
        options.create(true);
        if response.start > 0 {
            options.append(true)
        } else {
            options.write(true).truncate(true)
        };
        let file = options.open(&self.path).map_err(io_error("write", &self.path))?;
        match &response.version {
            Some(version) => {
                let (url, total_bytes) = (url.to_owned(), response.total_bytes);
                write_json(&self.record_path, &PartialRecord { url, version: version.clone(), total_bytes })?
            }
            // Without a version a later attempt cannot tell whether the rest belongs to the same file.
            None => remove_if_present(&self.record_path)?,
        }
        Ok(file)
    }
}

/// Where a redirect leads. Only to HTTP(S), and never from HTTPS to HTTP.
fn redirect_target(url: &str, from: &Uri, headers: &HeaderMap) -> Result<Uri, HubError> {
    let wrong = |problem: String| HubError::Redirect { url: url.to_owned(), problem };
    let location = text(headers, "location").ok_or_else(|| wrong("without a target".into()))?;
    let scheme = from.scheme_str().unwrap_or("https");
    let authority = from.authority().map(ToString::to_string).unwrap_or_default();
    let absolute = if location.contains("://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    let target: Uri = absolute.parse().map_err(|_| wrong(format!("to {location:?}, which is not a URL")))?;
    match (scheme, target.scheme_str()) {
        (_, Some("https")) | ("http", Some("http")) => Ok(target),
        _ => Err(wrong(format!("to {location:?}, which is not secure"))),
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The text of an ETag, without quotes and without the weak prefix.
fn unquote(etag: &str) -> String {
    etag.trim_start_matches("W/").trim_matches('"').to_owned()
}

/// `bytes 5-9/10` is (5, 10), `bytes */10` is (none, 10).
fn parse_content_range(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let start = range.split_once('-').and_then(|(start, _)| start.parse().ok());
    Some((start, total.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(parse_content_range("bytes 5-9/10"), Some((Some(5), Some(10))));
        assert_eq!(parse_content_range("bytes 5-9/*"), Some((Some(5), None)));
        assert_eq!(parse_content_range("bytes */10"), Some((None, Some(10))));
        assert_eq!(parse_content_range("lines 1-2/3"), None);
    }

    #[test]
    fn lists_of_both_sites_are_read() {
        let hash = "9465e63a22add5354d9bb4b99e90117043c7124007664907259bd16d043bb031";
        let json = format!(
            r#"[{{"type":"directory","oid":"1","size":0,"path":"d"}},
                {{"type":"file","oid":"2","size":5,"lfs":{{"oid":"{hash}","size":7,"pointerSize":9}},"path":"d/m.gguf"}},
                {{"type":"file","oid":"3","size":5,"path":"README.md"}}]"#
        );
        let files: Vec<RepositoryFile> =
            serde_json::from_str::<Vec<Entry>>(&json).unwrap().into_iter().filter_map(Entry::file).collect();
        assert_eq!(files.len(), 2);
        let large = RepositoryFile { path: "d/m.gguf".into(), bytes: 7, sha256: Some(hash.parse().unwrap()) };
        assert_eq!(files[0], large);
        assert_eq!((files[1].bytes, &files[1].sha256), (5, &None));
        let json = format!(
            r#"{{"Code":200,"Data":{{"Files":[{{"Type":"blob","Path":"d/m.gguf","Size":7,"Sha256":"{hash}"}}]}}}}"#
        );
        let list: ModelScopeList = serde_json::from_str(&json).unwrap();
        assert_eq!(list.data.files.into_iter().filter_map(Entry::file).collect::<Vec<_>>(), [large]);
    }

    #[test]
    fn redirects_are_resolved_and_never_become_insecure() {
        let target = |from: &str, location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("location", location.parse().unwrap());
            redirect_target("u", &from.parse().unwrap(), &headers).map(|uri| uri.to_string())
        };
        assert_eq!(target("https://a/b/c", "https://d/e?f=1").unwrap(), "https://d/e?f=1");
        assert_eq!(target("https://a/b/c", "//d/e").unwrap(), "https://d/e");
        assert_eq!(target("http://a:1/b/c", "/d").unwrap(), "http://a:1/d");
        assert_eq!(target("https://a/b/c", "d").unwrap(), "https://a/b/d");
        assert!(matches!(target("https://a/b", "http://a/b"), Err(HubError::Redirect { .. })));
        assert!(matches!(target("https://a/b", "file:///etc/passwd"), Err(HubError::Redirect { .. })));
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for wrong in ["", "hub", "ftp://hub", "https://", "file:///x", "https://hub?x=1"] {
            assert!(matches!(Hub::new(wrong, "http://a"), Err(HubError::Endpoint { .. })), "{wrong:?}");
            assert!(matches!(Hub::new("http://a", wrong), Err(HubError::Endpoint { .. })), "{wrong:?}");
        }
        assert!(Hub::new("http://127.0.0.1:8080/mirror/", "https://a").is_ok());
    }
}
