//! The block formats: how the codes and scales of each lie in a file, how its scales lie when packed, and the
//! numbers that turn integer sums into a dot product.
//!
//! Every format is one of two forms, `d · (q − OFFSET)` or `d · q − m`, with an unsigned code `q` and with
//! `d` and `m` per 32 columns or per 16 ([`BlockFormat::HALVES`]). A new format is one `impl` here, and its
//! name in [`packed`](super::packed)'s `Kind` and `for_kind`. Those whose weights are points of a grid are in
//! [`grids`](super::grids).
//!
//! Sources: the format definitions of ggml (`ggml-common.h`) and the OCP Microscaling specification 1.0
//! (MXFP4); the decoders of `verbatim-quant` are the reference that the tests compare with.

use half::f16;

use super::layout::{self, BLOCK_COLS, GROUP_ROWS, code_bytes, unpack};
use super::simd::Simd;

pub(super) use super::grids::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs};

/// What a packed block format is made of. A *file block* is `32 * BLOCKS` columns of one row.
pub(super) trait BlockFormat: 'static {
    /// Bits of a code: 1, 2, 3, 4, 5, 6 or 8.
    const BITS: usize;
    /// What the codes stand for, if not for themselves.
    const CODEBOOK: Option<[u8; 16]> = None;
    /// What is taken from a code to make it signed; 0 in the form with minima.
    const OFFSET: u8;
    /// Whether `m` is there.
    const MINIMA: bool = false;
    /// Whether scales are per 16 columns, not 32.
    const HALVES: bool = false;

    /// Blocks of 32 columns in a file block.
    const BLOCKS: usize;
    /// Bytes of a file block.
    const FILE_BYTES: usize;
    /// Bytes of the packed codes of 32 columns, all sixteen rows together.
    const CODE_BYTES: usize = code_bytes(Self::BITS);
    /// Half-precision numbers of a file block's scales. They lie first, each of all sixteen rows.
    const HALF_SCALES: usize = 1;
    /// Bytes of a file block's scales, after them in the same way.
    const BYTE_SCALES: usize = 0;
    /// Bytes of the packed scales of a file block, all sixteen rows together.
    const SCALE_BYTES: usize = HALF_ROW * Self::HALF_SCALES + GROUP_ROWS * Self::BYTE_SCALES;

    /// The codes of block `sub` of a file block, each below `2^BITS`.
    fn row_codes(block: &[u8], sub: usize) -> RowCodes;
    /// Writes the codes of block `sub` of the rows' file blocks, into bytes that are zero.
    #[inline(always)]
    fn write_codes(blocks: FileBlocks<'_>, sub: usize, codes: &mut [u8]) {
        let mut rows = [[[0; 4]; BLOCK_COLS / 4]; GROUP_ROWS];
        for (row, block) in rows.iter_mut().zip(blocks.iter(Self::FILE_BYTES)) {
            row.as_flattened_mut().copy_from_slice(&Self::row_codes(block, sub));
        }
        layout::pack(Self::BITS, &rows, codes);
    }
    /// The scales of a file block.
    fn row_scales(block: &[u8]) -> RowScales;
    /// Writes the scales of the rows' file blocks, into bytes that are zero.
    #[inline(always)]
    fn write_scales(blocks: FileBlocks<'_>, scales: &mut [u8]) {
        let (halves, bytes) = scales.split_at_mut(HALF_ROW * Self::HALF_SCALES);
        let mut rows = [[[0; 4]; 4]; GROUP_ROWS];
        for (lane, block) in blocks.iter(Self::FILE_BYTES).enumerate() {
            let scales = Self::row_scales(block);
            for (halves, half) in halves.chunks_exact_mut(HALF_ROW).zip(scales.halves) {
                halves[2 * lane..2 * lane + 2].copy_from_slice(&half);
            }
            rows[lane].as_flattened_mut().copy_from_slice(&scales.bytes);
        }
        if Self::BYTE_SCALES > 0 {
            layout::pack_bytes(&rows, bytes);
        }
    }
    /// The scales of `S::LANES` rows from `lane` on, for block `sub` of a file block.
    ///
    /// # Safety
    /// `scales` points to `SCALE_BYTES` bytes, and the machine has the instruction set of `S`.
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S>;

    /// No code stands for more than this.
    const CODE_MAX: u8 = match Self::CODEBOOK {
        Some(_) => u8::MAX,
        None => u8::MAX >> (8 - Self::BITS),
    };

    /// The unsigned codes of 32 columns, four columns to a vector.
    ///
    /// # Safety
    /// `codes` points to the packed codes of one block, and the machine has the instruction set of `S`.
    #[inline(always)]
    unsafe fn codes<S: Simd>(codes: *const u8, lane: usize) -> [S::Bytes; 8] {
        // SAFETY: as this function asks.
        unsafe {
            let mut codes = unpack::<S>(Self::BITS, codes, lane);
            if let Some(table) = &Self::CODEBOOK {
                for codes in &mut codes {
                    *codes = S::look_up(table, *codes);
                }
            }
            codes
        }
    }
}

