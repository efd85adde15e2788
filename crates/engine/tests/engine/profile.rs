//! Profiles of steps whose work is known.

use crate::common::*;
use std::time::{Duration, Instant};
use verbatim_engine::{LoadOptions, MatmulKind, Row, RowInput, RowOutputs};

/// One step of so many rows that all want logits.
fn step(engine: &mut Engine, rows: usize) {
    let sequence = engine.begin().expect("free");
    let start = engine.append(sequence, rows).expect("fits");
    let row = |i| Row {
        sequence,
        kv_index: start + i,
        input: RowInput::Token(i as u32 + 1),
        want: RowOutputs::LOGITS,
    };
    engine.step(&(0..rows).map(row).collect::<Vec<_>>()).expect("runs");
    engine.end(sequence).expect("begun");
}

#[test]
fn a_profile_counts_every_node_and_at_most_the_elapsed_time() {
    for model in &tiny_models() {
        let mut engine = engine(model, LoadOptions::default());
        step(&mut engine, 3);
        assert_eq!(engine.profile(), Some(&Default::default()), "{model}: off");
        let start = Instant::now();
        engine.set_profiling(true);
        (0..4).for_each(|_| step(&mut engine, 3));
        let wall = start.elapsed();
        engine.set_profiling(false);
        step(&mut engine, 3);
        let profile = engine.profile().expect("the CPU has one").clone();
        let (_, program) = engine.programs().next().expect("one shape");
        let nodes = program.plan().graph().nodes().len() as u64;
        assert_eq!(profile.runs(), 4, "{model}");
        assert_eq!(profile.ops().iter().map(|kind| kind.count).sum::<u64>(), 4 * nodes, "{model}");
        let ops: Duration = profile.ops().iter().map(|kind| kind.time).sum();
        assert!(
            ops > Duration::ZERO && ops + profile.barrier_wait() <= profile.total(),
            "{model}: {profile:?}"
        );
        assert!(profile.total() <= wall, "{model}");
        engine.set_profiling(true);
        let profile = engine.profile().expect("the CPU has one");
        assert!(profile.ops().is_empty() && profile.runs() == 0, "{model}: restarted");
    }
}

#[test]
fn matmuls_are_recorded_with_their_weight_bytes_and_operations() {
    let mut engine = engine("models/qwen3/model.gguf", LoadOptions::default());
    let mut work = |rows| {
        engine.set_profiling(true);
        step(&mut engine, rows);
        let profile = engine.profile().expect("the CPU has one");
        let matmuls = profile.ops().iter().filter_map(|kind| kind.matmul);
        let matmuls: Vec<_> = matmuls.collect();
        assert!(matmuls.iter().all(|matmul| matmul.kind == MatmulKind::F32), "an F32 model");
        let sum = |of: fn(&verbatim_engine::MatmulWork) -> u64| matmuls.iter().map(of).sum::<u64>();
        (sum(|matmul| matmul.weight_bytes), sum(|matmul| matmul.operations))
    };
    let (one, five) = (work(1), work(5));
    // Two operations for each four bytes of weights, which are padded at most.
    assert!(one.1 > 0 && one.1 <= one.0 / 2, "{one:?}");
    assert_eq!((five.0, five.1), (one.0, 5 * one.1));
}
