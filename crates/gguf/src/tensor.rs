//! Tensors: the entries of the tensor-info table, and the checks shared by reader and writer.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};

use verbatim_quant::DType;

use crate::error::{GgufError, quoted};
use crate::format::MAX_DIMS;
use crate::source::Source;

/// One entry of the tensor table.
#[derive(Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) offset: usize,
    pub(crate) split: usize,
}

impl TensorInfo {
    /// The name, such as `blk.0.attn_q.weight`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the elements are stored.
    pub fn dtype(&self) -> DType {
        self.shape.dtype
    }

    /// One to four dimensions, none of them 0, innermost first (ggml's `ne` order): a matrix is `[cols, rows]`.
    pub fn dims(&self) -> &[usize] {
        &self.shape.dims[..self.shape.dim_count]
    }

    /// Elements of a row, the innermost dimension: the contraction dimension of a matmul (`ne[0]`).
    pub fn cols(&self) -> usize {
        self.shape.dims[0]
    }

    /// Rows: the product of all dimensions but the innermost (for stacked experts, the rows of all of them).
    pub fn rows(&self) -> usize {
        self.shape.dims[1..].iter().product()
    }

    /// Number of elements.
    pub fn element_count(&self) -> usize {
        self.shape.dims.iter().product()
    }

    /// Bytes of a row, whose length is a multiple of the block size.
    pub fn row_bytes(&self) -> usize {
        self.shape.row_bytes
    }

    /// Number of bytes.
    pub fn byte_len(&self) -> usize {
        self.shape.byte_len
    }

    /// Where the data starts, in bytes from the start of its file.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Which file of a split model holds the data, from 0.
    pub fn split(&self) -> usize {
        self.split
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.shape.byte_len
    }
}

impl fmt::Debug for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` {} {:?} at {} of split {}",
            self.name,
            self.dtype(),
            self.dims(),
            self.offset,
            self.split
        )
    }
}

/// A tensor with its data. Dereferences to [`TensorInfo`].
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub(crate) info: &'a TensorInfo,
    pub(crate) source: &'a Source,
}

impl<'a> Tensor<'a> {
    /// Its entry in the tensor table.
    pub fn info(self) -> &'a TensorInfo {
        self.info
    }

    /// The data, [`TensorInfo::byte_len`] bytes: read from the file, or borrowed if the file is in memory.
    ///
    /// # Errors
    /// If the file cannot be read, or has become shorter since it was opened.
    pub fn data(self) -> Result<Cow<'a, [u8]>, GgufError> {
        if let Source::Memory(bytes) = self.source {
            return Ok(Cow::Borrowed(&bytes[self.info.range()]));
        }
        let mut data = Vec::new();
        let no_memory = |_| GgufError::Io {
            action: "read the data of a tensor",
            source: std::io::ErrorKind::OutOfMemory.into(),
        };
        data.try_reserve_exact(self.byte_len()).map_err(no_memory)?;
        data.resize(self.byte_len(), 0);
        self.read(0, &mut data)?;
        Ok(Cow::Owned(data))
    }

    /// Copies the bytes of the data from `start` on to `into`.
    ///
    /// # Errors
    /// As for [`Tensor::data`].
    ///
    /// # Panics
    /// If they are not within the data.
    pub fn read(self, start: usize, into: &mut [u8]) -> Result<(), GgufError> {
        let range = self.in_file(start..start.saturating_add(into.len()));
        self.source.read(range.start, into)
    }

    /// Asks the operating system to start reading a range of the data from disk, without waiting for it.
    ///
    /// # Panics
    /// If the range is not within the data.
    pub fn prefetch(self, range: Range<usize>) {
        self.source.prefetch(self.in_file(range));
    }

    fn in_file(self, range: Range<usize>) -> Range<usize> {
        let whole = self.info.range();
        assert!(
            range.start <= range.end && range.end <= whole.len(),
            "{range:?} of {} bytes of {}",
            whole.len(),
            tensor_place(self.info.name())
        );
        whole.start + range.start..whole.start + range.end
    }
}

impl Deref for Tensor<'_> {
    type Target = TensorInfo;

    fn deref(&self) -> &TensorInfo {
        self.info
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

/// Type and dimensions, known to give a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) dtype: DType,
    /// Those past `dim_count` are 1.
    pub(crate) dims: [usize; MAX_DIMS],
    pub(crate) dim_count: usize,
    pub(crate) row_bytes: usize,
    pub(crate) byte_len: usize,
}

impl Shape {
    /// Checks dimensions; no dimensions at all mean a single element, as in ggml.
    pub(crate) fn new(dtype: DType, given: &[u64]) -> Result<Shape, String> {
        if given.len() > MAX_DIMS {
            return Err(format!("it has {} dimensions, at most {MAX_DIMS} are allowed", given.len()));
        }
        if given.contains(&0) {
            return Err(format!("dimensions {given:?} are empty"));
        }
        let too_large = || format!("dimensions {given:?} are too large: the size overflows");
        let mut dims = [1; MAX_DIMS];
        for (dim, &given) in dims.iter_mut().zip(given) {
            *dim = usize::try_from(given).map_err(|_| too_large())?;
        }
        let element_count = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        // Elements are counted as isize by everything that indexes them.
        element_count.and_then(|count| isize::try_from(count).ok()).ok_or_else(too_large)?;
        if !dims[0].is_multiple_of(dtype.block_len()) {
            let block_len = dtype.block_len();
            return Err(format!("rows of {} elements are not whole {dtype} blocks of {block_len}", dims[0]));
        }
        let row_bytes = dtype.row_bytes(dims[0]).ok_or_else(too_large)?;
        let byte_len = dims[1..].iter().try_fold(row_bytes, |product, &dim| product.checked_mul(dim));
        let byte_len = byte_len.filter(|&bytes| isize::try_from(bytes).is_ok()).ok_or_else(too_large)?;
        Ok(Shape { dtype, dims, dim_count: given.len().max(1), row_bytes, byte_len })
    }
}

/// How a message names a tensor.
pub(crate) fn tensor_place(name: &str) -> String {
    format!("tensor `{}`", quoted(name))
}
