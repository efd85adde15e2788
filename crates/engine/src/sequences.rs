//! Operations on the stepper's sequences: transactions, prefix cache and files.

use crate::{
    ModelId, RestoreError, Restored, SavedFile, SavedFileError, SequenceExtension, SequenceId, StateError,
    Stepper,
};
use std::fs;
use std::io::{self, BufWriter};
use std::ops::Range;
use std::path::Path;
use verbatim_backend::Backend;

/// The section of a file with the sequence's state.
const TARGET: &str = "target";

/// Why a sequence was not saved or restored. Nothing was modified.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// The file cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// The error.
        error: io::Error,
    },
    /// The file is not a valid file of saved sequences.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: String,
        /// The error.
        error: SavedFileError,
    },
    /// The file has no section with this name.
    #[error("{path} has no `{section}` section")]
    NoSection {
        /// The file.
        path: String,
        /// The name.
        section: String,
    },
    /// The sequence cannot be restored here.
    #[error("{path}: {error}")]
    Restore {
        /// The file.
        path: String,
        /// The error.
        error: RestoreError,
    },
    /// The sequence does not exist.
    #[error(transparent)]
    State(#[from] StateError),
}

impl<B: Backend> Stepper<B> {
    /// A new, empty sequence.
    ///
    /// # Errors
    /// If all sequences are in use.
    pub fn begin(&mut self) -> Result<SequenceId, StateError> {
        self.memory.state.begin()
    }

    /// Resumes an empty sequence from the longest prefix of `tokens` in the prefix cache; returns its length. Leave out the last token
    /// if you need its logits: a prefix-cache hit has none.
    ///
    /// # Errors
    /// If the sequence is not empty.
    pub fn resume_prefix(&mut self, sequence: SequenceId, tokens: &[u32]) -> Result<usize, StateError> {
        self.memory.state.resume_prefix(sequence, tokens)
    }

    /// Ends a sequence. Its KV cache stays in the prefix cache as long as there is room.
    ///
    /// # Errors
    /// If it does not exist; or, when the last sequence ends, if the cache metadata is inconsistent (a bug).
    pub fn end(&mut self, sequence: SequenceId) -> Result<(), StateError> {
        self.memory.state.end(sequence)
    }

    /// Attaches an extension, which is notified of every change to the sequence's tokens.
    ///
    /// # Errors
    /// If the sequence does not exist.
    pub fn attach(
        &mut self,
        sequence: SequenceId,
        extension: Box<dyn SequenceExtension>,
    ) -> Result<(), StateError> {
        self.memory.state.attach(sequence, extension)
    }

    /// The extensions that were attached to a sequence.
    ///
    /// # Errors
    /// If the sequence does not exist.
    pub fn extensions(&self, sequence: SequenceId) -> Result<&[Box<dyn SequenceExtension>], StateError> {
        self.memory.state.extensions(sequence)
    }

