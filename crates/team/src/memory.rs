//! Aligned memory that several threads write concurrently: the only place where slices of elements are made from bytes.
#![allow(unsafe_code)] // Allocation, and shared writes that the plan's phases keep apart.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every allocation: the size of a cache line and of the widest vector.
const ALIGNMENT: usize = 64;

/// The size of a huge page, and the minimum size for which they are requested.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed bytes at a 64-byte boundary.
///
/// Threads write through a shared reference. That is sound because of the memory plan: within a phase each byte has at most
/// one writer, and no other thread reads it; a barrier separates phases. Every [`Pod`] type is
/// valid for all bit patterns.
pub struct AlignedBytes {
    allocated: NonNull<u8>,
    layout: Layout,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are owned, and concurrent access is restricted as documented for the type.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

/// Plain old data: element types that memory may be reinterpreted as.
///
/// # Safety
/// All bit patterns must be valid, and the type must have no padding.
pub unsafe trait Pod: Copy {}
// SAFETY: a primitive without padding, valid for all bit patterns.
unsafe impl Pod for u8 {}
// SAFETY: a primitive without padding, valid for all bit patterns.
unsafe impl Pod for u16 {}
// SAFETY: a primitive without padding, valid for all bit patterns.
unsafe impl Pod for u32 {}
// SAFETY: a primitive without padding, valid for all bit patterns.
unsafe impl Pod for i32 {}
// SAFETY: a primitive without padding, valid for all bit patterns.
unsafe impl Pod for f32 {}

impl AlignedBytes {
    /// Zeroed memory of `len` bytes; `None` if the allocation fails.
    pub fn zeroed(len: usize) -> Option<AlignedBytes> {
        AlignedBytes::aligned(len, ALIGNMENT)
    }

    /// [`zeroed`](Self::zeroed), on huge pages if the system provides them. For memory that is read sequentially, like a matrix:
    /// with small pages that costs TLB misses. Memory that fills up gradually, like a KV cache, would use more RAM with them.
    pub fn zeroed_on_huge_pages(len: usize) -> Option<AlignedBytes> {
        if len < HUGE_PAGE_BYTES {
            return AlignedBytes::zeroed(len);
        }
        let bytes = AlignedBytes::aligned(len, HUGE_PAGE_BYTES)?;
        advise_huge_pages(bytes.start, len);
        Some(bytes)
    }

    /// Aligned by hand within a larger allocation: the system's allocator uses fresh zeroed pages for small alignments only, and
    /// writes every byte for larger ones. This way pages become resident when a thread first writes to them, and those beyond
    /// `len` never do.
    fn aligned(len: usize, alignment: usize) -> Option<AlignedBytes> {
        let layout = Layout::from_size_align(len.checked_add(alignment)?, 16).ok()?;
        // SAFETY: the layout is not empty.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skipped = allocated.align_offset(alignment);
        // SAFETY: the layout has room for `alignment` bytes more than `len`.
        let start = unsafe { allocated.add(skipped) };
        Some(AlignedBytes { allocated, layout, start, len })
    }

    /// Where the bytes start.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All bytes, borrowed exclusively.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: all of the allocation, initialised by `alloc_zeroed`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Elements `start..start + count`, for reading. Every writer has guaranteed that no other thread reads what it writes.
    #[inline]
    pub fn slice<T: Pod>(&self, start: usize, count: usize) -> &[T] {
        self.check::<T>(start, count);
        // SAFETY: in bounds, aligned (see `check`), initialised by `alloc_zeroed`, and not written meanwhile.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<T>().add(start), count) }
    }

    /// Writes one element.
    ///
    /// # Safety
    /// No other thread may read or write it during the call.
    #[inline]
    pub unsafe fn put<T: Pod>(&self, index: usize, value: T) {
        self.check::<T>(index, 1);
        // SAFETY: in bounds and aligned (see `check`); the caller guarantees exclusive access.
        unsafe { self.start.as_ptr().cast::<T>().add(index).write(value) }
    }

    /// Writes elements, starting at element `start`.
    ///
    /// # Safety
    /// No other thread may read or write them during the call.
    #[inline]
    pub unsafe fn put_all<T: Pod>(&self, start: usize, values: &[T]) {
        self.check::<T>(start, values.len());
        // SAFETY: in bounds and aligned (see `check`); the caller guarantees exclusive access, so `values` does not
        // overlap them.
        unsafe {
            let to = self.start.as_ptr().cast::<T>().add(start);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
        }
    }

    /// `count` elements at the byte offset `offset`, for reading.
    #[inline]
    pub fn slice_at<T: Pod>(&self, offset: usize, count: usize) -> &[T] {
        debug_assert!(offset.is_multiple_of(size_of::<T>()));
        self.slice(offset / size_of::<T>(), count)
    }

