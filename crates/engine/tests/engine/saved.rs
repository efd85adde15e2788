//! Sequences that are saved and resumed in another process, with the same outputs as if uninterrupted.

use crate::common::*;
use std::path::Path;
use std::process::Command;
use verbatim_engine::{
    Backend, KvType, LoadOptions, RestoreError, Sampler, Sampling, SaveError, SavedFile, SequenceId, Stepper,
};
use verbatim_graph::random::Random;
use verbatim_reference::Reference;

const MODELS: [&str; 4] = ["llama-gqa-tied", "gemma3-iswa", "qwen35-hybrid", "qwen3moe"];
/// A draft model, in a stepper of its own.
const DRAFT: &str = "qwen3";
const REST: usize = 64;
/// Names the file to the process that goes on, and the model.
const CONTINUE: &str = "VERBATIM_TEST_CONTINUE";

fn load(model: &str, k: KvType) -> Engine {
    let options =
        LoadOptions { sequences: 2, context: Some(300), k, v: KvType::Q5_0, ..LoadOptions::default() };
    engine(&format!("models/{model}/model.gguf"), options)
}

/// A target and a draft model, which compute the same tokens.
struct Pair {
    target: (Engine, SequenceId),
    draft: (Engine, SequenceId),
    next: Vec<u32>,
}

impl Pair {
    fn step(&mut self) -> [u32; 2] {
        let sampler = Sampler::new(Sampling::unfiltered(0.7, 3), 0).expect("valid");
        let say = |(engine, sequence): &mut (Engine, SequenceId)| {
            let token = engine.advance(*sequence, &self.next, &sampler, || true);
            token.expect("fits").expect("not stopped").token
        };
        let (said, proposed) = (say(&mut self.target), say(&mut self.draft));
        self.next = vec![said % 500];
        [said, proposed]
    }
}