    /// Number of committed positions of a sequence.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn len(&self, sequence: SequenceId) -> Result<usize, StateError> {
        self.memory.state.len(sequence)
    }

    /// Whether a sequence has no committed positions.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn is_empty(&self, sequence: SequenceId) -> Result<bool, StateError> {
        self.memory.state.is_empty(sequence)
    }

    /// The committed tokens of a sequence.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn tokens(&self, sequence: SequenceId) -> Result<&[u32], StateError> {
        self.memory.state.tokens(sequence)
    }

    /// Allocates a chain of `count` positions in flight; returns the first KV index.
    ///
    /// # Errors
    /// As for [`verbatim_state::State::append`], and if the machine's memory does not suffice ([`crate::LoadOptions::memory`]).
    pub fn append(&mut self, sequence: SequenceId, count: usize) -> Result<usize, StateError> {
        self.guard.take(self.memory.state.bytes_to_grow(sequence, count))?;
        self.memory.state.append(sequence, count).map(|kv_indices| kv_indices.start)
    }

    /// Allocates a tree of positions in flight; returns the first KV index. Parents are indices among the positions in flight;
    /// `None` is the last committed position.
    ///
    /// # Errors
    /// As for [`verbatim_state::State::append_tree`], and if the machine's memory does not suffice.
    pub fn append_tree(
        &mut self,
        sequence: SequenceId,
        parents: &[Option<usize>],
    ) -> Result<usize, StateError> {
        self.guard.take(self.memory.state.bytes_to_grow(sequence, parents.len()))?;
        self.memory.state.append_tree(sequence, parents).map(|kv_indices| kv_indices.start)
    }

    /// Commits the first `count` positions in flight and drops the others.
    ///
    /// # Errors
    /// As for [`verbatim_state::State::commit_path`].
    pub fn commit(&mut self, sequence: SequenceId, count: usize) -> Result<(), StateError> {
        self.memory.state.commit(sequence, count)
    }

    /// Commits a path of positions in flight, given by their indices among those in flight, and drops the others.
    ///
    /// # Errors
    /// As for [`verbatim_state::State::commit_path`].
    pub fn commit_path(&mut self, sequence: SequenceId, path: &[usize]) -> Result<(), StateError> {
        self.memory.state.commit_path(sequence, path)
    }

    /// Drops the positions in flight.
    ///
    /// # Errors
    /// If the sequence does not exist.
    pub fn rollback(&mut self, sequence: SequenceId) -> Result<(), StateError> {
        self.memory.state.rollback(sequence)
    }

    /// Whether the model has recurrent layers. Its sequences can only be truncated to 0, and a commit must be empty or drop fewer than
    /// [`crate::MAX_STATE_CHECKPOINTS`] positions in flight.
    pub fn is_recurrent(&self) -> bool {
        self.memory.state.is_recurrent()
    }

    /// Removes all positions of a sequence from `len` on.
    ///
    /// # Errors
    /// If the state needed to continue from there is gone ([`verbatim_state::State::truncate`]).
    pub fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), StateError> {
        self.memory.state.truncate(sequence, len)
    }

    /// A copy of a sequence; the two share memory until one of them writes to it.
    ///
    /// # Errors
    /// If no sequence is free, or positions are in flight.
    pub fn fork(&mut self, sequence: SequenceId) -> Result<SequenceId, StateError> {
        self.memory.state.fork(sequence)
    }

    /// Whether the model supports a context shift.
    ///
    /// # Errors
    /// Why not.
    pub fn can_shift(&self) -> Result<(), StateError> {
        self.memory.state.can_shift()
    }

    /// The last contiguous range of committed positions that a model has computed. All of them for the target.
    ///
    /// # Errors
    /// If the sequence does not exist.
    pub fn computed_range(&self, sequence: SequenceId, model: ModelId) -> Result<Range<usize>, StateError> {
        self.memory.state.computed_range(sequence, model)
    }

    /// Number of positions removed by [`Stepper::remove_and_shift`].
    ///
    /// # Errors
    /// If it does not exist.
    pub fn removed_count(&self, sequence: SequenceId) -> Result<usize, StateError> {
        self.memory.state.removed_count(sequence)
    }

    /// Context shift: removes positions from the middle of a sequence and moves those after them down. Returns the number of
    /// remaining positions.
    ///
    /// # Errors
    /// As for [`verbatim_state::State::remove_and_shift`].
    pub fn remove_and_shift(
        &mut self,
        sequence: SequenceId,
        positions: Range<usize>,
    ) -> Result<usize, StateError> {
        self.memory.state.remove_and_shift(sequence, positions)
    }

    /// Bytes in the prefix cache that no sequence uses.
    pub fn cached_bytes(&self) -> usize {
        self.memory.state.cached_bytes()
    }

    /// Clears the prefix cache.
    pub fn clear_cache(&mut self) {
        self.memory.state.clear_cache();
    }

    /// Whether the cache metadata is consistent.
    ///
    /// # Errors
    /// A description of the inconsistency.
    pub fn integrity(&self) -> Result<(), String> {
        self.memory.state.integrity()
    }

    /// A sequence's state as bytes, for a section of a [`SavedFile`] file.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn save(&self, sequence: SequenceId) -> Result<Vec<u8>, StateError> {
        self.memory.state.save(sequence)
    }

    /// A new sequence from the bytes of [`Stepper::save`], with the given extensions attached and loaded.
    ///
    /// # Errors
    /// If it was saved with a different model or configuration, is malformed, or there is no room.
    pub fn restore(
        &mut self,
        saved: &[u8],
        extensions: Vec<Box<dyn SequenceExtension>>,
    ) -> Result<Restored, RestoreError> {
        // Its cells are as many bytes in memory as they were saved in.
        self.guard.take(saved.len() as u64)?;
        self.memory.state.restore(saved, extensions)
    }

    /// Atomically writes a sequence to a file, with the caller's own sections.
    ///
    /// # Errors
    /// If the sequence does not exist or the file cannot be written.
    pub fn save_file(
        &self,
        sequence: SequenceId,
        others: Vec<(&str, Vec<u8>)>,
        path: &Path,
    ) -> Result<(), SaveError> {
        let mut saved = SavedFile::default();
        saved.add(TARGET, self.save(sequence)?);
        others.into_iter().for_each(|(name, bytes)| saved.add(name, bytes));
        let io = |error| SaveError::Io { path: path.display().to_string(), error };
        // Symlinks are followed. Written to a temporary file in the same folder, readable only by its owner, then renamed.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder =
            target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let write = || -> io::Result<()> {
            let mut file = BufWriter::new(tempfile::NamedTempFile::new_in(folder)?);
            saved.write(&mut file)?;
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.as_file().sync_all()?;
            file.persist(&target).map_err(|error| error.error).map(drop)
        };
        write().map_err(io)
    }

    /// A new sequence from a file that [`Stepper::save_file`] has written, and the file's sections.
    ///
    /// # Errors
    /// If the file cannot be read, is truncated or corrupt, or was saved with a different model or configuration.
    pub fn restore_file(&mut self, path: &Path) -> Result<(Restored, SavedFile), SaveError> {
        let name = path.display().to_string();
        let io = |error| SaveError::Io { path: name.clone(), error };
        // Reading a device or pipe may never end.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(io::Error::other("not a regular file")));
        }
        let bytes = fs::read(path).map_err(io)?;
        let saved = SavedFile::read(&bytes).map_err(|error| SaveError::File { path: name.clone(), error })?;
        let section = saved.section(TARGET);
        let section = section.ok_or(SaveError::NoSection { path: name.clone(), section: TARGET.into() })?;
        let restored = self.restore(section, Vec::new());
        let restored = restored.map_err(|error| SaveError::Restore { path: name, error })?;
        Ok((restored, saved))
    }
}
