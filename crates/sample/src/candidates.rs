//! The candidates for the next token: first all logits of a row, then a sorted list of those that a filter has kept.

use crate::math::exp;
use crate::noise::{CHUNK, MAX_NOISE, Noise, gumbel, gumbel_bound};
use crate::philox::LANES;
use std::cmp::Ordering;

/// Tokens of one part of a row. Sums over a row go part by part, so that threads can compute one each and no sum depends on how
/// many there are.
pub const PART_TOKENS: usize = 16_384;

/// A token with its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// Its logit, as changed by the chain so far.
    pub logit: f32,
}

impl Candidate {
    /// Larger logits first, then lower ids. A total order: no candidate has a NaN.
    #[inline(always)]
    pub(crate) fn order(&self, other: &Candidate) -> Ordering {
        other.logit.total_cmp(&(self.logit)).then(self.token.cmp(&other.token))
    }
}

/// Tests all values, which is vectorised and faster than stopping at the first match.
#[inline(always)]
pub(crate) fn any_of(values: &[f32], matches: impl Fn(f32) -> bool) -> bool {
    values.iter().fold(false, |found, &value| found | matches(value))
}

/// Negative zero sorts below zero by its bits: both are zero here.
#[inline(always)]
fn canonical(logit: f32) -> f32 {
    if logit == 0.0 { 0.0 } else { logit }
}

/// The best `k` candidates of a row, found in one pass over any pieces of it in ascending order of their tokens.
#[derive(Clone, Debug)]
pub(crate) struct TopK {
    k: usize,
    best: Vec<Candidate>,
    /// The logit of the k-th best so far: an equal logit of a later token is no better.
    threshold: Option<f32>,
}

impl Default for TopK {
    fn default() -> Self {
        TopK { k: 0, best: Vec::with_capacity(256), threshold: None }
    }
}

impl TopK {
    /// Begins a row.
    pub(crate) fn begin(&mut self, k: usize) {
        self.k = k;
        self.best.clear();
        self.best.reserve(2 * k.max(LANES));
        // With k = 0 no logit passes.
        self.threshold = (k == 0).then_some(f32::INFINITY);
    }

    /// Adds the logits of the tokens from `first` on. A NaN is not a candidate.
    #[inline(always)]
    pub(crate) fn add(&mut self, first: u32, logits: &[f32]) {
        if let (None, Some(bound)) = (self.threshold, lower_bound(logits, self.k)) {
            self.threshold = Some(bound.next_down());
        }
        for (i, chunk) in logits.chunks(LANES).enumerate() {
            let threshold = self.threshold;
            let is_better = |logit: f32| threshold.map_or(!logit.is_nan(), |threshold| logit > threshold);
            if any_of(chunk, is_better) {
                self.add_chunk(first + (i * LANES) as u32, chunk);
            }
        }
    }

    #[inline(never)]
    fn add_chunk(&mut self, first: u32, chunk: &[f32]) {
        for (token, &logit) in (first..).zip(chunk) {
            let is_better = self.threshold.map_or(!logit.is_nan(), |threshold| logit > threshold);
            if is_better {
                self.best.push(Candidate { token, logit: canonical(logit) });
                if self.best.len() >= 2 * self.k.max(LANES) {
                    self.cut();
                }
            }
        }
    }

    fn cut(&mut self) {
        if self.best.len() > self.k {
            self.best.select_nth_unstable_by(self.k, Candidate::order);
            self.best.truncate(self.k);
        }
        if self.best.len() == self.k {
            self.threshold = self.best.iter().map(|candidate| candidate.logit).reduce(f32::min);
        }
    }

    /// The candidates, best first.
    pub(crate) fn finish(&mut self) -> &[Candidate] {
        self.cut();
        self.best.sort_unstable_by(Candidate::order);
        &self.best
    }
}

/// A lower bound of the k-th largest logit, for the first threshold: the k-th largest among the maxima of groups of [`CHUNK`]
/// logits. `None` if there are fewer than k groups.
#[inline(always)]
fn lower_bound(logits: &[f32], k: usize) -> Option<f32> {
    const GROUPS: usize = PART_TOKENS / CHUNK;
    let mut maxima = [f32::NEG_INFINITY; GROUPS];
    let groups = logits.as_chunks::<CHUNK>().0;
    let count = groups.len().min(GROUPS);
    if !(1..=count).contains(&k) {
        return None;
    }
    for (max, group) in maxima.iter_mut().zip(groups) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in group.as_chunks::<LANES>().0 {
            for (lane, &logit) in lanes.iter_mut().zip(chunk) {
                *lane = if logit > *lane { logit } else { *lane };
            }
        }
        *max = lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    }
    let (_, bound, _) = maxima[..count].select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    bound.is_finite().then_some(*bound)
}

