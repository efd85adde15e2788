//! Where a model comes from, as the user writes it: `hf:OWNER/REPO/FILE.gguf[@REVISION]`.

use std::fmt;
use std::str::FromStr;

/// One file of a repository on a model hub. Every part is safe to use in a URL path and as a file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// `OWNER/REPO`.
    pub repository: String,
    /// Path of the file inside the repository, with `/` between folders.
    pub path: String,
    /// Branch, tag or commit; `None` is the main branch.
    pub revision: Option<String>,
}

/// Why a source is rejected.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The text is not in the format of a hub file.
    #[error(
        "{text:?} is not a file on a hub: write hf:OWNER/REPO/FILE.gguf or hf:OWNER/REPO/FILE.gguf@REVISION"
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
}

impl HubFile {
    /// What a hub file begins with.
    pub const SCHEME: &str = "hf:";

    /// The path below the hub's address from which the file is downloaded.
    pub fn url_path(&self) -> String {
        let revision = self.revision.as_deref().unwrap_or("main");
        // A revision such as refs/pr/1 is one part of the URL, so its slashes are escaped as well.
        format!(
            "{}/resolve/{}/{}",
            percent_encode(&self.repository, b"/"),
            percent_encode(revision, b""),
            percent_encode(&self.path, b"/")
        )
    }

    /// The file's name without folders and without `.gguf`: what the model is called in the store by default.
    pub fn stem(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.strip_suffix(".gguf").unwrap_or(name)
    }
}

impl FromStr for HubFile {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let form = || SourceError::Form { text: text.to_owned() };
        let rest = text.strip_prefix(Self::SCHEME).ok_or_else(form)?;
        let (location, revision) = match rest.split_once('@') {
            Some((location, revision)) => (location, Some(revision)),
            None => (rest, None),
        };
        let parts: Vec<&str> = location.split('/').collect();
        let [owner, repository, path @ ..] = parts.as_slice() else { return Err(form()) };
        if !path.last().is_some_and(|file| file.ends_with(".gguf") && file.len() > ".gguf".len()) {
            return Err(form());
        }
        let revision_parts = revision.iter().flat_map(|revision| revision.split('/'));
        if let Some(part) = parts.iter().copied().chain(revision_parts).find(|part| !is_plain(part)) {
            return Err(SourceError::Part { text: text.to_owned(), part: part.to_owned() });
        }
        Ok(Self {
            repository: format!("{owner}/{repository}"),
            path: path.join("/"),
            revision: revision.map(str::to_owned),
        })
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/{}", Self::SCHEME, self.repository, self.path)?;
        match &self.revision {
            Some(revision) => write!(f, "@{revision}"),
            None => Ok(()),
        }
    }
}

fn is_plain(part: &str) -> bool {
    !part.is_empty()
        && part != "."
        && part != ".."
        && !part.contains(['\\', ':'])
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

    #[test]
    fn the_documented_form_is_read() {
        let file: HubFile = "hf:owner/repo/sub folder/Model-Q4_1.gguf@refs/pr/1".parse().unwrap();
        assert_eq!(file.repository, "owner/repo");
        assert_eq!(file.path, "sub folder/Model-Q4_1.gguf");
        assert_eq!(file.revision.as_deref(), Some("refs/pr/1"));
        assert_eq!(file.stem(), "Model-Q4_1");
        assert_eq!(file.url_path(), "owner/repo/resolve/refs%2Fpr%2F1/sub%20folder/Model-Q4_1.gguf");
        assert_eq!(file.to_string(), "hf:owner/repo/sub folder/Model-Q4_1.gguf@refs/pr/1");
    }

    #[test]
    fn the_main_branch_is_the_default() {
        let file: HubFile = "hf:o/r/m.gguf".parse().unwrap();
        assert_eq!(file.url_path(), "o/r/resolve/main/m.gguf");
        assert_eq!(file.to_string(), "hf:o/r/m.gguf");
    }

    #[test]
    fn other_forms_are_rejected() {
        for text in
            ["o/r/m.gguf", "hf:", "hf:m.gguf", "hf:o/m.gguf", "hf:o/r/m.bin", "hf:o/r/.gguf", "hf:o/r"]
        {
            assert!(matches!(text.parse::<HubFile>(), Err(SourceError::Form { .. })), "{text}");
        }
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
        ] {
            assert!(matches!(text.parse::<HubFile>(), Err(SourceError::Part { .. })), "{text}");
        }
    }
}
