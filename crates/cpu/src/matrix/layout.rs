//! How the codes of sixteen rows lie in memory.
//!
//! A *chunk* is 64 bytes: four neighbouring columns of each of sixteen rows, row by row (byte `4 * row +
//! column`). It is one AVX-512 register, two of AVX2 or four of NEON. A block of 32 columns is eight chunks of one-byte
//! codes; narrower codes share chunks. Below, chunk numbers on the left are stored and those on the right are
//! columns `4 * chunk ..`:
//!
//! - 8 bits: stored chunk `c` is chunk `c`.
//! - 4 bits: the low halves of stored chunk `c` are chunk `c`, the high halves chunk `c + 4`.
//! - 2 bits: stored chunk `c` (0 or 1) holds chunks `4 * c ..`, from the lowest bits up.
//! - 1 bit: bit `c` of the one stored chunk is chunk `c`.
//! - 6, 5 and 3 bits are 4 + 2, 4 + 1 and 2 + 1 bits, the low part first.

use super::simd::Simd;

/// Rows that are interleaved.
pub(super) const GROUP_ROWS: usize = 16;

/// Columns in a block, the unit in which activations are quantised and sums are taken.
pub(crate) const BLOCK_COLS: usize = 32;

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 4 * GROUP_ROWS;

/// Bytes of the codes of one block of sixteen rows.
pub(super) const fn code_bytes(bits: usize) -> usize {
    GROUP_ROWS * BLOCK_COLS * bits / 8
}

/// Writes the codes of sixteen rows as one block.
#[inline(always)]
pub(super) fn pack(bits: usize, rows: &[[u8; BLOCK_COLS]; GROUP_ROWS], block: &mut [u8]) {
    let (low_bits, high_bits) = split(bits);
    let (low, high) = block.split_at_mut(code_bytes(low_bits));
    pack_part(low_bits, rows, 0, low);
    if high_bits > 0 {
        pack_part(high_bits, rows, low_bits, high);
    }
}

/// A code width as two that divide a byte.
const fn split(bits: usize) -> (usize, usize) {
    match bits {
        3 => (2, 1),
        5 => (4, 1),
        6 => (4, 2),
        whole => (whole, 0),
    }
}

/// Writes `bits` bits of each code, those from bit `from` on. A row's part of a chunk is a word of four
/// codes.
#[inline(always)]
fn pack_part(bits: usize, rows: &[[u8; BLOCK_COLS]; GROUP_ROWS], from: usize, part: &mut [u8]) {
    let mask = u32::from_ne_bytes([u8::MAX >> (8 - bits); 4]);
    let stored_chunks = part.as_chunks_mut::<CHUNK_BYTES>().0;
    for (row, codes) in rows.iter().enumerate() {
        let mut words = [0; 8];
        for (chunk, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
            let (stored, shift) = place(bits, chunk);
            // The mask leaves what was in the code's own byte, and there is room for the shift.
            words[stored] |= ((u32::from_le_bytes(*codes) >> from) & mask) << shift;
        }
        for (chunk, word) in stored_chunks.iter_mut().zip(words) {
            chunk[4 * row..4 * row + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Where a chunk of codes of `bits` bits is: the stored chunk, and the bit it starts at.
const fn place(bits: usize, chunk: usize) -> (usize, usize) {
    match bits {
        4 => (chunk % 4, chunk / 4 * 4),
        2 => (chunk / 4, chunk % 4 * 2),
        1 => (0, chunk),
        _ => (chunk, 0),
    }
}

/// The one-byte codes of a block, for `S::LANES` rows from row `lane` on, chunk by chunk.
///
/// # Safety
/// `block` points to `code_bytes(bits)` bytes, `lane + S::LANES` is at most 16, and the machine has the
/// instruction set of `S`.
#[inline(always)]
pub(super) unsafe fn unpack<S: Simd>(bits: usize, block: *const u8, lane: usize) -> [S::Bytes; 8] {
    let (low_bits, high_bits) = split(bits);
    // SAFETY: `place` gives stored chunks within the bytes that the caller vouches for.
    unsafe {
        let mut codes = [S::splat_byte(0); 8];
        for (chunk, codes) in codes.iter_mut().enumerate() {
            *codes = part::<S>(low_bits, block, lane, chunk, 0);
            if high_bits > 0 {
                let high = part::<S>(high_bits, block.add(code_bytes(low_bits)), lane, chunk, low_bits);
                *codes = S::or(*codes, high);
            }
        }
        codes
    }
}

/// One chunk of codes of `bits` bits, moved to bit `to` of its bytes.
#[inline(always)]
unsafe fn part<S: Simd>(bits: usize, block: *const u8, lane: usize, chunk: usize, to: usize) -> S::Bytes {
    let (stored, from) = place(bits, chunk);
    // SAFETY: as for `unpack`.
    unsafe {
        let bytes = S::load_bytes(block.add(stored * CHUNK_BYTES + 4 * lane));
        if bits == 8 {
            return bytes;
        }
        let moved = if from >= to {
            S::shift_right(bytes, (from - to) as u32)
        } else {
            S::shift_left(bytes, (to - from) as u32)
        };
        S::and(moved, S::splat_byte((u8::MAX >> (8 - bits)) << to))
    }
}