/// The token with the largest logit; of equals the first. `None` if all are NaN.
pub(crate) fn argmax(logits: &[f32]) -> Option<Candidate> {
    let greater = |most: f32, logit: f32| if logit > most { logit } else { most };
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (most, &logit) in most.iter_mut().zip(chunk) {
            *most = greater(*most, logit);
        }
    }
    let most = most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, greater);
    let chunk = logits.chunks(LANES).position(|chunk| any_of(chunk, |logit| logit == most))?;
    let start = chunk * LANES;
    let token = start + logits[start..].iter().position(|&logit| logit == most)?;
    Some(Candidate { token: token as u32, logit: most })
}

/// A candidate with its score: the logit over the temperature, plus noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scored {
    /// logit / temperature + noise.
    pub(crate) score: f32,
    /// The candidate.
    pub(crate) candidate: Candidate,
}

impl Scored {
    /// Whether this one is drawn rather than the other: the larger score, then the larger logit, then the lower token.
    #[inline(always)]
    pub(crate) fn beats(&self, other: &Scored) -> bool {
        let (a, b) = (self.candidate, other.candidate);
        self.score > other.score
            || self.score == other.score && (a.logit > b.logit || a.logit == b.logit && a.token < b.token)
    }
}

/// The best by logit times `scale` plus noise of the tokens from `first` on, which is a multiple of [`PART_TOKENS`]: a draw
/// from the softmax of the scaled logits (the Gumbel-max trick). `None` if all are NaN.
#[inline(always)]
pub(crate) fn draw(first: u32, logits: &[f32], scale: f32, noise: &Noise) -> Option<Scored> {
    let mut best: Option<Scored> = None;
    for (i, chunk) in logits.chunks(CHUNK).enumerate() {
        // Rounding is monotonic, so what falls short with the largest noise does with any.
        let may_win = |logit: f32| match best {
            Some(best) => logit * scale + MAX_NOISE >= best.score,
            None => !logit.is_nan(),
        };
        if any_of(chunk, may_win) {
            let words = noise.words_of_chunk(first / CHUNK as u32 + i as u32);
            best = draw_chunk(first + (i * CHUNK) as u32, chunk, scale, words.as_flattened(), best);
        }
    }
    best
}

#[inline(always)]
fn draw_chunk(
    first: u32,
    logits: &[f32],
    scale: f32,
    words: &[u32],
    mut best: Option<Scored>,
) -> Option<Scored> {
    let least = best.map_or(f32::NEG_INFINITY, |best| best.score);
    // Few chunks get past the bound, so that the logarithms of most words are never taken.
    if any_of(&scores(logits, scale, words, gumbel_bound), |score| score >= least) {
        let scores = scores(logits, scale, words, gumbel);
        for (token, (&logit, &score)) in (first..).zip(logits.iter().zip(&scores)) {
            let scored = Scored { score, candidate: Candidate { token, logit } };
            if !score.is_nan() && best.is_none_or(|best| scored.beats(&best)) {
                best = Some(scored);
            }
        }
    }
    best
}

/// Logits times `scale` plus noise; -infinity after the end of the logits.
#[inline(always)]
fn scores(logits: &[f32], scale: f32, words: &[u32], noise: impl Fn(u32) -> f32) -> [f32; CHUNK] {
    let mut scores = [f32::NEG_INFINITY; CHUNK];
    for (score, (&logit, &word)) in scores.iter_mut().zip(logits.iter().zip(words)) {
        *score = logit * scale + noise(word);
    }
    scores
}

/// The maximum of a row and the sum of exp(logit - maximum), part by part.
pub(crate) fn softmax_sum(logits: &[f32]) -> (f32, f32) {
    let max = argmax(logits).map_or(f32::NEG_INFINITY, |best| best.logit);
    let sum =
        logits.chunks(PART_TOKENS).fold(0.0, |sum, part| sum + part_sum(part, |logit| exp(logit - max)));
    (max, sum)
}

