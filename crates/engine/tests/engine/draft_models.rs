//! A target and an appended draft model with layers of its own and different KV cache types: whatever is proposed, accepted,
//! rejected, forked, reused, truncated, removed from the middle, saved and restored, each model computes the same bits as alone, or
//! the rows of the draft model are rejected.

use crate::common::scratch::{Event, FromScratch};
use crate::common::*;
use std::ops::Range;
use verbatim_engine::{
    Backend, BatchError, DraftOptions, KvType, LoadOptions, ModelId, RestoreError, Row, RowError, RowInput,
    RowOutputs, SequenceId, StateError, Stepper,
};
use verbatim_graph::random::Random;
use verbatim_reference::Reference;

const CONTEXT: usize = 200;
const SEQUENCES: usize = 4;
/// Texts repeat, so that they hit the same prefix-tree nodes.
const TEXT: usize = 251;

/// A target and its draft model.
#[derive(Clone, Copy)]
struct Case {
    target: &'static str,
    draft: &'static str,
    /// All layers of the draft model attend to all positions, so it loses state only where the target does.
    sees_all: bool,
}

const CASES: [Case; 8] = [
    case("models/qwen3", "models/llama-gqa-tied", true),
    case("models/qwen3", "models/gemma3-iswa", false),
    case("models/llama-gqa-tied", "synthetic/gemma2", false),
    case("models/qwen3moe", "models/qwen35-hybrid", false),
    case("models/gemma3-iswa", "models/qwen3", true),
    case("models/gemma3-iswa", "models/gemma3-iswa", false),
    case("models/qwen35-hybrid", "models/qwen3", true),
    case("models/qwen35-hybrid", "models/qwen35-hybrid-mtp", false),
];

const fn case(target: &'static str, draft: &'static str, sees_all: bool) -> Case {
    Case { target, draft, sees_all }
}

fn path(name: &str) -> String {
    if name.starts_with("models/") { format!("{name}/model.gguf") } else { name.to_owned() }
}

const DRAFT: DraftOptions =
    DraftOptions { k: KvType::Q8_0, v: KvType::Q5_1, hadamard: true, backend_sampling: true };

fn target_alone<B: Backend>(backend: B, case: Case, sequences: usize) -> Stepper<B> {
    let cache_bytes = if sequences > 1 { 600_000 } else { 0 };
    let options = LoadOptions { context: Some(CONTEXT), sequences, cache_bytes, ..LoadOptions::default() };
    engine_on(backend, &path(case.target), options)
}

fn with_draft<B: Backend>(backend: B, case: Case) -> (Stepper<B>, ModelId) {
    let mut engine = target_alone(backend, case, SEQUENCES);
    let draft = engine.append_model(&model_file(&path(case.draft)), &DRAFT).expect("a draft model");
    (engine, draft)
}

fn draft_alone<B: Backend>(backend: B, case: Case) -> Stepper<B> {
    let DraftOptions { k, v, hadamard, .. } = DRAFT;
    let options = LoadOptions { context: Some(CONTEXT), k, v, hadamard, ..LoadOptions::default() };
    engine_on(backend, &path(case.draft), options)
}

/// A sequence and its operation history.
#[derive(Clone)]
struct Text {
    sequence: SequenceId,
    history: Vec<Event>,
    /// The committed tokens.
    tokens: Vec<u32>,
}

impl Text {
    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.history.push(Event::Token(token));
    }

    fn has_removed(&self) -> bool {
        self.history.len() != self.tokens.len()
    }
}

/// Draft tokens, in KV indices that follow each other or form a tree.
struct Proposal {
    tokens: Vec<u32>,
    parents: Vec<Option<usize>>,
}

impl Proposal {
    fn path(&self, index: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(index), |&index| self.parents[index]).collect();
        path.reverse();
        path
    }
}

/// Both models in one stepper, and each alone.
struct Pair<B: Backend> {
    case: Case,
    engine: Stepper<B>,
    draft: ModelId,
    /// The target, the draft model.
    alone: [FromScratch<B>; 2],
    random: Random,
    vocabulary: usize,
    /// Number of logits compared, of each.
    compared: [usize; 2],
    /// How often the draft model's rows were rejected.
    rejected: usize,
}