/// The codes of 32 columns of one row.
pub(super) type RowCodes = [u8; BLOCK_COLS];

/// The scales of one row of a file block. A format has the first so many of each.
#[derive(Clone, Copy)]
pub(super) struct RowScales {
    pub halves: [[u8; 2]; 4],
    pub bytes: [u8; 16],
}

impl RowScales {
    /// Scales that are these, given as bytes of half-precision numbers and as bytes.
    #[inline(always)]
    pub fn new<const HALVES: usize, const BYTES: usize>(
        halves: [[u8; 2]; HALVES],
        bytes: [u8; BYTES],
    ) -> RowScales {
        let mut scales = RowScales { halves: [[0; 2]; 4], bytes: [0; 16] };
        scales.halves[..HALVES].copy_from_slice(&halves);
        scales.bytes[..BYTES].copy_from_slice(&bytes);
        scales
    }
}

/// One file block of each row of a group, at the same place in all of them. The last group may have less than sixteen rows.
#[derive(Clone, Copy)]
pub(super) struct FileBlocks<'a> {
    pub rows: &'a [&'a [u8]],
    /// Where the block starts in a row's bytes.
    pub at: usize,
}

impl<'a> FileBlocks<'a> {
    /// Row by row, the block's bytes.
    #[inline(always)]
    pub fn iter(self, file_bytes: usize) -> impl Iterator<Item = &'a [u8]> {
        self.rows.iter().map(move |row| &row[self.at..self.at + file_bytes])
    }
}

/// The scales of one block of 32 columns: `[0]` for its first half or all of it, `[1]` for its second half.
pub(super) struct Coefficients<S: Simd> {
    pub d: [S::Floats; 2],
    pub m: [S::Floats; 2],
}

impl<S: Simd> Coefficients<S> {
    #[inline(always)]
    unsafe fn one(d: S::Floats) -> Self {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { Self::affine(d, S::splat(0.0)) }
    }

    #[inline(always)]
    pub(super) unsafe fn halves(d: [S::Floats; 2]) -> Self {
        // SAFETY: the caller vouches for the instruction set.
        Coefficients { d, m: unsafe { [S::splat(0.0); 2] } }
    }

    #[inline(always)]
    unsafe fn affine(d: S::Floats, m: S::Floats) -> Self {
        Coefficients { d: [d; 2], m: [m; 2] }
    }
}

/// Bytes of one half-precision number per row of a group.
pub(super) const HALF_ROW: usize = 2 * GROUP_ROWS;

/// Where code `i` of an array of `BITS`-bit codes in planes is, its byte and its lowest bit: `WIDTH` bytes hold `WIDTH`
/// neighbours in their lowest bits, the next `WIDTH` in the bits above those, and so on until the bytes are full. Every
/// code array of every format is one.
#[inline(always)]
const fn plane_place<const BITS: usize, const WIDTH: usize>(i: usize) -> (usize, usize) {
    let elements = WIDTH * (8 / BITS);
    (i / elements * WIDTH + i % WIDTH, i % elements / WIDTH * BITS)
}

