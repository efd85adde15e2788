//! The formats whose weights are points of a grid: IQ1, IQ2 and IQ3. A grid point is the magnitudes of four or eight columns;
//! a scale of 16 or 32 columns and, except for IQ1, a sign for each column complete them.
//!
//! They stay about as small as in the file: the kernel looks the points up by grid index. Packed quants of 32 columns are, one
//! after the other and each for all sixteen rows: the low byte of each grid index; the high bits of all grid indices together
//! in one or two bytes, if there are any; the signs as one-bit quants.
//!
//! Every weight is exactly `d · (2 · scale + 1) · UNIT` times an integer below 64, and each of these factors is exact in f32:
//! a dot product does not depend on how the weights are factored.

use verbatim_quant::{DType, grids};

use super::{
    BlockFormat, Coefficients, F16_ROW_BYTES, FileBlocks, RowQuants, RowScales, packed_quant, u32_at,
};
use crate::layout::{self, BLOCK_COLS, GROUP_ROWS, quant_bytes, unpack};
use verbatim_simd::Simd;

/// One of these formats. File blocks have 256 columns.
pub(crate) trait Grid: 'static {
    /// Columns of a grid point: 4 or 8.
    const POINT_COLS: usize;
    /// Bits of each grid index in the array of high bits: 0, 1, 2 or 4.
    const HIGH_WIDTH: usize = 0;
    /// Whether there is a sign per column. If not, bit 11 of a grid index is set if its delta is positive.
    const SIGNED: bool = true;
    /// Columns that share a scale: 16 or 32.
    const SCALE_COLS: usize;
    /// The factor from `d · (2 · scale + 1)` to the weight of a column of magnitude 1.
    const UNIT: f32;
    /// The format.
    const DTYPE: DType;
    /// The quants of each point, [`POINT_COLS`](Self::POINT_COLS) bytes per grid index.
    const TABLE: &'static [u8];

    /// A grid index of a file block, of 8 + `HIGH_WIDTH` bits.
    fn grid_index(block: &[u8], point: usize) -> u16;
    /// The signs of eight columns, a bit each, set for minus.
    fn signs(_block: &[u8], _eight: usize) -> u8 {
        0
    }
    /// A scale, of four bits.
    fn scale(block: &[u8], index: usize) -> u8;
    /// The bytes of `d`, the f16 factor of all scales.
    fn d(block: &[u8]) -> [u8; 2] {
        [block[0], block[1]]
    }
}

/// The offset of the quants of formats with signs.
const SIGNED_OFFSET: u8 = 128;

/// The offset without signs: quants are 8 · (level + 1), plus 2 for a positive delta; weights are in units of an eighth.
const SHIFTED_OFFSET: u8 = 9;

/// Points of a block.
const fn points<G: Grid>() -> usize {
    BLOCK_COLS / G::POINT_COLS
}

/// Bytes of the array of high bits of a block of one row.
const fn high_bytes<G: Grid>() -> usize {
    points::<G>() * G::HIGH_WIDTH / 8
}

impl<G: Grid> BlockFormat for G {
    const BITS: usize = 8;
    const QUANT_MAX: u8 = if G::SIGNED { u8::MAX } else { 18 };
    const OFFSET: u8 = if G::SIGNED { SIGNED_OFFSET } else { SHIFTED_OFFSET };
    // Formats with a scale per 32 columns, too, scale each half separately: the order of the sums must not change.
    const SCALE_PER_16: bool = true;
    const DTYPE: DType = G::DTYPE;
    const QUANT_BYTES: usize =
        (points::<G>() + high_bytes::<G>()) * GROUP_ROWS + if G::SIGNED { quant_bytes(1) } else { 0 };
    /// Scales are two to a byte.
    const INT8_SCALES: usize = 256 / G::SCALE_COLS / 2;

