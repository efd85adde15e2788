//! Transposes sixteen rows of four-byte elements.

use std::array;

/// Rows that are transposed together.
pub const TRANSPOSED_ROWS: usize = 16;

/// The element that is transposed: four neighbouring quants of a row, or any other four bytes.
pub type Bytes4 = [u8; 4];

/// Writes element `i` of all rows to column `i`, for all `columns`, of which there are at most `N`.
#[inline(always)]
pub fn transpose<const N: usize>(
    rows: &[[Bytes4; N]; TRANSPOSED_ROWS],
    columns: &mut [[Bytes4; TRANSPOSED_ROWS]],
) {
    const { assert!(N.is_multiple_of(4)) };
    for (first, columns) in (0..N).step_by(4).zip(columns.chunks_mut(4)) {
        for row in (0..TRANSPOSED_ROWS).step_by(4) {
            let tile = transposed_tile(array::from_fn(|i| array::from_fn(|j| rows[row + i][first + j])));
            for (column, words) in columns.iter_mut().zip(tile) {
                column[row..row + 4].copy_from_slice(&words);
            }
        }
    }
}

/// Transposes four rows of four elements. Compilers do not generate these instructions, which all of x86-64 has.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transposed_tile(rows: [[Bytes4; 4]; 4]) -> [[Bytes4; 4]; 4] {
    use std::arch::x86_64::{
        __m128i, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };
    // SAFETY: x86-64 has these instructions; rows and vectors are 64 bytes, valid for all bit patterns.
    unsafe {
        let [a, b, c, d] = std::mem::transmute::<[[Bytes4; 4]; 4], [__m128i; 4]>(rows);
        let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        std::mem::transmute::<[__m128i; 4], [[Bytes4; 4]; 4]>([
            _mm_unpacklo_epi64(ab, cd),
            _mm_unpackhi_epi64(ab, cd),
            _mm_unpacklo_epi64(ab_high, cd_high),
            _mm_unpackhi_epi64(ab_high, cd_high),
        ])
    }
}

/// Transposes four rows of four elements.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transposed_tile(rows: [[Bytes4; 4]; 4]) -> [[Bytes4; 4]; 4] {
    array::from_fn(|column| array::from_fn(|row| rows[row][column]))
}
