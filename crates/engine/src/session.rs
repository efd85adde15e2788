//! A session: a sequence that persists across requests, its token history, and its file.

use crate::error::EngineError;
use crate::{SaveError, SavedFile, SequenceId, StateError, Stepper};
use std::path::{Path, PathBuf};
use verbatim_backend::Backend;

/// The section of a session's file with the token history.
const HISTORY: &str = "history";
/// Section names that clients cannot use.
const RESERVED: [&str; 2] = [HISTORY, "target"];

/// The id of a session of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(pub(crate) u64);

/// Options of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// When the context is full, keep this many tokens (`n_keep`) and discard half of the rest; `None`: end the answer.
    pub shift_keep: Option<usize>,
    /// A file to restore from. If it does not exist, the session begins empty.
    pub file: Option<PathBuf>,
}

/// An open session.
#[derive(Debug)]
pub struct OpenedSession {
    /// Its id.
    pub id: SessionId,
    /// The restored content, if there was a file.
    pub restored: Option<RestoredSession>,
}

/// The content of a session's file.
#[derive(Debug)]
pub struct RestoredSession {
    /// Positions in the context.
    pub positions: usize,
    sections: SavedFile,
}

impl RestoredSession {
    /// A section that the client saved with the session.
    pub fn section(&self, name: &str) -> Option<&[u8]> {
        self.sections.section(name)
    }
}

