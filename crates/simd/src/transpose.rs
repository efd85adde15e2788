//! Sixteen rows side by side: what was a row's, word by word, becomes the rows' of one word after the other.

use std::array;

/// Rows that are transposed together.
pub const TRANSPOSED_ROWS: usize = 16;

/// What is moved: four neighbouring codes of a row, or as many bytes of anything else.
pub type Word = [u8; 4];

/// Gives word `i` of all rows to column `i`, for as many as there are columns, at most `N`.
#[inline(always)]
pub fn transpose<const N: usize>(
    rows: &[[Word; N]; TRANSPOSED_ROWS],
    columns: &mut [[Word; TRANSPOSED_ROWS]],
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

/// Four rows of four words. Compilers do not find these instructions, which every such processor has.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transposed_tile(rows: [[Word; 4]; 4]) -> [[Word; 4]; 4] {
    use std::arch::x86_64::{
        __m128i, _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };
    // SAFETY: x86-64 has these instructions; rows and vectors are 64 bytes that mean something whatever they are.
    unsafe {
        let [a, b, c, d] = std::mem::transmute::<[[Word; 4]; 4], [__m128i; 4]>(rows);
        let (ab, cd) = (_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm_unpackhi_epi32(a, b), _mm_unpackhi_epi32(c, d));
        std::mem::transmute::<[__m128i; 4], [[Word; 4]; 4]>([
            _mm_unpacklo_epi64(ab, cd),
            _mm_unpackhi_epi64(ab, cd),
            _mm_unpacklo_epi64(ab_high, cd_high),
            _mm_unpackhi_epi64(ab_high, cd_high),
        ])
    }
}

/// Four rows of four words.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transposed_tile(rows: [[Word; 4]; 4]) -> [[Word; 4]; 4] {
    array::from_fn(|column| array::from_fn(|row| rows[row][column]))
}