impl<B: Backend> Pair<B> {
    fn new(backend: &impl Fn() -> B, case: Case, seed: u64) -> Pair<B> {
        let (engine, draft) = with_draft(backend(), case);
        let (target, other) = (target_alone(backend(), case, 1), draft_alone(backend(), case));
        let vocabulary = target.hyperparameters().vocabulary.min(other.hyperparameters().vocabulary);
        let alone = [FromScratch::new(target), FromScratch::new(other)];
        Pair { case, engine, draft, alone, random: Random(seed), vocabulary, compared: [0; 2], rejected: 0 }
    }

    fn begin(&mut self) -> Text {
        let sequence = self.engine.begin().expect("free");
        Text { sequence, history: Vec::new(), tokens: Vec::new() }
    }

    /// The text that most sequences share.
    fn token_at(&self, position: usize, otherwise: usize) -> u32 {
        ((position * position * 17 + position * 5 + 11 + otherwise * 97) % TEXT) as u32
    }

    /// Proposals for what follows a text: right, wrong, or right as far as some depth.
    fn propose(&mut self, text: &Text, count: usize, tree: bool) -> Proposal {
        let right = [0, count, self.random.below(count + 1)][self.random.below(3)];
        let mut proposal = Proposal { tokens: Vec::new(), parents: Vec::new() };
        for index in 0..count {
            let parent =
                if tree { self.random.below(index + 1).checked_sub(1) } else { index.checked_sub(1) };
            let depth = parent.map_or(0, |parent| proposal.path(parent).len());
            // Siblings differ.
            let is_right = depth < right && !proposal.parents.contains(&parent);
            let otherwise = if is_right { 0 } else { index + 1 };
            proposal.tokens.push(self.token_at(text.tokens.len() + depth, otherwise));
            proposal.parents.push(parent);
        }
        proposal
    }

    /// Proposes, verifies and commits a path of each text. Returns whether all rows of the draft model were computed.
    fn round(
        &mut self,
        texts: &mut [&mut Text],
        proposals: &[Proposal],
        kept: &[&[usize]],
        drafting: bool,
    ) -> bool {
        let mut starts = Vec::new();
        for (text, proposal) in texts.iter().zip(proposals) {
            starts.push(self.engine.append_tree(text.sequence, &proposal.parents).expect("room"));
        }
        let mut went_along = drafting;
        if drafting {
            // The draft model computes the KV indices one by one, with inputs of its own.
            let most = proposals.iter().map(|proposal| proposal.tokens.len()).max().unwrap_or(0);
            for index in 0..most {
                let rows: Vec<Row> = texts
                    .iter()
                    .zip(proposals)
                    .zip(&starts)
                    .filter(|((_, proposal), _)| index < proposal.tokens.len())
                    .map(|((text, proposal), start)| Row {
                        sequence: text.sequence,
                        kv_index: start + index,
                        input: RowInput::Token((proposal.tokens[index] + 1) % self.vocabulary as u32),
                        want: RowOutputs::LOGITS,
                    })
                    .collect();
                let outputs = self.engine.step_with(self.draft, &rows).expect("a step");
                went_along &= outputs.all().is_ok();
            }
        }
        // The verification step, and a step of the draft model over the same rows.
        let mut rows = Vec::new();
        let mut histories = Vec::new();
        for ((text, proposal), start) in texts.iter().zip(proposals).zip(&starts) {
            for (index, &token) in proposal.tokens.iter().enumerate() {
                let (sequence, input) = (text.sequence, RowInput::Token(token));
                rows.push(Row { sequence, kv_index: start + index, input, want: RowOutputs::LOGITS });
                let path = proposal.path(index).into_iter().map(|index| Event::Token(proposal.tokens[index]));
                histories.push(text.history.iter().copied().chain(path).collect::<Vec<Event>>());
            }
        }
        let mut owners = vec![(ModelId::TARGET, 0)];
        if drafting {
            owners.insert(self.random.below(2), (self.draft, 1));
        }
        for (owner, index) in owners {
            let outputs = self.engine.step_with(owner, &rows).expect("a step");
            for (row, history) in histories.iter().enumerate() {
                let Some(logits) = outputs.logits(row) else {
                    assert!(index == 1, "{:?}", outputs.row(row));
                    went_along = false;
                    continue;
                };
                let wanted = self.alone[index].logits(history);
                assert_same(logits, wanted, (self.case, index, "verified", &histories[row]));
                self.compared[index] += 1;
            }
        }
        for ((text, proposal), path) in texts.iter_mut().zip(proposals).zip(kept) {
            self.engine.commit_path(text.sequence, path).expect("computed");
            path.iter().for_each(|&index| text.push(proposal.tokens[index]));
        }
        for text in texts {
            let usable = self.check(text);
            // The draft model's rows may have been rejected in this round and still be accepted now.
            assert!(usable || !went_along || !drafting || text.tokens.is_empty());
        }
        self.engine.integrity().expect("consistent cache metadata");
        went_along
    }

