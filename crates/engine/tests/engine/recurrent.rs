//! Recurrent models: rejected draft tokens leave no trace, however many are accepted.

use crate::common::*;
use verbatim_engine::{BatchError, LoadOptions, Row, RowError, RowInput, RowOutputs, SequenceId, StateError};

const MODEL: &str = "models/qwen35-hybrid/model.gguf";

fn text(count: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 17 + i * 5 + 11) % 500) as u32).collect()
}

/// Appends tokens, computes them, and returns the bits of their logits.
fn append_and_compute(engine: &mut Engine, sequence: SequenceId, tokens: &[u32]) -> Vec<Vec<u32>> {
    let start = engine.append(sequence, tokens.len()).expect("room");
    compute(engine, sequence, start, tokens).expect("a step")
}

fn compute(
    engine: &mut Engine,
    sequence: SequenceId,
    start: usize,
    tokens: &[u32],
) -> Result<Vec<Vec<u32>>, RowError> {
    let row = |(i, &token)| Row {
        sequence,
        kv_index: start + i,
        input: RowInput::Token(token),
        want: RowOutputs::LOGITS,
    };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    let outputs = engine.step(&rows).expect("a step");
    outputs.row(0)?;
    let bits = |i| outputs.logits(i).expect("wanted").iter().map(|x| x.to_bits()).collect();
    Ok((0..rows.len()).map(bits).collect())
}

/// The logits after every token, computed one by one.
fn token_by_token(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<u32>> {
    let sequence = engine.begin().expect("free");
    let mut logits = Vec::new();
    for token in tokens {
        logits.extend(append_and_compute(engine, sequence, &[*token]));
        engine.commit(sequence, 1).expect("in flight");
    }
    engine.end(sequence).expect("begun");
    logits
}

#[test]
fn any_number_of_draft_tokens_can_be_accepted() {
    let mut engine = engine(MODEL, LoadOptions { sequences: 2, ..LoadOptions::default() });
    let tokens = text(60);
    let wanted = token_by_token(&mut engine, &tokens);
    for accepted in 0..=16 {
        let sequence = engine.begin().expect("free");
        assert!(append_and_compute(&mut engine, sequence, &tokens[..5]) == wanted[..5]);
        engine.commit(sequence, 5).expect("in flight");
        let mut at = 5;
        while at < tokens.len() {
            let right = accepted.min(tokens.len() - at);
            let mut draft = tokens[at..at + right].to_vec();
            draft.resize(16, 499);
            let logits = append_and_compute(&mut engine, sequence, &draft);
            assert!(logits[..right] == wanted[at..at + right], "{accepted} of 16 accepted, at {at}");
            engine.commit(sequence, right).expect("in flight");
            at += right;
            if accepted == 0 {
                assert!(append_and_compute(&mut engine, sequence, &tokens[at..=at]) == wanted[at..=at]);
                engine.commit(sequence, 1).expect("in flight");
                at += 1;
            }
        }
        engine.end(sequence).expect("begun");
    }
}

#[test]
fn checkpoints_cover_the_last_positions_of_a_long_step() {
    let mut engine = engine(MODEL, LoadOptions::default());
    let tokens = text(100);
    let wanted = token_by_token(&mut engine, &tokens);
    let sequence = engine.begin().expect("free");
    // Dropped as a whole.
    append_and_compute(&mut engine, sequence, &text(70)[3..]);
    engine.rollback(sequence).expect("in flight");
    // There are checkpoints of the last sixteen positions; none before them can be committed alone.
    assert!(append_and_compute(&mut engine, sequence, &tokens[..50]) == wanted[..50]);
    let rejected = StateError::NoCheckpoint { wanted: 34, in_flight: 50 };
    assert_eq!(engine.commit(sequence, 34), Err(rejected));
    engine.commit(sequence, 35).expect("there is a checkpoint");
    // In flight over two steps, and computed again from a checkpoint.
    assert!(append_and_compute(&mut engine, sequence, &tokens[35..40]) == wanted[35..40]);
    assert!(append_and_compute(&mut engine, sequence, &[7; 8]) != wanted[40..48]);
    assert!(compute(&mut engine, sequence, 40, &tokens[40..48]).expect("again") == wanted[40..48]);
    engine.commit(sequence, 13).expect("in flight");
    assert!(append_and_compute(&mut engine, sequence, &tokens[48..]) == wanted[48..]);
}

#[test]
fn unsupported_commits_and_truncations_are_rejected() {
    let mut engine = engine(MODEL, LoadOptions::default());
    let sequence = engine.begin().expect("free");
    let start = engine.append(sequence, 4).expect("room");
    let skipped = compute(&mut engine, sequence, start + 1, &[1, 2]).expect_err("position 0 comes first");
    assert_eq!(skipped, BatchError::Order { kv_index: 1 }.into());
    let row = |kv_index| Row { sequence, kv_index, input: RowInput::Token(1), want: RowOutputs::LOGITS };
    let swapped = engine.step(&[row(0), row(2), row(1)]).expect("nothing to run");
    for row in 0..3 {
        assert_eq!(swapped.row(row), Err(BatchError::Order { kv_index: 2 }.into()));
    }
    assert_eq!(engine.commit(sequence, 1), Err(StateError::NotComputed { index: 0 }));
    compute(&mut engine, sequence, 0, &[1, 2, 3]).expect("in order");
    assert_eq!(engine.commit(sequence, 4), Err(StateError::NotComputed { index: 3 }));
    engine.commit(sequence, 3).expect("computed");
    let committed = compute(&mut engine, sequence, 2, &[1]).expect_err("its state is gone");
    assert_eq!(committed, BatchError::NotInFlight { kv_index: 2 }.into());
    let back = StateError::CannotTruncate {
        wanted: 2,
        committed: 3,
        why: "a recurrent model keeps no state of earlier positions",
    };
    assert_eq!(engine.truncate(sequence, 2), Err(back));
    engine.truncate(sequence, 0).expect("from the start");
    let again = append_and_compute(&mut engine, sequence, &text(3));
    assert!(again == token_by_token_alone(&text(3)));
}

fn token_by_token_alone(tokens: &[u32]) -> Vec<Vec<u32>> {
    token_by_token(&mut engine(MODEL, LoadOptions::default()), tokens)
}