/// Why a session was not opened, saved or closed. Nothing was modified.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The model's context cannot be shifted.
    #[error("the context of this model cannot be shifted: {0}")]
    Shift(StateError),
    /// A context shift could discard nothing.
    #[error("cannot keep {keep} tokens: this must be smaller than the context of {context} minus 1")]
    Keep {
        /// Tokens to keep.
        keep: usize,
        /// Size of the context.
        context: usize,
    },
    /// The file cannot be read, restored or written.
    #[error(transparent)]
    File(#[from] SaveError),
    /// The token history in the file does not match its sequence.
    #[error("{path}: the token history does not match the saved sequence")]
    History {
        /// The file.
        path: String,
    },
    /// The section name is reserved.
    #[error("the section name {0} is reserved")]
    Reserved(String),
    /// No sequence is free.
    #[error(transparent)]
    State(#[from] StateError),
    /// The session was never opened, or is closed.
    #[error("the session is not open")]
    NotOpen,
    /// A request still uses the session.
    #[error("a request still uses the session")]
    Busy,
    /// The engine has stopped.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A sequence that persists across requests.
#[derive(Debug)]
pub(crate) struct Session {
    sequence: SequenceId,
    /// The token history, including tokens discarded by context shifts.
    history: Vec<u32>,
    shift_keep: Option<usize>,
}

impl Session {
    /// An empty session without context shift.
    pub(crate) fn begin<B: Backend>(stepper: &mut Stepper<B>) -> Result<Session, StateError> {
        Ok(Session { sequence: stepper.begin()?, history: Vec::new(), shift_keep: None })
    }

    /// Opens a session with these options; also returns the restored content.
    pub(crate) fn open<B: Backend>(
        stepper: &mut Stepper<B>,
        options: &SessionOptions,
    ) -> Result<(Session, Option<RestoredSession>), SessionError> {
        if let Some(keep) = options.shift_keep {
            stepper.can_shift().map_err(SessionError::Shift)?;
            let context = stepper.context();
            if keep >= context.saturating_sub(1) {
                return Err(SessionError::Keep { keep, context });
            }
        }
        let (mut session, restored) = match options.file.as_deref().filter(|path| path.exists()) {
            None => (Session::begin(stepper)?, None),
            Some(path) => {
                Session::restore(stepper, path).map(|(session, restored)| (session, Some(restored)))?
            }
        };
        session.shift_keep = options.shift_keep;
        Ok((session, restored))
    }

    fn restore<B: Backend>(
        stepper: &mut Stepper<B>,
        path: &Path,
    ) -> Result<(Session, RestoredSession), SessionError> {
        let (restored, sections) = stepper.restore_file(path)?;
        let sequence = restored.sequence;
        let (tokens, rest) = sections.section(HISTORY).unwrap_or_default().as_chunks::<4>();
        let history: Vec<u32> = tokens.iter().map(|token| u32::from_le_bytes(*token)).collect();
        let fits = match stepper.removed_count(sequence)? {
            0 => stepper.tokens(sequence)? == history,
            removed => stepper.len(sequence)? + removed == history.len(),
        };
        if !fits || !rest.is_empty() {
            stepper.end(sequence)?;
            return Err(SessionError::History { path: path.display().to_string() });
        }
        let session = Session { sequence, history, shift_keep: None };
        Ok((session, RestoredSession { positions: restored.positions, sections }))
    }

    /// Atomically writes the session to a file, with the client's own sections.
    pub(crate) fn save<B: Backend>(
        &self,
        stepper: &Stepper<B>,
        path: &Path,
        sections: Vec<(String, Vec<u8>)>,
    ) -> Result<(), SessionError> {
        if let Some((name, _)) = sections.iter().find(|(name, _)| RESERVED.contains(&&**name)) {
            return Err(SessionError::Reserved(name.clone()));
        }
        let history = self.history.iter().flat_map(|token| token.to_le_bytes()).collect();
        let others = sections.iter().map(|(name, bytes)| (name.as_str(), bytes.clone()));
        Ok(stepper.save_file(
            self.sequence,
            [(HISTORY, history)].into_iter().chain(others).collect(),
            path,
        )?)
    }

    /// Ends the sequence.
    pub(crate) fn end<B: Backend>(self, stepper: &mut Stepper<B>) -> Result<(), StateError> {
        stepper.end(self.sequence)
    }

    /// Whether the context is shifted when it is full.
    pub(crate) fn shifts(&self) -> bool {
        self.shift_keep.is_some()
    }

    /// Number of free positions in the context.
    pub(crate) fn room<B: Backend>(&self, stepper: &Stepper<B>) -> Result<usize, StateError> {
        Ok(stepper.context() - stepper.len(self.sequence)?)
    }

    /// Truncates the session to the longest common prefix with the prompt, excluding the prompt's last token, which must be computed
    /// for its logits. Returns the length of the prefix. An empty session uses the prefix cache.
    pub(crate) fn resume_prefix<B: Backend>(
        &mut self,
        stepper: &mut Stepper<B>,
        prompt: &[u32],
    ) -> Result<usize, StateError> {
        let max = prompt.len() - 1;
        let common = self.history.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(max);
        match stepper.removed_count(self.sequence)? {
            0 if stepper.is_empty(self.sequence)? => self.resume_from(stepper, &prompt[..max])?,
            0 => match stepper.truncate(self.sequence, common) {
                Ok(()) => self.history.truncate(common),
                // The session cannot continue from there; the prefix cache may have an earlier point.
                Err(StateError::CannotTruncate { .. }) => {
                    stepper.end(self.sequence)?;
                    self.sequence = stepper.begin()?;
                    self.resume_from(stepper, &prompt[..max])?;
                }
                Err(error) => return Err(error),
            },
            _ if common == self.history.len() => {}
            // After a context shift, only truncation to 0 is possible.
            _ => {
                stepper.truncate(self.sequence, 0)?;
                self.history.clear();
            }
        }
        Ok(self.history.len())
    }

    /// Resumes the empty sequence from the prefix cache.
    fn resume_from<B: Backend>(
        &mut self,
        stepper: &mut Stepper<B>,
        tokens: &[u32],
    ) -> Result<(), StateError> {
        let cached = stepper.resume_prefix(self.sequence, tokens)?;
        self.history = tokens[..cached].to_vec();
        Ok(())
    }

    /// The sequence.
    pub(crate) fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// The token history, those in flight included.
    pub(crate) fn history(&self) -> &[u32] {
        &self.history
    }

    /// Allocates positions in flight for tokens; returns the first KV index.
    pub(crate) fn begin_step<B: Backend>(
        &mut self,
        stepper: &mut Stepper<B>,
        tokens: impl ExactSizeIterator<Item = u32>,
    ) -> Result<usize, StateError> {
        let start = stepper.append(self.sequence, tokens.len())?;
        self.history.extend(tokens);
        Ok(start)
    }

    /// Commits the first `count` tokens in flight, and rolls back the others.
    pub(crate) fn commit<B: Backend>(
        &mut self,
        stepper: &mut Stepper<B>,
        count: usize,
    ) -> Result<(), StateError> {
        let result = match count {
            0 => stepper.rollback(self.sequence),
            _ => stepper.commit(self.sequence, count),
        };
        // After an error too, the history is that of the committed tokens.
        let committed = stepper.len(self.sequence)? + stepper.removed_count(self.sequence)?;
        self.history.truncate(committed);
        result
    }

    /// Context shift: discards half of what comes after the kept tokens. Returns false if the session does not shift.
    pub(crate) fn shift<B: Backend>(&mut self, stepper: &mut Stepper<B>) -> Result<bool, StateError> {
        let Some(keep) = self.shift_keep else { return Ok(false) };
        let dropped = (stepper.len(self.sequence)? - keep).div_ceil(2);
        stepper.remove_and_shift(self.sequence, keep..keep + dropped)?;
        Ok(true)
    }
}
