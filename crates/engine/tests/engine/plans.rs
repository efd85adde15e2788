//! Memory plans of real steps: near the lower bound, and built once per bucket.

use crate::common::*;
use verbatim_engine::{LoadOptions, Row, RowInput, RowOutputs, Sampler};

/// Prefill of 512, with logits of the last row and of all, then decoding.
fn exercise(engine: &mut Engine) {
    let sequence = engine.begin().expect("free");
    for (count, all) in [(512, false), (512, true), (1, true)] {
        let start = engine.append(sequence, count).expect("room");
        let row = |i| Row {
            sequence,
            kv_index: start + i,
            input: RowInput::Token((i % 300) as u32),
            want: RowOutputs::logits_if(all || i + 1 == count),
        };
        let rows: Vec<Row> = (0..count).map(row).collect();
        engine.step(&rows).expect("a step");
        engine.rollback(sequence).expect("begun");
    }
    engine.end(sequence).expect("begun");
}

fn plans_are_near_the_bound(name: &str, engine: &mut Engine) {
    exercise(engine);
    for (bounds, program) in engine.programs() {
        for arena in program.plan().arenas() {
            let ratio = arena.bytes as f64 / arena.lower_bound_bytes as f64;
            println!(
                "{name}: {} rows, {} with logits: {} bytes planned, lower bound {}, ratio {ratio:.4}",
                bounds.rows, bounds.output_rows, arena.bytes, arena.lower_bound_bytes
            );
            // In a step of a few kilobytes, rounding to cache lines is more than 5 %.
            let lines = if arena.lower_bound_bytes < 1 << 16 { 512 } else { 0 };
            let most = arena.lower_bound_bytes as f64 * 1.05 + f64::from(lines);
            assert!(arena.bytes as f64 <= most, "{name} {bounds:?}: {ratio}");
        }
    }
}

#[test]
fn plans_of_tiny_models_are_near_the_lower_bound() {
    for model in &tiny_models() {
        plans_are_near_the_bound(model, &mut engine(model, LoadOptions::default()));
    }
}

#[test]
fn plans_of_a_real_model_are_near_the_lower_bound() {
    if let Some(mut engine) = real_model("smollm2-135m", LoadOptions::default()) {
        plans_are_near_the_bound("smollm2-135m", &mut engine);
    }
}

fn two_hundred_tokens(engine: &mut Engine) {
    let sequence = engine.begin().expect("free");
    let greedy = Sampler::greedy();
    let mut tokens: Vec<u32> = (0..37).collect();
    for _ in 0..200 {
        tokens = vec![
            engine.advance(sequence, &tokens, &greedy, || true).expect("fits").expect("not stopped").token,
        ];
    }
    let statistics = engine.statistics();
    // A bucket of 64 rows for the prompt, one of a single row for decoding.
    assert_eq!((statistics.built, statistics.hits), (2, 198), "{statistics:?}");
    engine.end(sequence).expect("begun");
}

#[test]
fn two_hundred_tokens_build_one_plan_per_bucket() {
    for model in &tiny_models() {
        two_hundred_tokens(&mut engine(model, LoadOptions::default()));
    }
    if let Some(mut engine) = real_model("smollm2-135m", LoadOptions::default()) {
        two_hundred_tokens(&mut engine);
    }
}
