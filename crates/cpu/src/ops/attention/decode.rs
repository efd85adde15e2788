//! Decodes stored K and V to floats for the loops over a block.
//!
//! Types that one instruction widens are read in place. The others are decoded into a buffer that stays in L1, once for all
//! query heads.

use crate::kv::{HeadPage, Quantized};
use std::ops::Range;
use verbatim_backend::{KvType, PAGE_CELLS};
use verbatim_simd::{F32x16, Isa, Kernel, LANES, Lanes, Simd, dispatch};

/// One head of a block of positions: K transposed, V row by row.
#[derive(Clone, Copy)]
pub(super) enum Floats<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
}

/// The keys `keys` as floats, in whole vectors; the other lanes are unspecified.
pub(super) fn keys<'a>(
    isa: Isa,
    block: HeadPage<'a>,
    head_dim: usize,
    keys: &Range<usize>,
    room: &'a mut [f32],
) -> Floats<'a> {
    decode::<true>(isa, block, head_dim, keys, room)
}

/// The values of the keys `keys` as floats; the other values are unspecified.
pub(super) fn values<'a>(
    isa: Isa,
    block: HeadPage<'a>,
    head_dim: usize,
    keys: &Range<usize>,
    room: &'a mut [f32],
) -> Floats<'a> {
    decode::<false>(isa, block, head_dim, keys, room)
}

#[inline(never)] // Once for all sizes of tiles.
fn decode<'a, const IS_K: bool>(
    isa: Isa,
    block: HeadPage<'a>,
    head_dim: usize,
    keys: &Range<usize>,
    room: &'a mut [f32],
) -> Floats<'a> {
    let out = &mut room[..head_dim * PAGE_CELLS];
    match block {
        HeadPage::F32(elements) => return Floats::F32(elements),
        HeadPage::F16(elements) => return Floats::F16(elements),
        HeadPage::Bf16(elements) => dispatch(isa, Widen { elements, out: &mut *out }),
        HeadPage::Quantized(page) => {
            let (keys, out) = (keys.clone(), &mut *out);
            match page.kind {
                KvType::Q8_0 => dispatch(isa, Decode::<8, 1, IS_K> { page, head_dim, keys, out }),
                KvType::Q5_1 => dispatch(isa, Decode::<5, 2, IS_K> { page, head_dim, keys, out }),
                KvType::Q5_0 => dispatch(isa, Decode::<5, 1, IS_K> { page, head_dim, keys, out }),
                KvType::Q4_1 => dispatch(isa, Decode::<4, 2, IS_K> { page, head_dim, keys, out }),
                KvType::Q4_0 | KvType::Iq4Nl => {
                    dispatch(isa, Decode::<4, 1, IS_K> { page, head_dim, keys, out });
                }
                KvType::F32 | KvType::F16 | KvType::Bf16 => unreachable!("not quantised"),
            }
        }
    }
    Floats::F32(out)
}

struct Widen<'a> {
    elements: &'a [u16],
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        // Whole vectors, because the number of cells of a page is a multiple of the lanes.
        let elements = self.elements.as_chunks::<LANES>().0;
        for (elements, out) in elements.iter().zip(self.out.as_chunks_mut::<LANES>().0) {
            l.store(l.load_bf16(elements), out);
        }
    }
}

/// Decodes blocks of 32 elements of `BITS` bits with `HEADERS` headers, of K or of V.
///
/// With one header an element is `quant * scale`, with two `quant * scale + min`. The multiplication is exact (a scale has 11
/// bits, a quant at most 8), so there is at most one rounding, and with or without FMA the result is that of
/// [`verbatim_quant::dequantize`].
struct Decode<'a, const BITS: usize, const HEADERS: usize, const IS_K: bool> {
    page: Quantized<'a>,
    head_dim: usize,
    keys: Range<usize>,
    out: &'a mut [f32],
}

/// Elements of a block.
const BLOCK_LEN: usize = 32;
/// Elements in the low nibbles of a block's 4-bit quants; the same number are in the high nibbles.
const HALF: usize = BLOCK_LEN / 2;
/// The values of 4-bit quants.
const SIGNED_NIBBLES: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];
const UNSIGNED_NIBBLES: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// IQ4_NL's levels.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl<const BITS: usize, const HEADERS: usize, const IS_K: bool> Kernel for Decode<'_, BITS, HEADERS, IS_K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let l = Lanes(simd);
        let levels = match self.page.kind {
            KvType::Q4_0 => SIGNED_NIBBLES,
            KvType::Iq4Nl => LEVELS,
            _ => UNSIGNED_NIBBLES,
        };
        let levels = simd.load16(&levels.map(i8::cast_unsigned));
        let cells = self.keys.start / LANES..self.keys.end.div_ceil(LANES);
        for start in (0..self.head_dim).step_by(BLOCK_LEN) {
            let headers = &self.page.headers(start / BLOCK_LEN)[..HEADERS * PAGE_CELLS];
            let quants = &self.page.quants(start / BLOCK_LEN)[..BITS * BLOCK_LEN / 8 * PAGE_CELLS];
            let block = QuantBlock::<S, BITS, HEADERS> { simd, quants, levels };
            let elements = BLOCK_LEN.min(self.head_dim - start);
            for cells in cells.clone() {
                let headers: [F32x16<S>; HEADERS] = std::array::from_fn(|header| {
                    l.load_f16(&headers[header * PAGE_CELLS..].as_chunks::<LANES>().0[cells])
                });
                if IS_K {
                    let out = &mut self.out[start * PAGE_CELLS..][..elements * PAGE_CELLS];
                    let (rows, _) = out.as_chunks_mut::<PAGE_CELLS>();
                    let (lower, upper) = rows.split_at_mut(HALF.min(elements));
                    decode_keys(&block, lower, 0, cells, headers);
                    decode_keys(&block, upper, 1, cells, headers);
                } else {
                    let headers = headers.map(|header| l.to_array(header));
                    let keys = self.keys.start.max(cells * LANES)..self.keys.end.min((cells + 1) * LANES);
                    for key in keys {
                        let headers = headers.map(|header| l.splat(header[key % LANES]));
                        let lower = dequantize(l, block.value(key, 0), headers);
                        let upper = dequantize(l, block.value(key, 1), headers);
                        let out = &mut self.out[key * self.head_dim + start..][..elements];
                        if let Ok(out) = <&mut [f32; BLOCK_LEN]>::try_from(&mut *out) {
                            let (halves, _) = out.as_chunks_mut::<HALF>();
                            l.store(lower, &mut halves[0]);
                            l.store(upper, &mut halves[1]);
                        } else {
                            let (first, last) = out.split_at_mut(HALF.min(elements));
                            l.store_part(lower, first);
                            l.store_part(upper, last);
                        }
                    }
                }
            }
        }
    }
}

