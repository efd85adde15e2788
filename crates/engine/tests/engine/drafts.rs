//! EAGLE-3 and DFlash drafts of tiny targets against other implementations: fused features, logits, draft tokens, and whole
//! speculative runs, round by round.

use crate::common::*;
use serde_json::Value;
use std::path::PathBuf;
use verbatim_engine::{
    Backend, DraftOptions, DraftRequest, HiddenOutput, KvType, LoadOptions, ModelId, Row, RowInput,
    RowOutputs, Sampler, SequenceId, Stepper,
};
use verbatim_gguf::GgufFile;
use verbatim_reference::Reference;

const EXACT: DraftOptions =
    DraftOptions { k: KvType::F32, v: KvType::F32, hadamard: false, backend_sampling: true };
const DRAFTS: [&str; 4] = ["llama.eagle3", "llama.dflash", "qwen3.eagle3", "qwen3.dflash"];

fn folder(draft: &str) -> PathBuf {
    data("drafts").join(draft)
}

fn json(draft: &str, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(folder(draft).join(name)).expect("a file")).expect("JSON")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().expect("ids").iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn draft_file(draft: &str) -> GgufFile {
    GgufFile::open(folder(draft).join("draft.gguf")).expect("a draft model")
}

/// A target with its draft model, of the target that its description names.
fn pair<B: Backend>(backend: B, draft: &str, description: &Value) -> (Stepper<B>, ModelId) {
    let target = model_file(description["target"].as_str().expect("a path"));
    let options = LoadOptions { sequences: 2, ..exact() };
    let mut stepper = Stepper::load(backend, &target, &options).expect("a target");
    let model = stepper.append_draft(&draft_file(draft), &target, &EXACT).expect("a draft model that fits");
    (stepper, model)
}

/// Computes tokens with the target, in steps of at most `chunk` rows, and commits them. Returns the greedy next token, and the
/// fused features of the last rows.
fn prefill<B: Backend>(
    stepper: &mut Stepper<B>,
    sequence: SequenceId,
    tokens: &[u32],
    chunk: usize,
) -> (u32, Vec<Vec<f32>>) {
    let greedy = Sampler::greedy();
    let mut fused = Vec::new();
    let mut next = None;
    for tokens in tokens.chunks(chunk) {
        let start = stepper.append(sequence, tokens.len()).expect("room");
        let want = RowOutputs { hidden: &[HiddenOutput::Fused(0)], ..RowOutputs::token(&greedy) };
        let row =
            |(index, &token)| Row { sequence, kv_index: start + index, input: RowInput::Token(token), want };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        let outputs = stepper.step(&rows).expect("a step");
        next = outputs.token(rows.len() - 1).expect("computed");
        let of_row = |row| outputs.hidden(HiddenOutput::Fused(0), row).expect("wanted").to_vec();
        fused.extend((0..rows.len()).map(of_row));
        drop(outputs);
        stepper.commit(sequence, tokens.len()).expect("computed");
    }
    (next.expect("a token"), fused.split_off(fused.len() - tokens.len().min(8)))
}

/// The ids of the draft vocabulary in the target's.
fn draft_vocabulary(draft: &str) -> Option<Vec<usize>> {
    let file = draft_file(draft);
    let ids = file.tensor("d2t")?.data().expect("readable").as_chunks::<8>().0.to_vec();
    Some(ids.into_iter().map(|id| i64::from_le_bytes(id) as usize).collect())
}

/// The logits of the draft tokens, by the method of the draft model.
fn draft_logits<B: Backend>(
    stepper: &mut Stepper<B>,
    model: ModelId,
    sequence: SequenceId,
    inputs: &[u32],
    is_block: bool,
) -> Vec<Vec<f32>> {
    let start = stepper.append(sequence, inputs.len()).expect("room");
    let row = |(index, &token)| Row {
        sequence,
        kv_index: start + index,
        input: RowInput::Token(token),
        want: RowOutputs::LOGITS,
    };
    let rows: Vec<Row> = inputs.iter().enumerate().map(row).collect();
    let mut logits = Vec::new();
    for rows in rows.chunks(if is_block { rows.len() } else { 1 }) {
        let outputs = stepper.step_with(model, rows).expect("a step");
        outputs.all().expect("all rows");
        logits.extend((0..rows.len()).map(|row| outputs.logits(row).expect("wanted").to_vec()));
    }
    stepper.rollback(sequence).expect("begun");
    logits.split_off(usize::from(is_block))
}

