//! A steady decode step allocates nothing, but for a few words where a page has become full. Alone in its file, because it counts the allocations of the whole process.

mod common;

use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use verbatim_engine::{LoadOptions, PAGE_CELLS, Sampler};

/// Counts allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_steady_decode_step_allocates_nothing() {
    for model in &tiny_models() {
        let mut engine = engine(model, LoadOptions::default());
        let sequence = engine.begin().expect("free");
        let sampler = Sampler::new(0.8, 1).expect("valid");
        let mut token = 1;
        let mut most = 0;
        for step in 0..150 {
            if step == 75 {
                // Recording allocates nothing but its room at the beginning.
                engine.set_profiling(true);
            }
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            token =
                engine.advance(sequence, &[token], &sampler, || true).expect("fits").expect("not stopped");
            let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
            // The first step builds its plan. A page that is full is put into the prefix tree, for others to find.
            let fills_page = (step + 1) % PAGE_CELLS == 0;
            if step > 0 && !fills_page {
                most = most.max(allocated);
            }
            assert!(!fills_page || allocated < 16, "{model}: {allocated} allocations for a page");
        }
        assert_eq!(most, 0, "{model}");
    }
}
