//! Block formats: bytes to `f32` and back; the scalar reference for every kernel.
//!
//! A *block format* stores a fixed number of elements in a fixed number of bytes: a few bits per element and one or
//! more scales. [`dequantize`] reads every weight format of GGUF, and the order of its multiplications is part of the
//! contract: kernels and other engines are compared with it bit for bit. [`quantize`] writes the formats
//! that need no calibration data.
//!
//! One module per family: `plain`, `legacy` (Q4_0 to Q8_0), `k`, `iq` (with its `grids`), `ternary`, `fp4`.
//! Both functions are pure, allocate nothing, and never panic.

#![forbid(unsafe_code)]
// Quants, levels and outputs are parallel arrays: an index is clearer than zipped iterators.
#![allow(clippy::needless_range_loop)]

mod bytes;
mod dtype;
mod error;
mod fp4;
pub mod grids;
mod iq;
mod k;
mod legacy;
mod plain;
mod search;
mod ternary;

pub use dtype::{ALL, DType};
pub use error::QuantError;

/// Decodes `bytes`, blocks of `dtype`, into `out`.
///
/// Any bytes are valid blocks: a scale that is NaN or infinite results in elements that are.
///
/// # Errors
/// If `dtype` is not a weight format, `out.len()` is not a multiple of the block size, or the size of `bytes` does not match `out`.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_sizes(dtype, bytes.len(), out.len())?;
    match dtype {
        DType::F32 => decode_blocks(bytes, out, plain::decode_f32),
        DType::F16 => decode_blocks(bytes, out, plain::decode_f16),
        DType::BF16 => decode_blocks(bytes, out, plain::decode_bf16),
        DType::Q4_0 => decode_blocks(bytes, out, legacy::decode_q4_0),
        DType::Q4_1 => decode_blocks(bytes, out, legacy::decode_q4_1),
        DType::Q5_0 => decode_blocks(bytes, out, legacy::decode_q5_0),
        DType::Q5_1 => decode_blocks(bytes, out, legacy::decode_q5_1),
        DType::Q8_0 => decode_blocks(bytes, out, legacy::decode_q8_0),
        DType::Q2_K => decode_blocks(bytes, out, k::decode_q2_k),
        DType::Q3_K => decode_blocks(bytes, out, k::decode_q3_k),
        DType::Q4_K => decode_blocks(bytes, out, k::decode_q4_k),
        DType::Q5_K => decode_blocks(bytes, out, k::decode_q5_k),
        DType::Q6_K => decode_blocks(bytes, out, k::decode_q6_k),
        DType::IQ1_S => decode_blocks(bytes, out, iq::decode_iq1_s),
        DType::IQ1_M => decode_blocks(bytes, out, iq::decode_iq1_m),
        DType::IQ2_XXS => decode_blocks(bytes, out, iq::decode_iq2_xxs),
        DType::IQ2_XS => decode_blocks(bytes, out, iq::decode_iq2_xs),
        DType::IQ2_S => decode_blocks(bytes, out, iq::decode_iq2_s),
        DType::IQ3_XXS => decode_blocks(bytes, out, iq::decode_iq3_xxs),
        DType::IQ3_S => decode_blocks(bytes, out, iq::decode_iq3_s),
        DType::IQ4_NL => decode_blocks(bytes, out, iq::decode_iq4_nl),
        DType::IQ4_XS => decode_blocks(bytes, out, iq::decode_iq4_xs),
        DType::TQ1_0 => decode_blocks(bytes, out, ternary::decode_tq1_0),
        DType::TQ2_0 => decode_blocks(bytes, out, ternary::decode_tq2_0),
        DType::Q1_0 => decode_blocks(bytes, out, ternary::decode_q1_0),
        DType::Q2_0 => decode_blocks(bytes, out, ternary::decode_q2_0),
        DType::MXFP4 => decode_blocks(bytes, out, fp4::decode_mxfp4),
        DType::NVFP4 => decode_blocks(bytes, out, fp4::decode_nvfp4),
        DType::Q8_1 | DType::Q8_K | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F64 => {
            return Err(QuantError::NoDecoder { dtype });
        }
    }
    Ok(())
}

/// Encodes `input`, finite elements in multiples of the block size, into `out`.
///
/// A block depends only on its own elements, so rows and parts of rows can be encoded in parallel. The result is the same on
/// every machine. For the legacy, ternary and MXFP4 formats the bytes are those of ggml's quantiser; for the K and IQ4 formats
/// the quantiser searches for the scales with the least squared error.
///
/// # Errors
/// If `dtype` has no quantiser (see [`can_quantize`]), `input.len()` is not a multiple of the block
/// size, the size of `out` does not match `input`, or an element is not finite or too large for the format.
pub fn quantize(dtype: DType, input: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    encode(dtype, input, out).unwrap_or(Err(QuantError::NoQuantizer { dtype }))
}