    fn row_quants(block: &[u8], sub: usize) -> RowQuants {
        std::array::from_fn(|column| {
            let i = sub * BLOCK_COLS + column;
            let grid_index = usize::from(G::grid_index(block, i / G::POINT_COLS));
            if !G::SIGNED {
                return G::TABLE[(grid_index & 2047) * 8 + i % 8] + (grid_index >> 11 << 1) as u8;
            }
            let quant = G::TABLE[grid_index * G::POINT_COLS + i % G::POINT_COLS];
            if G::signs(block, i / 8) >> (i % 8) & 1 == 0 { quant } else { quant.wrapping_neg() }
        })
    }

    #[inline(always)]
    fn write_quants(blocks: FileBlocks<'_>, sub: usize, quants: &mut [u8]) {
        let (low, rest) = quants.split_at_mut(points::<G>() * GROUP_ROWS);
        let (high, signs) = rest.split_at_mut(high_bytes::<G>() * GROUP_ROWS);
        let bytes = high_bytes::<G>();
        let mut sign_bits = [0; GROUP_ROWS];
        for (lane, block) in blocks.iter(Self::FILE_BYTES).enumerate() {
            let mut high_bits = 0u16;
            for (i, low) in low.chunks_exact_mut(GROUP_ROWS).enumerate() {
                let grid_index = G::grid_index(block, sub * points::<G>() + i);
                low[lane] = grid_index as u8;
                high_bits |= (grid_index >> 8) << (i * G::HIGH_WIDTH);
            }
            high[lane * bytes..(lane + 1) * bytes].copy_from_slice(&high_bits.to_le_bytes()[..bytes]);
            if G::SIGNED {
                let eights = std::array::from_fn(|eight| G::signs(block, sub * 4 + eight));
                sign_bits[lane] = u32::from_le_bytes(eights);
            }
        }
        if G::SIGNED {
            layout::pack_bits(&sign_bits, signs);
        }
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        let mut scales = RowScales::new([G::d(block)], []);
        for (pair, bytes) in scales.int8_scales[..Self::INT8_SCALES].iter_mut().enumerate() {
            *bytes = G::scale(block, 2 * pair) | G::scale(block, 2 * pair + 1) << 4;
        }
        scales
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(simd: S, scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: the contract of the trait.
        unsafe {
            let d = simd.load_f16(scales.add(2 * lane));
            let pairs = scales.add(F16_ROW_BYTES + lane);
            let scaled = |pair: S::Bytes, from| {
                let scale = simd.to_floats(simd.bits(pair, from, 4, 0));
                simd.mul(d, simd.mul_add(scale, simd.splat(2.0 * G::UNIT), simd.splat(G::UNIT)))
            };
            if G::SCALE_COLS == 16 {
                let pair = simd.widen_u8(pairs.add(sub * GROUP_ROWS));
                Coefficients::per_16(simd, [scaled(pair, 0), scaled(pair, 4)])
            } else {
                let pair = simd.widen_u8(pairs.add(sub / 2 * GROUP_ROWS));
                Coefficients::per_16(simd, [scaled(pair, sub as u32 % 2 * 4); 2])
            }
        }
    }

    #[inline(always)]
    unsafe fn quants<S: Simd>(simd: S, quants: *const u8, lane: usize) -> [S::Bytes; 8] {
        const { assert!(G::TABLE.len() >= G::POINT_COLS << (8 + table_bits::<G>())) };
        let table = G::TABLE.as_ptr();
        // SAFETY: the parts are within `QUANT_BYTES`, and a grid index is below the number of entries of the table.
        unsafe {
            let high = quants.add(points::<G>() * GROUP_ROWS + lane * high_bytes::<G>());
            let high = match high_bytes::<G>() {
                0 => simd.splat_byte(0),
                1 => simd.widen_u8(high),
                _ => simd.widen_u16(high),
            };
            let mut quads = [simd.splat_byte(0); 8];
            for i in 0..points::<G>() {
                let at = (i * G::HIGH_WIDTH) as u32;
                let mut grid_index = simd.widen_u8(quants.add(i * GROUP_ROWS + lane));
                if G::HIGH_WIDTH > 0 {
                    grid_index = simd.or(grid_index, simd.bits(high, at, table_bits::<G>(), 8));
                }
                if G::POINT_COLS == 4 {
                    quads[i] = simd.gather::<4>(table, grid_index);
                    continue;
                }
                quads[2 * i] = simd.gather::<8>(table, grid_index);
                quads[2 * i + 1] = simd.gather::<8>(table.add(4), grid_index);
                if !G::SIGNED {
                    let shift = simd.bits(high, at + 3, 1, 0);
                    let shift = simd.gather::<4>(SHIFTS.as_flattened().as_ptr(), shift);
                    quads[2 * i] = simd.or(quads[2 * i], shift);
                    quads[2 * i + 1] = simd.or(quads[2 * i + 1], shift);
                }
            }
            if G::SIGNED {
                let signs = quants.add((points::<G>() + high_bytes::<G>()) * GROUP_ROWS);
                let signs = unpack(simd, 1, signs, lane);
                for (quad, signs) in quads.iter_mut().zip(signs) {
                    *quad = simd.negate(*quad, signs);
                }
            }
            quads
        }
    }
}

/// The mask of the high bits of a grid index.
const fn table_bits<G: Grid>() -> u32 {
    if G::SIGNED { G::HIGH_WIDTH as u32 } else { 3 }
}

/// Added to the quants of a point for either sign of its delta. Their bit 1 is clear.
static SHIFTS: [[u8; 4]; 2] = [[0; 4], [2; 4]];

/// Quants of points of eight columns, two bits each.
const fn eights<const N: usize>(points: &[u16; N], quants: [u8; 4]) -> [[u8; 8]; N] {
    let mut table = [[0; 8]; N];
    let mut i = 0;
    while i < 8 * N {
        table[i / 8][i % 8] = quants[(points[i / 8] >> (2 * (i % 8)) & 3) as usize];
        i += 1;
    }
    table
}

/// Quants of points of four columns, four bits each.
const fn fours<const N: usize>(points: &[u16; N], quants: [u8; 8]) -> [[u8; 4]; N] {
    let mut table = [[0; 4]; N];
    let mut i = 0;
    while i < 4 * N {
        table[i / 4][i % 4] = quants[(points[i / 4] >> (4 * (i % 4)) & 7) as usize];
        i += 1;
    }
    table
}

const IQ2_LEVELS: [u8; 4] = [128 + 8, 128 + 25, 128 + 43, 0];
static IQ2_XXS_POINTS: [[u8; 8]; 256] = eights(&grids::IQ2_XXS, IQ2_LEVELS);
// Two high bits per grid index although one would do: as in IQ2_S, so that those of a block fill a byte.
static IQ2_XS_POINTS: [[[u8; 8]; 512]; 2] = [eights(&grids::IQ2_XS, IQ2_LEVELS); 2];
static IQ2_S_POINTS: [[u8; 8]; 1024] = eights(&grids::IQ2_S, IQ2_LEVELS);
static IQ3_XXS_POINTS: [[u8; 4]; 256] =
    fours(&grids::IQ3_XXS, [128 + 4, 128 + 12, 128 + 20, 128 + 28, 128 + 36, 128 + 44, 128 + 52, 128 + 62]);
static IQ3_S_POINTS: [[u8; 4]; 512] =
    fours(&grids::IQ3_S, [128 + 1, 128 + 3, 128 + 5, 128 + 7, 128 + 9, 128 + 11, 128 + 13, 128 + 15]);
static IQ1_POINTS: [[u8; 8]; 2048] = eights(&grids::IQ1, [0, 8, 16, 0]);

/// Eight signs from seven bits: the eighth makes the number of minus signs even.
#[inline(always)]
fn eight_signs(bits: u32) -> u8 {
    let seven = (bits & 127) as u8;
    // Bit i of the constant is the parity of i.
    let odd = 0x6996u16 >> ((seven ^ seven >> 4) & 15) & 1;
    seven | (odd as u8) << 7
}

#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// 2.06 bits a weight in the file, 2.19 packed.
pub(crate) struct IQ2_XXS;
impl Grid for IQ2_XXS {
    const DTYPE: DType = DType::IQ2_XXS;
    const POINT_COLS: usize = 8;
    const SCALE_COLS: usize = 32;
    const UNIT: f32 = 0.125;
    const TABLE: &'static [u8] = IQ2_XXS_POINTS.as_flattened();

