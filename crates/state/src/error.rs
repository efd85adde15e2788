//! Errors of operations on sequences.

use crate::MAX_STATE_CHECKPOINTS;
use verbatim_backend::PAGE_CELLS;

/// Why an operation on a sequence failed. Nothing was modified.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateError {
    /// All sequences are in use.
    #[error("all {0} sequences are in use; wait for one to end")]
    NoSequence(usize),
    /// The sequence would grow past the context.
    #[error("{wanted} positions exceed the context of {context}; use a larger context or a shorter prompt")]
    ContextFull {
        /// Positions requested in total.
        wanted: usize,
        /// Maximum number of positions.
        context: usize,
    },
    /// All pages are in use by other sequences.
    #[error(
        "{wanted} more pages of {PAGE_CELLS} positions are needed but only {free} are free; wait for a sequence to end"
    )]
    NoPages {
        /// Pages needed.
        wanted: usize,
        /// Pages free, or evictable from the prefix cache.
        free: usize,
    },
    /// The system's memory does not suffice for more pages. See [`State::bytes_to_grow`](crate::State::bytes_to_grow).
    #[error(
        "the KV cache needs {} more of memory, but the system has only {} left; end other sequences or programs, or use smaller KV \
         types",
        size_text(*.wanted_bytes), size_text(*.available_bytes)
    )]
    OutOfMemory {
        /// Bytes needed.
        wanted_bytes: u64,
        /// Bytes that are available.
        available_bytes: u64,
    },
    /// The sequence has ended or never existed.
    #[error("sequence {0} does not exist")]
    NoSuchSequence(usize),
    /// Too many positions would be in flight.
    #[error("{wanted} positions in flight exceed the maximum of {max}; commit first")]
    TooManyInFlight {
        /// Positions that would be in flight.
        wanted: usize,
        /// Maximum number of positions in flight.
        max: usize,
    },
    /// The parent of a position in flight does not come before it.
    #[error("position {index} in flight cannot have parent {parent}: a parent comes before its children")]
    Parent {
        /// Its index among the positions in flight.
        index: usize,
        /// The index of its parent.
        parent: usize,
    },
    /// More positions to commit than are in flight.
    #[error("cannot commit {wanted} positions: only {in_flight} are in flight")]
    NotInFlight {
        /// Positions to commit.
        wanted: usize,
        /// Positions in flight.
        in_flight: usize,
    },
    /// The positions to commit are not a path.
    #[error(
        "cannot commit the path: position {index} in flight is not a child of the position before it in the path"
    )]
    NotAPath {
        /// Its index among the positions in flight.
        index: usize,
    },
    /// The recurrent state after the last position to commit was overwritten by later positions.
    #[error(
        "cannot commit {wanted} of {in_flight} positions in flight: the recurrent state after them was overwritten; \
         roll back, or commit a path that leaves out fewer than {MAX_STATE_CHECKPOINTS} positions"
    )]
    NoCheckpoint {
        /// Positions to commit.
        wanted: usize,
        /// Positions in flight.
        in_flight: usize,
    },
    /// A position to commit was not computed.
    #[error("cannot commit position {index} in flight: it was not computed")]
    NotComputed {
        /// Its index among the positions in flight.
        index: usize,
    },
    /// The state needed to continue after `wanted` positions is gone.
    #[error(
        "cannot truncate the sequence from {committed} positions to {wanted}: {why}; begin a new sequence and recompute"
    )]
    CannotTruncate {
        /// Positions that would remain.
        wanted: usize,
        /// Positions committed.
        committed: usize,
        /// The reason.
        why: &'static str,
    },
    /// The operation requires that no positions are in flight.
    #[error("{0} positions are in flight; commit or roll back first")]
    InFlight(usize),
    /// The sequence is not empty.
    #[error("only an empty sequence can resume from the prefix cache; this one has {0} positions")]
    NotEmpty(usize),
    /// The positions to remove are out of range.
    #[error("cannot remove positions {start}..{end} from a sequence of {committed} positions")]
    NoSuchPositions {
        /// The first position to remove.
        start: usize,
        /// One past the last position to remove.
        end: usize,
        /// Positions committed.
        committed: usize,
    },
    /// The model does not support a K-shift here.
    #[error("the context cannot be shifted: {0}")]
    CannotShift(&'static str),
    /// The cache metadata is inconsistent: a bug.
    #[error("the cache metadata is inconsistent: {0}; this is a bug, please report it")]
    Inconsistent(String),
}

fn size_text(bytes: u64) -> String {
    match bytes {
        0..10_000_000_000 => format!("{} MB", bytes.div_ceil(1_000_000)),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
