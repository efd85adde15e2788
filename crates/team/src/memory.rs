//! Aligned memory that several threads fill at once: the one place where bytes become numbers.
#![allow(unsafe_code)] // Allocation, and shared writes that the plan's phases keep apart.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of every allocation: a cache line, and the widest vector.
const ALIGNMENT: usize = 64;

/// The size of a huge page, and from which on it pays to ask for them.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed bytes at a 64-byte boundary.
///
/// Threads write through a shared reference. What keeps that sound is the memory plan: within a phase each byte has
/// at most one writer and no reader but that thread, and a barrier separates phases. Every element type used here
/// (u8, u16, i32, f32) is valid for all bit patterns.
pub struct AlignedBytes {
    allocated: NonNull<u8>,
    layout: Layout,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are owned, and concurrent use is restricted as the type's documentation says.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

/// Numbers that memory may be read as: any bits are valid, and there is no padding.
///
/// # Safety
/// Both must be so.
pub unsafe trait Plain: Copy {}
// SAFETY: a number without padding, of which all bits are valid.
unsafe impl Plain for u8 {}
// SAFETY: a number without padding, of which all bits are valid.
unsafe impl Plain for u16 {}
// SAFETY: a number without padding, of which all bits are valid.
unsafe impl Plain for i32 {}
// SAFETY: a number without padding, of which all bits are valid.
unsafe impl Plain for f32 {}

impl AlignedBytes {
    /// `None` if there is no memory for so many bytes.
    pub fn zeroed(len: usize) -> Option<AlignedBytes> {
        AlignedBytes::aligned(len, ALIGNMENT)
    }

    /// [`zeroed`](Self::zeroed), on huge pages where the system gives them. For what is read from end to end, like a matrix:
    /// small pages cost it translation misses. What is filled bit by bit, like a KV cache, would take more memory on them.
    pub fn zeroed_on_huge_pages(len: usize) -> Option<AlignedBytes> {
        if len < HUGE_PAGE_BYTES {
            return AlignedBytes::zeroed(len);
        }
        let bytes = AlignedBytes::aligned(len, HUGE_PAGE_BYTES)?;
        advise_huge_pages(bytes.start, len);
        Some(bytes)
    }

    /// Aligned by hand within a larger allocation: the system's allocator takes zeroed pages as they are for small alignments
    /// only, and writes every byte for larger ones. So pages become resident where threads first write to them, and those
    /// beyond the bytes never do.
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

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All bytes, of which the caller is the only user.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: all of the allocation, initialised by `alloc_zeroed`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Elements `start..start + count`, for reading. Whoever writes has vouched that nobody reads meanwhile.
    #[inline]
    pub fn slice<T: Plain>(&self, start: usize, count: usize) -> &[T] {
        self.check::<T>(start, count);
        // SAFETY: in bounds, aligned (see `check`), initialised by `alloc_zeroed`, and not written meanwhile.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<T>().add(start), count) }
    }

    /// Writes one element.
    ///
    /// # Safety
    /// Nobody else may read or write it meanwhile.
    #[inline]
    pub unsafe fn put<T: Plain>(&self, index: usize, value: T) {
        self.check::<T>(index, 1);
        // SAFETY: in bounds and aligned (see `check`); the caller is its only user.
        unsafe { self.start.as_ptr().cast::<T>().add(index).write(value) }
    }

    /// Writes elements from the element `start` on.
    ///
    /// # Safety
    /// Nobody else may read or write them meanwhile.
    #[inline]
    pub unsafe fn put_all<T: Plain>(&self, start: usize, values: &[T]) {
        self.check::<T>(start, values.len());
        // SAFETY: in bounds and aligned (see `check`); the caller is their only user, so `values` lies elsewhere.
        unsafe {
            let to = self.start.as_ptr().cast::<T>().add(start);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
        }
    }

    /// `count` elements from the byte offset `offset`, for reading.
    #[inline]
    pub fn read<T: Plain>(&self, offset: usize, count: usize) -> &[T] {
        debug_assert!(offset.is_multiple_of(size_of::<T>()));
        self.slice(offset / size_of::<T>(), count)
    }

