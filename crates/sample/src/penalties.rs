//! Penalties that look back at the tokens so far: repetition, frequency, presence and DRY. Each becomes a list of edits to logits.

use crate::math::{ln, pow};
use crate::settings::Sampling;
use std::collections::{BTreeMap, HashMap};

/// One change to one token's logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edit {
    /// The token.
    pub token: u32,
    /// What is done to its logit.
    pub change: Change,
}

/// What is done to a logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Add.
    Add(f32),
    /// Divide if positive, else multiply: the repetition penalty (arXiv 1909.05858, as corrected since for negative logits).
    Divide(f32),
}

impl Change {
    /// The logit after the change.
    #[inline(always)]
    pub fn apply(self, logit: f32) -> f32 {
        match self {
            Change::Add(bias) => logit + bias,
            Change::Divide(penalty) if logit <= 0.0 => logit * penalty,
            Change::Divide(penalty) => logit / penalty,
        }
    }
}

fn window(history: &[u32], last_n: Option<usize>) -> &[u32] {
    &history[history.len().saturating_sub(last_n.unwrap_or(usize::MAX))..]
}

/// The repetition, frequency and presence penalties.
pub(crate) fn penalties(settings: &Sampling, history: &[u32], edits: &mut Vec<Edit>) {
    let mut counts = BTreeMap::<u32, u32>::new();
    for &token in window(history, settings.repeat_last_n) {
        *counts.entry(token).or_default() += 1;
    }
    for (token, count) in counts {
        if settings.repeat_penalty != 1.0 {
            edits.push(Edit { token, change: Change::Divide(settings.repeat_penalty) });
        }
        let penalty = count as f32 * settings.frequency_penalty + settings.presence_penalty;
        if penalty != 0.0 {
            edits.push(Edit { token, change: Change::Add(-penalty) });
        }
    }
}

/// Token sequences that no repeat extends across: by their first token, what may follow to complete the sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceBreakers(HashMap<u32, Vec<Vec<u32>>>);

impl SequenceBreakers {
    /// Adds a sequence of tokens.
    pub fn add(&mut self, head: u32, tail: Vec<u32>) {
        let tails = self.0.entry(head).or_default();
        if !tails.contains(&tail) {
            tails.push(tail);
        }
    }

    fn is_single(&self, token: u32) -> bool {
        self.0.get(&token).is_some_and(|tails| tails.iter().any(Vec::is_empty))
    }

    /// How many of the last tokens lie behind the last breaker.
    fn tokens_behind(&self, tokens: &[u32]) -> usize {
        for behind in 0..tokens.len() {
            let (before, after) = tokens.split_at(tokens.len() - behind);
            let tails = before.last().and_then(|head| self.0.get(head)).into_iter().flatten();
            if let Some(longest) = tails.filter(|tail| after.starts_with(tail)).map(Vec::len).max() {
                return behind - longest;
            }
        }
        tokens.len()
    }
}

/// DRY: a token that would continue a sequence that occurred before is penalised by the sequence's length.
pub(crate) fn dry(settings: &Sampling, breakers: &SequenceBreakers, history: &[u32], edits: &mut Vec<Edit>) {
    let tokens = window(history, settings.dry_penalty_last_n);
    let (allowed, limit) = (settings.dry_allowed_length, breakers.tokens_behind(tokens));
    if tokens.len() <= allowed || limit < allowed {
        return;
    }
    // By token: the longest run of last tokens that it followed before.
    let mut longest = BTreeMap::<u32, usize>::new();
    for (i, repeated) in suffix_lengths(tokens).into_iter().enumerate().take(tokens.len() - 1) {
        let repeated = repeated.min(limit);
        if repeated >= allowed {
            let length = longest.entry(tokens[i + 1]).or_default();
            *length = repeated.max(*length);
        }
    }
    for (token, length) in longest {
        if !breakers.is_single(token) {
            let exponent = exponent(settings.dry_base, length - allowed);
            let penalty = settings.dry_multiplier * pow(settings.dry_base, exponent);
            edits.push(Edit { token, change: Change::Add(-penalty) });
        }
    }
}

/// The exponent, no larger than what keeps the power finite.
fn exponent(base: f32, exponent: usize) -> f32 {
    let most = if base > 1.000_001 { (88.722_84 / ln(base)).min(1e6) as usize } else { usize::MAX };
    exponent.min(most) as f32
}