/// Code `i` of such an array.
#[inline(always)]
pub(super) fn plane_code<const BITS: usize, const WIDTH: usize>(bytes: &[u8], i: usize) -> u8 {
    let (byte, shift) = plane_place::<BITS, WIDTH>(i);
    (bytes[byte] >> shift) & (u8::MAX >> (8 - BITS))
}

/// The codes of block `sub` of such an array, a run of neighbouring bytes at a time.
#[inline(always)]
pub(super) fn plane_codes<const BITS: usize, const WIDTH: usize>(bytes: &[u8], sub: usize) -> RowCodes {
    let mut codes = [0; BLOCK_COLS];
    let mask = u8::MAX >> (8 - BITS);
    if WIDTH == 1 {
        // Four codes are a run of bits. Moved up three times, the run has each at the bottom of a byte.
        let bytes = &bytes[sub * (4 * BITS)..][..4 * BITS];
        for (i, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let run = u32::from(bytes[i * BITS / 2] >> (4 * i * BITS % 8));
            let step = 8 - BITS;
            let spread = run | run << step | run << (2 * step) | run << (3 * step);
            *codes = (spread & (u32::from(mask) * 0x0101_0101)).to_le_bytes();
        }
        return codes;
    }
    let run_codes = WIDTH.min(BLOCK_COLS);
    for (run, codes) in codes.chunks_exact_mut(run_codes).enumerate() {
        let (byte, shift) = plane_place::<BITS, WIDTH>(sub * BLOCK_COLS + run * run_codes);
        for (code, byte) in codes.iter_mut().zip(&bytes[byte..byte + run_codes]) {
            *code = (byte >> shift) & mask;
        }
    }
    codes
}

/// Codes whose bits from `low_bits` on are stored apart.
#[inline(always)]
fn joined(low_bits: usize, mut low: RowCodes, high: RowCodes) -> RowCodes {
    for (code, high) in low.iter_mut().zip(high) {
        *code |= high << low_bits;
    }
    low
}

/// The bytes of the half-precision number at `at`.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> [u8; 2] {
    [block[at], block[at + 1]]
}

/// The half-precision number whose two bytes are given, times −1: formats that *add* a minimum store it so,
/// and one form serves both signs.
fn negated(half: [u8; 2]) -> [u8; 2] {
    [half[0], half[1] ^ 0x80]
}

/// Four bits, `d · (q − 8)`.
pub(super) struct Q4_0;
impl BlockFormat for Q4_0 {
    const BITS: usize = 4;
    const OFFSET: u8 = 8;
    const BLOCKS: usize = 1;
    const FILE_BYTES: usize = 18;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        plane_codes::<4, 16>(&block[2..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([half_at(block, 0)], [])
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, _sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Coefficients::one(S::load_f16(scales.add(2 * lane))) }
    }
}

/// Four bits, `d · q + m`.
pub(super) struct Q4_1;
impl BlockFormat for Q4_1 {
    const BITS: usize = 4;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    const BLOCKS: usize = 1;
    const FILE_BYTES: usize = 20;
    const HALF_SCALES: usize = 2;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        plane_codes::<4, 16>(&block[4..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([half_at(block, 0), negated(half_at(block, 2))], [])
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, _sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe {
            let scales = scales.add(2 * lane);
            Coefficients::affine(S::load_f16(scales), S::load_f16(scales.add(HALF_ROW)))
        }
    }
}

/// Writes the codes of Q5_0 and Q5_1: 32 high bits at `at`, and 16 bytes of low halves after them.
#[inline(always)]
fn write_five_bits(blocks: FileBlocks<'_>, file_bytes: usize, at: usize, codes: &mut [u8]) {
    let mut low = [[[0; 4]; BLOCK_COLS / 4]; GROUP_ROWS];
    let mut high = [0; GROUP_ROWS];
    for ((low, high), block) in low.iter_mut().zip(&mut high).zip(blocks.iter(file_bytes)) {
        *high = u32_at(block, at);
        low.as_flattened_mut().copy_from_slice(&plane_codes::<4, 16>(&block[at + 4..], 0));
    }
    let (low_codes, high_codes) = codes.split_at_mut(code_bytes(4));
    layout::pack(4, &low, low_codes);
    layout::pack_bits(&high, high_codes);
}

/// Four bytes as a number.
#[inline(always)]
pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// Five bits, `d · (q − 16)`.
pub(super) struct Q5_0;
impl BlockFormat for Q5_0 {
    const BITS: usize = 5;
    const OFFSET: u8 = 16;
    const BLOCKS: usize = 1;
    const FILE_BYTES: usize = 22;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        joined(4, plane_codes::<4, 16>(&block[6..], sub), plane_codes::<1, 1>(&block[2..], sub))
    }

