//! Four-bit floating point with a shared scale: MXFP4 (one power of two per 32) and NVFP4 (one E4M3 scale per 16).

use crate::bytes::{put_quant, quant};

/// The sixteen E2M1 values, doubled so that they are integers. Source: OCP Microscaling Formats specification 1.0.
const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// MXFP4: `e: u8, qs: [u8; 16]`; low halves are elements 0..16, high halves 16..32.
pub(crate) fn decode_mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let d = half_of_e8m0(block[0]);
    for i in 0..32 {
        out[i] = d * E2M1_DOUBLED[usize::from(quant::<4, 16>(&block[1..], i))];
    }
}

/// NVFP4: `d: [u8; 4], qs: [[u8; 8]; 4]`; in each group of 16, low halves are elements 0..8, high halves 8..16.
pub(crate) fn decode_nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for i in 0..64 {
        out[i] = half_of_e4m3(block[i / 16]) * E2M1_DOUBLED[usize::from(quant::<4, 8>(&block[4..], i))];
    }
}

/// The power of two depends only on the largest magnitude, so that it lands on the top binade of E2M1 (4 to 6).
pub(crate) fn encode_mxfp4(input: &[f32; 32], block: &mut [u8; 17]) {
    let largest = input.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let biased_exponent = (largest.to_bits() >> 23) as u8;
    block[0] = biased_exponent.saturating_sub(2);
    let d = half_of_e8m0(block[0]);
    block[1..].fill(0);
    for i in 0..32 {
        put_quant::<4, 16>(&mut block[1..], i, nearest_quant(input[i], d));
    }
}

fn nearest_quant(x: f32, d: f32) -> u8 {
    let mut best = (f32::INFINITY, 0);
    for (quant, level) in (0u8..).zip(E2M1_DOUBLED) {
        let error = (d * level - x).abs();
        if error < best.0 {
            best = (error, quant);
        }
    }
    best.1
}

/// Half of `2^(exponent - 127)`, the half making up for the doubled levels. The smallest two are subnormal.
fn half_of_e8m0(exponent: u8) -> f32 {
    match exponent {
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// Half of an E4M3 value without its sign; its one NaN becomes 0.
fn half_of_e4m3(byte: u8) -> f32 {
    if byte == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    if exponent == 0 { mantissa / 1024.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8) }
}
