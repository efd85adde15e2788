//! Constants and rules of the format, shared by reader and writer.

use crate::value::Value;

/// The alignment of tensor data in a file that does not name one in `general.alignment`, in bytes.
pub const DEFAULT_ALIGNMENT_BYTES: usize = 32;

/// Maximum dimensions of a tensor.
pub const MAX_DIMS: usize = 4;

/// The first bytes of every file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The version that is written. Version 2 is read as well: its layout is the same.
pub(crate) const VERSION: u32 = 3;
/// The metadata key that sets the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// Maximum metadata entries of a file. Real files have a few dozen.
pub(crate) const MAX_ENTRIES: u64 = 1 << 16;
/// Minimum bytes of an entry: the length of its key, a key of one byte, the type, a value of one byte.
pub(crate) const MIN_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Maximum tensors of a file. The largest real models have some ten thousand.
pub(crate) const MAX_TENSORS: u64 = 1 << 20;
/// Minimum bytes of a tensor's record: the length of its name, a name of one byte, dimension count, type,
/// offset.
pub(crate) const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 4 + 8;

/// How much of a file is read first: the tables of a model with a large vocabulary take a few MB.
pub(crate) const FIRST_READ_BYTES: usize = 1 << 20;
/// Maximum bytes of metadata and tensor table, which are kept in memory. Those of real files take some ten million.
pub(crate) const MAX_TABLE_BYTES: usize = 1 << 30;

/// Maximum alignment. Real files use 32, a few 64 to 4096.
pub(crate) const MAX_ALIGNMENT_BYTES: i128 = 1 << 20;

/// Checks the value of `general.alignment`. The format asks for a multiple of 8; a power of two, as ggml
/// asks, makes sure that data at an aligned offset is also aligned in memory.
pub(crate) fn check_alignment(value: Option<Value<'_>>) -> Result<usize, String> {
    let Some(value) = value else { return Ok(DEFAULT_ALIGNMENT_BYTES) };
    match value.as_integer() {
        Some(bytes @ 8..=MAX_ALIGNMENT_BYTES) if bytes.count_ones() == 1 => Ok(bytes as usize),
        _ => Err(format!("{} is not a power of two from 8 to {MAX_ALIGNMENT_BYTES}", value.describe())),
    }
}