    #[inline(always)]
    fn write_codes(blocks: FileBlocks<'_>, _sub: usize, codes: &mut [u8]) {
        write_five_bits(blocks, Self::FILE_BYTES, 2, codes);
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        Q4_0::row_scales(block)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Q4_0::coefficients(scales, lane, sub) }
    }
}

/// Five bits, `d · q + m`.
pub(super) struct Q5_1;
impl BlockFormat for Q5_1 {
    const BITS: usize = 5;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    const BLOCKS: usize = 1;
    const FILE_BYTES: usize = 24;
    const HALF_SCALES: usize = 2;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        joined(4, plane_codes::<4, 16>(&block[8..], sub), plane_codes::<1, 1>(&block[4..], sub))
    }

    #[inline(always)]
    fn write_codes(blocks: FileBlocks<'_>, _sub: usize, codes: &mut [u8]) {
        write_five_bits(blocks, Self::FILE_BYTES, 4, codes);
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        Q4_1::row_scales(block)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Q4_1::coefficients(scales, lane, sub) }
    }
}

/// Eight bits, `d · q` with a signed q, stored as q + 128.
pub(super) struct Q8_0;
impl BlockFormat for Q8_0 {
    const BITS: usize = 8;
    const OFFSET: u8 = 128;
    const BLOCKS: usize = 1;
    const FILE_BYTES: usize = 34;

    #[inline(always)]
    fn row_codes(block: &[u8], _sub: usize) -> RowCodes {
        let mut codes = plane_codes::<8, 32>(&block[2..], 0);
        codes.iter_mut().for_each(|code| *code ^= 0x80);
        codes
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        Q4_0::row_scales(block)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Q4_0::coefficients(scales, lane, sub) }
    }
}

/// Four bits that name a level of a fixed table, `d · level`.
pub(super) struct IQ4NL;
impl BlockFormat for IQ4NL {
    const BITS: usize = 4;
    const CODEBOOK: Option<[u8; 16]> = Some(offset_128(IQ4_LEVELS));
    const OFFSET: u8 = 128;
    const BLOCKS: usize = 1;
    const FILE_BYTES: usize = 18;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        Q4_0::row_codes(block, sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        Q4_0::row_scales(block)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Q4_0::coefficients(scales, lane, sub) }
    }
}

/// The levels of IQ4_NL and IQ4_XS.
const IQ4_LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The sixteen E2M1 numbers of MXFP4 and NVFP4, doubled so that they are whole.
const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

const fn offset_128(levels: [i8; 16]) -> [u8; 16] {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = levels[i].cast_unsigned() ^ 0x80;
        i += 1;
    }
    codes
}

