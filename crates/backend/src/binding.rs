//! Inputs of a run: `fill` is called once for each live one, and only filling it returns the proof that a run requires.

use verbatim_graph::{RowCounts, Tag};
use verbatim_quant::DType;

/// Why the inputs of a run could not be bound.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BindError {
    /// More rows than the program was compiled for.
    #[error(
        "{} rows and {} output rows do not fit the program, which was compiled for {} and {}",
        .given.rows, .given.output_rows, .max.rows, .max.output_rows
    )]
    TooManyRows {
        /// Rows requested.
        given: RowCounts,
        /// The maximum.
        max: RowCounts,
    },
    /// An input was filled with the wrong number or type of elements.
    #[error("input {tag} takes {wanted} elements of {dtype}, not {given} of {given_dtype}")]
    Input {
        /// Which input.
        tag: Tag,
        /// Its element type.
        dtype: DType,
        /// Its elements.
        wanted: usize,
        /// The element type given.
        given_dtype: DType,
        /// How many elements were given.
        given: usize,
    },
    /// The caller has no data for this input.
    #[error("no data provided for input {0}")]
    NoData(Tag),
    /// The arena could not be allocated.
    #[error("cannot allocate {0} bytes for intermediate values")]
    NoMemory(usize),
}

/// One live input of a program, to be filled exactly once.
#[must_use]
pub struct InputBinding<'a> {
    tag: Tag,
    dtype: DType,
    count: usize,
    bytes: &'a mut [u8],
}

/// The proof that an [`InputBinding`] was filled. It cannot be constructed otherwise:
///
/// ```compile_fail,E0423
/// # use verbatim_backend::*;
/// fn fill(_input: InputBinding<'_>) -> Result<FilledInput, BindError> {
///     Ok(FilledInput(()))
/// }
/// ```
pub struct FilledInput(());

impl<'a> InputBinding<'a> {
    /// For backends: an input of `count` elements that lies, or is staged, in `bytes`, four for each element.
    ///
    /// # Panics
    /// If there are fewer or more bytes.
    pub fn new(tag: Tag, dtype: DType, count: usize, bytes: &'a mut [u8]) -> InputBinding<'a> {
        assert_eq!(bytes.len(), 4 * count, "inputs have elements of four bytes");
        InputBinding { tag, dtype, count, bytes }
    }
}

impl InputBinding<'_> {
    /// Which input this is.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Elements that it takes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Fills an i32 input with exactly [`InputBinding::count`] elements.
    ///
    /// # Errors
    /// If the element type or count does not match; same for the other fill methods.
    pub fn i32(self, values: &[i32]) -> Result<FilledInput, BindError> {
        self.check(DType::I32, values.len())?;
        self.i32_from(values.iter().copied())
    }

    /// Fills an i32 input from an iterator of exactly [`InputBinding::count`] elements.
    ///
    /// # Errors
    /// As for [`InputBinding::i32`].
    pub fn i32_from(self, values: impl IntoIterator<Item = i32>) -> Result<FilledInput, BindError> {
        self.fill(DType::I32, values.into_iter().map(i32::to_ne_bytes))
    }

    /// Fills an f32 input with exactly [`InputBinding::count`] elements.
    ///
    /// # Errors
    /// As for [`InputBinding::i32`].
    pub fn f32(self, values: &[f32]) -> Result<FilledInput, BindError> {
        self.check(DType::F32, values.len())?;
        self.f32_from(values.iter().copied())
    }

    /// Fills an f32 input from an iterator of exactly [`InputBinding::count`] elements.
    ///
    /// # Errors
    /// As for [`InputBinding::i32`].
    pub fn f32_from(self, values: impl IntoIterator<Item = f32>) -> Result<FilledInput, BindError> {
        self.fill(DType::F32, values.into_iter().map(f32::to_ne_bytes))
    }

    /// Reports that the caller has no data for this input.
    ///
    /// # Errors
    /// Always.
    pub fn no_data(self) -> Result<FilledInput, BindError> {
        Err(BindError::NoData(self.tag))
    }

    fn fill(
        self,
        given_dtype: DType,
        mut values: impl Iterator<Item = [u8; 4]>,
    ) -> Result<FilledInput, BindError> {
        self.check(given_dtype, self.count)?;
        let mut given = 0;
        for (element, value) in self.bytes.as_chunks_mut::<4>().0.iter_mut().zip(values.by_ref()) {
            *element = value;
            given += 1;
        }
        self.check(given_dtype, given + values.count())?;
        Ok(FilledInput(()))
    }

    fn check(&self, given_dtype: DType, given: usize) -> Result<(), BindError> {
        let InputBinding { tag, dtype, count: wanted, .. } = *self;
        if (given_dtype, given) == (dtype, wanted) {
            Ok(())
        } else {
            Err(BindError::Input { tag, dtype, wanted, given_dtype, given })
        }
    }
}
