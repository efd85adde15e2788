//! Memory for packed weights: zeroed, aligned to cache lines, and on huge pages where the system gives them.
#![allow(unsafe_code)] // `std` has no aligned, fallible, zeroed allocation in safe form.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

/// A chunk of packed codes is one cache line.
const ALIGN_BYTES: usize = 64;

/// From this size on, memory is aligned to huge pages: a matrix product reads all of it in one go, and small
/// pages cost it translation misses.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A fixed number of bytes, aligned to 64.
///
/// Aligned by hand within a larger allocation: the system's allocator takes zeroed pages as they are for small alignments
/// only, and writes every byte for larger ones. So pages become resident where the threads that pack first write to them, and
/// those beyond the bytes never do.
pub(super) struct AlignedBytes {
    allocated: NonNull<u8>,
    layout: Layout,
    start: NonNull<u8>,
    len: usize,
}

impl AlignedBytes {
    /// `bytes` zeros; `None` if there is no memory for them, or if there are none.
    pub(super) fn zeroed(bytes: usize) -> Option<AlignedBytes> {
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { ALIGN_BYTES };
        let layout = Layout::from_size_align(bytes.checked_add(align)?, 16).ok().filter(|_| bytes > 0)?;
        // SAFETY: the layout has a size above zero.
        let allocated = NonNull::new(unsafe { alloc::alloc_zeroed(layout) })?;
        // SAFETY: the layout has room for `align` bytes more than asked for.
        let start = unsafe { allocated.add(allocated.align_offset(align)) };
        if align == HUGE_PAGE_BYTES {
            advise_huge_pages(start, bytes);
        }
        Some(AlignedBytes { allocated, layout, start, len: bytes })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the bytes are allocated and initialised, and borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody can hold a borrow any more.
        unsafe { alloc::dealloc(self.allocated.as_ptr(), self.layout) }
    }
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the range is allocated, and the advice does not change what it holds. A refusal costs only
    // speed.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: NonNull<u8>, _bytes: usize) {}

// SAFETY: the bytes are owned, and shared access only reads.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}