    #[inline(always)]
    fn grid_index(block: &[u8], point: usize) -> u16 {
        block[2 + point / 4 * 8 + point % 4].into()
    }

    #[inline(always)]
    fn signs(block: &[u8], eight: usize) -> u8 {
        eight_signs(u32_at(block, 6 + eight / 4 * 8) >> (7 * (eight % 4)))
    }

    #[inline(always)]
    fn scale(block: &[u8], index: usize) -> u8 {
        (u32_at(block, 6 + index * 8) >> 28) as u8
    }
}

/// 2.31 bits a weight in the file, 2.56 packed.
pub(crate) struct IQ2_XS;
impl Grid for IQ2_XS {
    const DTYPE: DType = DType::IQ2_XS;
    const POINT_COLS: usize = 8;
    const HIGH_WIDTH: usize = 2;
    const SCALE_COLS: usize = 16;
    const UNIT: f32 = 0.125;
    const TABLE: &'static [u8] = IQ2_XS_POINTS.as_flattened().as_flattened();

    #[inline(always)]
    fn grid_index(block: &[u8], point: usize) -> u16 {
        u16_at(block, 2 + 2 * point) & 511
    }

    #[inline(always)]
    fn signs(block: &[u8], eight: usize) -> u8 {
        eight_signs(u32::from(u16_at(block, 2 + 2 * eight) >> 9))
    }

