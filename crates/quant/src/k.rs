//! The K formats: super-blocks of 256 elements whose sub-blocks have scales of 4 to 8 bits in units of an f16 super-block
//! scale.
//!
//! Q2_K, Q4_K and Q5_K have a scale and a min per sub-block, `d * scale * q - dmin * min`; Q3_K and Q6_K have
//! a signed scale only, `d * scale * q`.

use crate::bytes::{f16_at, put_f16, put_quant, quant, signed};
use crate::search::{self, IntLevels, LEN};

/// Q2_K: `scales: [u8; 16]` (low half scale, high half min), `qs: [u8; 64], d: f16, dmin: f16`.
pub(crate) fn decode_q2_k(block: &[u8; 84], out: &mut [f32; LEN]) {
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(block[sub] & 15);
        let min = dmin * f32::from(block[sub] >> 4);
        for i in 0..16 {
            out[i] = scale * f32::from(quant::<2, 32>(&block[16..], 16 * sub + i)) - min;
        }
    }
}

/// Q3_K: `hmask: [u8; 32], qs: [u8; 64], scales: [u8; 12], d: f16`; a quant is 3 bits, minus 4.
pub(crate) fn decode_q3_k(block: &[u8; 110], out: &mut [f32; LEN]) {
    let d = f16_at(block, 108);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * (f32::from(q3_k_scale(&block[96..], sub)) - 32.0);
        for i in 0..16 {
            let at = 16 * sub + i;
            let q = quant::<2, 32>(&block[32..], at) | quant::<1, 32>(block, at) << 2;
            out[i] = scale * (f32::from(q) - 4.0);
        }
    }
}

/// Q4_K: `d: f16, dmin: f16, scales: [u8; 12], qs: [u8; 128]`.
pub(crate) fn decode_q4_k(block: &[u8; 144], out: &mut [f32; LEN]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..], sub);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for i in 0..32 {
            out[i] = scale * f32::from(quant::<4, 32>(&block[16..], 32 * sub + i)) - min;
        }
    }
}

/// Q5_K: `d: f16, dmin: f16, scales: [u8; 12], qh: [u8; 32], qs: [u8; 128]`.
pub(crate) fn decode_q5_k(block: &[u8; 176], out: &mut [f32; LEN]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    for (sub, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..], sub);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for i in 0..32 {
            let at = 32 * sub + i;
            let q = quant::<4, 32>(&block[48..], at) | quant::<1, 32>(&block[16..], at) << 4;
            out[i] = scale * f32::from(q) - min;
        }
    }
}

/// Q6_K: `ql: [u8; 128], qh: [u8; 64], scales: [i8; 16], d: f16`; a quant is 6 bits, minus 32.
pub(crate) fn decode_q6_k(block: &[u8; 210], out: &mut [f32; LEN]) {
    let d = f16_at(block, 208);
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * signed(block[192 + sub]);
        for i in 0..16 {
            let at = 16 * sub + i;
            let q = quant::<4, 64>(block, at) | quant::<2, 32>(&block[128..], at) << 4;
            out[i] = scale * (f32::from(q) - 32.0);
        }
    }
}

pub(crate) fn encode_q2_k(input: &[f32; LEN], block: &mut [u8; 84]) {
    let found = search::affine::<16, 16, 3>(input, 15.0);
    block.fill(0);
    for sub in 0..16 {
        block[sub] = found.scales[sub] | found.mins[sub] << 4;
    }
    for i in 0..LEN {
        put_quant::<2, 32>(&mut block[16..], i, found.quants[i]);
    }
    put_f16(block, 80, found.d);
    put_f16(block, 82, found.dmin);
}

pub(crate) fn encode_q3_k(input: &[f32; LEN], block: &mut [u8; 110]) {
    let found = search::symmetric::<IntLevels<-4, 3>, 16, 16>(input, 31.0);
    block.fill(0);
    for i in 0..LEN {
        let q = (found.levels[i] + 4.0) as u8;
        put_quant::<2, 32>(&mut block[32..], i, q);
        put_quant::<1, 32>(block, i, q >> 2);
    }
    for sub in 0..16 {
        let scale = (found.scales[sub] + 32).cast_unsigned();
        put_quant::<4, 8>(&mut block[96..], sub, scale);
        put_quant::<2, 4>(&mut block[104..], sub, scale >> 4);
    }
    put_f16(block, 108, found.d);
}

pub(crate) fn encode_q4_k(input: &[f32; LEN], block: &mut [u8; 144]) {
    let found = search::affine::<8, 32, 15>(input, 63.0);
    block.fill(0);
    put_f16(block, 0, found.d);
    put_f16(block, 2, found.dmin);
    put_scales_and_mins(&mut block[4..], &found.scales, &found.mins);
    for i in 0..LEN {
        put_quant::<4, 32>(&mut block[16..], i, found.quants[i]);
    }
}

pub(crate) fn encode_q5_k(input: &[f32; LEN], block: &mut [u8; 176]) {
    let found = search::affine::<8, 32, 31>(input, 63.0);
    block.fill(0);
    put_f16(block, 0, found.d);
    put_f16(block, 2, found.dmin);
    put_scales_and_mins(&mut block[4..], &found.scales, &found.mins);
    for i in 0..LEN {
        put_quant::<4, 32>(&mut block[48..], i, found.quants[i]);
        put_quant::<1, 32>(&mut block[16..], i, found.quants[i] >> 4);
    }
}

pub(crate) fn encode_q6_k(input: &[f32; LEN], block: &mut [u8; 210]) {
    let found = search::symmetric::<IntLevels<-32, 31>, 16, 16>(input, 127.0);
    block.fill(0);
    for i in 0..LEN {
        let q = (found.levels[i] + 32.0) as u8;
        put_quant::<4, 64>(block, i, q);
        put_quant::<2, 32>(&mut block[128..], i, q >> 4);
    }
    for sub in 0..16 {
        block[192 + sub] = found.scales[sub].cast_unsigned();
    }
    put_f16(block, 208, found.d);
}

/// Six-bit scale and min of sub-block `sub` in the 12 bytes of Q4_K and Q5_K.
///
/// Bytes 0..4 hold the scales of the first four sub-blocks and 4..8 their mins; the two bits above those are the
/// high bits of the last four, whose low bits are in bytes 8..12.
fn scale_and_min(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        let low = packed[sub + 4];
        (low & 15 | packed[sub - 4] >> 6 << 4, low >> 4 | packed[sub] >> 6 << 4)
    }
}

/// The inverse of [`scale_and_min`].
fn put_scales_and_mins(packed: &mut [u8], scales: &[u8; 8], mins: &[u8; 8]) {
    for sub in 0..4 {
        packed[sub] = scales[sub] | scales[sub + 4] >> 4 << 6;
        packed[sub + 4] = mins[sub] | mins[sub + 4] >> 4 << 6;
        packed[sub + 8] = scales[sub + 4] & 15 | (mins[sub + 4] & 15) << 4;
    }
}

/// Six-bit scale of sub-block `sub` in the 12 bytes of Q3_K: low bits in bytes 0..8, high bits in bytes 8..12.
fn q3_k_scale(packed: &[u8], sub: usize) -> u8 {
    quant::<4, 8>(packed, sub) | quant::<2, 4>(&packed[8..], sub) << 4
}
