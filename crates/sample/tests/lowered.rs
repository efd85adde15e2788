//! What a graph samples from the parts of a row is what is sampled outside it, whatever the settings.

use verbatim_sample::{
    MAX_TOP_K, NO_TOKEN, PART_TOKENS, PART_WORDS, PartScratch, ROW_WORDS, SampleInput, SampleScratch,
    Sampler, SamplerKind, Sampling, merge_parts, parts, sample_part,
};

fn in_graph(sampler: &Sampler, input: &SampleInput<'_>, scratch: &mut PartScratch) -> Option<Option<u32>> {
    let mut words = vec![0; ROW_WORDS];
    if !sampler.lower(input.history, input.position, &mut Vec::new(), &mut words) {
        return None;
    }
    let mut parts = vec![7; PART_WORDS * parts(input.logits.len())];
    let pieces = input.logits.chunks(PART_TOKENS).zip(parts.chunks_exact_mut(PART_WORDS)).enumerate();
    // From the last to the first: the order must not matter.
    for (part, (logits, found)) in pieces.collect::<Vec<_>>().into_iter().rev() {
        sample_part(&words, input.mask, part, logits, scratch, found);
    }
    let token = merge_parts(&words, &parts, scratch);
    Some((token != NO_TOKEN).then_some(token))
}

fn logits(vocabulary: usize, seed: u32, spread: f32, levels: u32) -> Vec<f32> {
    let word = |i: u32| (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(0x9e37_79b1) >> 8;
    (0..vocabulary as u32).map(|i| ((word(i) % levels) as f32 / levels as f32 - 0.5) * spread).collect()
}

fn settings() -> Vec<(Sampling, bool)> {
    let with = |sampling: Sampling, lowers| (sampling, lowers);
    let kinds = |kinds: &[SamplerKind]| kinds.to_vec();
    vec![
        with(Sampling::greedy(), true),
        with(Sampling::default(), true),
        with(Sampling::unfiltered(1.0, 3), true),
        with(Sampling::unfiltered(0.2, 4), true),
        with(Sampling::unfiltered(f32::MIN_POSITIVE, 4), true),
        with(Sampling::unfiltered(50.0, 5), true),
        with(Sampling { top_k: MAX_TOP_K, ..Sampling::default() }, true),
        with(Sampling { top_k: MAX_TOP_K + 1, ..Sampling::default() }, false),
        with(Sampling { top_k: 0, ..Sampling::default() }, false),
        with(Sampling { repeat_penalty: 1.3, presence_penalty: 0.5, ..Sampling::default() }, true),
        with(Sampling { dry_multiplier: 0.8, ..Sampling::greedy() }, true),
        with(Sampling { xtc_probability: 0.5, xtc_threshold: 0.05, ..Sampling::default() }, true),
        with(Sampling { typical_p: 0.8, min_keep: 2, ..Sampling::default() }, true),
        with(Sampling { typical_p: 0.8, xtc_probability: 1.0, ..Sampling::greedy() }, true),
        with(Sampling { dynatemp_range: 0.4, dynatemp_exponent: 1.5, ..Sampling::default() }, true),
        with(
            Sampling {
                dynatemp_range: 0.4,
                samplers: kinds(&[SamplerKind::Temperature]),
                ..Sampling::default()
            },
            false,
        ),
        with(Sampling { top_n_sigma: 1.0, ..Sampling::default() }, false),
        with(
            Sampling {
                // One of them is in the second part.
                logit_bias: vec![(5, 3.0), (6, f32::NEG_INFINITY), (20_000, 9.0), (9_999_999, 1.0)],
                ..Sampling::default()
            },
            true,
        ),
        with(Sampling { mirostat: true, ..Sampling::default() }, false),
        with(
            Sampling {
                samplers: kinds(&[SamplerKind::Temperature, SamplerKind::TopK]),
                ..Sampling::default()
            },
            false,
        ),
        with(
            Sampling {
                samplers: kinds(&[SamplerKind::TopK, SamplerKind::Penalties]),
                repeat_penalty: 1.1,
                ..Sampling::default()
            },
            false,
        ),
        with(Sampling { samplers: vec![], ..Sampling::default() }, true),
    ]
}

#[test]
fn sampling_in_the_graph_and_outside_draws_the_same_token() {
    let (mut scratch, mut parts) = (SampleScratch::default(), PartScratch::default());
    let history: Vec<u32> = (0..60).map(|i| i * i % 23).collect();
    let mask: Vec<u32> = (0..1600u32).map(|i| i.wrapping_mul(0x9e37_79b9).rotate_left(7)).collect();
    for (settings, lowers) in settings() {
        let sampler = Sampler::new(settings.clone(), 21).unwrap();
        assert_eq!(sampler.can_lower(), lowers, "{settings:?}");
        for (vocabulary, spread, levels) in
            [(3, 4.0, 97), (100, 8.0, 5), (16_384, 8.0, 1 << 20), (16_385, 20.0, 40), (50_000, 12.0, 1 << 22)]
        {
            for position in 0..12 {
                let logits = logits(vocabulary, position as u32, spread, levels);
                let mask = (position % 3 == 0 && vocabulary > 50).then_some(&mask[..]);
                let input = SampleInput {
                    logits: &logits,
                    position,
                    history: &history,
                    mask,
                    state: sampler.start(),
                };
                let outside = sampler.sample(&input, &mut scratch).map(|sampled| sampled.token);
                if let Some(token) = in_graph(&sampler, &input, &mut parts) {
                    assert_eq!(token, outside, "{settings:?}, {vocabulary} tokens, position {position}");
                }
                assert!(outside.is_some_and(|token| {
                    mask.is_none_or(|mask| mask[token as usize / 32] >> (token % 32) & 1 == 1)
                }));
            }
        }
    }
}

#[test]
fn odd_rows_are_alike_too() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows: [&[f32]; 10] = [
        &[nan; 3],
        &[nan, -inf, -inf],
        &[-inf; 5],
        &[inf, 0.0, inf],
        &[nan, 1.0, nan],
        &[0.0, -0.0, 0.0],
        &[3e38, -3e38, 3e38],
        // Both are infinite after a temperature below 0.5, and the larger one still wins.
        &[2e38, 3e38],
        &[1e-40, 2e-40],
        &[5.0],
    ];
    let (mut scratch, mut parts) = (SampleScratch::default(), PartScratch::default());
    for (settings, _) in settings() {
        let sampler = Sampler::new(settings.clone(), 2).unwrap();
        for (row, position) in rows.iter().flat_map(|row| (0..20).map(move |position| (row, position))) {
            let input =
                SampleInput { logits: row, position, history: &[], mask: None, state: sampler.start() };
            let outside = sampler.sample(&input, &mut scratch).map(|sampled| sampled.token);
            assert_eq!(outside.is_none(), row.iter().all(|logit| logit.is_nan()), "{settings:?} {row:?}");
            if let Some(token) = in_graph(&sampler, &input, &mut parts) {
                assert_eq!(token, outside, "{settings:?} {row:?}");
            }
        }
    }
}

