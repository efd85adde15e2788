//! The choice of the next token: an argmax over logits plus position-keyed noise.
//!
//! At temperature T the token is the argmax of `logit / T + g`, where g is Gumbel noise: a draw from the softmax
//! distribution (the Gumbel-max trick). The noise is a pure function of the request's seed, the position and the
//! token id, from a counter-based generator, so whoever asks for the token of a position, in whatever order, batch or
//! attempt, gets the same one. Drafts and their verification share it (arXiv 2408.07978).
//!
//! Invariant: no state. Nothing here remembers an earlier draw.

use rand_philox::Philox;

/// How a request's tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    temperature: f32,
    seed: u64,
}

/// The largest value that the noise takes: that of the largest number below 1 that [`uniform`] gives.
const LARGEST_NOISE: f64 = 22.9;

impl Sampler {
    /// A sampler. `None` unless the temperature is finite and at least 0; 0 means the largest logit.
    pub fn new(temperature: f32, seed: u64) -> Option<Sampler> {
        (temperature.is_finite() && temperature >= 0.0).then_some(Sampler { temperature, seed })
    }

    /// The token at `position`, given its logits. Of equal candidates the lowest id wins; a NaN never does. `None` if
    /// there is nothing but NaN.
    pub fn pick(&self, logits: &[f32], position: u64) -> Option<u32> {
        if logits.iter().all(|logit| logit.is_nan()) {
            return None;
        }
        Some(if self.temperature == 0.0 { largest(logits) } else { self.noisy(logits, position) })
    }

    fn noisy(&self, logits: &[f32], position: u64) -> u32 {
        let top = logits[largest(logits) as usize];
        let temperature = f64::from(self.temperature);
        let mut noise = Philox::from_u64_seed_stream(self.seed, position);
        let mut best = (f64::NEG_INFINITY, 0);
        for (token, &logit) in logits.iter().enumerate() {
            // Every token consumes its word, so that its noise depends on nothing but its id.
            let word = noise.next_u32();
            // Relative to the top, so that a tiny temperature cannot overflow both.
            let scaled = (f64::from(logit) - f64::from(top)) / temperature;
            // False for a NaN, which so never wins.
            let may_win = scaled + LARGEST_NOISE > best.0 && exceeds(word, best.0 - scaled);
            if may_win && scaled + gumbel(word) > best.0 {
                best = (scaled + gumbel(word), token as u32);
            }
        }
        best.1
    }
}

/// The index of the largest number; the first of equals; 0 if all are NaN.
fn largest(logits: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > best.0 {
            best = (logit, token as u32);
        }
    }
    best.1
}

/// A number strictly between 0 and 1.
fn uniform(word: u32) -> f64 {
    (f64::from(word) + 0.5) / 4_294_967_296.0
}

/// Standard Gumbel noise: -ln(-ln u).
fn gumbel(word: u32) -> f64 {
    -(-uniform(word).ln()).ln()
}

/// Whether the noise of `word` may exceed `bound`: false only if it certainly does not. Spares most logarithms.
///
/// For b >= 0, -ln(-ln u) > b needs u > exp(-e^-b) >= 1 - e^-b >= 1 - 2^-floor(b).
fn exceeds(word: u32, bound: f64) -> bool {
    if bound < 1.0 || bound.is_nan() {
        return true;
    }
    let whole = bound.min(31.0) as u32;
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
            let logits = logits(997, spread);
            for position in 0..200 {
                let temperature = [0.05, 0.7, 1.0, 5.0][position as usize % 4];
                let sampler = Sampler::new(temperature, 42).unwrap();
                assert_eq!(
                    sampler.pick(&logits, position),
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
                counts[sampler.pick(&logits, position).unwrap() as usize] += 1.0;
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
        assert_eq!(sampler.pick(&[1.0, 3.0, 3.0, f32::NAN], 9), Some(1));
        assert_eq!(sampler.pick(&[f32::NAN, f32::NAN], 9), None);
        assert_eq!(sampler.pick(&[], 9), None);
    }

    #[test]
    fn seeds_and_positions_matter_and_nothing_else_does() {
        let logits = logits(100, 2.0);
        let draw = |seed, position| Sampler::new(1.0, seed).unwrap().pick(&logits, position);
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
        assert_eq!(tiny.pick(&[0.0, 1.0, 0.5], 3), Some(1));
        let odd = Sampler::new(1.0, 0).unwrap();
        assert_eq!(odd.pick(&[f32::NAN, f32::NEG_INFINITY, 0.0], 3), Some(2));
        assert!(odd.pick(&[f32::INFINITY, 0.0], 3).is_some_and(|token| token < 2));
    }

    #[test]
    fn noise_stays_below_its_bound() {
        assert!(gumbel(u32::MAX) < LARGEST_NOISE && gumbel(0).is_finite());
        for word in [0, 1, u32::MAX / 2, u32::MAX - 2, u32::MAX] {
            for bound in [-3.0, 0.0, 0.5, 1.0, 2.7, 10.0, 22.0, f64::INFINITY, f64::NAN] {
                assert!(exceeds(word, bound) || gumbel(word) <= bound);
            }
        }
    }
}