/// Decodes the elements of one half of a block, of sixteen keys.
#[inline(always)]
fn decode_keys<S: Simd, const BITS: usize, const HEADERS: usize>(
    block: &QuantBlock<'_, S, BITS, HEADERS>,
    rows: &mut [[f32; PAGE_CELLS]],
    half: usize,
    cells: usize,
    headers: [F32x16<S>; HEADERS],
) {
    for (i, row) in rows.iter_mut().enumerate().take(HALF) {
        let quants = block.keys(half, i, cells);
        let l = Lanes(block.simd);
        l.store(dequantize(l, quants, headers), &mut row.as_chunks_mut::<LANES>().0[cells]);
    }
}

#[inline(always)]
fn dequantize<S: Simd, const HEADERS: usize>(
    l: Lanes<S>,
    quants: S::Bytes16,
    headers: [F32x16<S>; HEADERS],
) -> F32x16<S> {
    let quants = l.widen(quants);
    if HEADERS == 1 { l.mul(quants, headers[0]) } else { l.mul_add(quants, headers[0], headers[HEADERS - 1]) }
}

/// The quants of a block, for all cells of a page.
struct QuantBlock<'a, S: Simd, const BITS: usize, const HEADERS: usize> {
    simd: S,
    quants: &'a [u8],
    levels: S::Bytes16,
}

impl<S: Simd, const BITS: usize, const HEADERS: usize> QuantBlock<'_, S, BITS, HEADERS> {
    /// Bytes of a cell's quants.
    const BYTES: usize = BITS * BLOCK_LEN / 8;
    /// The offset of the low nibbles: 5-bit quants have their fifth bits first.
    const LOW: usize = if BITS == 5 { 4 } else { 0 };

    /// The quants of the `i`-th element of the lower or the upper half of the block, of sixteen keys.
    #[inline(always)]
    fn keys(&self, half: usize, i: usize, cells: usize) -> S::Bytes16 {
        let simd = self.simd;
        let of_cells = |byte: usize| {
            let bytes = self.quants.as_chunks::<PAGE_CELLS>().0;
            simd.load16(&bytes[byte].as_chunks::<LANES>().0[cells])
        };
        match BITS {
            8 => of_cells(half * HALF + i),
            5 => {
                let nibbles = self.nibbles(of_cells(Self::LOW + i), half);
                self.five_bits(nibbles, of_cells(2 * half + i / 8), simd.splat16(1 << (i % 8)))
            }
            _ => simd.look_up16(self.levels, self.nibbles(of_cells(i), half)),
        }
    }

    /// The quants of sixteen elements of one cell's value: the lower or the upper half of the block.
    #[inline(always)]
    fn value(&self, cell: usize, half: usize) -> S::Bytes16 {
        let simd = self.simd;
        let quants = &self.quants[cell * Self::BYTES..][..Self::BYTES];
        let sixteen = |at: usize| simd.load16(&quants[at..].as_chunks::<LANES>().0[0]);
        match BITS {
            8 => sixteen(half * LANES),
            5 => {
                const ONE_OF_EIGHT: [u8; LANES] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
                let fifths = simd.spread16([quants[2 * half], quants[2 * half + 1]]);
                self.five_bits(self.nibbles(sixteen(Self::LOW), half), fifths, simd.load16(&ONE_OF_EIGHT))
            }
            _ => simd.look_up16(self.levels, self.nibbles(sixteen(0), half)),
        }
    }

    #[inline(always)]
    fn nibbles(&self, bytes: S::Bytes16, half: usize) -> S::Bytes16 {
        if half == 0 { self.simd.low_nibbles16(bytes) } else { self.simd.high_nibbles16(bytes) }
    }

    /// 5-bit quants, minus 16 for types without a min. The fifth bit is set if `fifths` has the bit of `bits`.
    #[inline(always)]
    fn five_bits(&self, nibbles: S::Bytes16, fifths: S::Bytes16, bits: S::Bytes16) -> S::Bytes16 {
        let simd = self.simd;
        let fifths = simd.and16(fifths, bits);
        let above = if HEADERS == 1 {
            // -16 where the bit is not set.
            simd.and16(simd.equal16(fifths, simd.splat16(0)), simd.splat16(0xf0))
        } else {
            simd.and16(simd.equal16(fifths, bits), simd.splat16(0x10))
        };
        simd.or16(nibbles, above)
    }
}