    /// Computes and commits known tokens: a prompt, or tokens that the draft model does not compute.
    fn compute(&mut self, text: &mut Text, tokens: &[u32], drafting: bool) {
        let start = self.engine.append(text.sequence, tokens.len()).expect("room");
        let sequence = text.sequence;
        let row = |(i, &token)| Row {
            sequence,
            kv_index: start + i,
            input: RowInput::Token(token),
            want: RowOutputs::NONE,
        };
        let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
        self.engine.step(&rows).expect("a step").all().expect("in order");
        if drafting {
            let _ = self.engine.step_with(self.draft, &rows).expect("a step").all();
        }
        self.engine.commit(sequence, tokens.len()).expect("computed");
        tokens.iter().for_each(|&token| text.push(token));
    }

    /// Checks that the next logits of each model are those that it computes alone. Returns whether the draft model can continue.
    fn check(&mut self, text: &Text) -> bool {
        let (sequence, len) = (text.sequence, text.tokens.len());
        assert_eq!(self.engine.tokens(sequence).expect("begun"), text.tokens);
        let computed = self.engine.computed_range(sequence, self.draft).expect("begun");
        assert_eq!(self.engine.computed_range(sequence, ModelId::TARGET), Ok(0..len));
        assert!(computed.end <= len, "{computed:?} of {len}");
        if len == CONTEXT {
            return computed == (0..len);
        }
        let token = self.token_at(len, 0);
        let history: Vec<Event> = text.history.iter().copied().chain([Event::Token(token)]).collect();
        let mut usable = true;
        for (owner, index) in [(ModelId::TARGET, 0), (self.draft, 1)] {
            let kv_index = self.engine.append(sequence, 1).expect("room");
            let input = RowInput::Token(token);
            let row = Row { sequence, kv_index, input, want: RowOutputs::LOGITS };
            let outputs = self.engine.step_with(owner, &[row]).expect("a step");
            if let Some(logits) = outputs.logits(0) {
                let wanted = self.alone[index].logits(&history);
                assert_same(logits, wanted, (self.case, index, "probed", &history));
                self.compared[index] += 1;
                assert!(index == 0 || computed.end == len, "{computed:?} of {len}");
            } else {
                let error = outputs.row(0).expect_err("no logits");
                let expected = matches!(
                    error,
                    RowError::DraftNotComputed { .. } | RowError::Batch(BatchError::NoDraftState { .. })
                );
                assert!(index == 1 && expected && computed != (0..len), "{computed:?} of {len}: {error}");
                usable = false;
                self.rejected += 1;
            }
            drop(outputs);
            self.engine.rollback(sequence).expect("begun");
        }
        assert_eq!(self.engine.computed_range(sequence, self.draft), Ok(computed));
        usable
    }

    fn end(&mut self, text: Text) {
        self.engine.end(text.sequence).expect("begun");
    }

    fn fork(&mut self, text: &Text) -> Text {
        let sequence = self.engine.fork(text.sequence).expect("free");
        Text { sequence, ..text.clone() }
    }

