//! The perplexity of models of the golden data, against a naive computation.

use verbatim_cpu::Cpu;
use verbatim_engine::{KvType, LoadOptions, Row, RowInput, RowOutputs, SequenceMemory, Stepper};
use verbatim_gguf::GgufFile;
use verbatim_lab::evaluation::{Chunks, Evaluation, EvaluationError, evaluate};

fn engine(model: &str, context: usize, cache: KvType) -> Stepper<Cpu> {
    let path = format!("{}/../../tests/data/models/{model}/model.gguf", env!("CARGO_MANIFEST_DIR"));
    let options = LoadOptions { context: Some(context), k: cache, v: cache, ..LoadOptions::default() };
    Stepper::load(Cpu::new(2).unwrap(), &GgufFile::open(path).unwrap(), &options).unwrap()
}

fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 31 + i * 7 + 3) % vocabulary) as u32).collect()
}

/// Logarithms of the probabilities of every token after every token, one step per token.
fn log_probabilities(engine: &mut Stepper<Cpu>, tokens: &[u32]) -> Vec<Vec<f64>> {
    let sequence = engine.begin().unwrap();
    let rows = tokens.iter().map(|&token| {
        let position = engine.append(sequence, 1).unwrap();
        let row =
            Row { sequence, kv_index: position, input: RowInput::Token(token), want: RowOutputs::LOGITS };
        let logits = engine.step(&[row]).unwrap().logits(0).unwrap().to_vec();
        engine.commit(sequence, 1).unwrap();
        let total: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        logits.iter().map(|&x| f64::from(x) - total.ln()).collect()
    });
    let rows = rows.collect();
    engine.end(sequence).unwrap();
    rows
}

fn all(engine: &mut Stepper<Cpu>, baseline: Option<SequenceMemory<Cpu>>, chunks: &Chunks<'_>) -> Evaluation {
    evaluate(engine, baseline, chunks, &mut |_| {}, &mut || true).unwrap()
}

fn close(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 1e-9 * wanted.abs().max(1.0), "{found}, not {wanted}");
}

#[test]
fn the_second_half_of_every_chunk_is_scored() {
    const SIZE: usize = 151;
    for model in ["qwen3", "gemma3-iswa", "qwen35-hybrid"] {
        let mut engine = engine(model, SIZE, KvType::F16);
        let text = tokens(2 * SIZE + 40, engine.hyperparameters().vocabulary);
        for bos in [None, Some(5)] {
            let mut nlls = Vec::new();
            for chunk in text.chunks_exact(SIZE) {
                let mut read = chunk.to_vec();
                read[0] = bos.unwrap_or(read[0]);
                let said = log_probabilities(&mut engine, &read);
                nlls.extend((SIZE / 2..SIZE - 1).map(|i| -said[i][chunk[i + 1] as usize]));
            }
            let chunks = Chunks::new(&text, SIZE, None, bos).unwrap();
            assert_eq!((chunks.count(), chunks.size()), (2, SIZE));
            let evaluation = all(&mut engine, None, &chunks);
            assert_eq!((evaluation.chunks, evaluation.nll.count()), (2, nlls.len()), "{model}");
            let count = nlls.len() as f64;
            let mean = nlls.iter().sum::<f64>() / count;
            let squares: f64 = nlls.iter().map(|nll| (nll - mean).powi(2)).sum();
            close(evaluation.nll.mean(), mean);
            close(evaluation.nll.standard_error(), (squares / (count - 1.0) / count).sqrt());
            close(evaluation.perplexity(), mean.exp());
            close(evaluation.perplexity_error(), mean.exp() * evaluation.nll.standard_error());
            assert_eq!(evaluation.divergence.count(), 0);
        }
    }
}

#[test]
fn the_kl_divergence_is_from_the_reference_to_the_model() {
    const SIZE: usize = 40;
    let (mut model, mut baseline) = (engine("qwen3", SIZE, KvType::F16), engine("qwen3", SIZE, KvType::F32));
    let text = tokens(SIZE, model.hyperparameters().vocabulary);
    let (q, p) = (log_probabilities(&mut model, &text), log_probabilities(&mut baseline, &text));
    let divergence = |i: usize| -> f64 { p[i].iter().zip(&q[i]).map(|(p, q)| p.exp() * (p - q)).sum() };
    let wanted = (SIZE / 2..SIZE - 1).map(divergence).sum::<f64>() / (SIZE / 2 - 1) as f64;
    let chunks = Chunks::new(&text, SIZE, None, None).unwrap();
    let exact = model.new_memory(KvType::F32, KvType::F32, true).unwrap();
    let found = all(&mut model, Some(exact), &chunks);
    assert_eq!(found.divergence.count(), found.nll.count());
    assert!(found.divergence.mean() > 0.0);
    assert!((found.divergence.mean() - wanted).abs() < 1e-12, "{} {wanted}", found.divergence.mean());
    let same = model.new_memory(KvType::F16, KvType::F16, true).unwrap();
    assert_eq!(all(&mut model, Some(same), &chunks).divergence.mean(), 0.0);
    assert_eq!(all(&mut model, None, &chunks).nll, found.nll);
}

#[test]
fn a_caller_can_stop_between_steps_and_gets_partial_results() {
    let mut engine = engine("qwen3", 400, KvType::F16);
    let text = tokens(1200, engine.hyperparameters().vocabulary);
    let chunks = Chunks::new(&text, 400, Some(2), None).unwrap();
    assert_eq!(chunks.count(), 2);
    let (mut seen, mut steps) = (Vec::new(), 0);
    // A chunk takes a step without logits and four with them: this stops before the second such step of the second.
    let stopped = evaluate(&mut engine, None, &chunks, &mut |so_far| seen.push(*so_far), &mut || {
        steps += 1;
        steps < 8
    });
    let stopped = stopped.unwrap();
    assert_eq!((stopped.chunks, stopped.nll.count()), (1, 199 + 64));
    assert_eq!((seen.len(), seen[0].chunks, seen[0].nll.count()), (1, 1, 199));
    // The sequence was given back.
    assert_eq!(all(&mut engine, None, &chunks).nll.count(), 2 * 199);
}

#[test]
fn invalid_evaluations_are_rejected() {
    let message = |tokens: &[u32], size| Chunks::new(tokens, size, None, None).unwrap_err().to_string();
    for size in 0..3 {
        assert!(message(&[0; 9], size).contains(&format!("chunks of {size} tokens are too short")));
    }
    assert!(message(&[0; 9], 10).contains("the text has 9 tokens, fewer than one chunk of 10"));
    let mut engine = engine("qwen3", 8, KvType::F16);
    // Too long for the context, or not a token: the error leaves the sequence free.
    for (text, size) in [(vec![1; 10], 10), (vec![u32::MAX; 8], 8)] {
        let chunks = Chunks::new(&text, size, None, None).unwrap();
        let error = evaluate(&mut engine, None, &chunks, &mut |_| {}, &mut || true).unwrap_err();
        assert!(matches!(error, EvaluationError::State(_) | EvaluationError::Step(_)), "{error}");
    }
    let text = [1; 8];
    assert_eq!(all(&mut engine, None, &Chunks::new(&text, 8, None, None).unwrap()).chunks, 1);
}