    #[inline(always)]
    fn scale(block: &[u8], index: usize) -> u8 {
        packed_quant::<4, 1>(&block[66..], index)
    }
}

/// 2.56 bits a weight, in the file and packed.
pub(crate) struct IQ2_S;
impl Grid for IQ2_S {
    const DTYPE: DType = DType::IQ2_S;
    const POINT_COLS: usize = 8;
    const HIGH_WIDTH: usize = 2;
    const SCALE_COLS: usize = 16;
    const UNIT: f32 = 0.125;
    const TABLE: &'static [u8] = IQ2_S_POINTS.as_flattened();

    #[inline(always)]
    fn grid_index(block: &[u8], point: usize) -> u16 {
        u16::from(block[2 + point]) | u16::from(packed_quant::<2, 1>(&block[66..], point)) << 8
    }

    #[inline(always)]
    fn signs(block: &[u8], eight: usize) -> u8 {
        block[34 + eight]
    }

    #[inline(always)]
    fn scale(block: &[u8], index: usize) -> u8 {
        packed_quant::<4, 1>(&block[74..], index)
    }
}

/// 3.06 bits a weight in the file, 3.19 packed.
pub(crate) struct IQ3_XXS;
impl Grid for IQ3_XXS {
    const DTYPE: DType = DType::IQ3_XXS;
    const POINT_COLS: usize = 4;
    const SCALE_COLS: usize = 32;
    const UNIT: f32 = 0.25;
    const TABLE: &'static [u8] = IQ3_XXS_POINTS.as_flattened();

    #[inline(always)]
    fn grid_index(block: &[u8], point: usize) -> u16 {
        block[2 + point].into()
    }

    #[inline(always)]
    fn signs(block: &[u8], eight: usize) -> u8 {
        eight_signs(u32_at(block, 66 + eight / 4 * 4) >> (7 * (eight % 4)))
    }

    #[inline(always)]
    fn scale(block: &[u8], index: usize) -> u8 {
        (u32_at(block, 66 + index * 4) >> 28) as u8
    }
}

/// 3.44 bits a weight, in the file and packed.
pub(crate) struct IQ3_S;
impl Grid for IQ3_S {
    const DTYPE: DType = DType::IQ3_S;
    const POINT_COLS: usize = 4;
    const HIGH_WIDTH: usize = 1;
    const SCALE_COLS: usize = 32;
    const UNIT: f32 = 1.0;
    const TABLE: &'static [u8] = IQ3_S_POINTS.as_flattened();