    /// A new sequence that resumes from the cached prefix of these tokens.
    fn reuse(&mut self, tokens: &[u32]) -> Text {
        let mut text = self.begin();
        let reused = self.engine.resume_prefix(text.sequence, tokens).expect("empty");
        tokens[..reused].iter().for_each(|&token| text.push(token));
        text
    }

    fn truncate(&mut self, text: &mut Text, len: usize) -> Result<(), StateError> {
        assert!(!text.has_removed() || len == 0, "a removal cannot be replayed partly");
        self.engine.truncate(text.sequence, len)?;
        text.tokens.truncate(len);
        text.history = text.tokens.iter().map(|&token| Event::Token(token)).collect();
        Ok(())
    }

    fn remove(&mut self, text: &mut Text, positions: Range<usize>) -> Result<(), StateError> {
        let left = self.engine.remove_and_shift(text.sequence, positions.clone())?;
        text.tokens.drain(positions.clone());
        text.history.push(Event::Removed(positions.start, positions.end));
        assert_eq!(left, text.tokens.len());
        Ok(())
    }

    fn prompt(&self, count: usize, otherwise: usize) -> Vec<u32> {
        (0..count).map(|position| self.token_at(position, otherwise)).collect()
    }

    fn computed(&self, text: &Text) -> Range<usize> {
        self.engine.computed_range(text.sequence, self.draft).expect("begun")
    }

    /// Checks that the draft model has computed all positions.
    fn assert_in_step(&mut self, text: &Text) {
        assert_eq!(self.computed(text), 0..text.tokens.len(), "{}", self.case.draft);
        assert!(self.check(text));
    }
}

fn assert_same(logits: &[f32], wanted: Option<&[u32]>, what: (Case, usize, &str, &[Event])) {
    let (case, index, how, history) = what;
    let model = [case.target, case.draft][index];
    let wanted = wanted.unwrap_or_else(|| panic!("{model}: alone it cannot remove that: {history:?}"));
    let same = logits.iter().map(|x| x.to_bits()).eq(wanted.iter().copied());
    assert!(same, "{model} of {} and {}, {how}: {history:?}", case.target, case.draft);
}

/// Rejections at every depth, fork, reuse, save and restore, on one pair of models.
fn round_trip<B: Backend>(backend: impl Fn() -> B, case: Case, most: usize) {
    let mut pair = Pair::new(&backend, case, 11);
    let mut text = pair.begin();
    let prompt = pair.prompt(70, 0);
    pair.compute(&mut text, &prompt, true);
    pair.assert_in_step(&text);
    for count in [1, 3, most] {
        for accepted in 0..=count {
            let proposal = pair.propose(&text, count, false);
            let path: Vec<usize> = (0..accepted).collect();
            assert!(pair.round(&mut [&mut text], &[proposal], &[&path], true));
            pair.assert_in_step(&text);
        }
        // A tree, along the path to each of its nodes.
        let accepted = pair.random.below(count);
        let proposal = pair.propose(&text, count, true);
        let path = proposal.path(accepted);
        assert!(pair.round(&mut [&mut text], &[proposal], &[&path], true));
        pair.assert_in_step(&text);
    }

    // Both branches continue differently, in the same steps.
    let mut fork = pair.fork(&text);
    pair.assert_in_step(&fork);
    for round in 0..4 {
        let proposals = [round % 2 == 1, false].map(|tree| pair.propose(&text, most, tree));
        let paths = [proposals[0].path(round % most), (0..most - 1).collect()];
        let kept = [&paths[0][..], &paths[1][..]];
        assert!(pair.round(&mut [&mut text, &mut fork], &proposals, &kept, true));
        pair.assert_in_step(&text);
        pair.assert_in_step(&fork);
    }

    save_and_restore(&backend, &mut pair, &text);

    // A prefix-cache hit: the draft model has computed it too.
    let tokens = fork.tokens.clone();
    pair.end(fork);
    let mut warm = pair.reuse(&tokens);
    assert!(warm.tokens.len() >= 64, "{} reused", warm.tokens.len());
    if case.sees_all || pair.engine.is_recurrent() {
        pair.assert_in_step(&warm);
    }
    pair.check(&warm);
    let usable = pair.computed(&warm) == (0..warm.tokens.len());
    let proposal = pair.propose(&warm, most, false);
    assert_eq!(pair.round(&mut [&mut warm], &[proposal], &[&[0]], true), usable);
    pair.end(warm);
    pair.end(text);
    println!("{} and {}: {:?} logits compared", case.target, case.draft, pair.compared);
}

