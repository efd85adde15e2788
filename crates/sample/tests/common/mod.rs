//! The chain, written again as plainly as can be, in f64: what is left of a distribution, with which probabilities.

use std::collections::BTreeMap;
use verbatim_sample::{SamplerKind, Sampling};

/// What is left: tokens with their logits, best first.
pub type Kept = Vec<(u32, f64)>;

pub fn sorted(mut kept: Kept) -> Kept {
    kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    kept
}

pub fn softmax(kept: &Kept) -> Vec<f64> {
    let max = kept.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = kept.iter().map(|(_, logit)| libm::exp(logit - max)).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|&&p| p > 0.0).map(|&p| -p * libm::log(p)).sum()
}

fn last_n(history: &[u32], n: Option<usize>) -> &[u32] {
    &history[history.len() - n.unwrap_or(history.len()).min(history.len())..]
}

fn penalties(settings: &Sampling, history: &[u32], kept: &mut Kept) {
    let recent = last_n(history, settings.repeat_last_n);
    for (token, logit) in kept {
        let count = recent.iter().filter(|&other| other == token).count() as f64;
        if count > 0.0 {
            let penalty = f64::from(settings.repeat_penalty);
            *logit = if *logit <= 0.0 { *logit * penalty } else { *logit / penalty };
            *logit -= count * f64::from(settings.frequency_penalty) + f64::from(settings.presence_penalty);
        }
    }
}

/// DRY without sequence breakers: for each token that has followed a copy of the history's end, the longest such copy.
fn dry(settings: &Sampling, history: &[u32], kept: &mut Kept) {
    let recent = last_n(history, settings.dry_penalty_last_n);
    let n = recent.len();
    let mut longest = BTreeMap::<u32, usize>::new();
    for next in 1..n {
        let copied = (0..next).take_while(|&i| recent[next - 1 - i] == recent[n - 1 - i]).count();
        if copied >= settings.dry_allowed_length.max(1) {
            let length = longest.entry(recent[next]).or_default();
            *length = copied.max(*length);
        }
    }
    for (token, logit) in kept {
        if let Some(length) = longest.get(token) {
            let exponent = (length - settings.dry_allowed_length) as f64;
            *logit -= f64::from(settings.dry_multiplier) * libm::pow(f64::from(settings.dry_base), exponent);
        }
    }
}

fn top_n_sigma(settings: &Sampling, kept: &mut Kept) {
    if kept.len() < 2 {
        return;
    }
    let finite: Vec<f64> = kept.iter().map(|(_, logit)| *logit).filter(|logit| logit.is_finite()).collect();
    let mean = finite.iter().sum::<f64>() / finite.len() as f64;
    let variance = finite.iter().map(|logit| (logit - mean).powi(2)).sum::<f64>() / finite.len() as f64;
    let least = kept[0].1 - f64::from(settings.top_n_sigma) * variance.sqrt();
    kept.iter_mut().filter(|(_, logit)| *logit < least).for_each(|(_, logit)| *logit = f64::NEG_INFINITY);
}

fn typical(settings: &Sampling, kept: &Kept) -> Kept {
    let p = softmax(kept);
    let entropy = entropy(&p);
    let mut order: Vec<usize> = (0..kept.len()).collect();
    let distance = |i: usize| (-libm::log(p[i]) - entropy).abs();
    order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
    let mut sum = 0.0;
    let mut left = Vec::new();
    for i in order {
        left.push(kept[i]);
        sum += p[i];
        if sum > f64::from(settings.typical_p) && left.len() >= settings.min_keep {
            break;
        }
    }
    sorted(left)
}

fn top_p(settings: &Sampling, kept: &mut Kept) {
    let p = softmax(kept);
    let mut sum = 0.0;
    let end = p.iter().position(|p| {
        sum += p;
        sum >= f64::from(settings.top_p)
    });
    let count = end.map_or(kept.len(), |end| end + 1);
    kept.truncate(count.max(settings.min_keep));
}

fn min_p(settings: &Sampling, kept: &mut Kept) {
    let least = kept[0].1 + libm::log(f64::from(settings.min_p));
    let count = kept.iter().filter(|(_, logit)| *logit >= least).count();
    kept.truncate(count.max(settings.min_keep));
}

