//! One process at a time uses a session's file: of two, each would save over the answers of the other.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::store::{Sha256Hex, Store};

/// The right to a session's file, held until it is dropped (or the process ends).
#[derive(Debug)]
pub struct SessionLock {
    _file: File,
}

impl SessionLock {
    /// Takes the right to a session's file, which need not exist yet. It is kept as a lock in the store, since the file itself is
    /// replaced whenever it is saved. `None` where the store cannot be written.
    ///
    /// # Errors
    /// When another process has it.
    pub fn take(store: &Store, session: &Path) -> anyhow::Result<Option<SessionLock>> {
        let Some(file) = open(store, session) else { return Ok(None) };
        match file.try_lock() {
            Ok(()) => Ok(Some(SessionLock { _file: file })),
            Err(TryLockError::WouldBlock) => bail!(
                "--session {}: another process is using this session; end it, or use another file",
                session.display()
            ),
            // Some file systems know no locks.
            Err(TryLockError::Error(_)) => Ok(None),
        }
    }
}

fn open(store: &Store, session: &Path) -> Option<File> {
    let folder = store.home().join("locks");
    fs::create_dir_all(&folder).ok()?;
    let path = resolved(session);
    let hash = Sha256Hex::from_reader(path.as_os_str().as_encoded_bytes(), |_| ()).ok()?;
    let name = format!("session-{}.lock", &hash.to_string()[..32]);
    File::options().create(true).truncate(false).write(true).open(folder.join(name)).ok()
}

/// The path without links. The file may be missing.
fn resolved(session: &Path) -> PathBuf {
    let absolute = std::path::absolute(session).unwrap_or_else(|_| session.to_owned());
    if let Ok(path) = fs::canonicalize(&absolute) {
        return path;
    }
    match (absolute.parent().map(fs::canonicalize), absolute.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => absolute,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_has_a_session() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(Some(&home.path().join("store"))).unwrap();
        let session = home.path().join("talk");
        let lock = SessionLock::take(&store, &session).unwrap();
        assert!(lock.is_some());
        // The same file by another name.
        let again = home.path().join("store").join("..").join("talk");
        let error = SessionLock::take(&store, &again).unwrap_err().to_string();
        assert!(error.contains("another process is using this session"), "{error}");
        assert!(SessionLock::take(&store, &home.path().join("other")).unwrap().is_some());
        drop(lock);
        assert!(SessionLock::take(&store, &session).unwrap().is_some());
    }
}
