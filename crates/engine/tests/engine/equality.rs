//! The guarantee: a row's outputs do not depend on the other rows of the step (batch invariance), on how tokens are split into
//! steps, on the number of threads, on the instruction set or on the cells in which the sequence is stored.

use crate::common::*;
use verbatim_cpu::Cpu;
use verbatim_engine::{KvType, LoadOptions, Row, RowInput, RowOutputs};
use verbatim_simd::Isa;

fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * i * 31 + i * 7 + 3) % vocabulary) as u32).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_batch_size_gives_the_same_bits() {
    for model in &tiny_models() {
        let mut engine = engine(model, LoadOptions::default());
        let tokens = tokens(150, engine.hyperparameters().vocabulary);
        let one_by_one = bits(&logits(&mut engine, &tokens, &[1]));
        for batch_size in [2, 3, 4, 5, 7, 8, 16, 31, 64, 150] {
            assert!(
                bits(&logits(&mut engine, &tokens, &[batch_size])) == one_by_one,
                "{model} batch size {batch_size}"
            );
        }
        for splits in [&[64, 64][..], &[63, 2, 64, 1], &[1, 100, 3, 46], &[13]] {
            assert!(bits(&logits(&mut engine, &tokens, splits)) == one_by_one, "{model} splits {splits:?}");
        }
    }
}

#[test]
fn a_prompt_can_be_split_anywhere() {
    for model in &tiny_models() {
        let mut engine = engine(model, LoadOptions::default());
        // Past the edge of a page and of every window.
        let tokens = tokens(67, engine.hyperparameters().vocabulary);
        let whole = bits(&logits(&mut engine, &tokens, &[67]));
        for split in 1..67 {
            assert!(
                bits(&logits(&mut engine, &tokens, &[split, 67 - split])) == whole,
                "{model} split at {split}"
            );
        }
    }
}

#[test]
fn a_prompt_of_512_tokens_gives_the_bits_of_single_tokens() {
    for model in &tiny_models() {
        let mut engine = engine(model, LoadOptions { context: Some(600), ..Default::default() });
        let tokens = tokens(520, engine.hyperparameters().vocabulary);
        let one_by_one = bits(&logits(&mut engine, &tokens, &[1]));
        assert!(bits(&logits(&mut engine, &tokens, &[512])) == one_by_one, "{model}");
    }
}

#[test]
fn threads_and_instruction_sets_give_the_same_bits() {
    for model in &tiny_models() {
        for (k, v) in [(KvType::F32, KvType::F16), (KvType::F16, KvType::F32)] {
            let mut reference = None;
            for threads in [1, 2, 3, 8] {
                for isa in Isa::supported() {
                    let options = LoadOptions { k, v, ..LoadOptions::default() };
                    let backend = Cpu::with_isa(threads, isa).expect("supported");
                    let mut engine = engine_on(backend, model, options);
                    let tokens = tokens(70, engine.hyperparameters().vocabulary);
                    let given = bits(&logits(&mut engine, &tokens, &[66, 1]));
                    let reference = reference.get_or_insert_with(|| given.clone());
                    assert!(given == *reference, "{model}: {threads} threads on {}", isa.name());
                }
            }
        }
    }
}

#[test]
fn sequences_are_isolated_and_independent_of_their_cells() {
    for model in &tiny_models() {
        let mut engine =
            engine(model, LoadOptions { sequences: 4, context: Some(256), ..LoadOptions::default() });
        let vocabulary = engine.hyperparameters().vocabulary;
        let texts: Vec<Vec<u32>> = [(90, 0), (70, 11), (130, 5)]
            .map(|(n, skip)| tokens(n + skip, vocabulary)[skip..].to_vec())
            .to_vec();
        let alone: Vec<Vec<u32>> =
            texts.iter().map(|text| bits(&logits(&mut engine, text, &[512]))).collect();

        // The same texts at once, in steps that mix them in changing numbers, with rejected draft tokens in between.
        let sequences: Vec<_> = texts.iter().map(|_| engine.begin().expect("free")).collect();
        let mut together: Vec<Vec<u32>> = vec![Vec::new(); texts.len()];
        let mut computed = vec![0; texts.len()];
        let mut round = 0;
        while computed.iter().zip(&texts).any(|(computed, text)| *computed < text.len()) {
            let mut rows = Vec::new();
            let mut takes = Vec::new();
            for (i, text) in texts.iter().enumerate() {
                let take = ((round * 7 + i * 5) % 9).min(text.len() - computed[i]);
                let drafted = (round + i) % 3;
                let start = engine.append(sequences[i], take + drafted).expect("room");
                let draft = |j: usize| ((computed[i] + j * 13) % vocabulary) as u32;
                let chunk = text[computed[i]..][..take].iter().copied().chain((0..drafted).map(draft));
                rows.extend(chunk.enumerate().map(|(j, token)| Row {
                    sequence: sequences[i],
                    kv_index: start + j,
                    input: RowInput::Token(token),
                    want: RowOutputs::LOGITS,
                }));
                takes.push((take, drafted));
            }
            if !rows.is_empty() {
                let outputs = engine.step(&rows).expect("a step");
                let mut row = 0;
                for (i, &(take, drafted)) in takes.iter().enumerate() {
                    for j in 0..take {
                        together[i].extend(bits(outputs.logits(row + j).expect("wanted")));
                    }
                    row += take + drafted;
                }
            }
            for (i, &(take, _)) in takes.iter().enumerate() {
                engine.commit(sequences[i], take).expect("in flight");
                computed[i] += take;
            }
            round += 1;
        }
        assert!(together == alone, "{model}");
    }
}