fn save_and_restore<B: Backend>(backend: &impl Fn() -> B, pair: &mut Pair<B>, text: &Text) {
    let case = pair.case;
    let saved = pair.engine.save(text.sequence).expect("begun");
    // Into a new stepper with the draft model.
    let mut other = Pair::new(backend, case, 5);
    let restored = other.engine.restore(&saved, Vec::new()).expect("fits");
    let mut there = Text { sequence: restored.sequence, ..text.clone() };
    assert_eq!(restored.positions, text.tokens.len());
    other.assert_in_step(&there);
    assert_eq!(other.engine.save(there.sequence).as_ref(), Ok(&saved));
    let proposal = other.propose(&there, 4, false);
    assert!(other.round(&mut [&mut there], &[proposal], &[&[0, 1]], true));
    other.assert_in_step(&there);

    // Into one without: the target continues, and what it saves is without the draft model.
    let mut alone = target_alone(backend(), case, 2);
    let restored = alone.restore(&saved, Vec::new()).expect("fits");
    let mut logits = Vec::new();
    let kv_index = alone.append(restored.sequence, 1).expect("room");
    let row =
        Row { sequence: restored.sequence, kv_index, input: RowInput::Token(7), want: RowOutputs::LOGITS };
    logits.extend_from_slice(alone.step(&[row]).expect("a step").logits(0).expect("wanted"));
    alone.commit(restored.sequence, 1).expect("computed");
    let mut longer = text.clone();
    longer.push(7);
    assert_same(&logits, pair.alone[0].logits(&longer.history), (case, 0, "without", &longer.history));

    // Saved without the draft model, restored with it: it has computed nothing, so its rows are rejected.
    let without = alone.save(restored.sequence).expect("begun");
    assert!(without.len() < saved.len());
    let restored = other.engine.restore(&without, Vec::new()).expect("fits");
    longer.sequence = restored.sequence;
    assert_eq!(other.computed(&longer), 0..0);
    assert!(!other.check(&longer));
    let proposal = other.propose(&longer, 3, false);
    assert!(!other.round(&mut [&mut longer], &[proposal], &[&[0, 1, 2]], true));

    // A draft model with different KV cache types does not get the saved K and V.
    let mut different = target_alone(backend(), case, 2);
    let draft = different
        .append_model(&model_file(&path(case.draft)), &DraftOptions { k: KvType::F16, ..DRAFT })
        .expect("a draft model");
    let restored = different.restore(&saved, Vec::new()).expect("the target fits");
    assert_eq!(different.computed_range(restored.sequence, draft), Ok(0..0));
    for engine in [&mut alone, &mut different] {
        engine.end(restored.sequence).expect("begun");
    }
    let damaged = other.engine.restore(&saved[..saved.len() - 1], Vec::new());
    assert!(matches!(damaged, Err(RestoreError::Malformed(_))), "{damaged:?}");
}

#[test]
fn draft_models_stay_in_step_over_rejections_forks_reuse_and_restore() {
    for case in CASES {
        round_trip(|| cpu(1), case, 7);
    }
}

#[test]
fn draft_models_stay_in_step_on_the_reference() {
    for case in [CASES[0], CASES[4], CASES[7]] {
        round_trip(|| Reference, case, 3);
    }
}