fn xtc(settings: &Sampling, kept: &mut Kept) {
    let p = softmax(kept);
    let above = p.iter().filter(|&&p| p >= f64::from(settings.xtc_threshold)).count();
    if above > 1 && kept.len() - (above - 1) >= settings.min_keep {
        kept.drain(..above - 1);
    }
}

fn temperature(settings: &Sampling, kept: &mut Kept) {
    let (base, range) = (f64::from(settings.temperature), f64::from(settings.dynatemp_range));
    let temperature = if range > 0.0 {
        if kept.len() < 2 {
            return;
        }
        let normalised = entropy(&softmax(kept)) / libm::log(kept.len() as f64);
        let least = (base - range).max(0.0);
        least + (base + range - least) * libm::pow(normalised, f64::from(settings.dynatemp_exponent))
    } else {
        base
    };
    if temperature <= 0.0 {
        kept.truncate(1);
    }
    kept.iter_mut().for_each(|(_, logit)| *logit /= temperature.max(f64::MIN_POSITIVE));
}

/// What the chain leaves of some logits. `xtc_acts` is XTC's own draw.
pub fn chain(settings: &Sampling, history: &[u32], logits: &[f32], xtc_acts: bool) -> Kept {
    let mut kept: Kept = (0..).zip(logits.iter().map(|&logit| f64::from(logit))).collect();
    for &(token, bias) in &settings.logit_bias {
        kept[token as usize].1 += f64::from(bias);
    }
    let mut kept = sorted(kept);
    let order = if settings.mirostat { &[SamplerKind::Temperature][..] } else { &settings.samplers };
    for &kind in order {
        match kind {
            SamplerKind::Penalties if settings.repeat_last_n != Some(0) => {
                penalties(settings, history, &mut kept)
            }
            SamplerKind::Dry if settings.dry_multiplier > 0.0 => dry(settings, history, &mut kept),
            SamplerKind::TopNSigma if settings.top_n_sigma > 0.0 => top_n_sigma(settings, &mut kept),
            SamplerKind::TopK if settings.top_k > 0 => kept.truncate(settings.top_k),
            SamplerKind::TypicalP if settings.typical_p < 1.0 => kept = typical(settings, &kept),
            SamplerKind::TopP if settings.top_p < 1.0 => top_p(settings, &mut kept),
            SamplerKind::MinP if settings.min_p > 0.0 => min_p(settings, &mut kept),
            SamplerKind::Xtc if xtc_acts && settings.xtc_threshold <= 0.5 => xtc(settings, &mut kept),
            SamplerKind::Temperature => temperature(settings, &mut kept),
            _ => {}
        }
        kept = sorted(kept);
    }
    kept
}

/// The exact distribution of the first draw of a request, by token.
pub fn distribution(settings: &Sampling, history: &[u32], logits: &[f32]) -> BTreeMap<u32, f64> {
    let mut total = BTreeMap::new();
    let acts = f64::from(settings.xtc_probability);
    for (share, xtc_acts) in [(acts, true), (1.0 - acts, false)] {
        let kept = draw_from(settings, chain(settings, history, logits, xtc_acts));
        for ((token, _), p) in kept.iter().zip(softmax(&kept)) {
            *total.entry(*token).or_default() += share * p;
        }
    }
    total
}

/// Mirostat's and adaptive-p's changes at the first token.
fn draw_from(settings: &Sampling, kept: Kept) -> Kept {
    let p = softmax(&kept);
    if settings.mirostat {
        let mu = 2.0 * f64::from(settings.mirostat_tau);
        let count = p.iter().take_while(|&&p| -libm::log2(p) <= mu).count();
        return kept[..count.max(1)].to_vec();
    }
    if settings.samplers.contains(&SamplerKind::AdaptiveP) && settings.adaptive_target >= 0.0 {
        // At first the moving average is the target itself.
        let target = f64::from(settings.adaptive_target);
        let adapted = |p: f64| {
            let distance = (p - target).abs() / 0.3;
            5.0 - 10.0 * distance * distance / (1.0 + distance)
        };
        // A token that top-n-sigma has ruled out stays so.
        let left = kept.iter().zip(&p).filter(|((_, logit), _)| *logit > f64::NEG_INFINITY);
        return left.map(|((token, _), p)| (*token, adapted(*p))).collect();
    }
    kept
}
