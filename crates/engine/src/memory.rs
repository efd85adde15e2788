//! Memory of the machine: what a context is chosen by, and what keeps a growing KV cache from taking more than there is.
//!
//! The KV cache of the whole context is allocated when a model is loaded, but the system provides its memory only as pages are
//! first written. It promises more than it has: what does not fit is noticed when it is used, and then the system ends some
//! process. So fresh pages are counted before they are used, and the machine is asked now and then.

use verbatim_state::StateError;

/// Memory of the machine, or of the container that limits this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that there are.
    pub total: u64,
    /// Bytes that programs can still take.
    pub available: u64,
    /// Bytes that this process may still allocate, whether they are used or not; `u64::MAX` if that is not limited.
    pub allocatable: u64,
}

/// Reports the memory at the moment; `None` if the system does not.
pub type MemoryProbe = fn() -> Option<Memory>;

/// Fresh memory that may be taken before the machine is asked again.
const GRANT_BYTES: u64 = 64 << 20;

/// What is left to other programs and to everything else in this one: this, or a 64th of all memory if that is more.
const RESERVE_BYTES: u64 = 64 << 20;

/// Permits memory to be taken as long as the machine has it.
#[derive(Debug)]
pub(crate) struct MemoryGuard {
    probe: Option<MemoryProbe>,
    /// Bytes that may be taken without asking.
    granted: u64,
}

impl MemoryGuard {
    /// Without a probe, everything is permitted.
    pub(crate) fn new(probe: Option<MemoryProbe>) -> MemoryGuard {
        MemoryGuard { probe, granted: 0 }
    }

    /// Permits this much fresh memory to be used, or fails with [`StateError::OutOfMemory`].
    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), StateError> {
        if bytes > self.granted
            && let Some(Memory { total, available, .. }) = self.probe.and_then(|probe| probe())
        {
            let available_bytes = available.saturating_sub(RESERVE_BYTES.max(total / 64));
            if bytes > available_bytes {
                return Err(StateError::OutOfMemory { wanted_bytes: bytes, available_bytes });
            }
            self.granted = bytes.saturating_add(GRANT_BYTES).min(available_bytes);
        }
        self.granted = self.granted.saturating_sub(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_machine_is_asked_now_and_then() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let probe = || {
            let asked = ASKED.fetch_add(1, Ordering::Relaxed) as u64;
            // 300 MiB above the reserve of 64 MiB, then 20, then nothing.
            let available = [364 * MIB, 84 * MIB, 60 * MIB][asked.min(2) as usize];
            Some(Memory { total: 1 << 30, available, allocatable: u64::MAX })
        };
        let mut guard = MemoryGuard::new(Some(probe));
        let mut take = |bytes| (guard.take(bytes), ASKED.load(Ordering::Relaxed));
        assert_eq!(take(0), (Ok(()), 0));
        assert_eq!(take(100 * MIB), (Ok(()), 1));
        assert_eq!(take(64 * MIB), (Ok(()), 1));
        assert_eq!(take(MIB), (Ok(()), 2));
        assert_eq!(take(19 * MIB), (Ok(()), 2));
        let error = StateError::OutOfMemory { wanted_bytes: MIB, available_bytes: 0 };
        assert_eq!(take(MIB), (Err(error), 3));
        let nothing = || None;
        assert_eq!(MemoryGuard::new(Some(nothing)).take(u64::MAX), Ok(()));
        assert_eq!(MemoryGuard::new(None).take(u64::MAX), Ok(()));
    }
}
