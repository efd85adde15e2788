//! Weights on their way from a file into a backend.

use std::ops::Range;
use verbatim_graph::WeightKind;
use verbatim_quant::{DType, QuantError};

/// One weight as a file has it.
#[derive(Clone, Copy)]
pub struct WeightSource<'a> {
    /// How it is used.
    pub form: WeightKind,
    /// Its format.
    pub dtype: DType,
    /// Output features, of all experts together; 1 for a vector.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The tensor's data.
    pub bytes: &'a [u8],
    /// Called with ranges of `bytes` that are not needed any more, from any thread: together they are all of it.
    pub done: &'a (dyn Fn(Range<usize>) + Sync),
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
    /// The rows are not whole blocks.
    #[error(
        "rows of {cols} columns are not whole blocks of {dtype}, which have {block}; \
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
    /// The bytes are not those of the shape.
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
        /// Bytes that the shape asks for; `usize::MAX` if more than memory can have.
        expected: usize,
    },
    /// The format holds no weights.
    #[error("a weight matrix cannot be of type {0}")]
    NotWeights(DType),
    /// Memory ran out.
    #[error("no memory for {bytes} bytes of packed weights; free some or use a smaller model")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// A vector could not be decoded.
    #[error(transparent)]
    Decode(#[from] QuantError),
}
