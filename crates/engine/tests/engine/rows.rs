//! Rows: their inputs, the outputs that they can request, and which rows fail if one is invalid.

use crate::common::*;
use verbatim_engine::{
    Backend, BatchError, HiddenOutput, LoadOptions, LogSoftmax, NextOutput, Row, RowError, RowInput,
    RowOutputs, Sampler, Sampling, SequenceId, Stepper,
};
use verbatim_models::outputs;
use verbatim_reference::Reference;
use verbatim_sample::{SampleInput, SampleScratch};

fn text(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 17 + i * 5 + 11 + seed * 101) % 300) as u32).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// The bits of the logits after every token of a text.
fn alone<B: Backend>(engine: &mut Stepper<B>, tokens: &[u32]) -> Vec<Vec<u32>> {
    let vocabulary = engine.hyperparameters().vocabulary;
    logits(engine, tokens, &[tokens.len()]).chunks(vocabulary).map(bits).collect()
}

fn tiny<B: Backend>(backend: B, model: &str, cache_bytes: usize) -> Stepper<B> {
    let options = LoadOptions { sequences: 4, context: Some(200), cache_bytes, ..LoadOptions::default() };
    engine_on(backend, model, options)
}

const fn row(sequence: SequenceId, kv_index: usize, token: u32) -> Row<'static> {
    Row { sequence, kv_index, input: RowInput::Token(token), want: RowOutputs::LOGITS }
}

/// Commits tokens of a sequence.
fn feed<B: Backend>(engine: &mut Stepper<B>, sequence: SequenceId, tokens: &[u32]) {
    let start = engine.append(sequence, tokens.len()).expect("room");
    let rows: Vec<Row> =
        tokens.iter().enumerate().map(|(i, &token)| row(sequence, start + i, token)).collect();
    engine.step(&rows).expect("a step").all().expect("in order");
    engine.commit(sequence, tokens.len()).expect("computed");
}

const MODELS: [&str; 6] = [
    "models/llama-gqa-tied/model.gguf",
    "models/gemma3-iswa/model.gguf",
    "models/qwen35-hybrid/model.gguf",
    "models/qwen3moe/model.gguf",
    "synthetic/granite",
    "quants/model/qwen3-256.Q4_K_M.gguf",
];

fn embeddings_are_like_tokens<B: Backend>(backend: impl Fn() -> B) {
    for model in MODELS {
        let mut engine = tiny(backend(), model, 0);
        let texts = [text(40, 0), text(40, 1), text(40, 2)];
        let wanted = texts.each_ref().map(|text| alone(&mut engine, text));
        let hidden = engine.hyperparameters().hidden;
        let given =
            texts.each_ref().map(|text| hidden_rows(&mut engine, text, &[HiddenOutput::Embedding]).remove(0));
        let sequences = [0; 3].map(|_| engine.begin().expect("free"));
        for chunk in [0..1, 1..18, 18..40] {
            let mut rows = Vec::new();
            for (index, &sequence) in sequences.iter().enumerate() {
                let start = engine.append(sequence, chunk.len()).expect("room");
                rows.extend(chunk.clone().enumerate().map(|(i, position)| {
                    // One text of tokens, one of embeddings, and one of both.
                    let is_token = [true, false, position % 3 == 0][index];
                    let input = match is_token {
                        true => RowInput::Token(texts[index][position]),
                        false => RowInput::Embedding(&given[index][position * hidden..][..hidden]),
                    };
                    Row { sequence, kv_index: start + i, input, want: RowOutputs::LOGITS }
                }));
            }
            let outputs = engine.step(&rows).expect("a step");
            for (i, _) in rows.iter().enumerate() {
                let (index, position) = (i / chunk.len(), chunk.start + i % chunk.len());
                let logits = bits(outputs.logits(i).expect("wanted"));
                assert!(logits == wanted[index][position], "{model}: text {index} at {position}");
            }
            drop(outputs);
            sequences.iter().for_each(|&sequence| engine.commit(sequence, chunk.len()).expect("computed"));
        }
        // The tokens of neither sequence tell where embeddings were.
        assert_eq!(engine.tokens(sequences[1]), Ok(&[u32::MAX; 40][..]));
    }
}

