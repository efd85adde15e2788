//! The sampler of a request: its chain, from a row of logits to a token.

use crate::candidates::{Candidate, PART_TOKENS, Scored, TopK, argmax, draw, part_sum, softmax_sum};
use crate::filters;
use crate::log_probs::{LogProbs, TokenLogProbs};
use crate::math::{exp, log2};
use crate::noise::Noise;
use crate::params::Params;
use crate::penalties::{Change, Edit, SequenceBreakers, dry, penalties};
use crate::settings::{SamplerKind, Sampling, SamplingError};
use std::sync::Arc;

/// The sampler of a request. It is immutable: what a draw depends on is all in its [`SampleInput`].
#[derive(Clone, Debug)]
pub struct Sampler {
    settings: Sampling,
    seed: u64,
    breakers: Arc<SequenceBreakers>,
    log_probs: Option<LogProbs>,
    /// The samplers that only edit logits and come before any other.
    leading: Vec<SamplerKind>,
    /// The samplers after them, without [`SamplerKind::AdaptiveP`], which is always last.
    chain: Vec<SamplerKind>,
    adaptive: bool,
}

/// What mirostat and adaptive-p carry from token to token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerState {
    /// Mirostat's bound on the surprise, in bits.
    mu: f32,
    /// Adaptive-p's moving average: its sum and its weight.
    weighted_sum: f32,
    total_weight: f32,
}

/// What a draw depends on, besides the settings.
#[derive(Clone, Copy, Debug)]
pub struct SampleInput<'a> {
    /// The logits of the row, by token.
    pub logits: &'a [f32],
    /// The position of the token to draw, which keys the noise.
    pub position: u64,
    /// The tokens before it, prompt included.
    pub history: &'a [u32],
    /// One bit for each token that a grammar allows, 32 to a word; `None` allows all.
    pub mask: Option<&'a [u32]>,
    /// The state after the tokens before it.
    pub state: SamplerState,
}

/// A draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// The state for the next draw.
    pub state: SamplerState,
    /// If they were asked for.
    pub log_probs: Option<TokenLogProbs>,
}

/// Buffers for draws, so that they allocate little.
#[derive(Clone, Debug, Default)]
pub struct SampleScratch {
    dense: Vec<f32>,
    list: Vec<Candidate>,
    top: TopK,
    edits: Vec<Edit>,
    probabilities: Vec<f32>,
}

/// Where the candidates are.
#[derive(Clone, Copy, PartialEq)]
enum Candidates {
    /// `dense`: all tokens, their logits to be multiplied by `scale`.
    All { scale: f32 },
    /// `list`: sorted, best first.
    List,
}

impl Sampler {
    /// A sampler with this seed, unless the settings have one.
    ///
    /// # Errors
    /// If a setting is out of range.
    pub fn new(mut settings: Sampling, seed: u64) -> Result<Sampler, SamplingError> {
        settings.validate()?;
        if settings.temperature < filters::LEAST_TEMPERATURE {
            settings.temperature = 0.0;
        }
        let mut chain = settings.samplers.clone();
        if settings.mirostat {
            chain = vec![SamplerKind::Temperature];
        }
        let adaptive = chain.contains(&SamplerKind::AdaptiveP) && settings.has_effect(SamplerKind::AdaptiveP);
        chain.retain(|&kind| kind != SamplerKind::AdaptiveP && settings.has_effect(kind));
        let leading = chain.iter().take_while(|&&kind| kind.is_edit()).copied().collect::<Vec<_>>();
        chain.drain(..leading.len());
        let keeps_best =
            |kind: &SamplerKind| !kind.is_edit() && !matches!(kind, SamplerKind::TypicalP | SamplerKind::Xtc);
        if settings.is_greedy() && !settings.mirostat && !adaptive && chain.iter().all(keeps_best) {
            chain.clear();
        }
        let seed = settings.seed.unwrap_or(seed);
        Ok(Sampler { settings, seed, breakers: Arc::default(), log_probs: None, leading, chain, adaptive })
    }

    /// Greedy: the largest logit.
    pub fn greedy() -> Sampler {
        Sampler::new(Sampling::greedy(), 0).expect("the defaults are in range")
    }

