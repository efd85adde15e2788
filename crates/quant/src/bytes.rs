//! Reading and writing the fields of a block.

use half::f16;

/// The f16 at byte `at`.
pub(crate) fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes `value`, rounded to nearest even, as f16 at byte `at`.
pub(crate) fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// `value` rounded to f16, as a block stores it.
pub(crate) fn round_to_f16(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

/// The u16 at byte `at`.
pub(crate) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// The u32 at byte `at`.
pub(crate) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The signed value of a byte.
pub(crate) fn signed(byte: u8) -> f32 {
    f32::from(byte.cast_signed())
}

/// Quant `i` of an array of `BITS`-bit quants packed with stride `WIDTH`: `WIDTH` bytes hold the quants of `WIDTH` consecutive
/// elements in their lowest bits, those of the next `WIDTH` elements in the bits above, and so on until the bytes are full.
///
/// The quants of every format are one such array, or two (some bits in one, the rest in the other).
pub(crate) fn quant<const BITS: usize, const WIDTH: usize>(bytes: &[u8], i: usize) -> u8 {
    let (byte, shift) = packed_position(BITS, WIDTH, i);
    bytes[byte] >> shift & (0xff >> (8 - BITS))
}

/// Sets quant `i` of such an array, in which it is still 0. Bits of `quant` above the lowest `BITS` are ignored.
pub(crate) fn put_quant<const BITS: usize, const WIDTH: usize>(bytes: &mut [u8], i: usize, quant: u8) {
    let (byte, shift) = packed_position(BITS, WIDTH, i);
    bytes[byte] |= (quant & (0xff >> (8 - BITS))) << shift;
}

fn packed_position(bits: usize, width: usize, i: usize) -> (usize, usize) {
    let elements = width * (8 / bits);
    (i / elements * width + i % width, i % elements / width * bits)
}