/// IQ4_NL with six-bit scales per 32 columns, `d · (scale − 32) · level`. Packed: `d`, then the signed
/// scales.
pub(super) struct IQ4XS;
impl BlockFormat for IQ4XS {
    const BITS: usize = 4;
    const CODEBOOK: Option<[u8; 16]> = IQ4NL::CODEBOOK;
    const OFFSET: u8 = 128;
    const BLOCKS: usize = 8;
    const FILE_BYTES: usize = 136;
    const BYTE_SCALES: usize = 8;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        plane_codes::<4, 16>(&block[8..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        let mut scales = [0; 8];
        for (sub, scale) in scales.iter_mut().enumerate() {
            let code = plane_code::<4, 1>(&block[4..], sub) | plane_code::<2, 1>(&block[2..], sub) << 4;
            *scale = code.wrapping_sub(32);
        }
        RowScales::new([half_at(block, 0)], scales)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe {
            let d = S::load_f16(scales.add(2 * lane));
            let scale = S::load_i8(scales.add(HALF_ROW + sub * GROUP_ROWS + lane));
            Coefficients::one(S::mul(d, scale))
        }
    }
}

/// Four bits, `d · scale · q − dmin · minimum`, six-bit scales and minima per 32 columns. Packed: `d`,
/// `dmin`, then per 32 columns the scales and the minima as bytes.
pub(super) struct Q4K;
impl BlockFormat for Q4K {
    const BITS: usize = 4;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    const BLOCKS: usize = 8;
    const FILE_BYTES: usize = 144;
    const HALF_SCALES: usize = 2;
    const BYTE_SCALES: usize = 16;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        plane_codes::<4, 32>(&block[16..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([half_at(block, 0), half_at(block, 2)], six_bit_pairs(block))
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe {
            let d = S::load_f16(scales.add(2 * lane));
            let dmin = S::load_f16(scales.add(HALF_ROW + 2 * lane));
            let subs = scales.add(2 * HALF_ROW + sub * 2 * GROUP_ROWS + lane);
            let (scale, minimum) = (S::load_u8(subs), S::load_u8(subs.add(GROUP_ROWS)));
            Coefficients::affine(S::mul(d, scale), S::mul(dmin, minimum))
        }
    }
}

/// The scales of a block of Q4_K or Q5_K, each with its minimum after it. In the file, in bytes 4..16, the first word holds the
/// first four scales and the second their minima, with the high bits of the last four above them; the third holds the
/// low bits of the last four.
#[inline(always)]
fn six_bit_pairs(block: &[u8]) -> [u8; 16] {
    let [scales, minima, low] = [u32_at(block, 4), u32_at(block, 8), u32_at(block, 12)];
    let last = |low: u32, high: u32| low & 0x0f0f_0f0f | high >> 2 & 0x3030_3030;
    let first = alternating(scales & 0x3f3f_3f3f, minima & 0x3f3f_3f3f);
    let last = alternating(last(low, scales), last(low >> 4, minima));
    (u128::from(first) | u128::from(last) << 64).to_le_bytes()
}

/// The bytes of two words by turns.
#[inline(always)]
fn alternating(even: u32, odd: u32) -> u64 {
    let apart = |word: u32| {
        let halves = (u64::from(word) | u64::from(word) << 16) & 0x0000_ffff_0000_ffff;
        (halves | halves << 8) & 0x00ff_00ff_00ff_00ff
    };
    apart(even) | apart(odd) << 8
}

/// Q4_K with five bits.
pub(super) struct Q5K;
impl BlockFormat for Q5K {
    const BITS: usize = 5;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    const BLOCKS: usize = 8;
    const FILE_BYTES: usize = 176;
    const HALF_SCALES: usize = 2;
    const BYTE_SCALES: usize = 16;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        joined(4, plane_codes::<4, 32>(&block[48..], sub), plane_codes::<1, 32>(&block[16..], sub))
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        Q4K::row_scales(block)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Q4K::coefficients(scales, lane, sub) }
    }
}

/// Two signed byte scales per block in units of `d`: the packed form of Q3_K, Q6_K.
#[inline(always)]
unsafe fn signed_halves<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
    // SAFETY: the caller vouches for `HALF_ROW + 16 * GROUP_ROWS` bytes and the instruction set.
    unsafe {
        let d = S::load_f16(scales.add(2 * lane));
        let subs = scales.add(HALF_ROW + 2 * sub * GROUP_ROWS + lane);
        Coefficients::halves([S::mul(d, S::load_i8(subs)), S::mul(d, S::load_i8(subs.add(GROUP_ROWS)))])
    }
}