    /// Sets the tokens of DRY's sequence breakers.
    #[must_use]
    pub fn with_breakers(self, breakers: Arc<SequenceBreakers>) -> Sampler {
        Sampler { breakers, ..self }
    }

    /// Asks for log-probabilities.
    #[must_use]
    pub fn with_log_probs(self, log_probs: Option<LogProbs>) -> Sampler {
        Sampler { log_probs, ..self }
    }

    /// The log-probabilities that it returns.
    pub fn log_probs(&self) -> Option<LogProbs> {
        self.log_probs
    }

    /// The settings.
    pub fn settings(&self) -> &Sampling {
        &self.settings
    }

    /// The seed of the noise.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether even a forced token must be drawn: because draws change the sampler's state, or log-probabilities are wanted.
    pub fn needs_every_draw(&self) -> bool {
        self.is_stateful() || self.log_probs.is_some()
    }

    /// Whether draws change the state, so that each needs the one before it.
    pub fn is_stateful(&self) -> bool {
        self.settings.mirostat || self.adaptive
    }

    /// The state before the first draw.
    pub fn start(&self) -> SamplerState {
        let Sampling { mirostat_tau, adaptive_target, adaptive_decay, .. } = self.settings;
        let total_weight = 1.0 / (1.0 - adaptive_decay);
        SamplerState { mu: 2.0 * mirostat_tau, weighted_sum: adaptive_target * total_weight, total_weight }
    }

    /// Draws the token at `input.position`. `None` if no token is allowed that has a logit other than NaN.
    pub fn sample(&self, input: &SampleInput<'_>, scratch: &mut SampleScratch) -> Option<Sampled> {
        scratch.dense.clear();
        scratch.dense.extend_from_slice(input.logits);
        self.leading_edits(input.history, &mut scratch.edits);
        apply_edits(&scratch.edits, &mut scratch.dense);
        apply_mask(&mut scratch.dense, input.mask);
        let best = argmax(&scratch.dense)?;
        let mut sampled = if best.logit.is_finite() {
            self.draw(input, scratch)?
        } else {
            // Infinite logits have no probabilities, and need none.
            Sampled { token: best.token, state: input.state, log_probs: None }
        };
        if let Some(LogProbs { top, after_chain: false }) = self.log_probs {
            sampled.log_probs = TokenLogProbs::of_row(input.logits, sampled.token, top);
        }
        Some(sampled)
    }

    /// Runs the chain, and draws from what it leaves.
    fn draw(&self, input: &SampleInput<'_>, scratch: &mut SampleScratch) -> Option<Sampled> {
        let noise = Noise::new(self.seed, input.position);
        let mut left = self.run_chain(&noise, input.history, scratch);
        if self.settings.mirostat || self.adaptive {
            return self.draw_with_state(&noise, input.state, left, scratch);
        }
        if self.settings.is_greedy() {
            if left != Candidates::List {
                scratch.list.clear();
                scratch.list.push(argmax(&scratch.dense)?);
            }
            scratch.list.truncate(1);
            left = Candidates::List;
        }
        let drawn = match left {
            Candidates::All { scale } => draw(0, &scratch.dense, scale, &noise)?.candidate,
            Candidates::List => draw_from_list(&scratch.list, &noise)?,
        };
        let wanted = self.log_probs.filter(|wanted| wanted.after_chain);
        let log_probs = wanted.and_then(|wanted| log_probs_after(left, drawn.token, wanted.top, scratch));
        Some(Sampled { token: drawn.token, state: input.state, log_probs })
    }

    /// The edits of logits that come before all else: biases, and the penalties at the head of the chain.
    pub(crate) fn leading_edits(&self, history: &[u32], edits: &mut Vec<Edit>) {
        edits.clear();
        let biases = self.settings.logit_bias.iter();
        edits.extend(biases.map(|&(token, bias)| Edit { token, change: Change::Add(bias) }));
        for &kind in &self.leading {
            self.edits_of(kind, history, edits);
        }
    }

    fn edits_of(&self, kind: SamplerKind, history: &[u32], edits: &mut Vec<Edit>) {
        match kind {
            SamplerKind::Penalties => penalties(&self.settings, history, edits),
            SamplerKind::Dry => dry(&self.settings, &self.breakers, history, edits),
            _ => {}
        }
    }

