//! A steady-state decode step allocates nothing, except a few words when a page becomes full. One test, because it counts the
//! allocations of the whole process.

#[path = "engine/common/mod.rs"]
#[allow(dead_code)] // What the other tests use.
mod common;

use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use verbatim_engine::{
    DraftOptions, HiddenOutput, KvType, LoadOptions, NextOutput, PAGE_CELLS, Row, RowInput, RowOutputs,
    Sampler, Sampling,
};

/// Counts allocations of all threads.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands every call on to the system's allocator.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_steady_state_decode_step_allocates_nothing() {
    one_sequence();
    many_sequences_and_a_draft();
    many_shapes();
}

fn one_sequence() {
    for model in &tiny_models() {
        let mut engine = engine(model, LoadOptions::default());
        let sequence = engine.begin().expect("free");
        let sampler = Sampler::new(Sampling::unfiltered(0.8, 1), 0).expect("valid");
        let mut token = 1;
        let mut most = 0;
        for step in 0..150 {
            if step == 75 {
                // Recording allocates nothing but its room at the beginning.
                engine.set_profiling(true);
            }
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            token = engine
                .advance(sequence, &[token], &sampler, || true)
                .expect("fits")
                .expect("not stopped")
                .token;
            let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
            // The first step builds its plan. A page that is full is put into the prefix tree, for others to find.
            let fills_page = (step + 1) % PAGE_CELLS == 0;
            if step > 0 && !fills_page {
                most = most.max(allocated);
            }
            assert!(!fills_page || allocated < 16, "{model}: {allocated} allocations for a page");
        }
        assert_eq!(most, 0, "{model}");
    }
}

/// Several sequences with wants of every kind, an embedding among them, chains of draft tokens, and a draft over the same rows.
fn many_sequences_and_a_draft() {
    let models = ["llama-gqa-tied", "gemma3-iswa", "qwen35-hybrid", "qwen3moe"];
    for (target, draft) in models.into_iter().flat_map(|target| models.map(|draft| (target, draft))) {
        let options = LoadOptions { sequences: 4, context: Some(400), ..LoadOptions::default() };
        let mut engine = engine_on(cpu(2), &format!("models/{target}/model.gguf"), options);
        let draft = model_file(&format!("models/{draft}/model.gguf"));
        let options = DraftOptions { k: KvType::Q8_0, v: KvType::Q4_0, ..DraftOptions::default() };
        let draft = engine.append_model(&draft, &options).expect("a draft model");
        let zeros = vec![0.1; engine.hyperparameters().hidden];
        let sampler = Sampler::new(Sampling::unfiltered(0.8, 1), 0).expect("valid");
        let sequences = [0; 4].map(|_| engine.begin().expect("free"));
        let points = [HiddenOutput::FinalNorm, HiddenOutput::Embedding];
        let next = [
            NextOutput::Token((&sampler).into()),
            NextOutput::Logits,
            NextOutput::LogProbs,
            NextOutput::None,
        ];
        let mut most = 0;
        for step in 0..60 {
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            let mut rows = [const { None }; 12];
            for (index, &sequence) in sequences.iter().enumerate() {
                let start = engine.append(sequence, 3).expect("room");
                for i in 0..3 {
                    let input = match (index, i) {
                        (1, 2) => RowInput::Embedding(&zeros),
                        _ => RowInput::Token((step * 7 + i * 3 + index) as u32 % 300),
                    };
                    let hidden = &points[..(index + i) % 3];
                    let want = RowOutputs { next: next[(index + i) % 4], hidden };
                    rows[index * 3 + i] = Some(Row { sequence, kv_index: start + i, input, want });
                }
            }
            let rows = rows.map(|row| row.expect("all"));
            let outputs = engine.step(&rows).expect("a step");
            outputs.all().expect("in order");
            assert!(outputs.token(0).expect("computed").is_some() && outputs.log_probs(2).is_some());
            assert!(outputs.hidden(HiddenOutput::FinalNorm, 1).is_some() && outputs.logits(3).is_some());
            engine.step_with(draft, &rows).expect("a step").all().expect("in order");
            for (index, &sequence) in sequences.iter().enumerate() {
                engine.commit(sequence, 1 + (step + index) % 2).expect("computed");
            }
            let allocated = ALLOCATIONS.load(Ordering::Relaxed) - before;
            let fills_page = sequences.iter().any(|&sequence| {
                let len = engine.len(sequence).expect("begun");
                len >= PAGE_CELLS && len % PAGE_CELLS < 2
            });
            if step > 1 && !fills_page {
                most = most.max(allocated);
            }
        }
        assert_eq!(most, 0, "{target} and {:?}", draft);
    }
}

/// More shapes of steps than are kept: the oldest are given up, and made again they give the same.
fn many_shapes() {
    let mut engine = engine("models/qwen2-bias/model.gguf", LoadOptions::default());
    let points =
        [HiddenOutput::Embedding, HiddenOutput::Layer(0), HiddenOutput::Layer(1), HiddenOutput::FinalNorm];
    let mut first: Vec<Vec<u32>> = Vec::new();
    for round in 0..2 {
        let mut shapes = 0;
        for mask in 0..16usize {
            for rows in [1usize, 2, 4, 8] {
                for output_rows in [0, 1, rows] {
                    let chosen: Vec<HiddenOutput> =
                        (0..4).filter(|i| mask >> i & 1 == 1).map(|i| points[i]).collect();
                    let sequence = engine.begin().expect("free");
                    engine.append(sequence, rows).expect("room");
                    let row = |kv_index| Row {
                        sequence,
                        kv_index,
                        input: RowInput::Token(7 + kv_index as u32),
                        want: RowOutputs {
                            hidden: &chosen,
                            ..RowOutputs::logits_if(kv_index + output_rows >= rows)
                        },
                    };
                    let step: Vec<Row> = (0..rows).map(row).collect();
                    let outputs = engine.step(&step).expect("a step");
                    let mut bits: Vec<u32> = Vec::new();
                    for row in 0..rows {
                        bits.extend(outputs.logits(row).unwrap_or_default().iter().map(|x| x.to_bits()));
                        for &point in &chosen {
                            bits.extend(
                                outputs.hidden(point, row).expect("computed").iter().map(|x| x.to_bits()),
                            );
                        }
                    }
                    engine.end(sequence).expect("begun");
                    match round {
                        0 => first.push(bits),
                        _ => assert!(
                            first[shapes] == bits,
                            "{rows} rows, {output_rows} output rows, {chosen:?}"
                        ),
                    }
                    shapes += 1;
                    assert!(engine.programs().count() <= 128);
                }
            }
        }
    }
    let statistics = engine.statistics();
    assert!(statistics.evicted > 0 && statistics.built - statistics.evicted == 128, "{statistics:?}");
}
