//! The GGUF container: reading and writing, safe on hostile files.
//!
//! A GGUF file is a header, an ordered list of metadata entries, a table of tensors, and the tensor data. [`GgufFile`] opens one (or
//! all the parts of one that was split), checks every byte of the first three, and reads tensor data where it is asked for; [`GgufWriter`] writes one without ever holding the tensor data.
//!
//! Layout: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! Invariants of this crate:
//! - Whatever the bytes are, opening them returns a [`GgufFile`] or a [`GgufError`]: no panic, no hang, no
//!   allocation beyond a small multiple of the file's length.
//! - An opened file is complete: every tensor lies inside its file, aligned, and shares no byte with another.
//! - It knows the container only. What a key means, and whether a model is complete, is for the caller to
//!   judge.
//! - A file that another program shortens or overwrites meanwhile is an error ([`GgufError::Changed`]), never a crash.

mod cursor;
mod error;
mod file;
mod format;
mod metadata;
mod read;
mod source;
mod split;
mod tensor;
mod value;
mod write;

pub use cursor::MAX_NAME_BYTES;
pub use error::GgufError;
pub use file::GgufFile;
pub use format::{DEFAULT_ALIGNMENT_BYTES, MAX_DIMS};
pub use metadata::Metadata;
pub use split::split_file_name;
pub use tensor::{Tensor, TensorInfo};
pub use value::{Array, BytesArray, Element, StrArray, Value, ValueType};
pub use write::{GgufWriter, TensorWriter};