    /// `count` elements at the byte offset `offset`, for writing.
    ///
    /// # Safety
    /// While the slice lives, no other thread may read or write these bytes.
    #[inline]
    #[allow(clippy::mut_from_ref)] // See the documentation of the type.
    pub unsafe fn slice_at_mut<T: Pod>(&self, offset: usize, count: usize) -> &mut [T] {
        debug_assert!(offset.is_multiple_of(size_of::<T>()));
        self.check::<T>(offset / size_of::<T>(), count);
        // SAFETY: in bounds and aligned (see `check`), initialised, and the caller guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset).cast::<T>(), count) }
    }

    /// A pointer to `count` elements at the byte offset `offset`. The caller must justify each access.
    pub fn element_ptr<T: Pod>(&self, offset: usize, count: usize) -> *mut T {
        debug_assert!(offset.is_multiple_of(size_of::<T>()));
        self.check::<T>(offset / size_of::<T>(), count);
        // SAFETY: in bounds (see `check`).
        unsafe { self.start.as_ptr().add(offset).cast() }
    }

    /// Checks bounds in all builds: a wrong index must panic here and not access other memory. Alignment follows, because the
    /// start is aligned for every type and offsets are multiples of the element size.
    #[inline]
    fn check<T: Pod>(&self, start: usize, count: usize) {
        let end = start.checked_add(count).and_then(|end| end.checked_mul(size_of::<T>()));
        assert!(
            end.is_some_and(|end| end <= self.len),
            "elements {start}+{count} are out of bounds of {} bytes",
            self.len
        );
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no borrow is left.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) }
    }
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(start: NonNull<u8>, len: usize) {
    // SAFETY: the range is allocated, and the advice does not change its contents. A failure costs only speed.
    unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: NonNull<u8>, _len: usize) {}

/// Bytes of physical memory, if the system reports it.
pub fn physical_bytes() -> Option<usize> {
    #[cfg(unix)]
    {
        // SAFETY: only reads two system parameters.
        let (pages, page_bytes) =
            unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        usize::try_from(pages).ok()?.checked_mul(usize::try_from(page_bytes).ok()?).filter(|&bytes| bytes > 0)
    }
    #[cfg(not(unix))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_of_every_type_are_read_back() {
        let bytes = AlignedBytes::zeroed(256).expect("256 bytes");
        assert_eq!(bytes.slice::<u8>(0, 256), [0; 256]);
        // SAFETY: no other thread uses the bytes.
        unsafe {
            bytes.put(3, 1.5f32);
            bytes.put(20, 7u16);
            bytes.put_all(61, &[1u8, 2]);
        }
        assert_eq!(bytes.slice::<u8>(60, 4), [0, 1, 2, 0]);
        assert_eq!(bytes.slice::<f32>(3, 1), [1.5]);
        assert_eq!(bytes.slice_at::<u16>(40, 1), [7]);
        // SAFETY: no other thread uses the bytes.
        unsafe { bytes.slice_at_mut::<i32>(128, 2) }.copy_from_slice(&[-1, 5]);
        assert_eq!(bytes.slice_at::<i32>(128, 2), [-1, 5]);
        assert!(bytes.start.addr().get().is_multiple_of(64));
    }

    #[test]
    fn large_memory_is_aligned_to_a_huge_page() {
        for len in [HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1] {
            let mut bytes = AlignedBytes::zeroed_on_huge_pages(len).expect("memory");
            let boundary = if len < HUGE_PAGE_BYTES { ALIGNMENT } else { HUGE_PAGE_BYTES };
            assert!(bytes.as_ptr().addr().is_multiple_of(boundary), "{len}");
            bytes.bytes_mut()[len - 1] = 3;
            assert_eq!(bytes.slice::<u8>(len - 2, 2), [0, 3]);
        }
        let empty = AlignedBytes::zeroed_on_huge_pages(0).expect("nothing");
        assert!(empty.is_empty() && empty.slice::<f32>(0, 0).is_empty());
    }

    #[test]
    fn access_beyond_the_end_panics() {
        let bytes = AlignedBytes::zeroed(64).expect("64 bytes");
        for (start, count) in [(16, 1), (15, 2), (usize::MAX, 1), (1, usize::MAX)] {
            let read = std::panic::catch_unwind(|| bytes.slice::<f32>(start, count).len());
            assert!(read.is_err(), "{start} {count}");
        }
        assert!(bytes.slice::<f32>(16, 0).is_empty());
    }

    #[test]
    fn too_large_allocations_return_none() {
        assert!(AlignedBytes::zeroed(usize::MAX).is_none());
        assert!(AlignedBytes::zeroed_on_huge_pages(usize::MAX - HUGE_PAGE_BYTES).is_none());
        assert!(AlignedBytes::zeroed(1 << 60).is_none());
    }
}
