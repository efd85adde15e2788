//! The filters of the chain, each over a list of candidates that is sorted, best first, before and after. They behave as
//! llama.cpp's samplers of the same names, but for the order of equal logits, which is by token here.

use crate::candidates::Candidate;
use crate::math::{exp, ln, pow};

/// The probabilities of a list: its softmax, summed from the first candidate to the last.
pub(crate) fn softmax(list: &[Candidate], probabilities: &mut Vec<f32>) {
    let max = list.first().map_or(0.0, |best| best.logit);
    probabilities.clear();
    probabilities.extend(list.iter().map(|candidate| exp(candidate.logit - max)));
    let sum: f32 = probabilities.iter().sum();
    for probability in probabilities {
        *probability /= sum;
    }
}

fn entropy(probabilities: &[f32]) -> f32 {
    // Below the smallest normal number p ln p is negligible.
    let terms = probabilities.iter().filter(|&&p| p >= f32::MIN_POSITIVE).map(|&p| p * ln(p));
    -terms.sum::<f32>()
}

/// How many leading candidates it takes for their probabilities to sum to p; at least `min_keep`.
pub(crate) fn top_p(probabilities: impl Iterator<Item = f32>, p: f32, min_keep: usize) -> Option<usize> {
    let mut sum = 0.0;
    for (i, probability) in probabilities.enumerate() {
        sum += probability;
        if sum >= p && i + 1 >= min_keep {
            return Some(i + 1);
        }
    }
    None
}

/// The least logit that min-p keeps.
pub(crate) fn min_p_logit(max: f32, min_p: f32) -> f32 {
    // ln is for normal numbers; a smaller p keeps nearly everything anyway.
    max + ln(min_p.max(f32::MIN_POSITIVE))
}

pub(crate) fn min_p(list: &mut Vec<Candidate>, min_p: f32, min_keep: usize) {
    let Some(best) = list.first() else { return };
    let least = min_p_logit(best.logit, min_p);
    let kept = list.iter().take_while(|candidate| candidate.logit >= least).count();
    list.truncate(kept.max(min_keep).max(1));
}

pub(crate) fn typical_p(list: &mut Vec<Candidate>, p: f32, min_keep: usize, probabilities: &mut Vec<f32>) {
    softmax(list, probabilities);
    let entropy = entropy(probabilities);
    // How far each candidate's surprise is from the expected one.
    let surprise = |p: f32| if p >= f32::MIN_POSITIVE { -ln(p) } else { f32::INFINITY };
    let distance = |&p: &f32| (surprise(p) - entropy).abs();
    let mut by_distance: Vec<(f32, f32, Candidate)> =
        list.iter().zip(&*probabilities).map(|(&candidate, p)| (distance(p), *p, candidate)).collect();
    by_distance.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut sum = 0.0;
    let kept = by_distance.iter().enumerate().position(|(i, (_, probability, _))| {
        sum += probability;
        sum > p && i + 1 >= min_keep
    });
    by_distance.truncate(kept.map_or(by_distance.len(), |last| last + 1));
    list.clear();
    list.extend(by_distance.iter().map(|(.., candidate)| *candidate));
    list.sort_unstable_by(Candidate::order);
}

/// Logits further below the largest than n standard deviations become minus infinity.
pub(crate) fn top_n_sigma(list: &mut [Candidate], n: f32) {
    let [first, _, ..] = list else { return };
    let max = first.logit;
    let finite = || list.iter().map(|candidate| candidate.logit).filter(|&logit| logit != f32::NEG_INFINITY);
    let count = finite().count() as f32;
    let mean = finite().sum::<f32>() / count;
    let variance = finite().map(|logit| (logit - mean) * (logit - mean)).sum::<f32>() / count;
    let least = max - n * variance.sqrt();
    for candidate in list.iter_mut().filter(|candidate| candidate.logit < least) {
        candidate.logit = f32::NEG_INFINITY;
    }
}

/// Removes all candidates of at least the threshold's probability but the least likely of them.
pub(crate) fn xtc(list: &mut Vec<Candidate>, threshold: f32, min_keep: usize, probabilities: &mut Vec<f32>) {
    if list.len() < 2 {
        return;
    }
    softmax(list, probabilities);
    let above = probabilities.iter().take_while(|&&p| p >= threshold).count();
    let removed = above.saturating_sub(1);
    if removed > 0 && list.len() - removed >= min_keep {
        list.drain(..removed);
    }
}

/// Below it a temperature is 0: scaled logits would be infinite, and then equal.
pub(crate) const LEAST_TEMPERATURE: f32 = 1e-30;

/// Divides all logits; a temperature of 0 leaves only the best.
pub(crate) fn temperature(list: &mut Vec<Candidate>, temperature: f32) {
    if temperature < LEAST_TEMPERATURE {
        list.truncate(1);
        return;
    }
    let scale = 1.0 / temperature;
    for candidate in list {
        candidate.logit *= scale;
    }
}

/// The dynamic temperature of a list: between `base - range` and `base + range`, by the entropy. `None` for fewer than two.
pub(crate) fn dynamic_temperature(
    list: &[Candidate],
    base: f32,
    range: f32,
    power: f32,
    probabilities: &mut Vec<f32>,
) -> Option<f32> {
    if list.len() < 2 {
        return None;
    }
    softmax(list, probabilities);
    let normalised = entropy(probabilities).max(0.0) / ln(list.len() as f32);
    let (least, most) = ((base - range).max(0.0), base + range);
    Some(least + (most - least) * pow(normalised, power))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(logits: &[f32]) -> Vec<Candidate> {
        (0..).zip(logits).map(|(token, &logit)| Candidate { token, logit }).collect()
    }

    #[test]
    fn typical_candidates_sum_to_more_than_p() {
        // Each has the probability 0.5, so one alone does not exceed it.
        let kept = |p| {
            let mut list = list(&[1.0, 1.0]);
            typical_p(&mut list, p, 0, &mut Vec::new());
            list.len()
        };
        assert_eq!([kept(0.499), kept(0.5)], [1, 2]);
    }

    #[test]
    fn the_deviation_is_from_the_mean() {
        let kept = |logits: &[f32], n| {
            let mut list = list(logits);
            top_n_sigma(&mut list, n);
            list.iter().map(|candidate| candidate.logit > f32::NEG_INFINITY).collect::<Vec<_>>()
        };
        // So far from 0 a difference of squares would be all rounding.
        assert_eq!(kept(&[100_003.0, 100_002.0, 100_000.0], 1.0), [true, true, false]);
        // Without a deviation all are the largest.
        assert_eq!(kept(&[2.0; 3], 1.0), [true; 3]);
    }

    #[test]
    fn only_a_temperature_of_almost_0_leaves_one() {
        let left = |given| {
            let mut list = list(&[2.0, 1.0]);
            temperature(&mut list, given);
            list
        };
        for given in [0.0, 1e-40, LEAST_TEMPERATURE.next_down()] {
            assert_eq!(left(given), list(&[2.0]), "{given}");
        }
        let scale = 1.0 / LEAST_TEMPERATURE;
        assert_eq!(left(LEAST_TEMPERATURE), list(&[2.0 * scale, scale]));
        assert_eq!(left(0.5), list(&[4.0, 2.0]));
    }
}
