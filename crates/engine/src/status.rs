//! What an engine is doing, for people and monitoring.

use verbatim_plan::CacheStatistics;

/// The load of an engine between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStatus {
    /// Maximum number of sequences, each of which runs one request at a time.
    pub sequences: usize,
    /// Sequences in use: by requests, and by sessions that are open.
    pub used_sequences: usize,
    /// Requests that run.
    pub running: usize,
    /// Requests that wait for a sequence.
    pub waiting: usize,
    /// Positions of the sequences in use.
    pub used_positions: usize,
    /// Bytes in the prefix cache that no sequence uses.
    pub cached_bytes: usize,
    /// Programs that were compiled and reused.
    pub programs: CacheStatistics,
}
