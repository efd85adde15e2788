//! Quants of one trit, two bits and one bit.

use super::{BlockFormat, FileBlocks, RowQuants, packed_quants, u32_at};
use crate::layout::{self, BLOCK_COLS, GROUP_ROWS};
use verbatim_quant::DType;
use verbatim_simd::Simd;

/// Four trits to a byte, `d · (q − 1)`.
pub(crate) struct TQ2_0;
impl BlockFormat for TQ2_0 {
    const DTYPE: DType = DType::TQ2_0;
    const BITS: usize = 2;
    const OFFSET: u8 = 1;
    const SCALE_OFFSET: usize = 64;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<2, 32>(block, sub)
    }
}

/// Two bits, `d · (q − 1)`.
pub(crate) struct Q2_0;
impl BlockFormat for Q2_0 {
    const DTYPE: DType = DType::Q2_0;
    const BITS: usize = 2;
    const OFFSET: u8 = 1;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<2, 1>(&block[2..], sub)
    }
}

/// Signs: `d` where the bit is set, `−d` where it is not.
pub(crate) struct Q1_0;
impl BlockFormat for Q1_0 {
    const DTYPE: DType = DType::Q1_0;
    const BITS: usize = 1;
    const CODEBOOK: Option<[u8; 16]> = Some([0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    const QUANT_MAX: u8 = 2;
    const OFFSET: u8 = 1;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        packed_quants::<1, 1>(&block[2..], sub)
    }

    #[inline(always)]
    fn write_quants(blocks: FileBlocks<'_>, sub: usize, quants: &mut [u8]) {
        let mut bits = [0; GROUP_ROWS];
        for (bits, block) in bits.iter_mut().zip(blocks.iter(Self::FILE_BYTES)) {
            *bits = u32_at(block, 2 + 4 * sub);
        }
        layout::pack_bits(&bits, quants);
    }
}

/// Trits, `d · (q − 1)`. Packed: 32 of them in seven bytes of up to five, a row of such bytes after the other. The first
/// four trits of byte k, lowest first, are columns `4 * k ..`; the fifth ones of the first four bytes are the last columns.
pub(crate) struct TQ1_0;
impl BlockFormat for TQ1_0 {
    const DTYPE: DType = DType::TQ1_0;
    const BITS: usize = 2;
    const QUANT_BYTES: usize = 7 * GROUP_ROWS;
    const OFFSET: u8 = 1;
    const SCALE_OFFSET: usize = 52;

    #[inline(always)]
    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        let mut quants = [0; BLOCK_COLS];
        for (half, quants) in quants.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            match 2 * sub + half {
                at @ 0..10 => *quants = trits(&block[at % 2 * 16..], at / 2),
                at @ 10..15 => *quants = trits(&block[32..], at - 10),
                _ => {
                    for (digit, quants) in quants.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        *quants = trits(&block[48..], digit);
                    }
                }
            }
        }
        quants
    }

    #[inline(always)]
    fn write_quants(blocks: FileBlocks<'_>, sub: usize, quants: &mut [u8]) {
        for (lane, block) in blocks.iter(Self::FILE_BYTES).enumerate() {
            let trits = Self::row_quants(block, sub);
            for (k, four) in trits.as_chunks::<4>().0[..7].iter().enumerate() {
                // The highest byte of the product is the sum of each trit times its power of three.
                let sum = u32::from_le_bytes(*four).wrapping_mul(0x01_03_09_1b) >> 24;
                let fifth = if k < 4 { trits[28 + k] } else { 0 };
                quants[k * GROUP_ROWS + lane] = sum as u8 + 81 * fifth;
            }
        }
    }

    #[inline(always)]
    unsafe fn quants<S: Simd>(simd: S, quants: *const u8, lane: usize) -> [S::Bytes; 8] {
        let table = TRITS.as_flattened().as_ptr();
        // SAFETY: the contract of the trait; a byte is below the number of entries, which are of eight bytes.
        unsafe {
            let mut quads = [simd.splat_byte(0); 8];
            for k in 0..7 {
                let byte = simd.widen_u8(quants.add(k * GROUP_ROWS + lane));
                quads[k] = simd.gather::<8>(table, byte);
                if k < 4 {
                    let fifth = simd.gather::<8>(table.add(4), byte);
                    quads[7] = simd.or(quads[7], simd.bits(fifth, 0, 8, 8 * k as u32));
                }
            }
            quads
        }
    }
}

/// The five trits of every byte, lowest first.
static TRITS: [[u8; 8]; 256] = {
    let mut trits = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut i) = (byte, 0);
        while i < 5 {
            trits[byte][i] = (rest % 3) as u8;
            (rest, i) = (rest / 3, i + 1);
        }
        byte += 1;
    }
    trits
};

/// Trit `digit` of each byte of TQ1_0. A byte is a fraction in units of 1/256: times 3, its whole part is the next trit.
#[inline(always)]
fn trits<const N: usize>(bytes: &[u8], digit: usize) -> [u8; N] {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let mut trits = [0; N];
    for (trit, &byte) in trits.iter_mut().zip(bytes) {
        let fraction = byte.wrapping_mul(POWERS[digit]);
        *trit = ((u16::from(fraction) * 3) >> 8) as u8;
    }
    trits
}
