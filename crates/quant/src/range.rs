//! Which formats can be written, and how large the numbers may be.

use crate::DType;

/// Whether [`quantize`](crate::quantize) writes this type. The others need calibration data or are not weight formats.
pub fn can_quantize(dtype: DType) -> bool {
    largest_magnitude(dtype).is_some()
}

/// The largest magnitude for which no scale of the format can overflow; `None` for types without a quantiser.
pub(crate) fn largest_magnitude(dtype: DType) -> Option<f32> {
    const HALF_MAX: f32 = 65504.0;
    match dtype {
        DType::F32 | DType::MXFP4 => Some(f32::MAX),
        DType::BF16 => Some(half::bf16::MAX.to_f32()),
        // The largest quant is this many scales.
        DType::Q4_0 => Some(8.0 * HALF_MAX),
        DType::Q5_0 => Some(16.0 * HALF_MAX),
        DType::Q8_0 => Some(127.0 * HALF_MAX),
        // The largest magnitude is itself a field, or could become one (the K types would take larger numbers, but
        // weights that large are a mistake).
        DType::F16 | DType::Q4_1 | DType::Q5_1 | DType::TQ1_0 | DType::TQ2_0 => Some(HALF_MAX),
        DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::Q5_K | DType::Q6_K => Some(HALF_MAX),
        DType::IQ4_NL | DType::IQ4_XS => Some(HALF_MAX),
        _ => None,
    }
}