#[test]
fn a_saved_sequence_resumes_in_another_process() {
    if let Ok(argument) = std::env::var(CONTINUE) {
        let (model, path) = argument.split_once(' ').expect("model and file");
        return restore_and_continue(model, Path::new(path));
    }
    for model in MODELS {
        let (mut target, mut draft) = (load(model, KvType::Q8_0), load(DRAFT, KvType::F16));
        let (in_target, in_draft) = (target.begin().expect("free"), draft.begin().expect("free"));
        let next = (0..70).map(|i| (i * 31 + 7) % 500).collect();
        let mut pair = Pair { target: (target, in_target), draft: (draft, in_draft), next };
        // Past the window of 16, and past the end of a page.
        for _ in 0..20 {
            pair.step();
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("sequence");
        let sections = vec![
            ("draft", pair.draft.0.save(in_draft).expect("begun")),
            ("next", pair.next[0].to_le_bytes().to_vec()),
        ];
        pair.target.0.save_file(in_target, sections.clone(), &path).expect("written");
        let rest: Vec<u8> = (0..REST).flat_map(|_| pair.step()).flat_map(u32::to_le_bytes).collect();
        std::fs::write(path.with_extension("rest"), rest).expect("written");

        let test = std::env::current_exe().expect("this program");
        let argument = format!("{model} {}", path.display());
        let name = "saved::a_saved_sequence_resumes_in_another_process";
        let other =
            Command::new(test).args(["--exact", name]).env(CONTINUE, argument).output().expect("runs");
        let output = String::from_utf8_lossy(&other.stdout);
        assert!(other.status.success() && output.contains("1 passed"), "{model}: {output}");
    }
}

fn restore_and_continue(model: &str, path: &Path) {
    let (mut target, mut draft) = (load(model, KvType::Q8_0), load(DRAFT, KvType::F16));
    let (restored, saved) = target.restore_file(path).expect("whole");
    assert_eq!(restored.positions, 89);
    let in_draft = draft.restore(saved.section("draft").expect("saved"), Vec::new()).expect("whole").sequence;
    let next = u32::from_le_bytes(saved.section("next").expect("saved").try_into().expect("4 bytes"));
    let mut pair = Pair { target: (target, restored.sequence), draft: (draft, in_draft), next: vec![next] };
    let said: Vec<u8> = (0..REST).flat_map(|_| pair.step()).flat_map(u32::to_le_bytes).collect();
    let wanted = std::fs::read(path.with_extension("rest")).expect("written before");
    assert!(said == wanted && said.len() == 8 * REST, "{model}");
}

#[test]
fn invalid_files_are_rejected_with_a_reason_and_change_nothing() {
    let mut engine = load("gemma3-iswa", KvType::Q8_0);
    let sequence = engine.begin().expect("free");
    let sampler = Sampler::greedy();
    let prompt: Vec<u32> = (0..80).collect();
    engine.advance(sequence, &prompt, &sampler, || true).expect("fits");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("sequence");
    engine.save_file(sequence, Vec::new(), &path).expect("written");
    let whole = std::fs::read(&path).expect("written");

    let mut random = Random(6);
    let mut files: Vec<Vec<u8>> = Vec::new();
    files.extend([0, 7, 8, 20, whole.len() / 2, whole.len() - 1].map(|len| whole[..len].to_vec()));
    files.extend((0..14).map(|_| {
        let mut damaged = whole.clone();
        damaged[random.below(whole.len())] ^= 1 << random.below(8);
        damaged
    }));
    files.extend([[&whole[..], &[0]].concat(), b"GGUF and so on".to_vec()]);
    let mut empty = Vec::new();
    SavedFile::default().write(&mut empty).expect("to memory");
    files.push(empty);
    let other = folder.path().join("other");
    for (index, bytes) in files.iter().enumerate() {
        std::fs::write(&other, bytes).expect("written");
        let error = engine.restore_file(&other).err().unwrap_or_else(|| panic!("file {index} was accepted"));
        assert!(error.to_string().starts_with(&other.display().to_string()), "{error}");
        assert!(!matches!(error, SaveError::Io { .. }), "{error}");
    }
    // Valid, but of a different model or KV cache type.
    for (model, k) in [("qwen3", KvType::Q8_0), ("gemma3-iswa", KvType::Q4_0), ("gemma3-iswa", KvType::F16)] {
        let error = load(model, k).restore_file(&path).expect_err("a different format");
        assert!(matches!(error, SaveError::Restore { .. }), "{error}");
    }
    assert!(matches!(engine.restore_file(&folder.path().join("none")), Err(SaveError::Io { .. })));
    let in_a_folder = folder.path().join("none").join("sequence");
    assert!(matches!(engine.save_file(sequence, Vec::new(), &in_a_folder), Err(SaveError::Io { .. })));
    engine.integrity().expect("consistent cache metadata");
    let (restored, _) = engine.restore_file(&path).expect("whole");
    assert_eq!(restored.positions, 80);
    assert_eq!(engine.save(restored.sequence), engine.save(sequence));
}

#[test]
fn a_sequence_saved_by_a_different_backend_is_rejected() {
    for model in MODELS {
        let path = format!("models/{model}/model.gguf");
        let options = LoadOptions { sequences: 2, context: Some(100), ..LoadOptions::default() };
        let mut ours = engine_on(cpu(1), &path, options);
        let mut theirs = engine_on(Reference, &path, options);
        let saved = (saved_by(&mut ours), saved_by(&mut theirs));
        let rejected = |error: RestoreError| {
            assert!(matches!(error, RestoreError::NumericsMismatch { .. }), "{error}");
            assert!(error.to_string().contains("by a different backend or version of it"), "{error}");
        };
        rejected(ours.restore(&saved.1, Vec::new()).expect_err("the reference's"));
        rejected(theirs.restore(&saved.0, Vec::new()).expect_err("the CPU's"));
        assert_eq!(ours.restore(&saved.0, Vec::new()).expect("its own").positions, 30);
        assert_eq!(theirs.restore(&saved.1, Vec::new()).expect("its own").positions, 30);
    }
}

fn saved_by<B: Backend>(engine: &mut Stepper<B>) -> Vec<u8> {
    let sequence = engine.begin().expect("free");
    let sampler = Sampler::greedy();
    engine.advance(sequence, &(0..30).collect::<Vec<u32>>(), &sampler, || true).expect("fits");
    engine.save(sequence).expect("begun")
}

#[test]
fn steps_without_logits_store_the_same_state_as_steps_with_logits() {
    // A pass without logits prunes the last layer's queries: it stores K and V, and nobody attends (llama.cpp #25191).
    for model in ["llama-gqa-tied", "gemma3-iswa", "qwen35-hybrid"] {
        let all = [(KvType::Q8_0, KvType::Q8_0), (KvType::Q4_0, KvType::Iq4Nl), (KvType::Q5_1, KvType::F16)];
        for (context, types) in [(64, &all[..]), (4096, &all[1..2]), (8192, &all[..1])] {
            for &(k, v) in types {
                let options = LoadOptions { context: Some(context), k, v, ..exact() };
                let mut engine = engine(&format!("models/{model}/model.gguf"), options);
                let tokens: Vec<u32> =
                    (0..context as u32 - 2).map(|i| i.wrapping_mul(2_654_435_761) % 500).collect();
                let last = |engine: &mut Engine, cut: usize| {
                    let sequence = engine.begin().expect("free");
                    let sampler = Sampler::new(Sampling::unfiltered(1.0, 1), 0).expect("valid");
                    let mut said = None;
                    for part in tokens.chunks(cut) {
                        said = engine.advance(sequence, part, &sampler, || true).expect("fits");
                    }
                    let saved = engine.save(sequence).expect("begun");
                    engine.end(sequence).expect("begun");
                    (said, saved)
                };
                // In one call, only the last step wants logits; in parts, the last step of each part does.
                let stored = last(&mut engine, tokens.len());
                assert!(
                    stored == last(&mut engine, 500.min(context / 2)),
                    "{model} {context} {}/{}",
                    k.name(),
                    v.name()
                );
            }
        }
    }
}