    fn run_chain(&self, noise: &Noise, history: &[u32], scratch: &mut SampleScratch) -> Candidates {
        let mut at = Candidates::All { scale: 1.0 };
        for (i, &kind) in self.chain.iter().enumerate() {
            if kind.is_edit() {
                scratch.edits.clear();
                self.edits_of(kind, history, &mut scratch.edits);
            }
            at = match at {
                Candidates::All { .. } => self.apply_to_all(kind, i + 1 == self.chain.len(), noise, scratch),
                Candidates::List => {
                    if kind.is_edit() {
                        edit_list(&scratch.edits, &mut scratch.list);
                    } else {
                        apply_to_list(
                            &self.params(),
                            kind,
                            noise,
                            &mut scratch.list,
                            &mut scratch.probabilities,
                        );
                    }
                    Candidates::List
                }
            };
        }
        at
    }

    fn params(&self) -> Params {
        Params::new(&self.settings, &[]).expect("an empty chain fits")
    }

    /// One sampler over all tokens. If it is the last of the chain, a temperature is not applied here but left to the draw as a
    /// scale.
    fn apply_to_all(
        &self,
        kind: SamplerKind,
        is_last: bool,
        noise: &Noise,
        scratch: &mut SampleScratch,
    ) -> Candidates {
        let settings = &self.settings;
        let SampleScratch { dense, list, top, edits, probabilities } = scratch;
        match kind {
            SamplerKind::Penalties | SamplerKind::Dry => apply_edits(edits, dense),
            SamplerKind::TopNSigma => top_n_sigma(dense, settings.top_n_sigma),
            SamplerKind::Temperature if settings.dynatemp_range == 0.0 && !settings.is_greedy() => {
                let scale = 1.0 / settings.temperature;
                if is_last {
                    return Candidates::All { scale };
                }
                dense.iter_mut().for_each(|logit| *logit *= scale);
            }
            SamplerKind::TopK => {
                best_of(settings.top_k.max(1), dense, top, list);
                return Candidates::List;
            }
            SamplerKind::TopP => {
                top_p(dense, settings.top_p, settings.min_keep, top, list);
                return Candidates::List;
            }
            SamplerKind::MinP => {
                min_p(dense, settings.min_p, settings.min_keep, top, list);
                return Candidates::List;
            }
            SamplerKind::TypicalP | SamplerKind::Xtc | SamplerKind::Temperature | SamplerKind::AdaptiveP => {
                best_of(dense.len(), dense, top, list);
                apply_to_list(&self.params(), kind, noise, list, probabilities);
                return Candidates::List;
            }
        }
        Candidates::All { scale: 1.0 }
    }

    /// Mirostat 2.0 or adaptive-p: the draw changes the state.
    fn draw_with_state(
        &self,
        noise: &Noise,
        state: SamplerState,
        left: Candidates,
        scratch: &mut SampleScratch,
    ) -> Option<Sampled> {
        let SampleScratch { dense, list, top, probabilities, .. } = scratch;
        if let Candidates::All { scale } = left {
            dense.iter_mut().for_each(|logit| *logit *= scale);
            best_of(dense.len(), dense, top, list);
        }
        let (drawn, state) = if self.settings.mirostat {
            self.mirostat(noise, state, list, probabilities)?
        } else {
            self.adaptive_p(noise, state, list, probabilities)?
        };
        let wanted = self.log_probs.filter(|wanted| wanted.after_chain);
        let log_probs = wanted.and_then(|wanted| TokenLogProbs::of_list(list, drawn.token, wanted.top));
        Some(Sampled { token: drawn.token, state, log_probs })
    }

    fn mirostat(
        &self,
        noise: &Noise,
        state: SamplerState,
        list: &mut Vec<Candidate>,
        probabilities: &mut Vec<f32>,
    ) -> Option<(Candidate, SamplerState)> {
        filters::softmax(list, probabilities);
        let kept = probabilities.iter().take_while(|&&p| surprise(p) <= state.mu).count();
        list.truncate(kept.max(1));
        filters::softmax(list, probabilities);
        let drawn = draw_from_list(list, noise)?;
        let at = list.iter().position(|candidate| candidate.token == drawn.token)?;
        let error = surprise(probabilities[at]) - self.settings.mirostat_tau;
        Some((drawn, SamplerState { mu: state.mu - self.settings.mirostat_eta * error, ..state }))
    }