/// For each position, the length of the longest run that ends there and also ends the tokens. Linear time, by the Z-algorithm
/// from the end.
fn suffix_lengths(tokens: &[u32]) -> Vec<usize> {
    let n = tokens.len();
    let from_end = |i: usize| tokens[n - 1 - i];
    let mut lengths = vec![n; n];
    // The run known to reach farthest back, from the end: [left, right).
    let (mut left, mut right) = (0, 0);
    for k in 1..n {
        let mut length = if k < right { lengths[n - 1 - (k - left)].min(right - k) } else { 0 };
        while k + length < n && from_end(length) == from_end(k + length) {
            length += 1;
        }
        if k + length > right {
            (left, right) = (k, k + length);
        }
        lengths[n - 1 - k] = length;
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_as_long_as_their_definition_says() {
        for seed in 0..400u32 {
            let n = seed as usize % 40 + 1;
            let tokens: Vec<u32> =
                (0..n as u32).map(|i| (i * i + seed * 7 + i / 3) % (2 + seed % 4)).collect();
            for (i, &found) in suffix_lengths(&tokens).iter().enumerate() {
                let wanted = (0..=i).take_while(|&l| tokens[i - l] == tokens[n - 1 - l]).count();
                assert_eq!(found, wanted, "{tokens:?} at {i}");
            }
        }
    }

    #[test]
    fn long_histories_take_linear_time() {
        assert_eq!(suffix_lengths(&vec![7; 200_000])[5], 6);
        // Short runs within a long one must not make it forget the long one.
        let n = 2_000_000;
        let periodic: Vec<u32> = (0..n).map(|i| u32::from(i % 4 == 0)).collect();
        assert_eq!(suffix_lengths(&periodic)[n - 5], n - 4);
    }

    fn dry_edits(settings: &Sampling, breakers: &SequenceBreakers, history: &[u32]) -> Vec<(u32, f32)> {
        let mut edits = Vec::new();
        dry(settings, breakers, history, &mut edits);
        let added = |change| if let Change::Add(bias) = change { bias } else { 0.0 };
        edits.iter().map(|edit| (edit.token, added(edit.change))).collect()
    }

    #[test]
    fn dry_penalises_what_would_continue_a_repeat() {
        let settings = Sampling { dry_multiplier: 1.0, dry_base: 2.0, ..Sampling::default() };
        let none = SequenceBreakers::default();
        // 1 2 3 4 … 1 2 3: 4 would make a repeat of three tokens longer.
        let history = [1, 2, 3, 4, 9, 1, 2, 3];
        assert_eq!(dry_edits(&settings, &none, &history), [(4, -2.0)]);
        // A breaker within the repeat shortens it, one behind it ends it.
        let mut breakers = SequenceBreakers::default();
        breakers.add(1, vec![]);
        assert_eq!(dry_edits(&settings, &breakers, &history), [(4, -1.0)]);
        breakers.add(2, vec![3]);
        assert_eq!(dry_edits(&settings, &breakers, &history), []);
        // A breaker itself is never penalised.
        let mut breakers = SequenceBreakers::default();
        breakers.add(4, vec![]);
        assert_eq!(dry_edits(&settings, &breakers, &history), []);
        assert_eq!(dry_edits(&settings, &none, &history[..2]), []);
        let free = Sampling { dry_allowed_length: 0, ..settings.clone() };
        assert_eq!(dry_edits(&free, &none, &[]), [], "nothing to continue");
        // The power is the largest one that an f32 can hold, as in llama.cpp: 10^38.
        let long = vec![5; 4000];
        let settings = Sampling { dry_penalty_last_n: None, dry_base: 10.0, ..settings };
        let (token, penalty) = dry_edits(&settings, &none, &long)[0];
        assert!(token == 5 && (penalty / -1e38 - 1.0).abs() < 1e-4, "{penalty}");
        // A base of almost 1 has no limit; it is exclusive.
        assert_eq!(exponent(1.000_001, 2_000_000), 2e6);
    }

    #[test]
    fn penalties_count_within_their_window() {
        let settings = Sampling {
            repeat_penalty: 2.0,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            repeat_last_n: Some(4),
            ..Sampling::default()
        };
        let mut edits = Vec::new();
        penalties(&settings, &[8, 8, 3, 8, 3, 5], &mut edits);
        let of = |token| {
            edits.iter().filter(|edit| edit.token == token).fold(3.0, |logit, edit| edit.change.apply(logit))
        };
        assert_eq!([of(3), of(5), of(8), of(7)], [0.25, 0.75, 0.75, 3.0]);
        assert_eq!(Change::Divide(2.0).apply(-3.0), -6.0);
    }
}
