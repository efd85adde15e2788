//! The first generation: blocks of 32 with one f16 scale, and in the `_1` types a min.
//!
//! Value of quant `q`: `d * (q - bias)` for Q4_0, Q5_0 and Q8_0; `d * q + m` for Q4_1 and Q5_1. The low halves of the
//! 4 low bits are elements 0..16, the high halves elements 16..32. The quantisers write the same bytes as ggml's.

use crate::bytes::{f16_at, put_f16, put_quant, quant, signed};

const LEN: usize = 32;

/// Q4_0: `d: f16, low: [u8; 16]`.
pub(crate) fn decode_q4_0(block: &[u8; 18], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for i in 0..LEN {
        out[i] = d * (f32::from(quant::<4, 16>(&block[2..], i)) - 8.0);
    }
}

/// Q4_1: `d: f16, m: f16, low: [u8; 16]`.
pub(crate) fn decode_q4_1(block: &[u8; 20], out: &mut [f32; LEN]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for i in 0..LEN {
        out[i] = d * f32::from(quant::<4, 16>(&block[4..], i)) + m;
    }
}

/// Q5_0: `d: f16, fifth_bits: u32, low: [u8; 16]`.
pub(crate) fn decode_q5_0(block: &[u8; 22], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for i in 0..LEN {
        out[i] = d * (f32::from(five_bits(&block[2..], i)) - 16.0);
    }
}

/// Q5_1: `d: f16, m: f16, fifth_bits: u32, low: [u8; 16]`.
pub(crate) fn decode_q5_1(block: &[u8; 24], out: &mut [f32; LEN]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for i in 0..LEN {
        out[i] = d * f32::from(five_bits(&block[4..], i)) + m;
    }
}

/// Q8_0: `d: f16, qs: [i8; 32]`.
pub(crate) fn decode_q8_0(block: &[u8; 34], out: &mut [f32; LEN]) {
    let d = f16_at(block, 0);
    for i in 0..LEN {
        out[i] = signed(block[2 + i]) * d;
    }
}

pub(crate) fn encode_q4_0(input: &[f32; LEN], block: &mut [u8; 18]) {
    let (d, inverse) = signed_scale(input, -8.0);
    put_f16(block, 0, d);
    put_low_bits(&mut block[2..], &input.map(|x| truncate(x * inverse + 8.5, 15)));
}

pub(crate) fn encode_q4_1(input: &[f32; LEN], block: &mut [u8; 20]) {
    let (d, inverse, m) = scale_and_min(input, 15.0);
    put_f16(block, 0, d);
    put_f16(block, 2, m);
    put_low_bits(&mut block[4..], &input.map(|x| truncate((x - m) * inverse + 0.5, 15)));
}

pub(crate) fn encode_q5_0(input: &[f32; LEN], block: &mut [u8; 22]) {
    let (d, inverse) = signed_scale(input, -16.0);
    let quants = input.map(|x| truncate(x * inverse + 16.5, 31));
    put_f16(block, 0, d);
    put_five_bits(&mut block[2..], &quants);
}

pub(crate) fn encode_q5_1(input: &[f32; LEN], block: &mut [u8; 24]) {
    let (d, inverse, m) = scale_and_min(input, 31.0);
    let quants = input.map(|x| truncate((x - m) * inverse + 0.5, 31));
    put_f16(block, 0, d);
    put_f16(block, 2, m);
    put_five_bits(&mut block[4..], &quants);
}

pub(crate) fn encode_q8_0(input: &[f32; LEN], block: &mut [u8; 34]) {
    let d = input.iter().fold(0.0f32, |most, x| most.max(x.abs())) / 127.0;
    let inverse = inverse_or_zero(d);
    put_f16(block, 0, d);
    for i in 0..LEN {
        block[2 + i] = ((input[i] * inverse).round() as i8).cast_unsigned();
    }
}

/// `1 / scale`, or 0 for a scale so small that the quotient overflows.
pub(crate) fn inverse_or_zero(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The scale that puts the element of largest magnitude at quant `extreme`, which is one further from zero than the
/// largest positive quant; and its inverse.
fn signed_scale(input: &[f32; LEN], extreme: f32) -> (f32, f32) {
    let largest = input.iter().fold(0.0f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    let d = largest / extreme;
    (d, inverse_or_zero(d))
}

/// Scale, inverse scale and min that spread the quants `0..=steps` from the smallest element to the largest.
fn scale_and_min(input: &[f32; LEN], steps: f32) -> (f32, f32, f32) {
    let least = input.iter().copied().fold(f32::INFINITY, f32::min);
    let most = input.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (most - least) / steps;
    (d, inverse_or_zero(d), least)
}

fn truncate(value: f32, largest: u8) -> u8 {
    (value as u8).min(largest)
}

/// Quant `i` of the fields `fifth_bits: u32, low: [u8; 16]`.
fn five_bits(fields: &[u8], i: usize) -> u8 {
    quant::<4, 16>(&fields[4..], i) | quant::<1, 1>(fields, i) << 4
}

fn put_low_bits(low: &mut [u8], quants: &[u8; LEN]) {
    low.fill(0);
    for i in 0..LEN {
        put_quant::<4, 16>(low, i, quants[i]);
    }
}

fn put_five_bits(fields: &mut [u8], quants: &[u8; LEN]) {
    fields[..4].fill(0);
    put_low_bits(&mut fields[4..], quants);
    for i in 0..LEN {
        put_quant::<1, 1>(fields, i, quants[i] >> 4);
    }
}
