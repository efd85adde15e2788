//! Where a model comes from, as the user writes it: `hf:OWNER/REPO/FILE.gguf[@REVISION]`, `hf:OWNER/REPO[:QUANT]`, the same with
//! `ms:` for ModelScope, or a URL. Addresses of repositories and files on the two sites, as a browser shows them, are read as these.

use std::fmt;

use verbatim_gguf::split_file_name;

/// A site with model repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The Hugging Face hub, or a mirror of it.
    HuggingFace,
    /// ModelScope.
    ModelScope,
}

/// A repository of one of the sites, and what to take from it. Every part is safe to use in a URL path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRepository {
    /// The site.
    pub site: Site,
    /// `OWNER/REPO`.
    pub name: String,
    /// Branch, tag or commit; `None` is the main branch.
    pub revision: Option<String>,
}

/// One file of a repository, safe to use as a file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// The repository.
    pub repository: HubRepository,
    /// Path of the file inside the repository, with `/` between folders.
    pub path: String,
}

/// A model that is not on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remote {
    /// A file of a repository.
    File(HubFile),
    /// The best file of a repository, or the one with this quantisation type.
    Repository(HubRepository, Option<String>),
    /// A file at an `https://` or `http://` address.
    Url(String),
}

/// Why a source is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The text has none of the forms.
    #[error(
        "{text:?} is not a model on a hub: write hf:OWNER/REPO for the file that suits this machine, hf:OWNER/REPO:Q4_K_M or \
         hf:OWNER/REPO/FILE.gguf, each with @REVISION if it is not the main branch (ms: for ModelScope)"
    )]
    Form {
        /// What was given.
        text: String,
    },
    /// A part could lead out of the repository or the store.
    #[error("{text:?} is rejected: {part:?} is not a plain name of a folder, file or revision")]
    Part {
        /// What was given.
        text: String,
        /// The rejected part.
        part: String,
    },
    /// A URL of something else.
    #[error("{url:?} is not the address of a .gguf file")]
    Url {
        /// What was given.
        url: String,
    },
}

/// Addresses that mean a site, and its prefix.
const ADDRESSES: [(&str, &str); 7] = [
    ("https://huggingface.co/", "hf:"),
    ("https://hf.co/", "hf:"),
    ("huggingface.co/", "hf:"),
    ("hf.co/", "hf:"),
    ("https://modelscope.cn/models/", "ms:"),
    ("https://www.modelscope.cn/models/", "ms:"),
    ("modelscope.cn/", "ms:"),
];

impl Site {
    /// What sources of this site begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::HuggingFace => "hf:",
            Self::ModelScope => "ms:",
        }
    }

    /// The name of the main branch.
    pub fn main_branch(self) -> &'static str {
        match self {
            Self::HuggingFace => "main",
            Self::ModelScope => "master",
        }
    }
}

impl Remote {
    /// Reads a source; `None` if the text is none, but perhaps a name or a path.
    ///
    /// # Errors
    /// When it begins like one and is malformed.
    pub fn parse(text: &str) -> Option<Result<Remote, SourceError>> {
        let from_address = ADDRESSES.iter().find_map(|(address, prefix)| {
            text.strip_prefix(address).map(|rest| format!("{prefix}{}", without_browser_parts(rest)))
        });
        let source = from_address.as_deref().unwrap_or(text);
        let site = [Site::HuggingFace, Site::ModelScope]
            .into_iter()
            .find_map(|site| Some((site, source.strip_prefix(site.prefix())?)));
        match site {
            Some((site, rest)) => Some(parse_hub(site, rest, text)),
            None if text.starts_with("https://") || text.starts_with("http://") => Some(parse_url(text)),
            None => None,
        }
    }
}