    fn adaptive_p(
        &self,
        noise: &Noise,
        state: SamplerState,
        list: &mut [Candidate],
        probabilities: &mut Vec<f32>,
    ) -> Option<(Candidate, SamplerState)> {
        let SamplerState { weighted_sum, total_weight, .. } = state;
        filters::softmax(list, probabilities);
        let target = (2.0 * self.settings.adaptive_target - weighted_sum / total_weight).clamp(0.0, 1.0);
        let mut before: Vec<(Candidate, f32)> = Vec::with_capacity(list.len());
        for (candidate, &p) in list.iter_mut().zip(&*probabilities) {
            if candidate.logit != f32::NEG_INFINITY {
                candidate.logit = adapted_logit(p, target);
            }
            before.push((*candidate, p));
        }
        list.sort_unstable_by(Candidate::order);
        let drawn = draw_from_list(list, noise)?;
        let own = before.iter().find(|(candidate, _)| candidate.token == drawn.token)?.1;
        let decay = self.settings.adaptive_decay;
        let weighted_sum = own + decay * weighted_sum;
        Some((drawn, SamplerState { weighted_sum, total_weight: 1.0 + decay * total_weight, ..state }))
    }

    /// The parameters with which a graph can run the chain, if it can.
    pub(crate) fn lowered_params(&self) -> Option<(Params, usize)> {
        let is_plain = self.log_probs.is_none() && !self.settings.mirostat && !self.adaptive;
        let only_temperature =
            self.settings.dynatemp_range == 0.0 && self.chain == [SamplerKind::Temperature];
        let (k, rest) = match &*self.chain {
            [] => (0, &[][..]),
            _ if only_temperature => (0, &self.chain[..]),
            [SamplerKind::TopK, rest @ ..] => (self.settings.top_k, rest),
            _ => return None,
        };
        let fits = is_plain && !rest.iter().any(|kind| kind.is_edit());
        Params::new(&self.settings, rest).filter(|_| fits).map(|params| (params, k))
    }
}

impl SamplerKind {
    /// Whether it changes the logits of some tokens by what came before.
    fn is_edit(self) -> bool {
        matches!(self, SamplerKind::Penalties | SamplerKind::Dry)
    }
}

/// -log2 p.
fn surprise(p: f32) -> f32 {
    if p >= f32::MIN_POSITIVE { -log2(p) } else { f32::INFINITY }
}

/// Adaptive-p's logit of a token of probability p: a parabola near the target, falling linearly far from it.
fn adapted_logit(p: f32, target: f32) -> f32 {
    const PEAK: f32 = 5.0;
    const SHARPNESS: f32 = 10.0;
    const WIDTH: f32 = 0.3;
    let distance = (p - target).abs() / WIDTH;
    PEAK - SHARPNESS * distance * distance / (1.0 + distance)
}

/// One filter over a sorted list.
pub(crate) fn apply_to_list(
    params: &Params,
    kind: SamplerKind,
    noise: &Noise,
    list: &mut Vec<Candidate>,
    probabilities: &mut Vec<f32>,
) {
    let min_keep = params.min_keep as usize;
    match kind {
        SamplerKind::TopK => list.truncate((params.top_k as usize).max(1)),
        SamplerKind::TopP => {
            filters::softmax(list, probabilities);
            if let Some(kept) = filters::top_p(probabilities.iter().copied(), params.top_p, min_keep) {
                list.truncate(kept);
            }
        }
        SamplerKind::MinP => filters::min_p(list, params.min_p, min_keep),
        SamplerKind::TypicalP => filters::typical_p(list, params.typical_p, min_keep, probabilities),
        SamplerKind::TopNSigma => filters::top_n_sigma(list, params.top_n_sigma),
        SamplerKind::Xtc if noise.xtc() < params.xtc_probability => {
            filters::xtc(list, params.xtc_threshold, min_keep, probabilities);
        }
        SamplerKind::Temperature if params.dynatemp_range > 0.0 => {
            let Params { temperature, dynatemp_range, dynatemp_exponent, .. } = *params;
            let dynamic = filters::dynamic_temperature(
                list,
                temperature,
                dynatemp_range,
                dynatemp_exponent,
                probabilities,
            );
            if let Some(temperature) = dynamic {
                filters::temperature(list, temperature);
            }
        }
        SamplerKind::Temperature => filters::temperature(list, params.temperature),
        // Edits are made before; adaptive-p is part of the draw.
        SamplerKind::Xtc | SamplerKind::Penalties | SamplerKind::Dry | SamplerKind::AdaptiveP => {}
    }
}

