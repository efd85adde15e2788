//! How stored K and V become numbers in the loops over a block.

use crate::kv::{KvType, PAGE_CELLS, Quantized};
use crate::vector::{LANES, Lanes};

/// A way of storing K and V.
pub(super) trait Stored {
    /// One head of a page.
    type Page<'a>: Copy;
    /// A block of it.
    type Block<'a>: Copy;
    /// What the codes of a block are turned to numbers with, for sixteen cells.
    type Headers<X: Copy>: Copy;
    /// Elements of a block whose codes are in the lower half of a byte; as many are in the upper half.
    const HALF: usize;

    fn block(page: Self::Page<'_>, block: usize) -> Self::Block<'_>;
    /// The headers of the `cells`-th sixteen cells.
    fn headers<L: Lanes>(l: L, block: Self::Block<'_>, cells: usize) -> Self::Headers<L::F>;
    /// The same in memory, to be read cell by cell.
    fn spilled_headers<L: Lanes>(l: L, block: Self::Block<'_>, cells: usize) -> Self::Headers<[f32; LANES]>;
    /// An element of the `cells`-th sixteen keys: the `i`-th of the block, or `HALF + i`-th if `UPPER`.
    fn keys<L: Lanes, const UPPER: bool>(
        l: L,
        block: Self::Block<'_>,
        headers: Self::Headers<L::F>,
        i: usize,
        cells: usize,
    ) -> L::F;
    /// Sixteen elements, the `vector`-th of the head, of a cell's value; `WHOLE` unless the head ends among them.
    /// `headers` are of the sixteen cells that the cell is one of.
    fn values<L: Lanes, const WHOLE: bool>(
        l: L,
        block: Self::Block<'_>,
        headers: &Self::Headers<[f32; LANES]>,
        head_dim: usize,
        cell: usize,
        vector: usize,
    ) -> L::F;
}

/// Numbers, one by one.
pub(super) trait Number {
    type Element: Copy + Default + 'static;
    fn load<L: Lanes>(l: L, from: &[Self::Element; LANES]) -> L::F;
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct Bf16;

impl Number for F32 {
    type Element = f32;
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[f32; LANES]) -> L::F {
        l.load(from)
    }
}

impl Number for F16 {
    type Element = u16;
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[u16; LANES]) -> L::F {
        l.load_f16(from)
    }
}

impl Number for Bf16 {
    type Element = u16;
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[u16; LANES]) -> L::F {
        l.load_bf16(from)
    }
}

impl<N: Number> Stored for N {
    type Page<'a> = &'a [N::Element];
    type Block<'a> = &'a [N::Element];
    type Headers<X: Copy> = ();
    const HALF: usize = usize::MAX;

