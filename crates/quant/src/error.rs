use crate::DType;

/// Why a conversion between block bytes and `f32` was rejected. On error, nothing is written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// The type holds integers, doubles or intermediate sums, not model weights.
    #[error("{dtype} tensors cannot be decoded to f32: it is not a weight format")]
    NoDecoder {
        /// The rejected type.
        dtype: DType,
    },
    /// The type cannot be written: it needs calibration data, or is not a weight format.
    #[error("cannot quantise to {dtype}: choose one of {}", names(&crate::writable()))]
    NoQuantizer {
        /// The rejected type.
        dtype: DType,
    },
    /// The number of elements is not a multiple of the block size.
    #[error("{elements} elements are not a multiple of the {dtype} block size, {}", dtype.block_len())]
    PartialBlock {
        /// The block format.
        dtype: DType,
        /// Elements given.
        elements: usize,
    },
    /// The size of the byte buffer does not match the number of elements.
    #[error("{elements} elements of {dtype} take {expected} bytes, but the byte buffer has {actual}")]
    WrongByteCount {
        /// The block format.
        dtype: DType,
        /// Elements given.
        elements: usize,
        /// Bytes of these elements.
        expected: usize,
        /// Bytes in the buffer.
        actual: usize,
    },
    /// The input of a quantiser has a NaN or an infinity.
    #[error("element {index} is {value}: only finite values can be quantised; check the source weights")]
    NotFinite {
        /// Position in the input.
        index: usize,
        /// The NaN or infinity.
        value: f32,
    },
    /// The input of a quantiser has a value too large for the format.
    #[error("element {index} is {value}, beyond ±{limit}, the range of {dtype}: use F32 for this tensor")]
    OutOfRange {
        /// The block format.
        dtype: DType,
        /// Position in the input.
        index: usize,
        /// The value there.
        value: f32,
        /// The largest magnitude that is accepted.
        limit: f32,
    },
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}
