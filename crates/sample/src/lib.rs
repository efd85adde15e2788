//! Sampling: an argmax over logits plus position-keyed Gumbel noise.
//!
//! At temperature T the token is the argmax of `logit / T + g`, where g is Gumbel noise: a draw from the softmax
//! distribution (the Gumbel-max trick). The noise is a pure function of the request's seed, the position and the
//! token id, from a counter-based generator, so every call for the same position, in any order, batch or attempt,
//! returns the same token. Drafts and their verification share it (arXiv 2408.07978).
//!
//! Invariant: no state. Nothing here remembers an earlier draw.

mod log_softmax;

pub use log_softmax::LogSoftmax;

use rand_philox::Philox;

/// The sampler of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    temperature: f32,
    seed: u64,
}

/// Upper bound of the noise, at the largest value of [`uniform`].
const MAX_NOISE: f64 = 22.9;

/// Random u32s >= this, one in 256, may have noise above [`COMMON_NOISE`]; all others are below it: -ln(-ln(1 - 1/256)) is
/// 5.543.
const RARE: u32 = 0xff00_0000;
const COMMON_NOISE: f64 = 5.6;

/// Tokens per chunk; the noise generator returns four u32s at a time.
const CHUNK: usize = 64;

/// Logits that are compared at once.
const LANES: usize = 16;

impl Sampler {
    /// A sampler. `None` unless the temperature is finite and at least 0; 0 means the largest logit.
    pub fn new(temperature: f32, seed: u64) -> Option<Sampler> {
        (temperature.is_finite() && temperature >= 0.0).then_some(Sampler { temperature, seed })
    }

    /// The token at `position`, given its logits. Of equal candidates the lowest id wins; a NaN never does. `None` if
    /// there is nothing but NaN.
    pub fn sample(&self, logits: &[f32], position: u64) -> Option<u32> {
        if logits.iter().all(|logit| logit.is_nan()) {
            return None;
        }
        Some(if self.temperature == 0.0 { largest(logits) as u32 } else { self.noisy(logits, position) })
    }

    fn noisy(&self, logits: &[f32], position: u64) -> u32 {
        let first = largest(logits);
        // Relative to the top, so that a tiny temperature cannot overflow both.
        let (top, temperature) = (f64::from(logits[first]), f64::from(self.temperature));
        let scaled = |logit: f32| (f64::from(logit) - top) / temperature;
        let mut noise = Philox::from_u64_seed_stream(self.seed, position);
        // Every token has its own random u32, so that its noise only depends on its id.
        let mut words_from = |token: usize, words: &mut [u32]| {
            noise.seek(u128::from(position) << 64 | (token / 4) as u128);
            noise.fill_u32(words);
        };
        let mut words = [0; CHUNK];
        words_from(first, &mut words[..4]);
        let mut best = (scaled(logits[first]) + gumbel(words[first % 4]), first);
        for (chunk, logits) in logits.chunks(CHUNK).enumerate() {
            // The minimum logits that can win with any noise and with common noise.
            let min = |noise: f64| min_logit(best.0, noise, top, temperature);
            let (any, common) = (min(MAX_NOISE), min(COMMON_NOISE));
            if !any_of(logits, |logit| logit >= any) {
                continue;
            }
            let start = chunk * CHUNK;
            words_from(start, &mut words[..logits.len()]);
            for (part, (logits, words)) in logits.chunks(LANES).zip(words.chunks(LANES)).enumerate() {
                if !any_of(logits, |logit| logit >= common) && !any_of(words, is_rare) {
                    continue;
                }
                for (i, (&logit, &word)) in logits.iter().zip(words).enumerate() {
                    let token = start + part * LANES + i;
                    let scaled = scaled(logit);
                    if may_exceed(scaled, word, best.0) {
                        // No comparison with a NaN is true, so it never wins.
                        let score = scaled + gumbel(word);
                        if score > best.0 || score == best.0 && token < best.1 {
                            best = (score, token);
                        }
                    }
                }
            }
        }
        best.1 as u32
    }
}

/// The index of the largest logit; the first of equals; 0 if all are NaN.
fn largest(logits: &[f32]) -> usize {
    let greater = |most: f32, logit: f32| if logit > most { logit } else { most };
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (most, &logit) in most.iter_mut().zip(chunk) {
            *most = greater(*most, logit);
        }
    }
    let most = most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, greater);
    let chunk = logits.chunks(LANES).position(|chunk| any_of(chunk, |logit| logit == most)).unwrap_or(0);
    let start = chunk * LANES;
    start + logits[start..].iter().position(|&logit| logit == most).unwrap_or(0)
}

/// Whether any value matches. Tests all of them, which is vectorised and faster than stopping at the first match.
fn any_of<T: Copy>(values: &[T], matches: impl Fn(T) -> bool) -> bool {
    values.iter().fold(false, |found, &value| found | matches(value))
}