    #[inline(always)]
    fn block(page: Self::Page<'_>, _: usize) -> Self::Block<'_> {
        page
    }
    #[inline(always)]
    fn headers<L: Lanes>(_: L, _: Self::Block<'_>, _: usize) {}
    #[inline(always)]
    fn spilled_headers<L: Lanes>(_: L, _: Self::Block<'_>, _: usize) {}
    #[inline(always)]
    fn keys<L: Lanes, const UPPER: bool>(
        l: L,
        block: Self::Block<'_>,
        (): (),
        i: usize,
        cells: usize,
    ) -> L::F {
        N::load(l, &block[i * PAGE_CELLS + cells * LANES..].as_chunks::<LANES>().0[0])
    }
    #[inline(always)]
    fn values<L: Lanes, const WHOLE: bool>(
        l: L,
        block: Self::Block<'_>,
        (): &(),
        head_dim: usize,
        cell: usize,
        vector: usize,
    ) -> L::F {
        let row = &block[cell * head_dim + vector * LANES..];
        if WHOLE {
            return N::load(l, &row.as_chunks::<LANES>().0[0]);
        }
        let mut padded = [N::Element::default(); LANES];
        let left = head_dim - vector * LANES;
        padded[..left].copy_from_slice(&row[..left]);
        N::load(l, &padded)
    }
}

/// Blocks of 32 elements of `BITS` bits with `HEADERS` headers. With one, an element is `code * scale`, with two
/// `code * scale + minimum`. The product is exact (a scale has 11 bits, a code at most 8), so one rounding at most is
/// left, and fused or not it is that of [`verbatim_quant::dequantize`].
pub(super) struct Blocks<const BITS: usize, const HEADERS: usize>;

/// What codes of 4 bits stand for.
const CENTRED: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];
const COUNTED: [i8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
/// IQ4_NL's levels.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A block of one head, all cells.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    headers: &'a [u16],
    codes: &'a [u8],
    levels: &'static [i8; 16],
}

impl<const BITS: usize, const HEADERS: usize> Blocks<BITS, HEADERS> {
    /// Bytes of a cell's codes.
    const CODES: usize = BITS * 4;
    /// Bytes before the four low bits of codes of five bits: the fifth bits.
    const LOW: usize = if BITS == 5 { 4 } else { 0 };

    #[inline(always)]
    fn nibbles<L: Lanes>(l: L, bytes: L::B, upper: bool) -> L::B {
        if upper { l.high_nibbles(bytes) } else { l.low_nibbles(bytes) }
    }

    /// Codes of five bits, less 16 where there is no minimum. The fifth is set where `fifths` has the bit of `bits`.
    #[inline(always)]
    fn five_bits<L: Lanes>(l: L, nibbles: L::B, fifths: L::B, bits: L::B) -> L::B {
        let fifths = l.and(fifths, bits);
        let above = if HEADERS == 1 {
            // -16 where the bit is not set.
            l.and(l.equal(fifths, l.splat_byte(0)), l.splat_byte(0xf0))
        } else {
            l.and(l.equal(fifths, bits), l.splat_byte(0x10))
        };
        l.or(nibbles, above)
    }

    #[inline(always)]
    fn levels<L: Lanes>(l: L, levels: &[i8; 16]) -> L::B {
        l.load_bytes(&levels.map(i8::cast_unsigned))
    }

    #[inline(always)]
    fn number<L: Lanes>(l: L, codes: L::B, headers: [L::F; HEADERS]) -> L::F {
        let codes = l.widen(codes);
        if HEADERS == 1 {
            l.mul(codes, headers[0])
        } else {
            l.mul_add(codes, headers[0], headers[HEADERS - 1])
        }
    }
}

impl<const BITS: usize, const HEADERS: usize> Stored for Blocks<BITS, HEADERS> {
    type Page<'a> = Quantized<'a>;
    type Block<'a> = View<'a>;
    type Headers<X: Copy> = [X; HEADERS];
    const HALF: usize = 16;

    #[inline(always)]
    fn block(page: Self::Page<'_>, block: usize) -> Self::Block<'_> {
        let levels = match page.kind {
            KvType::Q4_0 => &CENTRED,
            KvType::Iq4Nl => &LEVELS,
            _ => &COUNTED,
        };
        View {
            headers: &page.headers(block)[..HEADERS * PAGE_CELLS],
            codes: &page.codes(block)[..Self::CODES * PAGE_CELLS],
            levels,
        }
    }

    #[inline(always)]
    fn headers<L: Lanes>(l: L, block: Self::Block<'_>, cells: usize) -> [L::F; HEADERS] {
        std::array::from_fn(|header| {
            let of_all = &block.headers[header * PAGE_CELLS..];
            l.load_f16(&of_all.as_chunks::<LANES>().0[cells])
        })
    }

    #[inline(always)]
    fn spilled_headers<L: Lanes>(l: L, block: Self::Block<'_>, cells: usize) -> [[f32; LANES]; HEADERS] {
        Self::headers(l, block, cells).map(|header| l.to_array(header))
    }

    #[inline(always)]
    fn keys<L: Lanes, const UPPER: bool>(
        l: L,
        block: Self::Block<'_>,
        headers: [L::F; HEADERS],
        i: usize,
        cells: usize,
    ) -> L::F {
        let plane = |byte: usize| {
            l.load_bytes(&block.codes[byte * PAGE_CELLS + cells * LANES..].as_chunks::<LANES>().0[0])
        };
        let i_of_block = if UPPER { Self::HALF + i } else { i };
        let codes = match BITS {
            8 => plane(i_of_block),
            5 => {
                let nibbles = Self::nibbles(l, plane(Self::LOW + i), UPPER);
                Self::five_bits(l, nibbles, plane(i_of_block / 8), l.splat_byte(1 << (i_of_block % 8)))
            }
            _ => l.lookup(Self::levels(l, block.levels), Self::nibbles(l, plane(i), UPPER)),
        };
        Self::number(l, codes, headers)
    }

    #[inline(always)]
    fn values<L: Lanes, const WHOLE: bool>(
        l: L,
        block: Self::Block<'_>,
        headers: &[[f32; LANES]; HEADERS],
        _: usize,
        cell: usize,
        vector: usize,
    ) -> L::F {
        let half = vector % 2;
        let cell_codes = &block.codes[cell * Self::CODES..][..Self::CODES];
        let sixteen = |at: usize| l.load_bytes(&cell_codes[at..].as_chunks::<LANES>().0[0]);
        let codes = match BITS {
            8 => sixteen(half * LANES),
            5 => {
                const ONE_OF_EIGHT: [u8; LANES] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
                let fifths = l.spread([cell_codes[2 * half], cell_codes[2 * half + 1]]);
                let nibbles = Self::nibbles(l, sixteen(Self::LOW), half == 1);
                Self::five_bits(l, nibbles, fifths, l.load_bytes(&ONE_OF_EIGHT))
            }
            _ => l.lookup(Self::levels(l, block.levels), Self::nibbles(l, sixteen(0), half == 1)),
        };
        Self::number(l, codes, headers.map(|header| l.splat(header[cell % LANES])))
    }
}
