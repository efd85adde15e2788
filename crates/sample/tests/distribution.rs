//! Draws follow the exact distribution that the chain, written again in f64, leaves: chi-square over 200,000 draws.

mod common;

use common::distribution;
use verbatim_sample::{SampleInput, SampleScratch, Sampler, SamplerKind, Sampling};

const DRAWS: u64 = 200_000;
const VOCABULARY: usize = 24;

fn logits(seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..VOCABULARY).map(|_| 1.6 * (next() + next() + next() - 1.5) * 2.0).collect()
}

const HISTORY: [u32; 12] = [3, 7, 1, 5, 3, 7, 2, 9, 9, 3, 3, 7];

/// The value that a chi-square variable of so many degrees of freedom exceeds once in a thousand (Wilson and Hilferty).
fn critical(freedom: f64) -> f64 {
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + 3.0902 * part.sqrt()).powi(3)
}

fn check(name: &str, settings: &Sampling, logits: &[f32]) {
    let sampler = Sampler::new(settings.clone(), 11).unwrap();
    let mut scratch = SampleScratch::default();
    let mut counts = [0u64; VOCABULARY];
    for position in 0..DRAWS {
        let input = SampleInput { logits, position, history: &HISTORY, mask: None, state: sampler.start() };
        counts[sampler.sample(&input, &mut scratch).unwrap().token as usize] += 1;
    }
    let exact = distribution(settings, &HISTORY, logits);
    let mut rest = (0.0, 0.0);
    let (mut chi_square, mut bins) = (0.0, 0);
    for token in 0..VOCABULARY as u32 {
        let expected = exact.get(&token).copied().unwrap_or(0.0) * DRAWS as f64;
        let found = counts[token as usize] as f64;
        assert!(expected > 0.0 || found == 0.0, "{name}: {token} was filtered out and drawn {found} times");
        // Rare tokens are counted together.
        if expected < 10.0 {
            rest = (rest.0 + expected, rest.1 + found);
        } else {
            chi_square += (found - expected).powi(2) / expected;
            bins += 1;
        }
    }
    if rest.0 >= 5.0 {
        chi_square += (rest.1 - rest.0).powi(2) / rest.0;
        bins += 1;
    }
    if bins > 1 {
        assert!(chi_square < critical(f64::from(bins - 1)), "{name}: {chi_square} for {bins} tokens");
    }
}

fn off() -> Sampling {
    let mut samplers = SamplerKind::DEFAULT_ORDER.to_vec();
    samplers.push(SamplerKind::AdaptiveP);
    Sampling { samplers, temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() }
}

#[test]
fn each_sampler_draws_from_its_distribution() {
    let dry = Sampling { dry_multiplier: 0.8, dry_penalty_last_n: None, ..off() };
    let settings = [
        ("none", off()),
        ("temperature", Sampling { temperature: 0.6, ..off() }),
        ("high temperature", Sampling { temperature: 3.0, ..off() }),
        (
            "dynamic temperature",
            Sampling { temperature: 0.8, dynatemp_range: 0.5, dynatemp_exponent: 1.3, ..off() },
        ),
        ("top-k", Sampling { top_k: 5, ..off() }),
        ("top-p", Sampling { top_p: 0.8, ..off() }),
        ("min-p", Sampling { min_p: 0.1, ..off() }),
        ("typical", Sampling { typical_p: 0.7, ..off() }),
        ("top-n-sigma", Sampling { top_n_sigma: 1.0, ..off() }),
        ("XTC", Sampling { xtc_probability: 0.4, xtc_threshold: 0.05, ..off() }),
        ("repetition", Sampling { repeat_penalty: 1.3, ..off() }),
        ("frequency and presence", Sampling { frequency_penalty: 0.3, presence_penalty: 0.4, ..off() }),
        ("DRY", dry),
        ("bias", Sampling { logit_bias: vec![(4, 2.5), (6, f32::NEG_INFINITY)], ..off() }),
        ("mirostat", Sampling { mirostat: true, mirostat_tau: 1.5, ..off() }),
        ("adaptive-p", Sampling { adaptive_target: 0.15, ..off() }),
    ];
    for (i, (name, settings)) in settings.iter().enumerate() {
        check(name, settings, &logits(i as u64 + 1));
    }
}

#[test]
fn random_chains_draw_from_their_distributions() {
    for seed in 0..20u64 {
        let pick = |salt: u64| (seed + 1).wrapping_mul(salt).rotate_left(29) >> 16;
        let unit = |salt: u64| (pick(salt) % 1000) as f32 / 1000.0;
        let mut samplers = off().samplers;
        for i in (1..samplers.len()).rev() {
            samplers.swap(i, pick(0x2545_f491_4f6c_dd1d ^ i as u64) as usize % (i + 1));
        }
        let on = |salt: u64| pick(salt) % 2 == 0;
        let settings = Sampling {
            samplers,
            temperature: 0.5 + unit(0xd6e8_feb8_6659_fd93),
            dynatemp_range: if on(0xa076_1d64_78bd_642f) { 0.3 } else { 0.0 },
            top_k: if on(0xe703_7ed1_a0b4_28db) { 12 } else { 0 },
            top_p: if on(0x8ebc_6af0_9c88_c6e3) { 0.9 } else { 1.0 },
            min_p: if on(0x5899_65cc_7537_4cc3) { 0.02 } else { 0.0 },
            typical_p: if on(0x1d8e_4e27_c47d_124f) { 0.95 } else { 1.0 },
            top_n_sigma: if on(0xeb44_acca_b455_d165) { 1.7 } else { -1.0 },
            xtc_probability: if on(0x9c6e_6877_736c_46e3) { 0.5 } else { 0.0 },
            xtc_threshold: 0.15,
            repeat_penalty: if on(0xbf58_476d_1ce4_e5b9) { 1.2 } else { 1.0 },
            dry_multiplier: if on(0x94d0_49bb_1331_11eb) { 0.5 } else { 0.0 },
            adaptive_target: if seed % 5 == 0 { 0.2 } else { -1.0 },
            ..off()
        };
        check(&format!("chain {seed}: {settings:?}"), &settings, &logits(seed + 100));
    }
}