#[test]
fn a_draft_model_that_skipped_positions_is_rejected_until_the_target_is_truncated() {
    for case in CASES {
        let mut pair = Pair::new(&|| cpu(1), case, 3);
        let mut text = pair.begin();
        let prompt = pair.prompt(30, 0);
        pair.compute(&mut text, &prompt, true);
        pair.assert_in_step(&text);
        for round in 0..3 {
            let proposal = pair.propose(&text, 4, round == 1);
            let path = proposal.path(round);
            pair.round(&mut [&mut text], &[proposal], &[&path], false);
            assert_eq!(pair.computed(&text), 0..30);
            assert!(!pair.check(&text));
        }
        // Used again: only its rows of that sequence are rejected, and it computes nothing there.
        let mut other = pair.begin();
        pair.compute(&mut other, &prompt[..5], true);
        let proposals = [pair.propose(&text, 2, false), pair.propose(&other, 2, false)];
        assert!(!pair.round(&mut [&mut text, &mut other], &proposals, &[&[0, 1], &[0]], true));
        assert_eq!(pair.computed(&text), 0..30);
        pair.assert_in_step(&other);
        pair.end(other);
        // A removal shifts its computed range down.
        for (removed, left) in [(2..9, 23), (25..31, 25)] {
            let mut cut = pair.fork(&text);
            if pair.remove(&mut cut, removed).is_ok() {
                assert!(!case.sees_all || pair.computed(&cut) == (0..left));
                assert!(!pair.check(&cut));
            }
            pair.end(cut);
        }
        // Truncation ends its computed range.
        if pair.truncate(&mut text, 30).is_ok() {
            // The draft model may have lost a window or a recurrent state.
            assert!(!case.sees_all || pair.computed(&text) == (0..30));
            let usable = pair.check(&text);
            assert!(!case.sees_all || usable);
            let proposal = pair.propose(&text, 3, false);
            assert_eq!(pair.round(&mut [&mut text], &[proposal], &[&[0, 1]], true), usable);
            pair.check(&text);
        }
        pair.truncate(&mut text, 0).expect("all");
        assert_eq!(pair.computed(&text), 0..0);
        pair.compute(&mut text, &prompt, true);
        pair.assert_in_step(&text);
        assert!(pair.rejected > 0);
    }
}

#[test]
fn removed_and_truncated_positions_are_gone_for_both_models() {
    for case in CASES {
        let mut pair = Pair::new(&|| cpu(1), case, 8);
        if pair.engine.can_shift().is_err() {
            continue;
        }
        for (positions, rest) in [(2..9, 20), (60..70, 90), (3..67, 80), (64..128, 140), (10..11, 12)] {
            let mut text = pair.begin();
            let prompt = pair.prompt(rest, 0);
            pair.compute(&mut text, &prompt, true);
            let fork = pair.fork(&text);
            if pair.remove(&mut text, positions).is_ok() {
                let usable = pair.check(&text);
                assert!(usable || !case.sees_all);
                assert_eq!(pair.computed(&fork), 0..rest);
                for round in 0..2 {
                    let proposal = pair.propose(&text, 3, round == 1);
                    let path = proposal.path(1);
                    assert_eq!(pair.round(&mut [&mut text], &[proposal], &[&path], true), usable);
                }
            } else {
                assert!(case.target.contains("gemma"));
            }
            // The fork has lost nothing.
            pair.assert_in_step(&fork);
            let mut cut = fork;
            for len in [rest - 1, rest - 5, 3] {
                if pair.truncate(&mut cut, len).is_ok() {
                    let usable = pair.check(&cut);
                    assert!(usable || !case.sees_all);
                    let proposal = pair.propose(&cut, 3, true);
                    pair.round(&mut [&mut cut], &[proposal], &[&[]], true);
                }
            }
            pair.end(text);
            pair.end(cut);
        }
    }
}

