//! Logits of small random models, of the architectures without golden data, against a straightforward reference in f64; and
//! settings for which such files are rejected.

use crate::common::synthetic::{Key, VOCABULARY};
use crate::common::*;
use verbatim_engine::HiddenOutput;

/// Longer than every window, and than two blocks of the attention's order.
fn tokens() -> Vec<u32> {
    (0..150).map(|i| (i * i * 31 + i * 7 + 3) % VOCABULARY as u32).collect()
}

#[test]
fn logits_agree_with_the_reference() {
    for model in synthetic::all() {
        let reference = model.logits(&tokens());
        let mut engine = engine(&format!("synthetic/{}", model.name), exact());
        let given = logits(&mut engine, &tokens(), &[512]);
        let (relative, deviations) =
            (worst_relative(&given, &reference, VOCABULARY), worst(&given, &reference));
        println!("{}: logits within {relative:.1e} relative, {deviations:.1e} deviations", model.name);
        assert!(relative < 1e-4 && deviations < 1e-3, "{}: {relative:e} {deviations:e}", model.name);
    }
}

#[test]
fn every_hidden_output_can_be_requested() {
    for model in synthetic::all() {
        let mut engine = engine(&format!("synthetic/{}", model.name), exact());
        let layers = engine.hyperparameters().layers as u32;
        let mut points = vec![HiddenOutput::Embedding, HiddenOutput::FinalNorm];
        points.extend((0..layers).map(HiddenOutput::Layer));
        let hidden = engine.hyperparameters().hidden;
        let values = hidden_rows(&mut engine, &tokens()[..3], &points);
        for (point, values) in points.iter().zip(values) {
            assert_eq!(values.len(), 3 * hidden, "{} {point:?}", model.name);
            assert!(values.iter().all(|x| x.is_finite()) && values.iter().any(|x| *x != 0.0));
        }
    }
}

/// Settings for which a file is rejected, and a part of the error: the key, and what would be accepted.
const REJECTED: &[(&str, &str, Key, &str)] = &[
    ("granite", "logit_scale", Key::Real(0.0), "granite.logit_scale is missing or 0, but must be"),
    ("granite", "residual_scale", Key::Real(-1.0), "granite.residual_scale is -1, but must be above 0"),
    (
        "granite",
        "rope.scaling.finetuned",
        Key::Bool(false),
        "rope.scaling.finetuned is false, but must be true",
    ),
    ("granite", "expert_count", Key::Count(8), "granite.expert_count is 8, but must be 0"),
    (
        "gemma2",
        "attn_logit_softcapping",
        Key::Real(f32::NAN),
        "attn_logit_softcapping is NaN, but must be a finite",
    ),
    ("gemma2", "attention.sliding_window", Key::Text("all"), "gemma2.attention.sliding_window"),
    (
        "gemma2",
        "attention.sliding_window_pattern",
        Key::Bools(&[true; 3]),
        "is 3 values, but must be one for each",
    ),
    (
        "gemma3-rope-factor",
        "rope.freq_base_swa",
        Key::Real(0.5),
        "gemma3.rope.freq_base_swa is 0.5, but must be above 1",
    ),
    ("gemma3-rope-factor", "rope.scaling.type", Key::Text("su"), "none, linear, yarn or longrope"),
    ("phi3-short", "rope.scaling.attn_factor", Key::Real(-2.0), "phi3.rope.scaling.attn_factor is -2"),
    ("phi3-short", "rope.scaling.original_context_length", Key::Count(0), "original_context_length is 0"),
    ("olmo2", "attention.sliding_window", Key::Count(4096), "sliding_window is 4096, but must be 0: OLMo 3"),
    (
        "gpt-oss",
        "attention.sliding_window",
        Key::Count(0),
        "gpt-oss.attention.sliding_window is 0, but must be at least 1",
    ),
    ("gpt-oss", "expert_used_count", Key::Count(7), "gpt-oss.expert_used_count is 7, but must be at most 6"),
    (
        "smollm3",
        "attention.sliding_window",
        Key::Count(64),
        "smollm3.attention.sliding_window is 64, but must be 0",
    ),
    ("smollm3", "expert_count", Key::Count(8), "smollm3.expert_count is 8, but must be 0"),
    ("llama", "rope.scaling.type", Key::Text("longrope"), "llama.rope.scaling.original_context_length"),
];

#[test]
fn unsupported_settings_are_rejected_by_name() {
    for &(name, key, value, wanted) in REJECTED {
        let file = synthetic::named(name).with(key, value).file();
        let error = verbatim_models::open(&file).map(|_| ()).expect_err(key).to_string();
        assert!(error.contains(wanted), "{name} {key}: {error}");
    }
}

#[test]
fn a_pattern_of_local_layers_may_be_a_list() {
    let list = Key::Bools(&[true, true, false, true, true, false, true]);
    let period = synthetic::named("gemma3-rope-factor");
    let mut by_list = load(&period.clone().with("attention.sliding_window_pattern", list).file(), &exact())
        .expect("a valid file");
    let mut by_period = engine("synthetic/gemma3-rope-factor", exact());
    assert_eq!(logits(&mut by_list, &tokens(), &[512]), logits(&mut by_period, &tokens(), &[512]));
}

#[test]
fn settings_matter() {
    let changed: &[(&str, &str, Key)] = &[
        ("gemma2", "attention.sliding_window", Key::Count(21)),
        ("gemma2", "attn_logit_softcapping", Key::Real(1.6)),
        ("gemma2", "final_logit_softcapping", Key::Real(2.1)),
        ("gemma3-rope-factor", "attention.sliding_window_pattern", Key::Count(2)),
        ("gemma3-rope-factor", "rope.freq_base_swa", Key::Real(11_000.0)),
        ("gemma3-rope-factor", "attention.scale", Key::Real(0.3)),
        ("phi3-short", "attention.sliding_window", Key::Count(91)),
        ("phi3-short", "rope.scaling.attn_factor", Key::Real(1.3)),
        ("phi3-short", "rope.scaling.original_context_length", Key::Count(511)),
        ("granite", "embedding_scale", Key::Real(2.0)),
        ("granite", "attention.scale", Key::Real(0.5)),
        ("granite", "residual_scale", Key::Real(0.3)),
        ("granite", "logit_scale", Key::Real(5.0)),
    ];
    for &(name, key, value) in changed {
        let mut engine = engine(&format!("synthetic/{name}"), exact());
        let file = synthetic::named(name).with(key, value).file();
        let mut other = load(&file, &exact()).expect("a valid file");
        let given = logits(&mut other, &tokens(), &[512]);
        assert!(worst(&given, &logits(&mut engine, &tokens(), &[512])) > 1e-3, "{name} {key}");
    }
}
