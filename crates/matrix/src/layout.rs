//! The memory layout of the quants of sixteen rows.
//!
//! A *quad* (4 columns x 16 rows, one VNNI operand) is 64 bytes, row by row (byte `4 * row + column`). It is one AVX-512
//! register, two of AVX2 or four of NEON. A block of 32 columns is eight quads of one-byte quants; narrower quants share
//! quads. Below, a *stored quad* is 64 bytes of memory, and *quad* `t` is the quants of the columns `4 * t ..`:
//!
//! - 8 bits: stored quad `t` is quad `t`.
//! - 4 bits: the low nibbles of stored quad `t` are quad `t`, the high nibbles quad `t + 4`.
//! - 2 bits: stored quad `t` (0 or 1) holds quads `4 * t ..`, from the lowest bits up.
//! - 1 bit: bit `t` of the one stored quad is quad `t`.
//! - 6, 5 and 3 bits are 4 + 2, 4 + 1 and 2 + 1 bits, the low part first.

use verbatim_simd::{Bytes4, Q8_COLS, Simd, TRANSPOSED_ROWS, transpose};

/// Rows that are interleaved.
pub(super) const GROUP_ROWS: usize = TRANSPOSED_ROWS;

/// Columns of a block: activations are quantised, and integer sums taken, per block.
pub const BLOCK_COLS: usize = Q8_COLS;

/// Bytes of a quad.
const QUAD_BYTES: usize = 4 * GROUP_ROWS;

/// Bytes of the quants of one block of sixteen rows.
pub(super) const fn quant_bytes(bits: usize) -> usize {
    GROUP_ROWS * BLOCK_COLS * bits / 8
}

/// Writes the quants of sixteen rows as one block.
#[inline(always)]
pub(super) fn pack(bits: usize, rows: &[[Bytes4; 8]; GROUP_ROWS], block: &mut [u8]) {
    let mut quads = [[[0; 4]; GROUP_ROWS]; 8];
    transpose(rows, &mut quads);
    let (low_bits, high_bits) = split(bits);
    let (low, high) = block.split_at_mut(quant_bytes(low_bits));
    pack_part(low_bits, &quads, 0, low);
    if high_bits > 0 {
        pack_part(high_bits, &quads, low_bits, high);
    }
}

/// Splits a quant width into two that divide a byte.
const fn split(bits: usize) -> (usize, usize) {
    match bits {
        3 => (2, 1),
        5 => (4, 1),
        6 => (4, 2),
        bits => (bits, 0),
    }
}

/// Writes `bits` bits of each quant, starting at bit `from`.
#[inline(always)]
fn pack_part(bits: usize, quads: &[[Bytes4; GROUP_ROWS]; 8], from: usize, part: &mut [u8]) {
    let mask = u8::MAX >> (8 - bits);
    let stored_quads = part.as_chunks_mut::<QUAD_BYTES>().0;
    for (stored, bytes) in stored_quads.iter_mut().enumerate() {
        for field in 0..8 / bits {
            let quad = quads[quad_at(bits, stored, field)].as_flattened();
            for (byte, quant) in bytes.iter_mut().zip(quad) {
                let moved = ((quant >> from) & mask) << (field * bits);
                *byte = if field == 0 { moved } else { *byte | moved };
            }
        }
    }
}

/// Writes 32 one-bit quants of each row, given as a u32 whose lowest bit is the first quant.
#[inline(always)]
pub(super) fn pack_bits(rows: &[u32; GROUP_ROWS], block: &mut [u8]) {
    for (word, &row) in block.as_chunks_mut::<4>().0.iter_mut().zip(rows) {
        // Bit 4 · quad + column goes to bit 8 · column + quad: the five bits of the bit index are rotated, by exchanging two of
        // them at a time.
        let exchanges = [(3, 0x0a0a_0a0a), (6, 0x00cc_00cc), (12, 0x0000_f0f0), (8, 0x0000_ff00)];
        let moved = exchanges.iter().fold(row, |bits, (up, which)| {
            let differ = (bits ^ bits >> up) & which;
            bits ^ differ ^ differ << up
        });
        *word = moved.to_le_bytes();
    }
}

/// Writes the first `bytes.len() / 16` bytes of each row, transposed: byte i of all rows is contiguous.
#[inline(always)]
pub(super) fn pack_bytes(rows: &[[Bytes4; 4]; GROUP_ROWS], bytes: &mut [u8]) {
    let mut words = [[[0; 4]; GROUP_ROWS]; 4];
    transpose(rows, &mut words);
    for (bytes, words) in bytes.chunks_mut(4 * GROUP_ROWS).zip(&words) {
        for (i, bytes) in bytes.as_chunks_mut::<GROUP_ROWS>().0.iter_mut().enumerate() {
            for (byte, &word) in bytes.iter_mut().zip(words) {
                *byte = (u32::from_le_bytes(word) >> (8 * i)) as u8;
            }
        }
    }
}

/// The quad that is stored in field `field` (the bits from `field * bits`) of a stored quad: the inverse of [`bit_position`].
const fn quad_at(bits: usize, stored: usize, field: usize) -> usize {
    match bits {
        4 => stored + 4 * field,
        2 => 4 * stored + field,
        1 => field,
        _ => stored,
    }
}

/// The position of a quad of quants of `bits` bits: the stored quad, and its first bit.
const fn bit_position(bits: usize, quad: usize) -> (usize, usize) {
    match bits {
        4 => (quad % 4, quad / 4 * 4),
        2 => (quad / 4, quad % 4 * 2),
        1 => (0, quad),
        _ => (quad, 0),
    }
}

/// The one-byte quants of a block, for `S::LANES` rows starting at row `lane`, quad by quad.
///
/// # Safety
/// `block` points to `quant_bytes(bits)` bytes, `lane + S::LANES` is at most 16.
#[inline(always)]
pub(super) unsafe fn unpack<S: Simd>(simd: S, bits: usize, block: *const u8, lane: usize) -> [S::Bytes; 8] {
    let (low_bits, high_bits) = split(bits);
    // SAFETY: `bit_position` returns stored quads within the bytes that the caller guarantees.
    unsafe {
        let mut quants = [simd.splat_byte(0); 8];
        for (quad, quants) in quants.iter_mut().enumerate() {
            *quants = part(simd, low_bits, block, lane, quad, 0);
            if high_bits > 0 {
                let high = part(simd, high_bits, block.add(quant_bytes(low_bits)), lane, quad, low_bits);
                *quants = simd.or(*quants, high);
            }
        }
        quants
    }
}

/// One quad of quants of `bits` bits, moved to bit `to` of its bytes.
#[inline(always)]
unsafe fn part<S: Simd>(
    simd: S,
    bits: usize,
    block: *const u8,
    lane: usize,
    quad: usize,
    to: usize,
) -> S::Bytes {
    let (stored, from) = bit_position(bits, quad);
    // SAFETY: as for `unpack`.
    unsafe {
        let bytes = simd.load_bytes(block.add(stored * QUAD_BYTES + 4 * lane));
        if bits == 8 {
            return bytes;
        }
        let moved = if from >= to {
            simd.shift_right(bytes, (from - to) as u32)
        } else {
            simd.shift_left(bytes, (to - from) as u32)
        };
        simd.and(moved, simd.splat_byte((u8::MAX >> (8 - bits)) << to))
    }
}
