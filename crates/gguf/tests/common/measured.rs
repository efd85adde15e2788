//! How much memory something takes: an allocator that counts. Tests of other crates include it too.

// A global allocator is unsafe to implement.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Runs something; returns its result and the most bytes that it had allocated at any time.
pub fn measured<T>(run: impl FnOnce() -> T) -> (T, isize) {
    let before = ALLOCATED_BYTES.get();
    PEAK_BYTES.set(before);
    let result = run();
    (result, PEAK_BYTES.get() - before)
}

/// The system's allocator, counting what the current thread has allocated now and at most.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static ALLOCATED_BYTES: Cell<isize> = const { Cell::new(0) };
    static PEAK_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + change);
    PEAK_BYTES.set(PEAK_BYTES.get().max(ALLOCATED_BYTES.get()));
}

// SAFETY: every call is passed on unchanged; counting touches only thread-local cells that need no
// allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both blocks may exist at once while the system moves one.
        count(new_size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
