//! Sampling in a graph: a row's sampler as data, the work on one part of a row, and the merge of the parts. [`Sampler::sample`]
//! draws the same token: both ways return the same.
//!
//! A row of a step is sampled by its words, so requests with different settings share one graph. Parts are fixed ranges of
//! the vocabulary, and merging is the maximum of a total order, so the result depends neither on threads nor on other rows.

use crate::candidates::{Candidate, PART_TOKENS, Scored, TopK, argmax, draw};
use crate::noise::Noise;
use crate::params::Params;
use crate::penalties::{Change, Edit};
use crate::sampler::{Sampler, apply_edits, apply_mask, apply_to_list, draw_from_list};

/// Largest top-k that is sampled in a graph.
pub const MAX_TOP_K: usize = 64;
/// Most edits of a row (biases and penalties) in a graph.
pub const MAX_EDITS: usize = 256;
/// Words of a row's sampler.
pub const ROW_WORDS: usize = HEAD + 3 * MAX_EDITS;
/// Words of the result of one part of a row: how many candidates, then each one's token and logit. A drawn candidate has its
/// score after its logit.
pub const PART_WORDS: usize = 1 + 2 * MAX_TOP_K;
/// The result of a row from which no token can be sampled.
pub const NO_TOKEN: u32 = u32::MAX;

/// The words before the edits: mode, k, seed, position, filters, number of edits.
const HEAD: usize = 6 + Params::WORDS + 1;

/// The number of parts of a row.
pub const fn parts(vocabulary: usize) -> usize {
    vocabulary.div_ceil(PART_TOKENS)
}

/// What the parts of a row look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The largest logit.
    Greedy = 0,
    /// The largest score.
    Draw = 1,
    /// The k largest logits, for filters to choose from.
    TopK = 2,
}

/// A row's words, decoded.
struct Row {
    mode: Mode,
    k: usize,
    noise: Noise,
    params: Params,
    scale: f32,
    edits: usize,
}

impl Row {
    fn decode(words: &[u32]) -> Row {
        let wide = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        let filters = words[6..6 + Params::WORDS].as_array().expect("as many words");
        let params = Params::from_words(filters);
        Row {
            mode: [Mode::Greedy, Mode::Draw, Mode::TopK][words[0].min(2) as usize],
            k: (words[1] as usize).clamp(1, MAX_TOP_K),
            noise: Noise::new(wide(words[2], words[3]), wide(words[4], words[5])),
            scale: if params.chain().next().is_some() { 1.0 / params.temperature } else { 1.0 },
            params,
            edits: (words[HEAD - 1] as usize).min(MAX_EDITS),
        }
    }

    fn edits<'a>(&self, words: &'a [u32]) -> impl Iterator<Item = Edit> + 'a {
        words[HEAD..].as_chunks().0[..self.edits].iter().map(|&[token, kind, value]| {
            let value = f32::from_bits(value);
            Edit { token, change: if kind == 0 { Change::Add(value) } else { Change::Divide(value) } }
        })
    }
}

impl Sampler {
    /// Whether this sampler can run in a graph, given few enough edits.
    pub fn can_lower(&self) -> bool {
        self.lowered_params().is_some_and(|(_, k)| k <= MAX_TOP_K)
    }

    /// Writes the words of a row that samples the token at `position` after `history`. Returns false if it cannot be sampled in
    /// a graph; the words are then unspecified.
    pub fn lower(&self, history: &[u32], position: u64, edits: &mut Vec<Edit>, words: &mut [u32]) -> bool {
        let Some((params, k)) = self.lowered_params().filter(|&(_, k)| k <= MAX_TOP_K) else { return false };
        self.leading_edits(history, edits);
        if edits.len() > MAX_EDITS || words.len() != ROW_WORDS {
            return false;
        }
        let mode = match k {
            0 if params.is_greedy() => Mode::Greedy,
            0 => Mode::Draw,
            _ => Mode::TopK,
        };
        let halves = |wide: u64| [wide as u32, (wide >> 32) as u32];
        words[..2].copy_from_slice(&[mode as u32, k as u32]);
        words[2..4].copy_from_slice(&halves(self.seed()));
        words[4..6].copy_from_slice(&halves(position));
        words[6..HEAD - 1].copy_from_slice(&params.to_words());
        words[HEAD - 1] = edits.len() as u32;
        for (words, edit) in words[HEAD..].as_chunks_mut::<3>().0.iter_mut().zip(edits) {
            *words = match edit.change {
                Change::Add(value) => [edit.token, 0, value.to_bits()],
                Change::Divide(value) => [edit.token, 1, value.to_bits()],
            };
        }
        true
    }
}