/// Whether [`quantize`] writes this type. The others need calibration data or are not weight formats.
pub fn can_quantize(dtype: DType) -> bool {
    encode(dtype, &[], &mut []).is_some()
}

/// All types that [`quantize`] writes.
fn writable() -> Vec<DType> {
    ALL.into_iter().filter(|&dtype| can_quantize(dtype)).collect()
}

/// [`quantize`]; `None` if there is no quantiser.
fn encode(dtype: DType, input: &[f32], out: &mut [u8]) -> Option<Result<(), QuantError>> {
    Some(match dtype {
        DType::F32 => encode_blocks(dtype, f32::MAX, input, out, plain::encode_f32),
        DType::F16 => encode_blocks(dtype, F16_MAX, input, out, plain::encode_f16),
        DType::BF16 => encode_blocks(dtype, half::bf16::MAX.to_f32(), input, out, plain::encode_bf16),
        // The E8M0 scale covers the exponents of f32.
        DType::MXFP4 => encode_blocks(dtype, f32::MAX, input, out, fp4::encode_mxfp4),
        // Limits of the legacy formats without a min: the largest representable magnitude is this many times the scale.
        DType::Q4_0 => encode_blocks(dtype, 8.0 * F16_MAX, input, out, legacy::encode_q4_0),
        DType::Q5_0 => encode_blocks(dtype, 16.0 * F16_MAX, input, out, legacy::encode_q5_0),
        DType::Q8_0 => encode_blocks(dtype, 127.0 * F16_MAX, input, out, legacy::encode_q8_0),
        // In the other formats the largest magnitude may itself be stored as f16 (the K types could store larger values, but
        // weights that large are a mistake).
        DType::Q4_1 => encode_blocks(dtype, F16_MAX, input, out, legacy::encode_q4_1),
        DType::Q5_1 => encode_blocks(dtype, F16_MAX, input, out, legacy::encode_q5_1),
        DType::TQ1_0 => encode_blocks(dtype, F16_MAX, input, out, ternary::encode_tq1_0),
        DType::TQ2_0 => encode_blocks(dtype, F16_MAX, input, out, ternary::encode_tq2_0),
        DType::Q2_K => encode_blocks(dtype, F16_MAX, input, out, k::encode_q2_k),
        DType::Q3_K => encode_blocks(dtype, F16_MAX, input, out, k::encode_q3_k),
        DType::Q4_K => encode_blocks(dtype, F16_MAX, input, out, k::encode_q4_k),
        DType::Q5_K => encode_blocks(dtype, F16_MAX, input, out, k::encode_q5_k),
        DType::Q6_K => encode_blocks(dtype, F16_MAX, input, out, k::encode_q6_k),
        DType::IQ4_NL => encode_blocks(dtype, F16_MAX, input, out, iq::encode_iq4_nl),
        DType::IQ4_XS => encode_blocks(dtype, F16_MAX, input, out, iq::encode_iq4_xs),
        DType::IQ1_S | DType::IQ1_M | DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S => return None,
        DType::IQ3_XXS | DType::IQ3_S | DType::NVFP4 | DType::Q1_0 | DType::Q2_0 => return None,
        DType::Q8_1 | DType::Q8_K => return None,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::F64 => return None,
    })
}

/// The largest f16.
const F16_MAX: f32 = 65504.0;

fn check_sizes(dtype: DType, actual: usize, elements: usize) -> Result<(), QuantError> {
    let expected = dtype.row_bytes(elements).ok_or(QuantError::PartialBlock { dtype, elements })?;
    if actual != expected {
        return Err(QuantError::WrongByteCount { dtype, elements, expected, actual });
    }
    Ok(())
}

fn check_range(dtype: DType, input: &[f32], limit: f32) -> Result<(), QuantError> {
    match input.iter().copied().enumerate().find(|(_, value)| value.is_nan() || value.abs() > limit) {
        None => Ok(()),
        Some((index, value)) if !value.is_finite() => Err(QuantError::NotFinite { index, value }),
        Some((index, value)) => Err(QuantError::OutOfRange { dtype, index, value, limit }),
    }
}

fn decode_blocks<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outputs, _) = out.as_chunks_mut::<LEN>();
    blocks.iter().zip(outputs).for_each(|(block, out)| decode(block, out));
}

/// `limit` is the largest magnitude for which no scale of the format can overflow.
fn encode_blocks<const BYTES: usize, const LEN: usize>(
    dtype: DType,
    limit: f32,
    input: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; LEN], &mut [u8; BYTES]),
) -> Result<(), QuantError> {
    check_sizes(dtype, out.len(), input.len())?;
    check_range(dtype, input, limit)?;
    let (inputs, _) = input.as_chunks::<LEN>();
    let (blocks, _) = out.as_chunks_mut::<BYTES>();
    inputs.iter().zip(blocks).for_each(|(input, block)| encode(input, block));
    Ok(())
}
