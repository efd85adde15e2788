//! Sixteen bytes at once: the codes of quantised blocks before they become numbers.

#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{LANES, Scalar};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array;

/// Operations on sixteen bytes.
pub(crate) trait Bytes: Copy {
    /// Sixteen bytes.
    type B: Copy;

    fn load_bytes(self, from: &[u8; LANES]) -> Self::B;
    fn splat_byte(self, x: u8) -> Self::B;
    /// `pair[0]` in the first eight lanes, `pair[1]` in the last eight.
    fn spread(self, pair: [u8; 2]) -> Self::B;
    fn low_nibbles(self, x: Self::B) -> Self::B;
    fn high_nibbles(self, x: Self::B) -> Self::B;
    /// The elements of `table` with these numbers, which are below sixteen.
    fn lookup(self, table: Self::B, numbers: Self::B) -> Self::B;
    fn and(self, a: Self::B, b: Self::B) -> Self::B;
    fn or(self, a: Self::B, b: Self::B) -> Self::B;
    /// All bits where a and b are equal, none elsewhere.
    fn equal(self, a: Self::B, b: Self::B) -> Self::B;
}

impl Bytes for Scalar {
    type B = [u8; LANES];

    #[inline(always)]
    fn load_bytes(self, from: &[u8; LANES]) -> Self::B {
        *from
    }
    #[inline(always)]
    fn splat_byte(self, x: u8) -> Self::B {
        [x; LANES]
    }
    #[inline(always)]
    fn spread(self, pair: [u8; 2]) -> Self::B {
        array::from_fn(|i| pair[i / 8])
    }
    #[inline(always)]
    fn low_nibbles(self, x: Self::B) -> Self::B {
        x.map(|x| x & 15)
    }
    #[inline(always)]
    fn high_nibbles(self, x: Self::B) -> Self::B {
        x.map(|x| x >> 4)
    }
    #[inline(always)]
    fn lookup(self, table: Self::B, numbers: Self::B) -> Self::B {
        numbers.map(|number| table[usize::from(number & 15)])
    }
    #[inline(always)]
    fn and(self, a: Self::B, b: Self::B) -> Self::B {
        array::from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn or(self, a: Self::B, b: Self::B) -> Self::B {
        array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn equal(self, a: Self::B, b: Self::B) -> Self::B {
        array::from_fn(|i| if a[i] == b[i] { u8::MAX } else { 0 })
    }
}

/// AVX2 and AVX-512 both have the 128-bit instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! bytes_of_128_bits {
    ($isa:ty) => {
        // SAFETY (of every `unsafe` here): a value of the type exists only where the machine was found to have the
        // instructions; loads are unaligned and stay within the array referred to.
        impl Bytes for $isa {
            type B = __m128i;

            #[inline(always)]
            fn load_bytes(self, from: &[u8; LANES]) -> __m128i {
                // SAFETY: as above.
                unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
            }
            #[inline(always)]
            fn splat_byte(self, x: u8) -> __m128i {
                // SAFETY: as above.
                unsafe { _mm_set1_epi8(x.cast_signed()) }
            }
            #[inline(always)]
            fn spread(self, pair: [u8; 2]) -> __m128i {
                // SAFETY: as above.
                unsafe {
                    let [first, last] = pair.map(|x| _mm_set1_epi8(x.cast_signed()));
                    _mm_unpacklo_epi64(first, last)
                }
            }
            #[inline(always)]
            fn low_nibbles(self, x: __m128i) -> __m128i {
                // SAFETY: as above.
                unsafe { _mm_and_si128(x, _mm_set1_epi8(15)) }
            }
            #[inline(always)]
            fn high_nibbles(self, x: __m128i) -> __m128i {
                // SAFETY: as above.
                unsafe { _mm_and_si128(_mm_srli_epi16::<4>(x), _mm_set1_epi8(15)) }
            }
            #[inline(always)]
            fn lookup(self, table: __m128i, numbers: __m128i) -> __m128i {
                // SAFETY: as above.
                unsafe { _mm_shuffle_epi8(table, numbers) }
            }
            #[inline(always)]
            fn and(self, a: __m128i, b: __m128i) -> __m128i {
                // SAFETY: as above.
                unsafe { _mm_and_si128(a, b) }
            }
            #[inline(always)]
            fn or(self, a: __m128i, b: __m128i) -> __m128i {
                // SAFETY: as above.
                unsafe { _mm_or_si128(a, b) }
            }
            #[inline(always)]
            fn equal(self, a: __m128i, b: __m128i) -> __m128i {
                // SAFETY: as above.
                unsafe { _mm_cmpeq_epi8(a, b) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
bytes_of_128_bits!(Avx2);
#[cfg(target_arch = "x86_64")]
bytes_of_128_bits!(Avx512);

#[cfg(test)]
mod tests {
    use super::super::{Kernel, Lanes, dispatch};
    use super::*;
    use crate::isa::Isa;
    use verbatim_graph::random::Random;

    struct All<'a>(&'a [[u8; LANES]; 2]);

    impl Kernel for All<'_> {
        type Output = [[f32; LANES]; 8];

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> [[f32; LANES]; 8] {
            let [a, b] = self.0.map(|x| l.load_bytes(&x));
            [
                a,
                l.low_nibbles(a),
                l.high_nibbles(a),
                l.lookup(b, l.low_nibbles(a)),
                l.and(a, l.splat_byte(self.0[0][0])),
                l.or(a, b),
                l.equal(l.and(a, b), b),
                l.spread([self.0[0][3], self.0[1][5]]),
            ]
            .map(|bytes| l.to_array(l.widen(bytes)))
        }
    }

    #[test]
    fn bytes_are_the_same_on_every_instruction_set() {
        let mut random = Random(12);
        for _ in 0..1000 {
            let [x, mask] = [0, 1].map(|_| array::from_fn(|_| random.bits() as u8));
            let bytes = [x, array::from_fn(|i| if i % 2 == 0 { mask[i] } else { mask[i] & x[i] })];
            let reference = dispatch(Isa::scalar(), All(&bytes));
            assert_eq!(reference[0], x.map(|x| f32::from(x.cast_signed())));
            for isa in Isa::supported() {
                assert_eq!(dispatch(isa, All(&bytes)), reference, "{}", isa.name());
            }
        }
    }
}