/// Random operations on some sequences.
fn random_operations<B: Backend>(backend: impl Fn() -> B, case: Case, seed: u64, operations: usize) {
    let mut pair = Pair::new(&backend, case, seed);
    let mut texts: Vec<Text> = Vec::new();
    let mut went_along = [0; 2];
    for _ in 0..operations {
        texts.retain(|text| {
            let is_long = text.tokens.len() + 10 > CONTEXT;
            is_long.then(|| pair.engine.end(text.sequence).expect("begun"));
            !is_long
        });
        let at = pair.random.below(texts.len().max(1));
        let is_full = texts.len() == SEQUENCES;
        let what = if texts.is_empty() { 0 } else { pair.random.below(16) };
        match what {
            0 | 1 if !is_full => {
                let count = 1 + pair.random.below(120);
                let tokens = pair.prompt(count, 0);
                // A recurrent draft model seldom has a state at the end of a reused prefix.
                let is_cold = pair.random.below(2) == 0;
                let mut text = if is_cold { pair.begin() } else { pair.reuse(&tokens) };
                pair.check(&text);
                let rest = tokens[text.tokens.len()..].to_vec();
                let drafting = pair.random.below(8) > 0;
                if !rest.is_empty() {
                    pair.compute(&mut text, &rest, drafting);
                }
                pair.check(&text);
                texts.push(text);
            }
            2 if !is_full => {
                let fork = pair.fork(&texts[at]);
                pair.check(&fork);
                texts.push(fork);
            }
            3 => {
                let text = texts.swap_remove(at);
                pair.end(text);
            }
            4 if !texts[at].has_removed() => {
                if pair.random.below(2) == 0 {
                    pair.truncate(&mut texts[at], 0).expect("all");
                }
                let committed = texts[at].tokens.len();
                let len = committed.saturating_sub(pair.random.below(20));
                let _ = pair.truncate(&mut texts[at], len);
                pair.check(&texts[at].clone());
            }
            5 => {
                let committed = texts[at].tokens.len();
                let start = pair.random.below(committed + 1);
                let end = start + pair.random.below(committed + 1 - start);
                if start < end && end < committed {
                    let _ = pair.remove(&mut texts[at], start..end);
                    pair.check(&texts[at].clone());
                }
            }
            6 if !is_full => {
                let saved = pair.engine.save(texts[at].sequence).expect("begun");
                let restored = pair.engine.restore(&saved, Vec::new());
                if let Ok(restored) = restored {
                    let text = Text { sequence: restored.sequence, ..texts[at].clone() };
                    assert_eq!(pair.computed(&text), pair.computed(&texts[at]));
                    pair.check(&text);
                    texts.push(text);
                }
            }
            // A draft model that has lost a sequence recomputes it from the start.
            7 | 8 if pair.computed(&texts[at]) != (0..texts[at].tokens.len()) => {
                let tokens = texts[at].tokens.clone();
                pair.truncate(&mut texts[at], 0).expect("all");
                pair.compute(&mut texts[at], &tokens, true);
                pair.assert_in_step(&texts[at].clone());
            }
            _ => {
                // One or two of them in a round.
                let two = texts.len() > 1 && pair.random.below(2) == 0;
                let (first, rest) = texts.split_at_mut(1);
                let mut chosen = vec![&mut first[0]];
                chosen.extend(rest.last_mut().filter(|_| two));
                let mut proposals = Vec::new();
                let mut paths = Vec::new();
                for text in &chosen {
                    let (count, tree) = (1 + pair.random.below(7), pair.random.below(3) == 0);
                    let proposal = pair.propose(text, count, tree);
                    let mut path = proposal.path(pair.random.below(count));
                    path.truncate(pair.random.below(count + 1));
                    proposals.push(proposal);
                    paths.push(path);
                }
                let kept: Vec<&[usize]> = paths.iter().map(|path| &path[..]).collect();
                let drafting = pair.random.below(12) > 0;
                let along = pair.round(&mut chosen, &proposals, &kept, drafting);
                went_along[usize::from(along)] += 1;
                let at = pair.random.below(texts.len());
                texts.swap(0, at);
            }
        }
        pair.engine.integrity().expect("consistent cache metadata");
    }
    println!(
        "{} and {}: {:?} logits compared, {:?} rounds without and with the draft model, rejected {}",
        case.target, case.draft, pair.compared, went_along, pair.rejected
    );
    assert!(went_along.iter().all(|&rounds| rounds * 12 > operations), "{went_along:?}");
    texts.into_iter().for_each(|text| pair.end(text));
}

#[test]
fn random_operations_on_both_models() {
    for (index, case) in CASES.into_iter().enumerate() {
        random_operations(|| cpu(1), case, 70 + index as u64, 48);
    }
}
