//! Checked little-endian reads. Everything that is parsed from a file goes through here.

use crate::error::{GgufError, quoted};

/// The longest metadata key or tensor name, in bytes (the format's bound for keys). The format asks that tensor names stay under 64
/// bytes, and llama.cpp rejects longer ones; other programs write them, so they are accepted.
pub const MAX_NAME_BYTES: usize = 65_535;

/// A position in the bytes of a file, of which the beginning has been read. Taking bytes that have not been read, or that the
/// file does not have, is a [`ReadError`].
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    file_bytes: usize,
    offset: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor over bytes that are all there is.
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor::in_file(bytes, bytes.len())
    }

    /// A cursor over the beginning of a file of `file_bytes` bytes.
    pub(crate) fn in_file(bytes: &'a [u8], file_bytes: usize) -> Cursor<'a> {
        Cursor { bytes, file_bytes, offset: 0 }
    }

    /// Where the next read starts.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes that are left of the file.
    pub(crate) fn left(&self) -> usize {
        self.file_bytes - self.offset
    }

    /// The next `count` bytes.
    pub(crate) fn take(&mut self, count: u64) -> Result<&'a [u8], ReadError> {
        let truncated =
            ReadError::Truncated { offset: self.offset as u64, wanted: count, left: self.left() as u64 };
        let count = usize::try_from(count).map_err(|_| truncated.clone())?;
        let taken = self.bytes[self.offset..].get(..count).ok_or(truncated)?;
        self.offset += count;
        Ok(taken)
    }

    /// The next `count` elements of `element_bytes` each. The product is checked, so a count made to wrap is an error.
    pub(crate) fn take_elements(&mut self, count: u64, element_bytes: usize) -> Result<&'a [u8], ReadError> {
        match count.checked_mul(element_bytes as u64) {
            Some(bytes) => self.take(bytes),
            None => {
                Err(ReadError::Malformed(format!("an array of {count} elements is longer than any file")))
            }
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ReadError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ReadError> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: its length as a u64, then its bytes.
    pub(crate) fn string(&mut self) -> Result<&'a [u8], ReadError> {
        let length = self.u64()?;
        self.take(length)
    }

    /// A metadata key or a tensor name: a string that is short, not empty, and UTF-8.
    pub(crate) fn name(&mut self) -> Result<&'a str, ReadError> {
        let bytes = self.string()?;
        check_name(bytes).map_err(ReadError::Malformed)
    }
}

/// Checks what reader and writer require of a key or a tensor name.
pub(crate) fn check_name(bytes: &[u8]) -> Result<&str, String> {
    if bytes.is_empty() {
        return Err("the name is empty".to_string());
    }
    if bytes.len() > MAX_NAME_BYTES {
        return Err(format!(
            "the name is {} bytes long, at most {} are allowed",
            bytes.len(),
            MAX_NAME_BYTES
        ));
    }
    str::from_utf8(bytes).map_err(|_| format!("the name \"{}\" is not UTF-8", quoted(bytes)))
}

/// What is wrong at a cursor; [`ReadError::at`] adds the place, which only the caller knows.
#[derive(Clone, Debug)]
pub(crate) enum ReadError {
    Truncated { offset: u64, wanted: u64, left: u64 },
    Malformed(String),
}

impl ReadError {
    pub(crate) fn at(self, place: impl Into<String>) -> GgufError {
        match self {
            ReadError::Truncated { offset, wanted, left } => {
                let missing = wanted.saturating_sub(left);
                GgufError::Truncated { place: place.into(), offset, wanted, left, missing }
            }
            ReadError::Malformed(problem) => GgufError::malformed(place, problem),
        }
    }
}