/// The sum of a function over one part: in lanes, then over the lanes in order. NaNs count as 0.
#[inline(always)]
pub(crate) fn part_sum(part: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let of = |logit: f32| if logit.is_nan() { 0.0 } else { of(logit) };
    let (chunks, rest) = part.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &logit) in sums.iter_mut().zip(chunk) {
            *sum += of(logit);
        }
    }
    for (sum, &logit) in sums.iter_mut().zip(rest) {
        *sum += of(logit);
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(n: usize, levels: u64) -> Vec<f32> {
        let of = |i: usize| ((i as u64 * 2_654_435_761 + 12_345) % levels) as f32 - 5.0;
        (0..n).map(|i| if i % 37 == 5 { f32::NAN } else { of(i) }).collect()
    }

    #[test]
    fn the_best_are_those_of_a_full_sort() {
        let mut top = TopK::default();
        for (n, levels) in [(1, 3), (40, 7), (5000, 11), (5000, 100_003), (20_000, 50)] {
            let logits = logits(n, levels);
            let mut all: Vec<Candidate> =
                (0..).zip(&logits).map(|(token, &logit)| Candidate { token, logit }).collect();
            all.retain(|candidate| !candidate.logit.is_nan());
            all.sort_by(Candidate::order);
            for k in [1, 2, 40, 64, 3000] {
                for piece in [16, 4096] {
                    top.begin(k);
                    for (i, part) in logits.chunks(piece).enumerate() {
                        top.add((i * piece) as u32, part);
                    }
                    assert_eq!(top.finish(), &all[..k.min(all.len())], "{n} {levels} {k}");
                }
            }
        }
        top.begin(2);
        top.add(0, &[f32::NEG_INFINITY, -0.0, 0.0, f32::NAN]);
        assert_eq!(top.finish().iter().map(|best| best.token).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn logits_of_minus_infinity_fill_up_the_best() {
        // Few groups have another logit, so their maxima are not a bound.
        let mut logits = [f32::NEG_INFINITY; 4 * CHUNK];
        logits[CHUNK + 6] = 1.0;
        let mut top = TopK::default();
        top.begin(3);
        top.add(0, &logits);
        assert_eq!(top.finish().iter().map(|best| best.token).collect::<Vec<_>>(), [70, 0, 1]);
    }

    #[test]
    fn a_draw_is_the_best_of_all_scores() {
        for (round, n) in [1, 15, 64, 65, 4999].into_iter().enumerate() {
            let positive = logits(n, 1009);
            let negative: Vec<f32> = positive.iter().map(|logit| logit - 2000.0).collect();
            for position in 0..100 {
                let logits = if position % 8 < 4 { &positive } else { &negative };
                let noise = Noise::new(round as u64, position);
                let scale = [0.01, 0.2, 1.0, 20.0][position as usize % 4];
                let scored = (0..).zip(logits).map(|(token, &logit)| Scored {
                    score: logit * scale + noise.of_token(token),
                    candidate: Candidate { token, logit },
                });
                let wanted = scored
                    .filter(|scored| !scored.score.is_nan())
                    .reduce(|best, scored| if scored.beats(&best) { scored } else { best });
                assert_eq!(draw(0, logits, scale, &noise), wanted, "{n} {position}");
            }
        }
        assert_eq!(draw(0, &[f32::NAN; 3], 1.0, &Noise::new(0, 0)), None);
    }

    #[test]
    fn of_equal_scores_the_larger_logit_wins_then_the_lower_token() {
        let scored = |score, logit, token| Scored { score, candidate: Candidate { token, logit } };
        assert!(scored(1.0, 0.0, 9).beats(&scored(0.5, 3.0, 1)));
        assert!(scored(1.0, 0.5, 9).beats(&scored(1.0, 0.4, 1)));
        assert!(scored(1.0, 0.5, 1).beats(&scored(1.0, 0.5, 2)));
        assert!(!scored(1.0, 0.5, 2).beats(&scored(1.0, 0.5, 2)));
        // A temperature near 0 makes scores infinite; then the logits decide.
        let drawn = draw(0, &[1.0, 3.0, 2.0], f32::MAX, &Noise::new(1, 1));
        assert_eq!(drawn.map(|scored| scored.candidate.token), Some(1));
    }

    #[test]
    fn the_largest_is_the_first_of_equals() {
        let largest = |logits: &[f32]| argmax(logits).map(|best| best.token);
        assert_eq!(largest(&[1.0, 3.0, 3.0, f32::NAN]), Some(1));
        assert_eq!(largest(&[f32::NAN, f32::NAN]), None);
        assert_eq!(largest(&[f32::NAN, f32::NEG_INFINITY]), Some(1));
        assert_eq!(largest(&[]), None);
        for (len, at) in (1..70).flat_map(|len| (0..len).map(move |at| (len, at))) {
            let mut logits = vec![-1.0; len];
            logits[at..].fill(2.5);
            logits[..at.min(3)].fill(f32::NAN);
            assert_eq!(largest(&logits), Some(at as u32));
            logits[(at + LANES).min(len)..].fill(0.0);
            assert_eq!(largest(&logits), Some(at as u32));
        }
    }

    #[test]
    fn sums_leave_nothing_out() {
        for n in [1, 15, 16, 17, 16_383, 16_384, 16_385, 40_000] {
            assert_eq!(softmax_sum(&vec![2.0; n]), (2.0, n as f32));
        }
        assert_eq!(softmax_sum(&[f32::NAN, 1.0, f32::NEG_INFINITY]), (1.0, 1.0));
    }
}