/// Draws from the softmax of a list.
pub(crate) fn draw_from_list(list: &[Candidate], noise: &Noise) -> Option<Candidate> {
    let scored = list
        .iter()
        .map(|&candidate| Scored { score: candidate.logit + noise.of_token(candidate.token), candidate });
    scored.reduce(|best, scored| if scored.beats(&best) { scored } else { best }).map(|best| best.candidate)
}

pub(crate) fn apply_edits(edits: &[Edit], logits: &mut [f32]) {
    for edit in edits {
        if let Some(logit) = logits.get_mut(edit.token as usize) {
            *logit = edit.change.apply(*logit);
        }
    }
}

fn edit_list(edits: &[Edit], list: &mut [Candidate]) {
    for candidate in &mut *list {
        for edit in edits.iter().filter(|edit| edit.token == candidate.token) {
            candidate.logit = edit.change.apply(candidate.logit);
        }
    }
    list.sort_unstable_by(Candidate::order);
}

/// Makes the logits of forbidden tokens NaN, which are not candidates.
pub(crate) fn apply_mask(logits: &mut [f32], mask: Option<&[u32]>) {
    let Some(mask) = mask else { return };
    for (i, logits) in logits.chunks_mut(32).enumerate() {
        let word = mask.get(i).copied().unwrap_or(0);
        if word != u32::MAX {
            for (bit, logit) in logits.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0) {
                let _ = bit;
                *logit = f32::NAN;
            }
        }
    }
}

fn best_of(k: usize, logits: &[f32], top: &mut TopK, list: &mut Vec<Candidate>) {
    top.begin(k.min(logits.len()));
    top.add(0, logits);
    list.clear();
    list.extend_from_slice(top.finish());
}

/// How many candidates top-p sorts at first: mostly they are enough.
const FIRST_SORTED: usize = 256;

fn top_p(logits: &[f32], p: f32, min_keep: usize, top: &mut TopK, list: &mut Vec<Candidate>) {
    let (max, sum) = softmax_sum(logits);
    for sorted in [FIRST_SORTED, logits.len()] {
        best_of(sorted, logits, top, list);
        let probabilities = list.iter().map(|candidate| exp(candidate.logit - max) / sum);
        if let Some(kept) = filters::top_p(probabilities, p, min_keep) {
            list.truncate(kept);
            return;
        }
    }
}

fn min_p(logits: &[f32], min_p: f32, min_keep: usize, top: &mut TopK, list: &mut Vec<Candidate>) {
    let max = argmax(logits).map_or(0.0, |best| best.logit);
    let least = filters::min_p_logit(max, min_p);
    let kept = logits.iter().filter(|&&logit| logit >= least).count();
    best_of(kept.max(min_keep).max(1), logits, top, list);
}

/// As [`filters::top_n_sigma`], over a whole row: sums go part by part.
fn top_n_sigma(logits: &mut [f32], n: f32) {
    let counted = |logit: f32| !logit.is_nan() && logit != f32::NEG_INFINITY;
    let count = logits.iter().filter(|&&logit| counted(logit)).count();
    let Some(best) = argmax(logits).filter(|_| logits.iter().filter(|logit| !logit.is_nan()).count() > 1)
    else {
        return;
    };
    let sum = |of: &dyn Fn(f32) -> f32| -> f32 {
        logits
            .chunks(PART_TOKENS)
            .map(|part| part_sum(part, |logit| if counted(logit) { of(logit) } else { 0.0 }))
            .sum()
    };
    let mean = sum(&|logit| logit) / count as f32;
    let variance = sum(&|logit| (logit - mean) * (logit - mean)) / count as f32;
    let least = best.logit - n * variance.sqrt();
    for logit in logits.iter_mut().filter(|logit| **logit < least) {
        *logit = f32::NEG_INFINITY;
    }
}