/// `OWNER/REPO/resolve/REVISION/FILE?download=true`, or the same with `blob`, as `OWNER/REPO/FILE@REVISION`.
fn without_browser_parts(rest: &str) -> String {
    let rest = rest.split(['?', '#']).next().unwrap_or(rest).trim_end_matches('/');
    let parts: Vec<&str> = rest.split('/').collect();
    match parts.as_slice() {
        [owner, repository, "resolve" | "blob", revision, path @ ..] if !path.is_empty() => {
            let revision = if *revision == "main" { String::new() } else { format!("@{revision}") };
            format!("{owner}/{repository}/{}{revision}", path.join("/"))
        }
        [owner, repository, "tree", "main" | "master"] => format!("{owner}/{repository}"),
        _ => rest.to_owned(),
    }
}

fn parse_hub(site: Site, rest: &str, text: &str) -> Result<Remote, SourceError> {
    let form = || SourceError::Form { text: text.to_owned() };
    let (location, revision) = match rest.split_once('@') {
        Some((location, revision)) => (location, Some(revision)),
        None => (rest, None),
    };
    let mut parts: Vec<&str> = location.split('/').collect();
    let mut quant = None;
    if let [_, name] = parts.as_mut_slice()
        && let Some((repository, tag)) = name.split_once(':')
    {
        (*name, quant) = (repository, Some(tag));
    }
    let revision_parts = revision.iter().flat_map(|revision| revision.split('/'));
    let all_parts = parts.iter().copied().chain(quant).chain(revision_parts);
    if let Some(part) = all_parts.clone().find(|part| !is_plain(part)) {
        return Err(SourceError::Part { text: text.to_owned(), part: part.to_owned() });
    }
    let [owner, name, path @ ..] = parts.as_slice() else { return Err(form()) };
    let repository =
        HubRepository { site, name: format!("{owner}/{name}"), revision: revision.map(str::to_owned) };
    match path.last() {
        None => Ok(Remote::Repository(repository, quant.map(str::to_ascii_uppercase))),
        Some(file) if is_gguf_name(file) => Ok(Remote::File(HubFile { repository, path: path.join("/") })),
        Some(_) => Err(form()),
    }
}

fn parse_url(text: &str) -> Result<Remote, SourceError> {
    match is_gguf_name(file_name(text)) {
        true => Ok(Remote::Url(text.to_owned())),
        false => Err(SourceError::Url { url: text.to_owned() }),
    }
}

fn is_gguf_name(name: &str) -> bool {
    name.ends_with(".gguf") && name.len() > ".gguf".len()
}

/// The last part of a path or URL, without a query.
pub fn file_name(path: &str) -> &str {
    let path = path.split(['?', '#']).next().unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

/// What a model from this file is called in the store by default: its name without folders, part number and `.gguf`.
pub fn stem(path: &str) -> &str {
    let name = file_name(path);
    match SplitName::parse(name) {
        Some(split) => split.prefix,
        None => name.strip_suffix(".gguf").unwrap_or(name),
    }
}

/// The name of one file of a split model, such as `model-00001-of-00003.gguf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitName<'a> {
    /// What all parts begin with.
    pub prefix: &'a str,
    /// Number of this part, from 0.
    pub index: usize,
    /// Number of parts.
    pub count: usize,
}

impl<'a> SplitName<'a> {
    /// Reads a file name; `None` if it is not one of a split model.
    pub fn parse(name: &'a str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, count) = (number.parse::<u16>().ok()?, count.parse::<u16>().ok()?);
        let index = usize::from(number).checked_sub(1)?;
        let split = Self { prefix, index, count: count.into() };
        let is_written_so = index < split.count && split_file_name(prefix, index, split.count) == name;
        (is_written_so && split.count > 1 && !prefix.is_empty()).then_some(split)
    }
}

/// The paths or URLs of all files of the model that this one is a part of.
pub fn all_parts(path: &str) -> Vec<String> {
    let name = file_name(path);
    let Some(SplitName { prefix, count, .. }) = SplitName::parse(name) else { return vec![path.to_owned()] };
    let start = path.split(['?', '#']).next().unwrap_or(path).len() - name.len();
    let (folder, query) = (&path[..start], &path[start + name.len()..]);
    (0..count).map(|index| format!("{folder}{}{query}", split_file_name(prefix, index, count))).collect()
}

