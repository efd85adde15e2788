//! Which slots answer what, for those who watch.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The slots of a server: as many as requests run at once.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    entries: Mutex<Vec<Option<Arc<Progress>>>>,
    tasks: AtomicU64,
}

/// A request that runs.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Number of the request since the server started.
    pub(crate) task: u64,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) generated_tokens: AtomicUsize,
}

/// A slot in use, until it is given to [`Slots::free`].
#[derive(Debug)]
pub(crate) struct SlotGuard {
    pub(crate) progress: Arc<Progress>,
    pub(crate) index: Option<usize>,
}

impl Slots {
    pub(crate) fn set_count(&self, count: usize) {
        self.entries().resize_with(count, || None);
    }

    /// Takes the first free slot for a request that has started.
    pub(crate) fn take(&self, prompt_tokens: usize, cached_tokens: usize) -> SlotGuard {
        let task = self.tasks.fetch_add(1, Ordering::Relaxed);
        let progress =
            Arc::new(Progress { task, prompt_tokens, cached_tokens, generated_tokens: AtomicUsize::new(0) });
        let mut entries = self.entries();
        // A request whose last events are still being read no longer has a slot in the engine: none may be free here.
        let index = entries.iter().position(Option::is_none);
        if let Some(index) = index {
            entries[index] = Some(Arc::clone(&progress));
        }
        SlotGuard { progress, index }
    }

    pub(crate) fn free(&self, guard: &SlotGuard) {
        if let Some(index) = guard.index {
            self.entries()[index] = None;
        }
    }

    /// What each slot does.
    pub(crate) fn list(&self) -> Vec<Option<Arc<Progress>>> {
        self.entries().clone()
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Option<Arc<Progress>>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_free_slot_is_taken() {
        let slots = Slots::default();
        slots.set_count(2);
        let (first, second, third) = (slots.take(1, 0), slots.take(2, 0), slots.take(3, 0));
        assert_eq!((first.index, second.index, third.index), (Some(0), Some(1), None));
        slots.free(&third);
        slots.free(&first);
        assert_eq!(slots.take(4, 0).index, Some(0));
        let tasks: Vec<_> = slots.list().into_iter().flatten().map(|progress| progress.task).collect();
        assert_eq!(tasks, [3, 1]);
    }
}