#[test]
fn an_embedding_gives_the_bits_of_its_token() {
    embeddings_are_like_tokens(|| cpu(1));
}

#[test]
fn an_embedding_gives_the_bits_of_its_token_on_the_reference() {
    embeddings_are_like_tokens(|| Reference);
}

#[test]
fn positions_after_an_embedding_are_not_reused() {
    for model in MODELS {
        let mut engine = tiny(cpu(1), model, 1 << 20);
        let tokens = text(150, 0);
        let wanted = alone(&mut tiny(cpu(1), model, 0), &tokens);
        let zeros = vec![0.0; engine.hyperparameters().hidden];
        for (at, most) in [(0, 0), (10, 10), (70, 70)] {
            engine.clear_cache();
            let writer = engine.begin().expect("free");
            let start = engine.append(writer, tokens.len()).expect("room");
            let mut rows: Vec<Row> =
                tokens.iter().enumerate().map(|(i, &token)| row(writer, start + i, token)).collect();
            rows[at].input = RowInput::Embedding(&zeros);
            let outputs = engine.step(&rows).expect("a step");
            assert!(bits(outputs.logits(at).expect("wanted")) != wanted[at], "{model}: it counts");
            engine.commit(writer, tokens.len()).expect("computed");
            let written = engine.tokens(writer).expect("begun").to_vec();
            for is_over in [false, true] {
                if is_over {
                    engine.end(writer).expect("begun");
                }
                for prompt in [&tokens, &written] {
                    let reader = engine.begin().expect("free");
                    let reused = engine.resume_prefix(reader, prompt).expect("empty");
                    assert!(reused <= most, "{model}: {reused} of {most}");
                    assert!(at != 70 || engine.is_recurrent() || reused >= 64, "{model}: {reused}");
                    let rest = &tokens[reused..];
                    let start = engine.append(reader, rest.len()).expect("room");
                    let rows: Vec<Row> =
                        rest.iter().enumerate().map(|(i, &token)| row(reader, start + i, token)).collect();
                    let outputs = engine.step(&rows).expect("a step");
                    for (i, wanted) in wanted[reused..].iter().enumerate() {
                        assert!(bits(outputs.logits(i).expect("wanted")) == *wanted, "{model}: {i}");
                    }
                    engine.rollback(reader).expect("begun");
                    engine.end(reader).expect("begun");
                }
            }
        }
    }
}

#[test]
fn sequences_with_different_embeddings_do_not_share_pages() {
    for model in MODELS {
        let mut engine = tiny(cpu(1), model, 1 << 20);
        let tokens = text(150, 0);
        for number in [0.5, -0.25] {
            let given = vec![number; engine.hyperparameters().hidden];
            let say = |engine: &mut Engine| {
                let sequence = engine.begin().expect("free");
                let mut results = Vec::new();
                for chunk in [0..100, 100..140, 140..150] {
                    let start = engine.append(sequence, chunk.len()).expect("room");
                    let mut rows: Vec<Row> =
                        chunk.clone().map(|i| row(sequence, start + i - chunk.start, tokens[i])).collect();
                    if chunk.start == 0 {
                        rows[10].input = RowInput::Embedding(&given);
                    }
                    let outputs = engine.step(&rows).expect("a step");
                    results.push(bits(outputs.logits(rows.len() - 1).expect("wanted")));
                    engine.commit(sequence, chunk.len()).expect("computed");
                }
                results
            };
            // The first sequence is still there, and its pages are in the prefix tree.
            assert!(say(&mut engine) == say(&mut tiny(cpu(1), model, 0)), "{model}: {number}");
            engine.integrity().expect("no embedding in the prefix tree");
        }
    }
}