impl HubRepository {
    /// The revision to ask for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or(self.site.main_branch())
    }

    /// A file of it.
    pub fn file(&self, path: impl Into<String>) -> HubFile {
        HubFile { repository: self.clone(), path: path.into() }
    }

    /// The path below the site's address of the list of files, as JSON.
    pub fn list_path(&self) -> String {
        let (name, revision) = (percent_encode(&self.name, b"/"), percent_encode(self.revision(), b""));
        match self.site {
            Site::HuggingFace => format!("api/models/{name}/tree/{revision}?recursive=true"),
            Site::ModelScope => format!("api/v1/models/{name}/repo/files?Revision={revision}&Recursive=true"),
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
        write!(f, "{}{}{what}", self.site.prefix(), self.name)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))
    }
}

impl HubFile {
    /// The path below the site's address from which the file is downloaded.
    pub fn url_path(&self) -> String {
        // A revision such as refs/pr/1 is one part of the URL, so its slashes are escaped as well.
        let (name, revision) =
            (percent_encode(&self.repository.name, b"/"), percent_encode(self.repository.revision(), b""));
        let path = percent_encode(&self.path, b"/");
        match self.repository.site {
            Site::HuggingFace => format!("{name}/resolve/{revision}/{path}"),
            Site::ModelScope => format!("models/{name}/resolve/{revision}/{path}"),
        }
    }
}

impl std::str::FromStr for HubFile {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        match Remote::parse(text) {
            Some(Ok(Remote::File(file))) => Ok(file),
            Some(Err(error)) => Err(error),
            _ => Err(SourceError::Form { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for HubRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "")
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repository.write(f, &format!("/{}", self.path))
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => file.fmt(f),
            Self::Repository(repository, None) => repository.fmt(f),
            Self::Repository(repository, Some(quant)) => repository.write(f, &format!(":{quant}")),
            Self::Url(url) => f.write_str(url),
        }
    }
}

fn is_plain(part: &str) -> bool {
    !part.is_empty()
        && part != "."
        && part != ".."
        && !part.contains(['\\', ':', '?', '#'])
        && !part.chars().any(char::is_control)
}