fn proposals_agree<B: Backend>(backend: impl Fn() -> B) {
    for draft in DRAFTS {
        let (meta, is_block) = (json(draft, "meta.json"), draft.ends_with("dflash"));
        let golden = Golden::open(&format!("drafts/{draft}/golden.safetensors"));
        let vocabulary = draft_vocabulary(draft);
        let (mut stepper, model) = pair(backend(), draft, &meta);
        let (mut worst_fused, mut worst_logit) = (0.0f64, 0.0f64);
        for (index, case) in meta["cases"].as_array().expect("cases").iter().enumerate() {
            for chunk in [512, 7] {
                let sequence = stepper.begin().expect("free");
                let prefix = ids(&case["prefix_ids"]);
                let (next, fused) = prefill(&mut stepper, sequence, &prefix, chunk);
                assert_eq!(u64::from(next), case["id_last"].as_u64().expect("an id"), "{draft} {index}");
                let name = if is_block { "context_last8" } else { "fused_g_last8" };
                let (_, wanted) = golden.f32(&format!("case{index}.{name}"));
                worst_fused = worst_fused.max(worst(&fused.concat(), &wanted));

                let wanted_ids = ids(&case["draft_ids"]);
                let mut tokens = prefix.clone();
                tokens.push(next);
                let sampler = Sampler::greedy();
                let mut request = DraftRequest {
                    sequence,
                    tokens: &mut tokens,
                    pending: 1,
                    sampler: &sampler,
                    state: sampler.start(),
                    max: wanted_ids.len(),
                    p_min: 0.0,
                };
                stepper.draft(model, std::slice::from_mut(&mut request)).expect("a step");
                assert_eq!(tokens[prefix.len() + 1..], wanted_ids, "{draft} {index} {chunk}");

                let mut inputs = vec![next];
                let mask = draft_file(draft).metadata().get_u32("tokenizer.ggml.mask_token_id");
                match mask.expect("valid").filter(|_| is_block) {
                    Some(mask) => inputs.resize(wanted_ids.len() + 1, mask),
                    None => inputs.extend(&wanted_ids[..wanted_ids.len() - 1]),
                }
                let given = draft_logits(&mut stepper, model, sequence, &inputs, is_block);
                let (shape, wanted) = golden.f32(&format!("case{index}.draft_logits"));
                let given: Vec<f32> = match &vocabulary {
                    None => given.concat(),
                    Some(ids) => given.iter().flat_map(|row| ids.iter().map(|&id| row[id])).collect(),
                };
                assert_eq!(given.len(), shape[0] * shape[1]);
                worst_logit = worst_logit.max(worst(&given, &wanted));
                stepper.end(sequence).expect("consistent");
            }
        }
        println!(
            "{draft}: fused features within {worst_fused:.1e}, logits within {worst_logit:.1e} deviations"
        );
        assert!(worst_fused < 1e-3 && worst_logit < 1e-3, "{draft}: {worst_fused:e} {worst_logit:e}");
    }
}

#[test]
fn proposals_are_those_of_other_implementations() {
    proposals_agree(|| cpu(2));
}

#[test]
fn proposals_are_those_of_other_implementations_on_the_reference() {
    proposals_agree(|| Reference);
}

/// Whole runs: every round's draft, what the target accepts of it, and the text.
fn rounds_agree<B: Backend>(backend: impl Fn() -> B) {
    for draft in ["qwen3.eagle3-rounds", "qwen3.dflash-rounds"] {
        let description = json(draft, "rounds.json");
        let (mut stepper, model) = pair(backend(), draft, &description);
        let max = if draft.contains("dflash") { 7 } else { 5 };
        let sampler = Sampler::greedy();
        let mut rounds = 0;
        for run in description["runs"].as_array().expect("runs") {
            let sequence = stepper.begin().expect("free");
            let mut tokens = ids(&run["prompt_ids"]);
            let prompt = tokens.len();
            prefill(&mut stepper, sequence, &tokens[..prompt - 1], 512);
            for round in run["rounds"].as_array().expect("rounds") {
                let committed = stepper.len(sequence).expect("begun");
                assert_eq!(committed as u64, round["n_past"].as_u64().expect("a number"));
                assert_eq!(u64::from(tokens[committed]), round["id_last"].as_u64().expect("an id"));
                let state = sampler.start();
                let request = DraftRequest {
                    sequence,
                    tokens: &mut tokens,
                    pending: 1,
                    sampler: &sampler,
                    state,
                    max,
                    p_min: 0.0,
                };
                stepper.draft(model, &mut [request]).expect("a step");
                let drafted = tokens.split_off(committed + 1);
                assert_eq!(drafted, ids(&round["draft"]), "{draft} round {rounds}");

                let inputs: Vec<u32> = tokens[committed..].iter().chain(&drafted).copied().collect();
                let start = stepper.append(sequence, inputs.len()).expect("room");
                let row = |(index, &token)| Row {
                    sequence,
                    kv_index: start + index,
                    input: RowInput::Token(token),
                    want: RowOutputs::token(&sampler),
                };
                let rows: Vec<Row> = inputs.iter().enumerate().map(row).collect();
                let outputs = stepper.step(&rows).expect("a step");
                let sampled: Vec<u32> = (0..rows.len())
                    .map(|row| outputs.token(row).expect("computed").expect("a token"))
                    .collect();
                drop(outputs);
                let accepted = drafted.iter().zip(&sampled).take_while(|(a, b)| a == b).count();
                assert_eq!(accepted as u64, round["n_accepted"].as_u64().expect("a number"), "{draft}");
                stepper.commit(sequence, 1 + accepted).expect("computed");
                assert_eq!(sampled[..=accepted], ids(&round["produced"]), "{draft} round {rounds}");
                tokens.extend(&sampled[..=accepted]);
                rounds += 1;
            }
            assert_eq!(tokens[prompt..], ids(&run["output_ids"]), "{draft}");
            stepper.end(sequence).expect("consistent");
        }
        println!("{draft}: {rounds} rounds");
        assert!(rounds >= 60, "{rounds}");
    }
}

#[test]
fn whole_runs_are_those_of_other_implementations_round_by_round() {
    rounds_agree(|| cpu(2));
}

#[test]
fn whole_runs_are_those_of_other_implementations_on_the_reference() {
    rounds_agree(|| Reference);
}
