//! The unquantised types, one element per "block": F32, F16, BF16. All little-endian.

use half::{bf16, f16};

pub(crate) fn decode_f32(block: &[u8; 4], out: &mut [f32; 1]) {
    out[0] = f32::from_le_bytes(*block);
}

pub(crate) fn decode_f16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f16::from_le_bytes(*block).to_f32();
}

pub(crate) fn decode_bf16(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = bf16::from_le_bytes(*block).to_f32();
}

pub(crate) fn encode_f32(input: &[f32; 1], block: &mut [u8; 4]) {
    *block = input[0].to_le_bytes();
}

/// Rounds to nearest, ties to even.
pub(crate) fn encode_f16(input: &[f32; 1], block: &mut [u8; 2]) {
    *block = f16::from_f32(input[0]).to_le_bytes();
}

/// Rounds to nearest, ties to even.
pub(crate) fn encode_bf16(input: &[f32; 1], block: &mut [u8; 2]) {
    *block = bf16::from_f32(input[0]).to_le_bytes();
}