/// Six bits, `d · scale · (q − 32)`, signed scales per 16 columns.
pub(super) struct Q6K;
impl BlockFormat for Q6K {
    const BITS: usize = 6;
    const OFFSET: u8 = 32;
    const HALVES: bool = true;
    const BLOCKS: usize = 8;
    const FILE_BYTES: usize = 210;
    const BYTE_SCALES: usize = 16;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        joined(4, plane_codes::<4, 64>(block, sub), plane_codes::<2, 32>(&block[128..], sub))
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        let mut scales = [0; 16];
        scales.copy_from_slice(&block[192..208]);
        RowScales::new([half_at(block, 208)], scales)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { signed_halves(scales, lane, sub) }
    }
}

/// Three bits, `d · (scale − 32) · (q − 4)`, six-bit scales per 16 columns.
pub(super) struct Q3K;
impl BlockFormat for Q3K {
    const BITS: usize = 3;
    const OFFSET: u8 = 4;
    const HALVES: bool = true;
    const BLOCKS: usize = 8;
    const FILE_BYTES: usize = 110;
    const BYTE_SCALES: usize = 16;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        joined(2, plane_codes::<2, 32>(&block[32..], sub), plane_codes::<1, 32>(block, sub))
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        // Four scales at a time: `plane_code::<4, 8>` and, above it, `plane_code::<2, 4>`.
        let mut subs = [0; 16];
        for (i, subs) in subs.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let low = u32_at(block, 96 + i % 2 * 4) >> (i / 2 * 4) & 0x0f0f_0f0f;
            let high = u32_at(block, 104) >> (2 * i) & 0x0303_0303;
            *subs = (low | high << 4).to_le_bytes();
        }
        for scale in &mut subs {
            *scale = scale.wrapping_sub(32);
        }
        RowScales::new([half_at(block, 108)], subs)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { signed_halves(scales, lane, sub) }
    }
}

/// Two bits, `d · scale · q − dmin · minimum`, four-bit scales and minima per 16 columns. Packed: `d`,
/// `dmin`, then per 16 columns a byte with the scale in its lower half and the minimum in its upper.
pub(super) struct Q2K;
impl BlockFormat for Q2K {
    const BITS: usize = 2;
    const OFFSET: u8 = 0;
    const MINIMA: bool = true;
    const HALVES: bool = true;
    const BLOCKS: usize = 8;
    const FILE_BYTES: usize = 84;
    const HALF_SCALES: usize = 2;
    const BYTE_SCALES: usize = 16;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        plane_codes::<2, 32>(&block[16..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        let mut pairs = [0; 16];
        pairs.copy_from_slice(&block[..16]);
        RowScales::new([half_at(block, 80), half_at(block, 82)], pairs)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe {
            let d = S::load_f16(scales.add(2 * lane));
            let dmin = S::load_f16(scales.add(HALF_ROW + 2 * lane));
            let pairs = scales.add(2 * HALF_ROW + 2 * sub * GROUP_ROWS + lane);
            let pairs = [S::widen_u8(pairs), S::widen_u8(pairs.add(GROUP_ROWS))];
            let nibble = |half: usize, from| S::to_floats(S::bits(pairs[half], from, 4, 0));
            Coefficients {
                d: [S::mul(d, nibble(0, 0)), S::mul(d, nibble(1, 0))],
                m: [S::mul(dmin, nibble(0, 4)), S::mul(dmin, nibble(1, 4))],
            }
        }
    }
}

/// Four-bit floating point with a power of two per 32 columns. Packed: the power as a bfloat16, which holds
/// every one.
pub(super) struct Mxfp4;
impl BlockFormat for Mxfp4 {
    const BITS: usize = 4;
    const CODEBOOK: Option<[u8; 16]> = Some(offset_128(E2M1_DOUBLED));
    const OFFSET: u8 = 128;
    const BLOCKS: usize = 1;
    const FILE_BYTES: usize = 17;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        plane_codes::<4, 16>(&block[1..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        // Half of 2^(exponent − 127), since the levels are doubled; the smallest two are subnormal.
        let half_scale = match block[0] {
            exponent @ (0 | 1) => 0x0020 << exponent,
            exponent => u16::from(exponent - 1) << 7,
        };
        RowScales::new([half_scale.to_le_bytes()], [])
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, _sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Coefficients::one(S::load_bf16(scales.add(2 * lane))) }
    }
}

/// Four-bit floating point with a small floating-point scale per 16 columns. Packed: the scales as
/// half-precision numbers, which hold every one.
pub(super) struct Nvfp4;
impl BlockFormat for Nvfp4 {
    const BITS: usize = 4;
    const CODEBOOK: Option<[u8; 16]> = Mxfp4::CODEBOOK;
    const OFFSET: u8 = 128;
    const HALVES: bool = true;
    const BLOCKS: usize = 2;
    const FILE_BYTES: usize = 36;
    const HALF_SCALES: usize = 4;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        plane_codes::<4, 8>(&block[4..], sub)
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([0, 1, 2, 3].map(|sub| half_of_e4m3(block[sub]).to_le_bytes()), [])
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe {
            let scales = scales.add(2 * sub * HALF_ROW + 2 * lane);
            Coefficients::halves([S::load_f16(scales), S::load_f16(scales.add(HALF_ROW))])
        }
    }
}