/// Invalid rows, and whether an error is the one expected for them.
type Wrong<'a> = ([Row<'a>; 2], fn(&RowError) -> bool);

/// Invalid variants of the two rows of a sequence at consecutive KV indices.
fn wrong_rows<'a>([first, second]: [Row<'a>; 2], numbers: &'a [f32], ended: SequenceId) -> Vec<Wrong<'a>> {
    use RowInput::{Embedding, Token};
    let at = |kv_index| Row { kv_index, ..second };
    let given = |input| Row { input, ..second };
    let over = [first, second].map(|row| Row { sequence: ended, ..row });
    vec![
        ([first, given(Token(u32::MAX))], |error| matches!(error, RowError::Token { token: u32::MAX, .. })),
        ([first, given(Token(1 << 20))], |error| matches!(error, RowError::Token { .. })),
        ([first, given(Embedding(numbers))], |error| matches!(error, RowError::Embedding { given: 3, .. })),
        ([first, given(Embedding(&[]))], |error| matches!(error, RowError::Embedding { given: 0, .. })),
        ([first, at(0)], |error| matches!(error, RowError::Batch(BatchError::NotInFlight { kv_index: 0 }))),
        ([first, at(99)], |error| matches!(error, RowError::Batch(BatchError::NotInFlight { kv_index: 99 }))),
        ([first, at(usize::MAX)], |error| matches!(error, RowError::Batch(BatchError::NotInFlight { .. }))),
        ([second, first], |error| matches!(error, RowError::Batch(BatchError::Order { .. }))),
        ([first, first], |error| matches!(error, RowError::Batch(BatchError::Order { .. }))),
        ([second, second], |error| matches!(error, RowError::Batch(BatchError::Order { .. }))),
        (over, |error| matches!(error, RowError::Batch(BatchError::NoSuchSequence))),
    ]
}

fn only_the_invalid_sequence_fails<B: Backend>(backend: impl Fn() -> B) {
    for model in MODELS {
        let mut engine = tiny(backend(), model, 0);
        let texts = [0, 1, 2, 3].map(|index| text(7, index));
        let wanted = texts.each_ref().map(|text| alone(&mut engine, text));
        let ended = engine.begin().expect("free");
        engine.end(ended).expect("begun");
        let sequences = [0; 4].map(|_| engine.begin().expect("free"));
        for (sequence, text) in sequences.into_iter().zip(&texts) {
            feed(&mut engine, sequence, &text[..5]);
            engine.append(sequence, 2).expect("room");
        }
        let numbers = [0.5; 3];
        let pair =
            |index: usize| [5, 6].map(|kv_index| row(sequences[index], kv_index, texts[index][kv_index]));
        for bad in [0, 2, 3] {
            for (case, (wrong, expected)) in wrong_rows(pair(bad), &numbers, ended).into_iter().enumerate() {
                let rows: Vec<Row> =
                    (0..4).flat_map(|index| if index == bad { wrong } else { pair(index) }).collect();
                // Also where the rows of the sequences are mixed.
                let order = [[0, 1, 2, 3, 4, 5, 6, 7], [0, 2, 4, 6, 1, 3, 5, 7]][case % 2];
                let mixed = order.map(|row| rows[row]);
                let outputs = engine.step(&mixed).expect("a step");
                for (i, &row) in order.iter().enumerate() {
                    let (index, position) = (row / 2, 5 + row % 2);
                    let logits = outputs.logits(i).map(bits);
                    if index == bad {
                        let error = outputs.row(i).expect_err("rejected");
                        assert!(expected(&error), "{model}: case {case}: {error}");
                        assert!(logits.is_none() && outputs.log_probs(i).is_none());
                        assert_eq!(outputs.token(i), Err(error));
                    } else {
                        outputs.row(i).expect("computed");
                        assert!(logits.as_ref() == Some(&wanted[index][position]), "{model}: case {case}");
                    }
                }
                assert!(outputs.all().is_err());
                drop(outputs);
                // Without other sequences there is nothing to run; with valid rows, the sequence continues.
                let outputs = engine.step(&wrong).expect("no rows");
                assert!(outputs.row(0).is_err() && outputs.logits(0).is_none());
                drop(outputs);
                let outputs = engine.step(&pair(bad)).expect("a step");
                for (i, wanted) in wanted[bad][5..].iter().enumerate() {
                    assert!(outputs.logits(i).map(bits).as_ref() == Some(wanted), "{model}: case {case}");
                }
                drop(outputs);
                engine.integrity().expect("consistent cache metadata");
            }
        }
        for (sequence, text) in sequences.into_iter().zip(&texts) {
            engine.commit(sequence, 2).expect("computed");
            assert_eq!(engine.tokens(sequence), Ok(&text[..]));
        }
    }
}