/// A value strictly between 0 and 1.
fn uniform(word: u32) -> f64 {
    (f64::from(word) + 0.5) / 4_294_967_296.0
}

/// Standard Gumbel noise: -ln(-ln u).
fn gumbel(word: u32) -> f64 {
    -libm::log(-libm::log(uniform(word)))
}

/// Whether the noise of `word` may be [`COMMON_NOISE`] or more.
fn is_rare(word: u32) -> bool {
    word >= RARE
}

/// The minimum logit that reaches this score with this noise, or the next above it: rounding is monotonic, so no lower one
/// does.
fn min_logit(score: f64, noise: f64, top: f64, temperature: f64) -> f32 {
    ((score - noise) * temperature + top) as f32
}

/// Whether a scaled logit and the noise of `word` may together exceed `score`: false only if they certainly do not. Skips
/// most logarithms.
///
/// For b >= 0, -ln(-ln u) > b needs u > exp(-e^-b) >= 1 - e^-b >= 1 - 2^-floor(b).
fn may_exceed(scaled: f64, word: u32, score: f64) -> bool {
    let whole = (score - scaled).clamp(0.0, 31.0) as u32;
    word >= u32::MAX - (u32::MAX >> whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, without the short cuts.
    fn reference(logits: &[f32], temperature: f32, seed: u64, position: u64) -> u32 {
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut noise = Philox::from_u64_seed_stream(seed, position);
        let scores: Vec<f64> = logits
            .iter()
            .map(|&logit| {
                (f64::from(logit) - f64::from(top)) / f64::from(temperature) + gumbel(noise.next_u32())
            })
            .collect();
        (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap() as u32
    }

    fn logits(n: usize, spread: f32) -> Vec<f32> {
        (0..n).map(|i| ((i * 2654435761 % 1009) as f32 / 1009.0 - 0.5) * spread).collect()
    }

    #[test]
    fn the_short_cuts_change_nothing() {
        for spread in [0.0, 1.0, 20.0, 200.0] {
            let logits = logits(4999, spread);
            for position in 0..200 {
                let temperature = [0.05, 0.7, 1.0, 5.0][position as usize % 4];
                let sampler = Sampler::new(temperature, 42).unwrap();
                assert_eq!(
                    sampler.sample(&logits, position),
                    Some(reference(&logits, temperature, 42, position))
                );
            }
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [1.0, 0.0, -1.0, 2.0];
        for temperature in [0.5f32, 1.0, 2.0] {
            let sampler = Sampler::new(temperature, 7).unwrap();
            let mut counts = [0f64; 4];
            let draws = 40_000;
            for position in 0..draws {
                counts[sampler.sample(&logits, position).unwrap() as usize] += 1.0;
            }
            let weights = logits.map(|l: f32| f64::from(l / temperature).exp());
            let total: f64 = weights.iter().sum();
            let chi_square: f64 = (0..4)
                .map(|i| {
                    let wanted = weights[i] / total * draws as f64;
                    (counts[i] - wanted).powi(2) / wanted
                })
                .sum();
            // 3 degrees of freedom: 16.3 is exceeded once in a thousand.
            assert!(chi_square < 16.3, "temperature {temperature}: {chi_square}");
        }
    }

    #[test]
    fn zero_temperature_takes_the_first_of_the_largest() {
        let sampler = Sampler::new(0.0, 1).unwrap();
        assert_eq!(sampler.sample(&[1.0, 3.0, 3.0, f32::NAN], 9), Some(1));
        assert_eq!(sampler.sample(&[f32::NAN, f32::NAN], 9), None);
        assert_eq!(sampler.sample(&[f32::NAN, f32::NEG_INFINITY], 9), Some(1));
        assert_eq!(sampler.sample(&[], 9), None);
        for (len, at) in (1..70).flat_map(|len| (0..len).map(move |at| (len, at))) {
            let mut logits = vec![-1.0; len];
            logits[at..].fill(2.5);
            logits[..at.min(3)].fill(f32::NAN);
            assert_eq!(sampler.sample(&logits, 0), Some(at as u32));
            // Not up to the end, so that whole chunks of it have others after them.
            logits[(at + LANES).min(len)..].fill(0.0);
            assert_eq!(sampler.sample(&logits, 0), Some(at as u32));
        }
    }

    #[test]
    fn seeds_and_positions_matter_and_nothing_else_does() {
        let logits = logits(100, 2.0);
        let draw = |seed, position| Sampler::new(1.0, seed).unwrap().sample(&logits, position);
        let sequence = |seed| (0..50).map(|position| draw(seed, position)).collect::<Vec<_>>();
        assert_eq!(sequence(1), sequence(1));
        assert_ne!(sequence(1), sequence(2));
        assert_eq!(draw(1, 49), *sequence(1).last().unwrap());
    }

    #[test]
    fn odd_numbers_are_refused_or_survived() {
        for temperature in [-1.0, f32::NAN, f32::INFINITY] {
            assert_eq!(Sampler::new(temperature, 0), None);
        }
        let tiny = Sampler::new(f32::MIN_POSITIVE, 0).unwrap();
        assert_eq!(tiny.sample(&[0.0, 1.0, 0.5], 3), Some(1));
        let odd = Sampler::new(1.0, 0).unwrap();
        assert_eq!(odd.sample(&[f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY], 3), Some(1));
        assert_eq!(odd.sample(&[f32::NAN, f32::NEG_INFINITY, 0.0], 3), Some(2));
        assert!(odd.sample(&[f32::INFINITY, 0.0], 3).is_some_and(|token| token < 2));
    }

    #[test]
    fn one_number_that_will_do_is_enough() {
        for count in 0..4 {
            let numbers: Vec<usize> = (0..4).collect();
            assert_eq!(any_of(&numbers, |number| number < count), count > 0);
        }
    }

    #[test]
    fn noise_stays_below_its_bounds() {
        assert!(gumbel(u32::MAX) < MAX_NOISE && gumbel(0).is_finite());
        assert!(gumbel(u32::MAX) > MAX_NOISE - 0.1, "a bound far above spares nothing");
        assert!(is_rare(RARE) && is_rare(u32::MAX) && !is_rare(RARE - 1) && !is_rare(0));
        assert!(gumbel(RARE - 1) < COMMON_NOISE && gumbel(RARE - 1) > COMMON_NOISE - 0.1);
    }

    #[test]
    fn the_min_logit_is_the_first_that_reaches_the_score() {
        for (score, noise, top, temperature) in
            [(3.5, 22.9, 8.25, 0.7), (-1.25, 5.6, -8.25, 2.0), (22.5, 5.6, -0.5, 0.05), (0.5, 22.9, 1e4, 1.0)]
        {
            let score_of = |logit: f32| (f64::from(logit) - top) / temperature + noise;
            let least = min_logit(score, noise, top, temperature);
            assert!(score_of(least.next_up()) > score && score_of(least.next_down()) < score, "{least}");
        }
    }

    #[test]
    fn a_word_may_exceed_a_score_from_its_bound_on() {
        for bits in 0..32 {
            // The words of which the noise may exceed `bits`: all but those that begin with so many ones.
            let least = ((1u64 << 32) - (1 << (32 - bits))) as u32;
            for (scaled, score) in [(0, bits), (-10, bits - 10), (-3, bits - 3)] {
                for part in [0.0, 0.5, 0.99] {
                    let (scaled, score) = (f64::from(scaled), f64::from(score) + part);
                    assert!(may_exceed(scaled, least, score) && may_exceed(scaled, u32::MAX, score));
                    assert!(least == 0 || !may_exceed(scaled, least - 1, score), "{bits}");
                    assert!(least == 0 || gumbel(least - 1) <= score - scaled, "{bits}");
                }
            }
        }
        for word in [0, 1, u32::MAX / 2, u32::MAX - 2, u32::MAX] {
            for bound in [-3.0, 0.0, 0.5, 1.0, 2.7, 10.0, 22.0, f64::INFINITY] {
                assert!(may_exceed(0.0, word, bound) || gumbel(word) <= bound);
            }
        }
    }

    #[test]
    fn of_equal_scores_the_lowest_token_wins() {
        let sampler = Sampler::new(1.0, 5).unwrap();
        let mut ties = [0; 2];
        for position in 0..20_000 {
            let mut noise = Philox::from_u64_seed_stream(5, position);
            let noises = [(); 2].map(|()| gumbel(noise.next_u32()));
            // The token of less noise gets the larger logit: larger by as much, but for what rounding leaves over.
            let top = usize::from(noises[0] > noises[1]);
            let difference = noises[1 - top] - noises[top];
            let mut logits = [difference as f32; 2];
            logits[1 - top] = (f64::from(logits[top]) - difference) as f32;
            if f64::from(logits[1 - top]) - f64::from(logits[top]) + noises[1 - top] == noises[top] {
                ties[top] += 1;
                assert_eq!(sampler.sample(&logits, position), Some(0), "position {position}");
            }
        }
        assert!(ties.iter().all(|&ties| ties > 100), "{ties:?}");
    }

    #[test]
    fn few_tokens_are_chosen_by_the_definition() {
        // Here the best score may be below 0, the top logit is of either sign, and no chunk is whole.
        for (round, count) in [2, 3, 5, 17, 63, 65, 130].into_iter().enumerate() {
            for position in 0..2_000 {
                let shift = [-300.0, 0.0, 300.0][position as usize % 3];
                let logits: Vec<f32> =
                    logits(count, 1.0 + round as f32).iter().map(|logit| logit + shift).collect();
                let temperature = [0.3, 1.0, 8.0, 60.0][position as usize % 4];
                let sampled = Sampler::new(temperature, 9).unwrap().sample(&logits, position);
                assert_eq!(sampled, Some(reference(&logits, temperature, 9, position)));
            }
        }
    }
}