/// Half of an E4M3 number (the levels are doubled) without its sign; its one NaN reads as 0. Both formats have their exponent
/// above their mantissa, so that adding to the exponent is all it takes, but for subnormal numbers.
#[inline(always)]
fn half_of_e4m3(byte: u8) -> f16 {
    match u16::from(byte & 0x7f) {
        _ if byte == 0x7f => f16::ZERO,
        subnormal @ 0..8 => f16::from_f32(f32::from(subnormal) / 1024.0),
        normal => f16::from_bits((normal << 7) + (7 << 10)),
    }
}

/// Two-bit codes, `d · (q − 1)`, with one scale per file block: TQ2_0 (256 columns) and Q2_0 (64).
macro_rules! two_bit_format {
    ($name:ident, $doc:literal, blocks: $blocks:literal, bytes: $bytes:literal, scale_at: $scale_at:literal,
        |$block:ident, $sub:ident| $codes:expr) => {
        #[doc = $doc]
        pub(super) struct $name;
        impl BlockFormat for $name {
            const BITS: usize = 2;
            const OFFSET: u8 = 1;
            const BLOCKS: usize = $blocks;
            const FILE_BYTES: usize = $bytes;

            #[inline(always)]
            fn row_codes($block: &[u8], $sub: usize) -> RowCodes {
                $codes
            }

            #[inline(always)]
            fn row_scales(block: &[u8]) -> RowScales {
                RowScales::new([half_at(block, $scale_at)], [])
            }

            #[inline(always)]
            unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, _sub: usize) -> Coefficients<S> {
                // SAFETY: as the trait asks.
                unsafe { Coefficients::one(S::load_f16(scales.add(2 * lane))) }
            }
        }
    };
}

two_bit_format!(Tq2_0, "Four trits to a byte.", blocks: 8, bytes: 66, scale_at: 64,
    |block, sub| plane_codes::<2, 32>(block, sub));
two_bit_format!(Q2_0, "Four levels.", blocks: 2, bytes: 18, scale_at: 0,
    |block, sub| plane_codes::<2, 1>(&block[2..], sub));

/// Signs: `d` where the bit is set, `−d` where it is not.
pub(super) struct Q1_0;
impl BlockFormat for Q1_0 {
    const BITS: usize = 1;
    const CODEBOOK: Option<[u8; 16]> = Some([0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    const CODE_MAX: u8 = 2;
    const OFFSET: u8 = 1;
    const BLOCKS: usize = 4;
    const FILE_BYTES: usize = 18;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        plane_codes::<1, 1>(&block[2..], sub)
    }

    #[inline(always)]
    fn write_codes(blocks: FileBlocks<'_>, sub: usize, codes: &mut [u8]) {
        let mut bits = [0; GROUP_ROWS];
        for (bits, block) in bits.iter_mut().zip(blocks.iter(Self::FILE_BYTES)) {
            *bits = u32_at(block, 2 + 4 * sub);
        }
        layout::pack_bits(&bits, codes);
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        Q4_0::row_scales(block)
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Q4_0::coefficients(scales, lane, sub) }
    }
}

