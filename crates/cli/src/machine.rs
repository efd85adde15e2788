//! What this machine has for a model: memory, and how fast it reads it.

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// Memory that programs can still take, in bytes: of the machine, or of the container that limits this process. `None` if the
/// system does not report it.
pub fn available_memory() -> Option<u64> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory).ok()?;
    let machine = Some(system.available_memory()).filter(|&bytes| bytes > 0)?;
    // A limit of the container that is larger than the machine is none.
    let container = system.cgroup_limits().map(|limits| limits.free_memory).filter(|&bytes| bytes > 0);
    Some(container.map_or(machine, |limit| limit.min(machine)))
}

/// Whether a model file of this size can be loaded into `available` bytes, with a short context and some room for everything else.
pub fn fits(file_bytes: u64, available: u64) -> bool {
    file_bytes.saturating_add(file_bytes / 8).saturating_add(ROOM_BYTES) <= available
}

/// For the KV cache of a short context and for temporary values.
const ROOM_BYTES: u64 = 256 << 20;

/// One thread per physical core that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(num_cpus::get_physical())
}

/// Bytes per second that all cores read from memory together, measured in a fraction of a second; `None` if little memory is
/// `available`.
pub fn read_bandwidth(available: Option<u64>) -> Option<f64> {
    /// Larger than most caches, and quick to fill.
    const BUFFER_BYTES: usize = 256 << 20;
    if available.is_some_and(|available| available < 4 * BUFFER_BYTES as u64) {
        return None;
    }
    verbatim_lab::bench::read_gb_per_s(cores(), BUFFER_BYTES).map(|gb_per_s| gb_per_s * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_needs_more_than_its_size() {
        assert!(fits(1 << 30, 2 << 30));
        assert!(!fits(1 << 30, 1 << 30));
        assert!(!fits(u64::MAX, u64::MAX - 1));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available_memory().is_none_or(|bytes| bytes > 1 << 20));
        assert!(cores() >= 1);
    }
}