#[test]
fn an_invalid_row_fails_only_its_sequence() {
    only_the_invalid_sequence_fails(|| cpu(1));
}

#[test]
fn an_invalid_row_fails_only_its_sequence_on_the_reference() {
    only_the_invalid_sequence_fails(|| Reference);
}

/// A sampler whose token depends on the random number with which it was drawn.
fn keyed() -> [Sampler; 2] {
    [(1.5, 3), (4.0, 4)]
        .map(|(temperature, seed)| Sampler::new(Sampling::unfiltered(temperature, seed), 0).expect("valid"))
}

/// The token that a sampler draws from these logits outside the graph.
fn sampled(sampler: &Sampler, logits: &[f32], position: u64) -> Option<u32> {
    let input = SampleInput { logits, position, history: &[], mask: None, state: sampler.start() };
    sampler.sample(&input, &mut SampleScratch::default()).map(|sampled| sampled.token)
}

fn wants_are_given<B: Backend>(backend: impl Fn() -> B) {
    for model in MODELS {
        let mut engine = tiny(backend(), model, 0);
        let layers = engine.hyperparameters().layers as u32;
        let tokens = text(30, 5);
        let points = [
            HiddenOutput::Embedding,
            HiddenOutput::Layer(0),
            HiddenOutput::Layer(layers - 1),
            HiddenOutput::FinalNorm,
        ];
        let states = hidden_rows(&mut engine, &tokens, &points);
        let wanted = alone(&mut engine, &tokens);
        let hidden = engine.hyperparameters().hidden;
        let [warm, hot] = keyed();
        let sequence = engine.begin().expect("free");
        let start = engine.append(sequence, tokens.len()).expect("room");
        let point = |position: usize| &points[position % 4..][..usize::from(position.is_multiple_of(5))];
        let next = |position: usize| match position % 6 {
            0 => NextOutput::Token((&warm).into()),
            1 => NextOutput::LogProbs,
            3 => NextOutput::Token((&hot).into()),
            4 => NextOutput::Logits,
            _ => NextOutput::None,
        };
        let rows: Vec<Row> = (0..30)
            .map(|i| Row {
                want: RowOutputs { next: next(i), hidden: point(i) },
                ..row(sequence, start + i, tokens[i])
            })
            .collect();
        let outputs = engine.step(&rows).expect("a step");
        for position in 0..30 {
            let want = rows[position].want;
            let logits = outputs.logits(position);
            let wants_logits = matches!(want.next, NextOutput::Logits | NextOutput::LogProbs);
            assert_eq!(logits.is_some(), wants_logits);
            assert!(logits.is_none_or(|logits| bits(logits) == wanted[position]), "{model} at {position}");
            let token = match want.next {
                NextOutput::Token(draw) => {
                    let logits: Vec<f32> =
                        wanted[position].iter().map(|&bits| f32::from_bits(bits)).collect();
                    sampled(draw.sampler, &logits, position as u64 + 1)
                }
                _ => None,
            };
            assert_eq!(outputs.token(position), Ok(token), "{model} at {position}");
            let nll = |probs: Option<LogSoftmax<'_>>| probs.and_then(|probs| probs.nll(7)).map(f64::to_bits);
            assert_eq!(nll(outputs.log_probs(position)), nll(logits.and_then(LogSoftmax::new)));
            for point in want.hidden {
                let index = points.iter().position(|other| other == point).expect("one of them");
                let state = &states[index][position * hidden..][..hidden];
                assert!(outputs.hidden(*point, position) == Some(state), "{model} {point:?} at {position}");
            }
        }
        assert!(outputs.hidden(HiddenOutput::Layer(99), 0).is_none());
        drop(outputs);
        engine.commit(sequence, 30).expect("computed");

        // In a tree a position is a depth; and what was removed still counts.
        let mut removed = 0;
        for round in 0..3 {
            let len = engine.len(sequence).expect("begun");
            let parents = [None, Some(0), Some(0), None, Some(3), Some(4)];
            let depths = [0, 1, 1, 0, 1, 2];
            let start = engine.append_tree(sequence, &parents).expect("room");
            let want = [RowOutputs::token(&warm), RowOutputs::token(&hot)];
            let mut rows: Vec<Row> = (0..6).map(|i| row(sequence, start + i, 40 + i as u32)).collect();
            let outputs = engine.step(&rows).expect("a step");
            let logits: Vec<Vec<f32>> = (0..6).map(|i| outputs.logits(i).expect("wanted").to_vec()).collect();
            drop(outputs);
            (0..6).for_each(|i| rows[i].want = want[i % 2]);
            let outputs = engine.step(&rows).expect("the same step");
            for (i, depth) in depths.iter().enumerate() {
                let sampler = [&warm, &hot][i % 2];
                let number = (removed + len + depth + 1) as u64;
                let token = sampled(sampler, &logits[i], number);
                assert_eq!(outputs.token(i), Ok(token), "{model}: round {round}, row {i}");
            }
            drop(outputs);
            engine.commit_path(sequence, &[3, 4]).expect("a path");
            if engine.can_shift().is_ok() && engine.remove_and_shift(sequence, 3..10).is_ok() {
                removed += 7;
                assert_eq!(engine.removed_count(sequence), Ok(removed));
            }
        }
    }
}