    /// `count` elements from the byte offset `offset`, for writing.
    ///
    /// # Safety
    /// While the slice lives, nobody else may read or write these bytes.
    #[inline]
    #[allow(clippy::mut_from_ref)] // The type's documentation says what keeps the references apart.
    pub unsafe fn write<T: Plain>(&self, offset: usize, count: usize) -> &mut [T] {
        debug_assert!(offset.is_multiple_of(size_of::<T>()));
        self.check::<T>(offset / size_of::<T>(), count);
        // SAFETY: in bounds and aligned (see `check`), initialised, and the caller is the only user.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset).cast::<T>(), count) }
    }

    /// Where `count` elements from the byte offset `offset` lie. What may be done with them is for the user to argue.
    pub fn element_ptr<T: Plain>(&self, offset: usize, count: usize) -> *mut T {
        debug_assert!(offset.is_multiple_of(size_of::<T>()));
        self.check::<T>(offset / size_of::<T>(), count);
        // SAFETY: in bounds (see `check`).
        unsafe { self.start.as_ptr().add(offset).cast() }
    }

    /// Bounds, always: a wrong index must stop here and not in somebody else's memory. Alignment follows, since the
    /// start is aligned for every type and elements are counted in whole ones.
    #[inline]
    fn check<T: Plain>(&self, start: usize, count: usize) {
        let end = start.checked_add(count).and_then(|end| end.checked_mul(size_of::<T>()));
        assert!(end.is_some_and(|end| end <= self.len), "{start}+{count} is beyond {} bytes", self.len);
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and nobody can hold a borrow any more.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) }
    }
}

#[cfg(target_os = "linux")]
fn advise_huge_pages(start: NonNull<u8>, len: usize) {
    // SAFETY: the range is allocated, and the advice does not change what it holds. A refusal costs only speed.
    unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_start: NonNull<u8>, _len: usize) {}

/// Bytes of the machine's memory, where the system tells.
pub fn physical_bytes() -> Option<usize> {
    #[cfg(unix)]
    {
        // SAFETY: only reads two numbers of the system.
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
    fn elements_of_every_type_are_found_where_they_were_put() {
        let bytes = AlignedBytes::zeroed(256).expect("256 bytes");
        assert_eq!(bytes.slice::<u8>(0, 256), [0; 256]);
        // SAFETY: nobody else uses the bytes.
        unsafe {
            bytes.put(3, 1.5f32);
            bytes.put(20, 7u16);
            bytes.put_all(61, &[1u8, 2]);
        }
        assert_eq!(bytes.slice::<u8>(60, 4), [0, 1, 2, 0]);
        assert_eq!(bytes.slice::<f32>(3, 1), [1.5]);
        assert_eq!(bytes.read::<u16>(40, 1), [7]);
        // SAFETY: nobody else uses the bytes.
        unsafe { bytes.write::<i32>(128, 2) }.copy_from_slice(&[-1, 5]);
        assert_eq!(bytes.read::<i32>(128, 2), [-1, 5]);
        assert!(bytes.start.addr().get().is_multiple_of(64));
    }

    #[test]
    fn large_memory_is_at_a_huge_page() {
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
    fn nothing_beyond_the_end_can_be_touched() {
        let bytes = AlignedBytes::zeroed(64).expect("64 bytes");
        for (start, count) in [(16, 1), (15, 2), (usize::MAX, 1), (1, usize::MAX)] {
            let read = std::panic::catch_unwind(|| bytes.slice::<f32>(start, count).len());
            assert!(read.is_err(), "{start} {count}");
        }
        assert!(bytes.slice::<f32>(16, 0).is_empty());
    }

    #[test]
    fn too_much_is_refused() {
        assert!(AlignedBytes::zeroed(usize::MAX).is_none());
        assert!(AlignedBytes::zeroed_on_huge_pages(usize::MAX - HUGE_PAGE_BYTES).is_none());
        assert!(AlignedBytes::zeroed(1 << 60).is_none());
    }
}
