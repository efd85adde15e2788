//! Weights as they are passed from a file to a backend.

use std::ops::Range;
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
    pub bytes: &'a [u8],
    /// Called, from any thread, with ranges of `bytes` that are no longer needed: the ranges cover `bytes` exactly once.
    pub on_consumed: &'a (dyn Fn(Range<usize>) + Sync),
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
}
