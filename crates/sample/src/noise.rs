//! Noise, specified to the bit: a function of the request's seed, the position and the token id.
//!
//! Word `w` of token `t` at position `p` is word `(t / 16) % 4` of Philox's block with the counter
//! `[t / 64 * 16 + t % 16, purpose, low half of p, high half of p]` and the seed as key. Its Gumbel noise is -ln(E), where
//! E = -ln((2^32 - w - ½) / 2^32) is an exponential draw. All arithmetic is that of [`crate::math`], so backends of any kind
//! can compute the same bits. Against the real function the error is at most 1.6e-6, below a unit in the last place of a score of 16.

use crate::math::{ln_of_parts, split};
use crate::philox::{LANES, Words, philox, philox_lanes};

/// Tokens whose words come from one set of [`LANES`] counters.
pub(crate) const CHUNK: usize = 4 * LANES;

/// An upper bound of all noise: that of the word 0 is 22.874.
pub(crate) const MAX_NOISE: f32 = 22.9;

/// What a random word is used for; each use has words of its own.
#[derive(Clone, Copy)]
enum Purpose {
    Token = 0,
    Xtc = 1,
}

/// The random words of a request at one position.
#[derive(Clone, Copy, Debug)]
pub struct Noise {
    seed: u64,
    position: u64,
}

impl Noise {
    /// The noise of the request with this seed at this position.
    pub fn new(seed: u64, position: u64) -> Noise {
        Noise { seed, position }
    }

    /// The Gumbel noise of a token.
    pub fn of_token(&self, token: u32) -> f32 {
        let lane = token % LANES as u32;
        let index = token / CHUNK as u32 * LANES as u32 + lane;
        let words = philox(self.counter(index, Purpose::Token), self.key());
        gumbel(words[(token as usize / LANES) % 4])
    }

    /// The words of the [`CHUNK`] tokens from `chunk * CHUNK` on, in the order of the tokens.
    #[inline(always)]
    pub(crate) fn words_of_chunk(&self, chunk: u32) -> [Words; 4] {
        let [_, purpose, low, high] = self.counter(0, Purpose::Token);
        philox_lanes(chunk.wrapping_mul(LANES as u32), [purpose, low, high], self.key())
    }

    /// A uniform draw from 0 to 1, excluding 1, for XTC.
    pub(crate) fn xtc(&self) -> f32 {
        let word = philox(self.counter(0, Purpose::Xtc), self.key())[0];
        (word >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    #[inline(always)]
    fn counter(&self, index: u32, purpose: Purpose) -> [u32; 4] {
        [index, purpose as u32, self.position as u32, (self.position >> 32) as u32]
    }

    #[inline(always)]
    fn key(&self) -> [u32; 2] {
        [self.seed as u32, (self.seed >> 32) as u32]
    }
}

/// Standard Gumbel noise of a random word.
#[inline(always)]
pub(crate) fn gumbel(word: u32) -> f32 {
    -ln(exponential(word))
}

/// An upper bound of [`gumbel`] at a tenth of its cost, within 0.12 of it for the one word in ten whose noise is above 2.3.
///
/// An exponential draw is at least t, so its noise is at most -ln(t) = (32 - log2(word + ½)) ln 2, and a float's bits, read
/// as an integer, are a logarithm that is nowhere too large.
#[inline(always)]
pub(crate) fn gumbel_bound(word: u32) -> f32 {
    const LN_2: f32 = std::f32::consts::LN_2;
    // For the rounding of the noise (1.6e-6) and of this sum (up to 1e-5).
    const MARGIN: f32 = 1e-4;
    let bits = (word as f32 + 0.5).to_bits().cast_signed();
    (127.0 + 32.0) * LN_2 + MARGIN - bits as f32 * (LN_2 / 8_388_608.0)
}

/// Draws from the exponential distribution: -ln(1 - t), t = (word + ½) / 2^32.
#[inline(always)]
fn exponential(word: u32) -> f32 {
    // 2^32 (1 - √½): below it 1 - t needs no exponent, and t itself is exact where it is small.
    const NEAR_ONE: u32 = 0x4afb_0ccc;
    let part = |word: u32| (word as f32 + 0.5) * (1.0 / 4_294_967_296.0);
    let (e, f) = split(part(!word));
    let (e, f) = if word < NEAR_ONE { (0.0, -part(word)) } else { (e, f) };
    -ln_of_parts(e, f)
}

#[inline(always)]
fn ln(x: f32) -> f32 {
    crate::math::ln(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(word: u32) -> f64 {
        let t = (f64::from(word) + 0.5) / 4_294_967_296.0;
        -libm::log(-libm::log1p(-t))
    }

    #[test]
    fn noise_is_close_to_its_definition() {
        let near_one = 0x4afb_0cccu32;
        let edges = (0..4096).flat_map(|i| [i, u32::MAX - i, near_one + i, near_one - i, 1 << 31 | i]);
        let mut worst: f64 = 0.0;
        for word in edges.chain((0..u32::MAX).step_by(641)) {
            let noise = gumbel(word);
            assert!(noise <= MAX_NOISE && noise > -3.2, "{word}: {noise}");
            let spare = gumbel_bound(word) - noise;
            assert!(spare > 0.0 && (spare < 0.12 || noise < 2.3), "{word}: {spare} above {noise}");
            worst = worst.max((f64::from(noise) - definition(word)).abs());
        }
        assert!(worst < 1.6e-6, "{worst}");
        assert!(gumbel(0) > MAX_NOISE - 0.1, "a bound far above spares nothing");
    }

    #[test]
    fn a_chunk_is_its_tokens() {
        for (seed, position) in [(0, 0), (7, 1), (u64::MAX, 1 << 40 | 5), (1 << 32, 3)] {
            let noise = Noise::new(seed, position);
            for chunk in [0, 1, 77, 2000] {
                for (i, &word) in noise.words_of_chunk(chunk).as_flattened().iter().enumerate() {
                    let token = chunk * CHUNK as u32 + i as u32;
                    assert_eq!(gumbel(word).to_bits(), noise.of_token(token).to_bits(), "token {token}");
                }
            }
        }
    }

    /// From the head of this file, written again in Python. Shaders and other programs must return these bits, and no release
    /// may change them.
    #[test]
    fn the_bits_are_the_specified_ones() {
        let bits = |seed, position, token| Noise::new(seed, position).of_token(token).to_bits();
        let found =
            [bits(0, 0, 0), bits(42, 7, 12_345), bits(u64::MAX, u64::MAX, u32::MAX), bits(1, 1 << 33, 63)];
        assert_eq!(found, [1_059_897_943, 1_062_876_632, 1_048_115_004, 3_207_106_325]);
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let noise = |seed, position, token| Noise::new(seed, position).of_token(token).to_bits();
        let base = noise(1, 2, 3);
        for changed in [
            noise(2, 2, 3),
            noise(1 | 1 << 32, 2, 3),
            noise(1, 3, 3),
            noise(1, 2 | 1 << 32, 3),
            noise(1, 2, 4),
        ] {
            assert_ne!(base, changed);
        }
        assert_ne!(Noise::new(1, 2).xtc(), Noise::new(1, 3).xtc());
    }

    #[test]
    fn the_draws_of_xtc_are_uniform() {
        let draws = 100_000;
        let below = (0..draws).filter(|&position| Noise::new(3, position).xtc() < 0.25).count();
        assert!((24_500..25_500).contains(&below), "{below}");
    }
}
