use crate::DType;

/// Why a conversion between block bytes and `f32` was refused. Nothing has been written when one is returned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// The type holds integers, doubles or intermediate sums, not model weights.
    #[error("{dtype} tensors cannot be decoded to f32: it is not a weight format")]
    NoDecoder {
        /// The refused type.
        dtype: DType,
    },
    /// The type can be read but not written.
    #[error("there is no quantiser to {dtype}: choose one of {}", names(writable))]
    NoQuantizer {
        /// The refused type.
        dtype: DType,
        /// Those that can be written.
        writable: Vec<DType>,
    },
    /// The elements do not fill whole blocks.
    #[error("{elements} elements are not whole {dtype} blocks: give a multiple of {}", dtype.block_len())]
    PartialBlock {
        /// The block format.
        dtype: DType,
        /// Elements given.
        elements: usize,
    },
    /// The byte buffer does not have the size that the number of elements asks for.
    #[error("{elements} elements of {dtype} take {expected} bytes, but the byte buffer has {actual}")]
    WrongByteCount {
        /// The block format.
        dtype: DType,
        /// Elements given.
        elements: usize,
        /// Bytes that they take.
        expected: usize,
        /// Bytes in the buffer.
        actual: usize,
    },
    /// The input of a quantiser has a NaN or an infinity.
    #[error("element {index} is {value}: only finite numbers can be quantised; check the source weights")]
    NotFinite {
        /// Position in the input.
        index: usize,
        /// The NaN or infinity.
        value: f32,
    },
    /// The input of a quantiser has a number whose block scale would overflow its half-precision field.
    #[error(
        "element {index} is {value}, beyond ±{limit}, the range of {dtype}: use F32 or BF16 for this tensor"
    )]
    OutOfRange {
        /// The block format.
        dtype: DType,
        /// Position in the input.
        index: usize,
        /// The number there.
        value: f32,
        /// The largest magnitude that the format takes.
        limit: f32,
    },
}

fn names(dtypes: &[DType]) -> String {
    dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ")
}
