//! Philox4x32-10, a counter-based random number generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
//! SC 2011. Four words from a counter and a key, with nothing to carry from one call to the next.

const ROUNDS: u32 = 10;
const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const KEY_STEP: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Counters that are computed at once, so that compilers vectorise the rounds.
pub(crate) const LANES: usize = 16;

/// One word of each of the counters.
pub(crate) type Words = [u32; LANES];
type Wide = [u64; LANES];

/// The words of [`LANES`] counters, which differ in their first word only: `first`, `first + 1`, and so on.
///
/// Each word has 64 bits to itself, the upper half 0: that is how vectors multiply, so that nothing moves between lanes until
/// the end.
#[inline(always)]
pub(crate) fn philox_lanes(first: u32, rest: [u32; 3], key: [u32; 2]) -> [Words; 4] {
    let [mut c1, mut c2, mut c3] = rest.map(|word| [u64::from(word); LANES]);
    let mut c0 = std::array::from_fn(|i| u64::from(first.wrapping_add(i as u32)));
    let mut key = key;
    for _ in 0..ROUNDS {
        let p0 = multiply(&c0, MULTIPLIERS[0]);
        let p1 = multiply(&c2, MULTIPLIERS[1]);
        (c0, c1) = (mix(&p1, &c1, key[0]), low(&p1));
        (c2, c3) = (mix(&p0, &c3, key[1]), low(&p0));
        key = [key[0].wrapping_add(KEY_STEP[0]), key[1].wrapping_add(KEY_STEP[1])];
    }
    [c0, c1, c2, c3].map(|words| words.map(|word| word as u32))
}

/// The words of one counter.
pub(crate) fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c, mut k] = [counter, [key[0], key[1], 0, 0]];
    for _ in 0..ROUNDS {
        let wide = |c: u32, multiplier: u32| u64::from(c) * u64::from(multiplier);
        let (p0, p1) = (wide(c[0], MULTIPLIERS[0]), wide(c[2], MULTIPLIERS[1]));
        let high = |p: u64| (p >> 32) as u32;
        c = [high(p1) ^ c[1] ^ k[0], p1 as u32, high(p0) ^ c[3] ^ k[1], p0 as u32];
        k = [k[0].wrapping_add(KEY_STEP[0]), k[1].wrapping_add(KEY_STEP[1]), 0, 0];
    }
    c
}

#[inline(always)]
fn multiply(words: &Wide, multiplier: u32) -> Wide {
    words.map(|word| word * u64::from(multiplier))
}

#[inline(always)]
fn low(products: &Wide) -> Wide {
    products.map(|product| product & 0xffff_ffff)
}

/// The upper halves of the products, each xor its word and the key.
#[inline(always)]
fn mix(products: &Wide, words: &Wide, key: u32) -> Wide {
    std::array::from_fn(|i| products[i] >> 32 ^ words[i] ^ u64::from(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the test vectors of the authors' library, Random123.
    #[test]
    fn the_published_vectors_come_out() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(
            philox(pi, [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn lanes_are_counters_in_a_row() {
        for first in [0, 5, u32::MAX - 3] {
            let lanes = philox_lanes(first, [7, 8, 9], [10, 11]);
            for i in 0..LANES {
                let counter = [first.wrapping_add(i as u32), 7, 8, 9];
                assert_eq!(lanes.map(|words| words[i]), philox(counter, [10, 11]));
            }
        }
    }
}
