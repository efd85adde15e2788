//! Weights as they are passed from a file to a backend.

use std::error::Error;
use verbatim_graph::WeightKind;
use verbatim_quant::{DType, QuantError};

/// One weight as stored in a file.
#[derive(Clone, Copy)]
pub struct WeightSource<'a> {
    /// How it is used.
    pub kind: WeightKind,
    /// Its data type in the file.
    pub dtype: DType,
    /// Output features, summed over all experts; 1 for a vector.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The tensor's data.
    pub bytes: &'a dyn WeightBytes,
}

impl WeightSource<'_> {
    /// All bytes at once: for vectors and small matrices.
    ///
    /// # Errors
    /// If they cannot be read, or the allocation fails.
    pub fn read_all(&self) -> Result<Vec<u8>, PackError> {
        let mut bytes = Vec::new();
        let len = self.bytes.byte_len();
        bytes.try_reserve_exact(len).map_err(|_| PackError::OutOfMemory { bytes: len })?;
        bytes.resize(len, 0);
        self.bytes.read(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// The data of a weight, wherever it is. It is read piece by piece, so that little more than the packed weights is in memory.
pub trait WeightBytes: Sync {
    /// The number of bytes.
    fn byte_len(&self) -> usize;

    /// Copies the bytes from `start` on to `into`. Any thread may call it. A backend reads every byte once: an implementation may
    /// use that to read ahead.
    ///
    /// # Errors
    /// If they cannot be read.
    ///
    /// # Panics
    /// If there are fewer bytes.
    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), ReadError>;
}

/// Why bytes could not be read.
pub type ReadError = Box<dyn Error + Send + Sync>;

/// Bytes in memory.
impl<T: AsRef<[u8]> + Sync> WeightBytes for T {
    fn byte_len(&self) -> usize {
        self.as_ref().len()
    }

    fn read(&self, start: usize, into: &mut [u8]) -> Result<(), ReadError> {
        into.copy_from_slice(&self.as_ref()[start..start + into.len()]);
        Ok(())
    }
}

/// Why a weight cannot be packed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// A dimension is zero.
    #[error("a matrix of {rows} rows and {cols} columns is empty; weights need at least one of each")]
    Empty {
        /// Output rows.
        rows: usize,
        /// Input columns.
        cols: usize,
    },
    /// The row length is not a multiple of the block size.
    #[error(
        "a row of {cols} columns is not a multiple of the {dtype} block size, {block}; \
         the file is damaged or its format is misread"
    )]
    PartialBlock {
        /// The file's format.
        dtype: DType,
        /// Columns of a row.
        cols: usize,
        /// Columns of a block.
        block: usize,
    },
    /// The number of bytes does not match the shape.
    #[error("{rows} rows of {cols} {dtype} weights take {expected} bytes, not {actual}")]
    Size {
        /// The file's format.
        dtype: DType,
        /// Output rows.
        rows: usize,
        /// Input columns.
        cols: usize,
        /// Bytes given.
        actual: usize,
        /// Bytes of the shape; `usize::MAX` on overflow.
        expected: usize,
    },
    /// Not a weight format.
    #[error("{0} is not a weight format")]
    NotWeights(DType),
    /// The allocation failed.
    #[error("cannot allocate {bytes} bytes for packed weights; free memory or use a smaller model")]
    OutOfMemory {
        /// Bytes requested.
        bytes: usize,
    },
    /// A vector could not be decoded.
    #[error(transparent)]
    Decode(#[from] QuantError),
    /// The data could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}