fn log_probs_after(
    left: Candidates,
    token: u32,
    top: usize,
    scratch: &mut SampleScratch,
) -> Option<TokenLogProbs> {
    match left {
        Candidates::All { scale } => {
            scratch.dense.iter_mut().for_each(|logit| *logit *= scale);
            TokenLogProbs::of_row(&scratch.dense, token, top)
        }
        Candidates::List => TokenLogProbs::of_list(&scratch.list, token, top),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(settings: Sampling) -> Sampler {
        Sampler::new(settings, 1).expect("in range")
    }

    fn sample(sampler: &Sampler, logits: &[f32], position: u64, state: SamplerState) -> Sampled {
        let input = SampleInput { logits, position, history: &[], mask: None, state };
        sampler.sample(&input, &mut SampleScratch::default()).expect("a token")
    }

    fn close(found: f32, wanted: f64) {
        assert!((f64::from(found) - wanted).abs() < 1e-5, "{found}, not {wanted}");
    }

    /// ln of the softmax.
    fn log_prob(logits: &[f32], scale: f64, token: u32) -> f64 {
        let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit) * scale)).sum();
        f64::from(logits[token as usize]) * scale - libm::log(sum)
    }

    #[test]
    fn states_start_at_their_targets() {
        let settings =
            Sampling { mirostat_tau: 3.0, adaptive_target: 0.25, adaptive_decay: 0.5, ..Sampling::default() };
        let wanted = SamplerState { mu: 6.0, weighted_sum: 0.5, total_weight: 2.0 };
        assert_eq!(sampler(settings).start(), wanted);
    }

    #[test]
    fn mirostat_moves_its_bound_by_the_error() {
        let logits = [2.0, 0.0];
        let settings = Sampling {
            mirostat: true,
            mirostat_tau: 4.0,
            mirostat_eta: 0.25,
            temperature: 0.5,
            ..Sampling::default()
        };
        let wanted = LogProbs { top: 1, after_chain: true };
        let sampler = sampler(settings).with_log_probs(Some(wanted));
        let mut counts = [0; 2];
        for position in 0..200 {
            let sampled = sample(&sampler, &logits, position, sampler.start());
            let log_prob = log_prob(&logits, 2.0, sampled.token);
            close(sampled.state.mu, 8.0 - 0.25 * (-log_prob / std::f64::consts::LN_2 - 4.0));
            close(sampled.log_probs.expect("asked for").log_prob, log_prob);
            counts[sampled.token as usize] += 1;
        }
        assert!(counts[0] > counts[1] && counts[1] > 0, "{counts:?}");
    }

    #[test]
    fn adaptive_p_averages_what_it_drew() {
        let logits = [2.0, 0.0, -1.0];
        let settings = Sampling {
            samplers: vec![SamplerKind::AdaptiveP],
            adaptive_target: 0.3,
            adaptive_decay: 0.75,
            ..Sampling::default()
        };
        let sampler = sampler(settings);
        let state = SamplerState { mu: 1.0, weighted_sum: 0.5, total_weight: 2.0 };
        for position in 0..50 {
            let sampled = sample(&sampler, &logits, position, state);
            close(sampled.state.weighted_sum, 0.75 * 0.5 + libm::exp(log_prob(&logits, 1.0, sampled.token)));
            assert_eq!((sampled.state.mu, sampled.state.total_weight), (1.0, 1.0 + 0.75 * 2.0));
        }
    }

    #[test]
    fn draws_that_change_something_are_all_needed() {
        let base = Sampling::default();
        let adaptive =
            Sampling { samplers: vec![SamplerKind::AdaptiveP], adaptive_target: 0.3, ..base.clone() };
        assert!(!sampler(base.clone()).needs_every_draw());
        assert!(sampler(Sampling { mirostat: true, ..base.clone() }).needs_every_draw());
        assert!(sampler(adaptive).needs_every_draw());
        let log_probs = Some(LogProbs { top: 0, after_chain: false });
        assert!(sampler(base).with_log_probs(log_probs).needs_every_draw());
    }

    #[test]
    fn a_sampler_keeps_what_it_was_given() {
        let settings = Sampling { top_k: 3, ..Sampling::default() };
        assert_eq!(sampler(settings.clone()).settings(), &settings);
        assert_eq!(sampler(settings.clone()).seed(), 1);
        assert_eq!(
            sampler(Sampling { seed: Some(9), ..settings }).seed(),
            9,
            "the settings' own comes first"
        );
        // With a breaker before it, the repeat of 1 2 is not a repeat.
        let settings = Sampling { dry_multiplier: 5.0, ..Sampling::greedy() };
        let mut breakers = SequenceBreakers::default();
        breakers.add(2, vec![]);
        let token = |sampler: &Sampler| {
            let history = &[1, 2, 3, 1, 2];
            let logits = &[0.0, 0.0, 0.0, 2.0, 1.0];
            let input = SampleInput { logits, position: 5, history, mask: None, state: sampler.start() };
            sampler.sample(&input, &mut SampleScratch::default()).map(|sampled| sampled.token)
        };
        let sampler = sampler(settings);
        assert_eq!(token(&sampler), Some(4));
        assert_eq!(token(&sampler.with_breakers(Arc::new(breakers))), Some(3));
    }

    #[test]
    fn a_temperature_of_0_leaves_one_to_the_samplers_after_it() {
        let settings = Sampling {
            samplers: vec![SamplerKind::Temperature, SamplerKind::Xtc],
            xtc_probability: 1.0,
            ..Sampling::greedy()
        };
        let sampler = sampler(settings);
        assert_eq!(sample(&sampler, &[1.0, 2.0, 0.0], 3, sampler.start()).token, 1);
    }

    #[test]
    fn xtc_acts_below_its_probability() {
        let noise = Noise::new(4, 4);
        let left = |xtc_probability| {
            let settings = Sampling { xtc_probability, ..Sampling::default() };
            let params = Params::new(&settings, &[]).expect("an empty chain fits");
            let mut list = vec![Candidate { token: 0, logit: 0.0 }, Candidate { token: 1, logit: 0.0 }];
            apply_to_list(&params, SamplerKind::Xtc, &noise, &mut list, &mut Vec::new());
            list.len()
        };
        assert_eq!([left(noise.xtc()), left(noise.xtc().next_up())], [2, 1]);
    }

    #[test]
    fn a_list_is_drawn_from_as_a_row_is() {
        let logits: Vec<f32> = (0..50u8).map(|i| f32::from(i % 7) * 0.4).collect();
        let list: Vec<Candidate> =
            (0..).zip(&logits).map(|(token, &logit)| Candidate { token, logit }).collect();
        for position in 0..100 {
            let noise = Noise::new(8, position);
            let from_row = draw(0, &logits, 1.0, &noise).map(|drawn| drawn.candidate);
            assert_eq!(draw_from_list(&list, &noise), from_row);
        }
    }

    #[test]
    fn a_mask_allows_the_tokens_of_its_bits() {
        let mask = [1 << 31 | 0b0110, u32::MAX];
        let mut logits = [1.0; 70];
        apply_mask(&mut logits, Some(&mask));
        let allowed: Vec<usize> = (0..70).filter(|&token| !logits[token].is_nan()).collect();
        // What lies beyond the mask is forbidden.
        assert_eq!(allowed, [1, 2, 31].into_iter().chain(32..64).collect::<Vec<_>>());
        apply_mask(&mut logits, None);
        assert_eq!(logits[1], 1.0);
    }

    #[test]
    fn the_deviation_of_a_row_is_from_its_mean() {
        let kept = |logits: &[f32]| {
            let mut logits = logits.to_vec();
            top_n_sigma(&mut logits, 1.0);
            logits.iter().map(|&logit| logit > f32::NEG_INFINITY).collect::<Vec<_>>()
        };
        // So far from 0 a difference of squares would be all rounding.
        assert_eq!(kept(&[100_003.0, 100_002.0, 100_000.0]), [true, true, false]);
        // Without a deviation all are the largest.
        assert_eq!(kept(&[2.0; 3]), [true; 3]);
    }
}
