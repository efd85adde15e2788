//! Where the bytes of a model are: in a file, which is read piece by piece, or in memory.
//!
//! Files are read, not mapped: when another program shortens a mapped file, the system kills the process that touches a lost
//! page, and nothing tells a reader that bytes under its slices were overwritten. A read returns an error.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::error::GgufError;

/// The bytes of one file of a model.
pub(crate) enum Source {
    File(OpenFile),
    Memory(Arc<Vec<u8>>),
}

/// A file as it was when it was opened.
pub(crate) struct OpenFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

/// What shows that a file was written to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    /// `None` if the system does not record it.
    modified: Option<SystemTime>,
}

/// How long a write may take, and how much later a second one has another time: systems count that in steps of up to 16 ms.
const SETTLING_TIME: Duration = Duration::from_millis(20);

impl Stamp {
    /// The stamp of a file that nobody is writing to just now. A write sets the time when it begins, so that the stamp of a file
    /// that was written to a moment ago does not exclude that it is still being written, or is written to again at the same time.
    fn of_settled(file: &File) -> Result<Stamp, GgufError> {
        let stamp = Stamp::of(file)?;
        // A time in the future, of another machine's clock, says nothing.
        match stamp.modified.map(|modified| modified.elapsed()) {
            Some(Ok(age)) if age < SETTLING_TIME => {
                thread::sleep(SETTLING_TIME);
                if Stamp::of(file)? == stamp { Ok(stamp) } else { Err(GgufError::Changed) }
            }
            _ => Ok(stamp),
        }
    }

    fn of(file: &File) -> Result<Stamp, GgufError> {
        let metadata = file.metadata().map_err(io_error("look at the file"))?;
        if !metadata.is_file() {
            return Err(GgufError::NotAFile);
        }
        Ok(Stamp { bytes: metadata.len(), modified: metadata.modified().ok() })
    }
}

impl Source {
    /// Opens a regular file that nobody is writing to.
    pub(crate) fn open(path: &Path) -> Result<Source, GgufError> {
        // Checked before opening: opening a FIFO blocks until it has a writer.
        if !path.metadata().map_err(io_error("find the file"))?.is_file() {
            return Err(GgufError::NotAFile);
        }
        let file = File::open(path).map_err(io_error("open the file"))?;
        let stamp = Stamp::of_settled(&file)?;
        usize::try_from(stamp.bytes).map_err(|_| GgufError::Io {
            action: "read the file",
            source: io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than the address space"),
        })?;
        Ok(Source::File(OpenFile { path: path.to_path_buf(), file, stamp }))
    }

    /// The number of bytes; of a file, when it was opened.
    pub(crate) fn len(&self) -> usize {
        match self {
            // `open` has checked that it fits.
            Source::File(file) => file.stamp.bytes as usize,
            Source::Memory(bytes) => bytes.len(),
        }
    }

    /// Copies the bytes from `start` on, which are within [`Source::len`], to `into`.
    pub(crate) fn read(&self, start: usize, into: &mut [u8]) -> Result<(), GgufError> {
        match self {
            Source::File(file) => file.read(start, into).map_err(|error| error.in_file(&file.path)),
            Source::Memory(bytes) => {
                into.copy_from_slice(&bytes[start..start + into.len()]);
                Ok(())
            }
        }
    }

    /// Fails if a file was written to since it was opened.
    pub(crate) fn check_unchanged(&self) -> Result<(), GgufError> {
        let Source::File(OpenFile { path, file, stamp }) = self else { return Ok(()) };
        match Stamp::of(file) {
            Ok(now) if now == *stamp => Ok(()),
            Ok(_) => Err(GgufError::Changed.in_file(path)),
            Err(error) => Err(error.in_file(path)),
        }
    }

    /// Asks the operating system to start reading a range, without waiting for it. A hint: failure changes nothing.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        #[cfg(target_os = "linux")]
        if let Source::File(OpenFile { file, .. }) = self {
            let bytes = std::num::NonZeroU64::new(range.len() as u64);
            // Without a length the advice would be about the rest of the file.
            if bytes.is_some() {
                let _ = rustix::fs::fadvise(file, range.start as u64, bytes, rustix::fs::Advice::WillNeed);
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }
}

impl OpenFile {
    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), GgufError> {
        match read_exact_at(&self.file, into, start as u64) {
            // The bytes were there when the file was opened.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(GgufError::Changed),
            read => read.map_err(io_error("read the file")),
        }
    }
}

fn io_error(action: &'static str) -> impl Fn(io::Error) -> GgufError {
    move |source| GgufError::Io { action, source }
}

#[cfg(unix)]
fn read_exact_at(file: &File, into: &mut [u8], start: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, start)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut into: &mut [u8], mut start: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !into.is_empty() {
        match file.seek_read(into, start) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                into = &mut into[read..];
                start += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