    #[inline(always)]
    fn grid_index(block: &[u8], point: usize) -> u16 {
        u16::from(block[2 + point]) | u16::from(packed_quant::<1, 1>(&block[66..], point)) << 8
    }

    #[inline(always)]
    fn signs(block: &[u8], eight: usize) -> u8 {
        block[74 + eight]
    }

    #[inline(always)]
    fn scale(block: &[u8], index: usize) -> u8 {
        packed_quant::<4, 1>(&block[106..], index)
    }
}

/// 1.56 bits a weight in the file, 1.69 packed.
pub(crate) struct IQ1_S;
impl Grid for IQ1_S {
    const DTYPE: DType = DType::IQ1_S;
    const POINT_COLS: usize = 8;
    const HIGH_WIDTH: usize = 4;
    const SIGNED: bool = false;
    const SCALE_COLS: usize = 32;
    const UNIT: f32 = 0.125;
    const TABLE: &'static [u8] = IQ1_POINTS.as_flattened();

    #[inline(always)]
    fn grid_index(block: &[u8], point: usize) -> u16 {
        let word = u16_at(block, 34 + point / 4 * 2);
        let positive = u16::from(word & 0x8000 == 0);
        u16::from(block[2 + point]) | (word >> (3 * (point % 4)) & 7) << 8 | positive << 11
    }

    #[inline(always)]
    fn scale(block: &[u8], index: usize) -> u8 {
        (u16_at(block, 34 + index * 2) >> 12 & 7) as u8
    }
}

/// 1.75 bits a weight in the file, 1.81 packed.
pub(crate) struct IQ1_M;
impl Grid for IQ1_M {
    const DTYPE: DType = DType::IQ1_M;
    const POINT_COLS: usize = 8;
    const HIGH_WIDTH: usize = 4;
    const SIGNED: bool = false;
    const SCALE_COLS: usize = 16;
    const UNIT: f32 = 0.125;
    const TABLE: &'static [u8] = IQ1_POINTS.as_flattened();

    #[inline(always)]
    fn grid_index(block: &[u8], point: usize) -> u16 {
        // The shift's bit is set for minus.
        let high = packed_quant::<4, 1>(&block[32..], point) ^ 8;
        u16::from(block[point]) | u16::from(high) << 8
    }

    #[inline(always)]
    fn scale(block: &[u8], index: usize) -> u8 {
        (u16_at(block, 48 + index / 4 * 2) >> (3 * (index % 4)) & 7) as u8
    }

    /// Four bits in each of four words of scales.
    #[inline(always)]
    fn d(block: &[u8]) -> [u8; 2] {
        let quarter = |word: usize| u16_at(block, 48 + 2 * word) >> 12;
        (quarter(0) | quarter(1) << 4 | quarter(2) << 8 | quarter(3) << 12).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_simd::Scalar;

    /// Blocks of random bytes, in the first and in the last row of a group.
    fn check_packed_quants<G: Grid>() {
        let block: Vec<u8> = (0..G::FILE_BYTES).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8).collect();
        for (sub, lane) in (0..8).flat_map(|sub| [(sub, 0), (sub, GROUP_ROWS - 1)]) {
            let mut quants = vec![0; G::QUANT_BYTES];
            let rows = vec![&block[..]; lane + 1];
            G::write_quants(FileBlocks { rows: &rows, at: 0 }, sub, &mut quants);
            // SAFETY: the quants of one block; `Scalar` runs everywhere.
            let given = unsafe { G::quants(Scalar, quants.as_ptr(), lane) };
            assert_eq!(given.as_flattened(), G::row_quants(&block, sub), "block {sub}, row {lane}");
        }
    }

    #[test]
    fn packed_quants_are_those_of_the_file() {
        check_packed_quants::<IQ1_S>();
        check_packed_quants::<IQ1_M>();
        check_packed_quants::<IQ2_XXS>();
        check_packed_quants::<IQ2_XS>();
        check_packed_quants::<IQ2_S>();
        check_packed_quants::<IQ3_XXS>();
        check_packed_quants::<IQ3_S>();
    }
}
