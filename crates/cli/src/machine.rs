//! What this machine has for a model: memory, and how fast it reads it.

use sysinfo::{MemoryRefreshKind, RefreshKind, System};
use verbatim_engine::Memory;

/// Memory of the machine, or of the container that limits this process. `None` if the system does not report it.
pub fn memory() -> Option<Memory> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory).ok()?;
    let (mut total, mut available) = (system.total_memory(), system.available_memory());
    if let Some(limits) = system.cgroup_limits().filter(|limits| limits.total_memory > 0) {
        total = total.min(limits.total_memory);
        // The page cache counts as used by a container, but is given up for programs.
        available = available.min(limits.total_memory.saturating_sub(limits.rss));
    }
    (total > 0 && available > 0).then_some(Memory { total, available, allocatable: allocatable() })
}

/// Address space that this process may still allocate, in bytes (`ulimit -v`).
#[cfg(target_os = "linux")]
fn allocatable() -> u64 {
    let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::As).current else {
        return u64::MAX;
    };
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').next()?.parse::<u64>().ok()).unwrap_or(0);
    limit.saturating_sub(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// Address space that this process may still allocate, in bytes: not known here.
#[cfg(not(target_os = "linux"))]
fn allocatable() -> u64 {
    u64::MAX
}

/// Memory that programs can still take, in bytes. `None` if the system does not report it.
pub fn available_memory() -> Option<u64> {
    memory().map(|memory| memory.available.min(memory.allocatable))
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
        let memory = memory().expect("every system of the tests reports it");
        assert!(memory.available > 1 << 20 && memory.available <= memory.total, "{memory:?}");
        assert!(memory.allocatable > 1 << 20, "{memory:?}");
        assert!(cores() >= 1);
    }
}