#[test]
fn every_row_gets_the_outputs_it_requests() {
    wants_are_given(|| cpu(1));
}

#[test]
fn every_row_gets_the_outputs_it_requests_on_the_reference() {
    wants_are_given(|| Reference);
}

#[test]
fn logits_that_no_row_requests_are_not_computed() {
    // In the last, other matrices have as many rows as the vocabulary.
    for &model in &MODELS[..5] {
        let mut engine = engine(model, LoadOptions::default());
        let sequence = engine.begin().expect("free");
        engine.append(sequence, 5).expect("room");
        let vocabulary = engine.hyperparameters().vocabulary;
        let last = HiddenOutput::Layer(engine.hyperparameters().layers as u32 - 1);
        for want in [RowOutputs::NONE, RowOutputs { hidden: &[last], ..RowOutputs::NONE }, RowOutputs::LOGITS]
        {
            let rows: Vec<Row> = (0..5).map(|i| Row { want, ..row(sequence, i, 3 + i as u32) }).collect();
            let outputs = engine.step(&rows).expect("a step");
            assert_eq!(outputs.logits(4).is_some(), matches!(want.next, NextOutput::Logits));
        }
        let mut counts = [0; 2];
        for (bounds, program) in engine.programs() {
            let wants = bounds.output_rows > 0;
            let graph = program.plan().graph();
            assert_eq!(graph.outputs().iter().any(|(tag, _)| *tag == outputs::LOGITS), wants, "{model}");
            let has_head = graph.nodes().iter().any(|node| graph.value(node.output).shape.cols == vocabulary);
            assert_eq!(has_head, wants, "{model}: {bounds:?}");
            counts[usize::from(wants)] += 1;
        }
        assert_eq!(counts, [2, 1]);
    }
}
