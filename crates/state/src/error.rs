//! Why an operation on sequences is refused.

use verbatim_backend::PAGE_CELLS;

/// Why an operation on a sequence was refused. The state is as it was before.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum StateError {
    /// As many sequences as there can be are in use.
    #[error("all {0} sequences are in use; wait for one to end")]
    NoSequence(usize),
    /// The sequence would grow past the context.
    #[error(
        "{wanted} positions are more than the context of {context}; use a larger context or a shorter prompt"
    )]
    ContextFull {
        /// Positions that the sequence would have.
        wanted: usize,
        /// Positions that one may have.
        context: usize,
    },
    /// All pages are in use by other sequences.
    #[error(
        "{wanted} more pages of {PAGE_CELLS} positions are needed and {free} are free; wait for a sequence to end"
    )]
    NoPages {
        /// Pages needed.
        wanted: usize,
        /// Pages free, or evictable from the prefix cache.
        free: usize,
    },
    /// The sequence has ended or never was.
    #[error("sequence {0} does not exist")]
    NoSuchSequence(usize),
    /// More positions are to be in flight than a step has rows.
    #[error("{wanted} positions in flight are more than the {max} that one may have; commit first")]
    TooManyInFlight {
        /// Positions that would be in flight.
        wanted: usize,
        /// Positions that may be.
        max: usize,
    },
    /// A position in flight follows one that is not there.
    #[error(
        "the {index}-th position in flight cannot follow the {parent}-th: a parent comes before its children"
    )]
    Parent {
        /// The position, counted from 0 among those in flight.
        index: usize,
        /// The one that it is said to follow.
        parent: usize,
    },
    /// More positions are to be committed than are in flight.
    #[error("{wanted} positions are to be committed but {in_flight} are in flight")]
    NotInFlight {
        /// Positions to commit.
        wanted: usize,
        /// Positions in flight.
        in_flight: usize,
    },
    /// Positions are to be committed that do not follow each other.
    #[error(
        "the {index}-th position in flight does not follow the one before it in the path to be committed"
    )]
    NotAPath {
        /// The position, counted from 0 among those in flight.
        index: usize,
    },
    /// The state after the position to be kept has been overwritten by later ones.
    #[error(
        "of {in_flight} positions in flight of a recurrent model {wanted} cannot be kept; keep none, or more"
    )]
    NoCheckpoint {
        /// Positions to commit.
        wanted: usize,
        /// Positions in flight.
        in_flight: usize,
    },
    /// Positions are to be committed that were never computed.
    #[error("the {index}-th position in flight is to be committed but was not computed")]
    NotComputed {
        /// The position, counted from 0 among those in flight.
        index: usize,
    },
    /// The state after an earlier position is gone.
    #[error(
        "the sequence cannot go back from position {committed} to {wanted}: a {why}; begin a new one and compute again"
    )]
    CannotTruncate {
        /// Positions to keep.
        wanted: usize,
        /// Positions committed.
        committed: usize,
        /// What stands against it.
        why: &'static str,
    },
    /// Positions are in flight, and the operation wants none.
    #[error("{0} positions are in flight; commit or drop them first")]
    InFlight(usize),
    /// The sequence is not empty.
    #[error("only an empty sequence can take a prefix from the cache; this one has {0} positions")]
    NotEmpty(usize),
    /// Positions are to be removed that the sequence does not have.
    #[error("positions {start} to {end} cannot be removed from a sequence of {committed}")]
    NoSuchPositions {
        /// The first.
        start: usize,
        /// The first that stays.
        end: usize,
        /// Positions committed.
        committed: usize,
    },
    /// The model does not support a K-shift here.
    #[error("the context cannot be shifted: {0}")]
    CannotShift(&'static str),
    /// The cache metadata is inconsistent: a bug.
    #[error("the cache metadata is inconsistent: {0}; this is a bug, please report it")]
    Damaged(String),
}