#[test]
fn wide_seeds_and_positions_arrive_whole() {
    let logits = logits(2_000, 5, 3.0, 1 << 20);
    let (mut scratch, mut parts) = (SampleScratch::default(), PartScratch::default());
    let mut drawn = Vec::new();
    for (seed, position) in [(3, 5), (3 | 1 << 40, 5), (3, 5 | 1 << 40), (5 << 32, 3 << 32)] {
        let sampler = Sampler::new(Sampling::unfiltered(1.0, seed), 0).unwrap();
        let input =
            SampleInput { logits: &logits, position, history: &[], mask: None, state: sampler.start() };
        let on_host = sampler.sample(&input, &mut scratch).map(|sampled| sampled.token);
        assert_eq!(in_graph(&sampler, &input, &mut parts), Some(on_host), "{seed} {position}");
        assert!(!drawn.contains(&on_host), "the upper half matters");
        drawn.push(on_host);
    }
}

#[test]
fn a_temperature_near_0_takes_the_largest_logit() {
    for temperature in [1e-45, 1e-40, f32::MIN_POSITIVE, 1e-29, 1e-6] {
        for settings in
            [Sampling::unfiltered(temperature, 1), Sampling { temperature, ..Sampling::default() }]
        {
            let sampler = Sampler::new(settings, 1).unwrap();
            for logits in [[19.0, 20.0, 18.0], [-3.0, 0.0, -1.0]] {
                let input = SampleInput {
                    logits: &logits,
                    position: 4,
                    history: &[],
                    mask: None,
                    state: sampler.start(),
                };
                let token =
                    sampler.sample(&input, &mut SampleScratch::default()).map(|sampled| sampled.token);
                assert_eq!(token, Some(1), "{temperature}");
                assert_eq!(
                    in_graph(&sampler, &input, &mut PartScratch::default()),
                    Some(Some(1)),
                    "{temperature}"
                );
            }
        }
    }
}

#[test]
fn too_many_edits_are_left_to_the_host() {
    let settings = Sampling { repeat_penalty: 1.1, repeat_last_n: None, ..Sampling::default() };
    let sampler = Sampler::new(settings, 0).unwrap();
    let logits = logits(1_000, 7, 6.0, 1 << 20);
    let (mut scratch, mut parts) = (SampleScratch::default(), PartScratch::default());
    let mut drawn = |n: u32| {
        let history: Vec<u32> = (0..n).collect();
        let input = SampleInput {
            logits: &logits,
            position: 0,
            history: &history,
            mask: None,
            state: sampler.start(),
        };
        let on_host = sampler.sample(&input, &mut scratch).map(|sampled| sampled.token);
        in_graph(&sampler, &input, &mut parts).map(|token| token == on_host)
    };
    assert_eq!([drawn(256), drawn(257)], [Some(true), None]);
}

/// Kernels and shaders read and write these words.
#[test]
fn the_words_are_as_many_as_ever() {
    assert_eq!((ROW_WORDS, PART_WORDS), (790, 129));
    assert_eq!([1, PART_TOKENS, PART_TOKENS + 1].map(parts), [1, 1, 2]);
}

#[test]
fn words_that_mean_nothing_do_no_harm() {
    let logits = logits(20_000, 1, 4.0, 1000);
    let mut scratch = PartScratch::default();
    for seed in 0..200u32 {
        let words: Vec<u32> = (0..ROW_WORDS as u32)
            .map(|i| (i ^ seed << 10).wrapping_mul(0x9e37_79b9).rotate_left(seed % 32))
            .collect();
        let mut parts = vec![0; 2 * PART_WORDS];
        for (part, (range, found)) in
            logits.chunks(PART_TOKENS).zip(parts.chunks_exact_mut(PART_WORDS)).enumerate()
        {
            sample_part(&words, None, part, range, &mut scratch, found);
        }
        merge_parts(&words, &parts, &mut scratch);
        merge_parts(&words, &words[..2 * PART_WORDS], &mut scratch);
    }
}