/// Escapes everything but unreserved characters (RFC 3986, section 2.3) and those in `keep`.
fn percent_encode(text: &str, keep: &[u8]) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> HubFile {
        text.parse().unwrap()
    }

    fn parsed(text: &str) -> String {
        Remote::parse(text).unwrap().unwrap().to_string()
    }

    #[test]
    fn a_file_of_a_repository_is_read() {
        let file = file("hf:owner/repo/sub folder/Model-Q4_1.gguf@refs/pr/1");
        assert_eq!(file.repository.name, "owner/repo");
        assert_eq!(file.path, "sub folder/Model-Q4_1.gguf");
        assert_eq!(file.repository.revision.as_deref(), Some("refs/pr/1"));
        assert_eq!(stem(&file.path), "Model-Q4_1");
        assert_eq!(file.url_path(), "owner/repo/resolve/refs%2Fpr%2F1/sub%20folder/Model-Q4_1.gguf");
        assert_eq!(file.to_string(), "hf:owner/repo/sub folder/Model-Q4_1.gguf@refs/pr/1");
    }

    #[test]
    fn the_main_branch_is_the_default() {
        assert_eq!(file("hf:o/r/m.gguf").url_path(), "o/r/resolve/main/m.gguf");
        assert_eq!(file("ms:o/r/m.gguf").url_path(), "models/o/r/resolve/master/m.gguf");
        assert_eq!(file("hf:o/r/m.gguf").to_string(), "hf:o/r/m.gguf");
    }

    #[test]
    fn a_repository_is_read_with_its_quant_and_revision() {
        let Some(Ok(Remote::Repository(repository, quant))) = Remote::parse("hf:o/r:q4_k_m@v1") else {
            panic!("not a repository")
        };
        assert_eq!((repository.name.as_str(), quant.as_deref()), ("o/r", Some("Q4_K_M")));
        assert_eq!(repository.list_path(), "api/models/o/r/tree/v1?recursive=true");
        assert_eq!(parsed("hf:o/r:q4_k_m@v1"), "hf:o/r:Q4_K_M@v1");
        assert_eq!(parsed("ms:o/r"), "ms:o/r");
    }

    #[test]
    fn addresses_of_the_sites_are_sources() {
        for (address, source) in [
            ("https://huggingface.co/o/r", "hf:o/r"),
            ("https://huggingface.co/o/r/tree/main", "hf:o/r"),
            ("hf.co/o/r:Q4_K_M", "hf:o/r:Q4_K_M"),
            ("https://huggingface.co/o/r/blob/main/a/m.gguf", "hf:o/r/a/m.gguf"),
            ("https://huggingface.co/o/r/resolve/main/m.gguf?download=true", "hf:o/r/m.gguf"),
            ("https://huggingface.co/o/r/resolve/v1/m.gguf", "hf:o/r/m.gguf@v1"),
            ("https://modelscope.cn/models/o/r/resolve/master/m.gguf", "ms:o/r/m.gguf@master"),
            ("https://example.org/m.gguf?x=1", "https://example.org/m.gguf?x=1"),
        ] {
            assert_eq!(parsed(address), source);
        }
        assert!(matches!(Remote::parse("https://example.org/m.zip"), Some(Err(SourceError::Url { .. }))));
        assert!(Remote::parse("qwen3:0.6b").is_none());
        assert!(Remote::parse("./m.gguf").is_none());
    }

    #[test]
    fn other_forms_are_rejected() {
        for text in ["hf:m.gguf", "hf:o/r/m.bin", "hf:o/r/.gguf", "hf:o"] {
            assert!(matches!(text.parse::<HubFile>(), Err(SourceError::Form { .. })), "{text}");
        }
        assert!(matches!("o/r/m.gguf".parse::<HubFile>(), Err(SourceError::Form { .. })));
        assert!(matches!("hf:o/r".parse::<HubFile>(), Err(SourceError::Form { .. })));
    }

    #[test]
    fn path_traversal_is_rejected() {
        for text in [
            "hf:../r/m.gguf",
            "hf:o/../x/m.gguf",
            "hf:o/r/../../m.gguf",
            "hf:o/r//m.gguf",
            "hf:o/r/m.gguf@",
            "hf:o/r/m.gguf@../x",
            "hf:o/r/a\\b.gguf",
            "hf:o/r/a\nb.gguf",
            "hf:/r/m.gguf",
            "hf:o/r:",
            "hf:o/..:Q4_0",
            "hf:",
        ] {
            assert!(matches!(text.parse::<HubFile>(), Err(SourceError::Part { .. })), "{text}");
        }
    }

    #[test]
    fn parts_of_split_models_are_found() {
        let split = SplitName::parse("a-b-00002-of-00003.gguf").unwrap();
        assert_eq!((split.prefix, split.index, split.count), ("a-b", 1, 3));
        for name in [
            "a.gguf",
            "a-00001-of-00001.gguf",
            "a-00004-of-00003.gguf",
            "a-1-of-3.gguf",
            "-00001-of-00002.gguf",
        ] {
            assert_eq!(SplitName::parse(name), None, "{name}");
        }
        assert_eq!(
            all_parts("https://x/y/a-00002-of-00002.gguf?z=1"),
            ["https://x/y/a-00001-of-00002.gguf?z=1", "https://x/y/a-00002-of-00002.gguf?z=1"]
        );
        assert_eq!(all_parts("d/a.gguf"), ["d/a.gguf"]);
        assert_eq!(stem("Q4/a-00002-of-00002.gguf"), "a");
    }
}