/// Buffers of one thread.
#[derive(Clone, Debug)]
pub struct PartScratch {
    logits: Vec<f32>,
    edits: Vec<Edit>,
    top: TopK,
    list: Vec<Candidate>,
    probabilities: Vec<f32>,
}

impl Default for PartScratch {
    /// Large enough for a million tokens, so that no step allocates.
    fn default() -> Self {
        PartScratch {
            logits: Vec::with_capacity(PART_TOKENS),
            edits: Vec::with_capacity(MAX_EDITS),
            top: TopK::default(),
            list: Vec::with_capacity(64 * MAX_TOP_K),
            probabilities: Vec::with_capacity(MAX_TOP_K),
        }
    }
}

/// Samples one part of a row: `logits` are those of the tokens from `part * PART_TOKENS` on. `mask` is that of the whole row.
#[inline(always)]
pub fn sample_part(
    words: &[u32],
    mask: Option<&[u32]>,
    part: usize,
    logits: &[f32],
    scratch: &mut PartScratch,
    result: &mut [u32],
) {
    let row = Row::decode(words);
    let first = (part * PART_TOKENS) as u32;
    let PartScratch { logits: edited, edits, top, .. } = scratch;
    edited.clear();
    edited.extend_from_slice(logits);
    edits.clear();
    edits.extend(row.edits(words).filter_map(|edit| {
        let token = edit.token.checked_sub(first)?;
        Some(Edit { token, ..edit })
    }));
    apply_edits(edits, edited);
    apply_mask(edited, mask.map(|mask| mask.get(first as usize / 32..).unwrap_or_default()));
    let (count, found) = result.split_at_mut(1);
    count[0] = match row.mode {
        Mode::Greedy => {
            argmax(edited).map_or(0, |best| put(found, 0, Candidate { token: first + best.token, ..best }))
        }
        Mode::Draw => draw(first, edited, row.scale, &row.noise).map_or(0, |best| {
            found[2] = best.score.to_bits();
            put(found, 0, best.candidate)
        }),
        Mode::TopK => {
            top.begin(row.k);
            top.add(first, edited);
            top.finish().iter().enumerate().fold(0, |_, (i, &candidate)| put(found, i, candidate))
        }
    };
}

/// Stores a candidate; returns how many there are now.
#[inline(always)]
fn put(found: &mut [u32], i: usize, candidate: Candidate) -> u32 {
    found[2 * i..2 * i + 2].copy_from_slice(&[candidate.token, candidate.logit.to_bits()]);
    i as u32 + 1
}

/// The token of a row, from the results of all its parts in order; [`NO_TOKEN`] if there is none.
pub fn merge_parts(words: &[u32], parts: &[u32], scratch: &mut PartScratch) -> u32 {
    let row = Row::decode(words);
    let PartScratch { list, probabilities, .. } = scratch;
    list.clear();
    let mut best: Option<Scored> = None;
    for part in parts.chunks_exact(PART_WORDS) {
        let count = (part[0] as usize).min(MAX_TOP_K);
        let candidates = part[1..].as_chunks().0[..count].iter();
        let mut candidates =
            candidates.map(|&[token, logit]| Candidate { token, logit: f32::from_bits(logit) });
        if row.mode == Mode::TopK {
            list.extend(candidates);
        } else if let Some(candidate) = candidates.next_back() {
            let score = if row.mode == Mode::Draw { f32::from_bits(part[3]) } else { candidate.logit };
            let scored = Scored { score, candidate };
            best = best.filter(|best| !scored.beats(best)).or(Some(scored));
        }
    }
    if row.mode == Mode::TopK {
        best_of_list(&row, list, probabilities).map_or(NO_TOKEN, |drawn| drawn.token)
    } else {
        best.map_or(NO_TOKEN, |best| best.candidate.token)
    }
}

fn best_of_list(row: &Row, list: &mut Vec<Candidate>, probabilities: &mut Vec<f32>) -> Option<Candidate> {
    list.sort_unstable_by(Candidate::order);
    list.truncate(row.k);
    let first = *list.first()?;
    if !first.logit.is_finite() {
        return Some(first);
    }
    for kind in row.params.chain() {
        apply_to_list(&row.params, kind, &row.noise, list, probabilities);
    }
    if row.params.is_greedy() { list.first().copied() } else { draw_from_list(list, &row.noise) }
}
