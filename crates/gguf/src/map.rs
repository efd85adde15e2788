//! The bytes of a file: mapped from disk, or given by the caller. The only unsafe code of this crate is here.

// Mapping a file is unsafe by nature, see `Bytes::map`.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::{Deref, Range};

use memmap2::Mmap;

/// The whole content of one file, immutable.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a file for reading; an empty file has no bytes.
    ///
    /// The mapping shows the file as it is on disk from now on. If another program *truncates* the file
    /// meanwhile, touching a lost page kills this process (`SIGBUS`); if it *writes* into the file, the bytes
    /// change under their reader. Neither can be prevented portably; replacing a model by renaming a new file
    /// over it is safe.
    pub(crate) fn map(file: &File) -> std::io::Result<Bytes> {
        if file.metadata()?.len() == 0 {
            return Ok(Bytes::Owned(Vec::new()));
        }
        // SAFETY: the mapping is this process's own and read-only, so nothing in it writes through the
        // slice. Another process could (see above): that is the condition under which every program that maps
        // its models works, and `GgufFile::open` passes it on to its caller. This crate keeps no invariant
        // that would break if bytes changed: offsets are checked once and kept outside the mapping, and
        // metadata is decoded by checked reads every time, UTF-8 included.
        unsafe { Mmap::map(file) }.map(Bytes::Mapped)
    }

    /// Asks the operating system to start reading a range, without waiting for it. A hint: failure changes
    /// nothing.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = self
            && range.end <= map.len()
            && !range.is_empty()
        {
            // Only speed depends on it, and there is nothing that a caller could do.
            let _ = map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Releases the pages of a range, and those around it, from this process's memory; reading them again returns the same
    /// bytes, from the system's cache or from the file. A hint: where the system has nothing of the kind, or the bytes are
    /// not mapped, nothing happens.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = self
            && range.end <= map.len()
            && !range.is_empty()
        {
            // Reading a byte maps what the system holds around it in one piece, up to a huge page.
            const AROUND: usize = 2 << 20;
            let start = range.start.saturating_sub(AROUND);
            let end = range.end.saturating_add(AROUND).min(map.len());
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the advice loses what was written to private memory. This is a shared mapping that nothing in this
            // process writes to (`Mmap::map`), so its pages are the file's, and are read from there again.
            let _ = unsafe { map.unchecked_advise_range(advice, start, end - start) };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Owned(bytes) => bytes,
        }
    }
}
