//! What AVX2 and AVX-512 share: the instructions of 128 bits.

/// The operations on sixteen bytes.
macro_rules! bytes16 {
    () => {
        $crate::simd::intrinsics! {
            fn load16(self, from: &[u8; 16]) -> __m128i { _mm_loadu_si128(from.as_ptr().cast()) }
            fn splat16(self, byte: u8) -> __m128i { _mm_set1_epi8(byte.cast_signed()) }
            fn spread16(self, pair: [u8; 2]) -> __m128i {
                _mm_unpacklo_epi64(_mm_set1_epi8(pair[0].cast_signed()), _mm_set1_epi8(pair[1].cast_signed()))
            }
            fn low_nibbles16(self, x: __m128i) -> __m128i { _mm_and_si128(x, _mm_set1_epi8(15)) }
            fn high_nibbles16(self, x: __m128i) -> __m128i {
                _mm_and_si128(_mm_srli_epi16::<4>(x), _mm_set1_epi8(15))
            }
            fn look_up16(self, table: __m128i, indices: __m128i) -> __m128i { _mm_shuffle_epi8(table, indices) }
            fn and16(self, a: __m128i, b: __m128i) -> __m128i { _mm_and_si128(a, b) }
            fn or16(self, a: __m128i, b: __m128i) -> __m128i { _mm_or_si128(a, b) }
            fn equal16(self, a: __m128i, b: __m128i) -> __m128i { _mm_cmpeq_epi8(a, b) }
        }
    };
}
pub(crate) use bytes16;