/// Trits, `d · (q − 1)`. Packed: 32 of them in seven bytes of up to five, a row of such bytes after the other. The first
/// four trits of byte k, lowest first, are columns `4 * k ..`; the fifth ones of the first four bytes are the last columns.
pub(super) struct Tq1_0;
impl BlockFormat for Tq1_0 {
    const BITS: usize = 2;
    const CODE_BYTES: usize = 7 * GROUP_ROWS;
    const OFFSET: u8 = 1;
    const BLOCKS: usize = 8;
    const FILE_BYTES: usize = 54;

    #[inline(always)]
    fn row_codes(block: &[u8], sub: usize) -> RowCodes {
        let mut codes = [0; BLOCK_COLS];
        for (half, codes) in codes.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            match 2 * sub + half {
                at @ 0..10 => *codes = trits(&block[at % 2 * 16..], at / 2),
                at @ 10..15 => *codes = trits(&block[32..], at - 10),
                _ => {
                    for (digit, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        *codes = trits(&block[48..], digit);
                    }
                }
            }
        }
        codes
    }

    #[inline(always)]
    fn write_codes(blocks: FileBlocks<'_>, sub: usize, codes: &mut [u8]) {
        for (lane, block) in blocks.iter(Self::FILE_BYTES).enumerate() {
            let trits = Self::row_codes(block, sub);
            for (k, four) in trits.as_chunks::<4>().0[..7].iter().enumerate() {
                // The highest byte of the product is the sum of each trit times its power of three.
                let sum = u32::from_le_bytes(*four).wrapping_mul(0x01_03_09_1b) >> 24;
                let fifth = if k < 4 { trits[28 + k] } else { 0 };
                codes[k * GROUP_ROWS + lane] = sum as u8 + 81 * fifth;
            }
        }
    }

    #[inline(always)]
    fn row_scales(block: &[u8]) -> RowScales {
        RowScales::new([half_at(block, 52)], [])
    }

    #[inline(always)]
    unsafe fn coefficients<S: Simd>(scales: *const u8, lane: usize, sub: usize) -> Coefficients<S> {
        // SAFETY: as the trait asks.
        unsafe { Q4_0::coefficients(scales, lane, sub) }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(codes: *const u8, lane: usize) -> [S::Bytes; 8] {
        let table = TRITS.as_flattened().as_ptr();
        // SAFETY: as the trait asks; a byte is below the number of entries, which are of eight bytes.
        unsafe {
            let mut chunks = [S::splat_byte(0); 8];
            for k in 0..7 {
                let byte = S::widen_u8(codes.add(k * GROUP_ROWS + lane));
                chunks[k] = S::gather::<8>(table, byte);
                if k < 4 {
                    let fifth = S::gather::<8>(table.add(4), byte);
                    chunks[7] = S::or(chunks[7], S::bits(fifth, 0, 8, 8 * k as u32));
                }
            }
            chunks
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

#[cfg(test)]
mod tests {
    use std::array;

    use super::*;

    fn blocks_are_codes_one_by_one<const BITS: usize, const WIDTH: usize>() {
        let bytes: [u8; 256] = array::from_fn(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8);
        for sub in 0..8 {
            let expected = array::from_fn(|i| plane_code::<BITS, WIDTH>(&bytes, sub * BLOCK_COLS + i));
            assert_eq!(
                plane_codes::<BITS, WIDTH>(&bytes, sub),
                expected,
                "{BITS} bits, {WIDTH}, block {sub}"
            );
        }
    }

    #[test]
    fn blocks_of_planes_are_their_codes_one_by_one() {
        blocks_are_codes_one_by_one::<1, 1>();
        blocks_are_codes_one_by_one::<1, 32>();
        blocks_are_codes_one_by_one::<2, 1>();
        blocks_are_codes_one_by_one::<2, 32>();
        blocks_are_codes_one_by_one::<4, 8>();
        blocks_are_codes_one_by_one::<4, 16>();
        blocks_are_codes_one_by_one::<4, 32>();
        blocks_are_codes_one_by_one::<4, 64>();
        blocks_are_codes_one_by_one::<8, 32>();
    }
}
