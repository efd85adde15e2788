//! Every sampler, and chains of them, leave what llama.cpp's own leave: the same tokens with the same probabilities, on the
//! vectors in `tests/data/samplers`, whose README says how they were recorded.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use verbatim_sample::{LogProbs, SampleInput, SampleScratch, Sampler, SamplerKind, Sampling};

fn lines(name: &str) -> Vec<Value> {
    let path = format!("{}/../../tests/data/samplers/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&path).expect("the recorded data");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn real(value: &Value, key: &str) -> f32 {
    value[key].as_f64().expect("a number") as f32
}

fn count(value: &Value, key: &str) -> usize {
    value[key].as_u64().expect("a count") as usize
}

/// The settings of a recorded chain.
fn settings(samplers: &[Value]) -> Sampling {
    let mut settings = Sampling {
        samplers: Vec::new(),
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..Sampling::default()
    };
    for sampler in samplers {
        if let Some(min_keep) = sampler["min_keep"].as_u64() {
            settings.min_keep = settings.min_keep.max(min_keep as usize);
        }
        let kind = match sampler["kind"].as_str().expect("a kind") {
            "logit_bias" => {
                let biases = sampler["bias"].as_array().expect("biases").iter();
                let bias =
                    |bias: &Value| (bias[0].as_u64().unwrap() as u32, bias[1].as_f64().unwrap() as f32);
                settings.logit_bias = biases.map(bias).collect();
                continue;
            }
            "penalties" => {
                settings.repeat_last_n = Some(count(sampler, "last_n"));
                settings.repeat_penalty = real(sampler, "repeat");
                settings.frequency_penalty = real(sampler, "frequency");
                settings.presence_penalty = real(sampler, "presence");
                SamplerKind::Penalties
            }
            "dry" => {
                settings.dry_multiplier = real(sampler, "multiplier");
                settings.dry_base = real(sampler, "base");
                settings.dry_allowed_length = count(sampler, "allowed_length");
                settings.dry_penalty_last_n = Some(count(sampler, "last_n"));
                SamplerKind::Dry
            }
            "top_n_sigma" => {
                settings.top_n_sigma = real(sampler, "n");
                SamplerKind::TopNSigma
            }
            "top_k" => {
                settings.top_k = count(sampler, "k");
                SamplerKind::TopK
            }
            "typical" => {
                settings.typical_p = real(sampler, "p");
                SamplerKind::TypicalP
            }
            "top_p" => {
                settings.top_p = real(sampler, "p");
                SamplerKind::TopP
            }
            "min_p" => {
                settings.min_p = real(sampler, "p");
                SamplerKind::MinP
            }
            kind => later_settings(&mut settings, kind, sampler),
        };
        settings.samplers.push(kind);
    }
    settings
}

fn later_settings(settings: &mut Sampling, kind: &str, sampler: &Value) -> SamplerKind {
    match kind {
        "xtc" => {
            settings.xtc_probability = real(sampler, "probability");
            settings.xtc_threshold = real(sampler, "threshold");
            SamplerKind::Xtc
        }
        "temperature" => {
            settings.temperature = real(sampler, "t");
            SamplerKind::Temperature
        }
        "dynamic_temperature" => {
            settings.temperature = real(sampler, "t");
            settings.dynatemp_range = real(sampler, "range");
            settings.dynatemp_exponent = real(sampler, "exponent");
            SamplerKind::Temperature
        }
        "mirostat_v2" => {
            settings.mirostat = true;
            settings.mirostat_tau = real(sampler, "tau");
            settings.mirostat_eta = real(sampler, "eta");
            SamplerKind::Temperature
        }
        "adaptive_p" => {
            settings.adaptive_target = real(sampler, "target");
            settings.adaptive_decay = real(sampler, "decay");
            SamplerKind::AdaptiveP
        }
        kind => panic!("an unknown sampler {kind}"),
    }
}

/// The recorded candidates, with the logarithms of their probabilities.
fn recorded(kept: &Value) -> BTreeMap<u32, f64> {
    let logit = |bits: &Value| f64::from(f32::from_bits(bits.as_u64().expect("bits") as u32));
    let kept = kept.as_array().expect("a list").iter();
    let kept: Vec<(u32, f64)> =
        kept.map(|pair| (pair[0].as_u64().expect("an id") as u32, logit(&pair[1]))).collect();
    let max = kept.iter().map(|(_, logit)| *logit).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = kept.iter().map(|(_, logit)| libm::exp(logit - max)).sum();
    kept.iter().map(|(id, logit)| (*id, logit - max - libm::log(sum))).collect()
}

#[test]
fn what_is_left_is_what_llama_cpp_leaves() {
    let vectors = lines("vectors.jsonl");
    let mut scratch = SampleScratch::default();
    let mut compared = 0;
    for result in lines("results.jsonl") {
        let name = &result["name"];
        let settings = settings(result["samplers"].as_array().expect("samplers"));
        let sampler = Sampler::new(settings, 5).expect("settings in range");
        let sampler = sampler.with_log_probs(Some(LogProbs { top: usize::MAX, after_chain: true }));
        for (i, (vector, kept)) in vectors.iter().zip(result["kept"].as_array().expect("results")).enumerate()
        {
            // Where llama.cpp's own result is not a number, or hangs on rounding.
            if kept.is_null() {
                continue;
            }
            let words = |key: &str| {
                vector[key]
                    .as_array()
                    .expect("a list")
                    .iter()
                    .map(|word| word.as_u64().unwrap() as u32)
                    .collect::<Vec<_>>()
            };
            let logits: Vec<f32> = words("logits_bits").into_iter().map(f32::from_bits).collect();
            let history = words("history");
            let input = SampleInput {
                logits: &logits,
                position: 0,
                history: &history,
                mask: None,
                state: sampler.start(),
            };
            let sampled = sampler.sample(&input, &mut scratch).expect("a token");
            let found = sampled.log_probs.expect("log-probabilities").top;
            let found: BTreeMap<u32, f32> =
                found.into_iter().filter(|(_, log_prob)| log_prob.is_finite()).collect();
            let wanted = recorded(kept);
            assert_eq!(
                found.keys().collect::<Vec<_>>(),
                wanted.keys().collect::<Vec<_>>(),
                "{name}, vector {i}"
            );
            for (id, log_prob) in &wanted {
                let error = (f64::from(found[id]) - log_prob).abs();
                assert!(
                    error < 1e-4 + 1e-6 * log_prob.abs(),
                    "{name}, vector {i}, token {id}: {} and not {log_prob}",
                    found[id]
                );
            }
            assert!(found.contains_key(&sampled.token));
            compared += 1;
        }
    }
    assert!(compared > 2_300, "only {compared} were compared");
}
