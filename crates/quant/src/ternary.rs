//! One to two bits without grids: signs (Q1_0), four levels (Q2_0) and the ternary types (TQ1_0, TQ2_0).

use crate::bytes::{f16_at, put_f16, put_quant, quant};
use crate::legacy::inverse_or_zero;

const LEN: usize = 256;

/// TQ1_0 packs five ternary digits to a byte: 32 bytes for elements 0..160, 16 bytes for 160..240 and four bytes of
/// four digits for 240..256. Each run is (first byte, bytes, digits per byte, first element).
const TQ1_0_RUNS: [(usize, usize, usize, usize); 3] = [(0, 32, 5, 0), (32, 16, 5, 160), (48, 4, 4, 240)];

/// TQ1_0: `digits: [u8; 48], last_digits: [u8; 4], d: f16`.
///
/// A byte is a fraction in units of 1/256; multiplied by 3 its integer part is the next ternary digit.
pub(crate) fn decode_tq1_0(block: &[u8; 54], out: &mut [f32; LEN]) {
    let d = f16_at(block, 52);
    for (first_byte, bytes, digits, first) in TQ1_0_RUNS {
        for j in 0..bytes {
            let mut fraction = block[first_byte + j];
            for digit in 0..digits {
                let trit = (u16::from(fraction) * 3) >> 8;
                out[first + digit * bytes + j] = d * (f32::from(trit) - 1.0);
                fraction = fraction.wrapping_mul(3);
            }
        }
    }
}

/// TQ2_0: `qs: [u8; 64], d: f16`; each 32 bytes hold 4 x 32 elements of two bits, packed with stride 32.
pub(crate) fn decode_tq2_0(block: &[u8; 66], out: &mut [f32; LEN]) {
    let d = f16_at(block, 64);
    for i in 0..LEN {
        out[i] = d * (f32::from(quant::<2, 32>(block, i)) - 1.0);
    }
}

/// Q1_0: `d: f16, signs: [u8; 16]`; a set bit is `+d`, a clear one `-d`.
pub(crate) fn decode_q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = f16_at(block, 0);
    for i in 0..128 {
        out[i] = if quant::<1, 1>(&block[2..], i) == 1 { d } else { -d };
    }
}

/// Q2_0: `d: f16, qs: [u8; 16]`; the quants 0..4 are `-d`, `0`, `d` and `2 d`.
pub(crate) fn decode_q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let d = f16_at(block, 0);
    for i in 0..64 {
        out[i] = d * (f32::from(quant::<2, 1>(&block[2..], i)) - 1.0);
    }
}

pub(crate) fn encode_tq1_0(input: &[f32; LEN], block: &mut [u8; 54]) {
    let (d, trits) = nearest_trits(input);
    for (first_byte, bytes, digits, first) in TQ1_0_RUNS {
        for j in 0..bytes {
            let mut number = 0u16;
            for digit in 0..5 {
                let trit = if digit < digits { trits[first + digit * bytes + j] } else { 0 };
                number = number * 3 + u16::from(trit);
            }
            // Out of 3^5 = 243 to the fraction in 1/256 that the decoder expands, rounded up so that it truncates back.
            block[first_byte + j] = (number * 256).div_ceil(243) as u8;
        }
    }
    put_f16(block, 52, d);
}

pub(crate) fn encode_tq2_0(input: &[f32; LEN], block: &mut [u8; 66]) {
    let (d, trits) = nearest_trits(input);
    block.fill(0);
    for i in 0..LEN {
        put_quant::<2, 32>(block, i, trits[i]);
    }
    put_f16(block, 64, d);
}

/// The largest magnitude as scale, and -1, 0 or 1 (stored as 0, 1, 2) for each element.
fn nearest_trits(input: &[f32; LEN]) -> (f32, [u8; LEN]) {
    let d = input.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let inverse = inverse_or_zero(d);
    (d, input.map(|x| ((x * inverse).round() + 1.0) as u8))
}
