//! Random operation histories of sequences, many at a time, on the tiny models: whatever is appended, committed, dropped, forked,
//! truncated, removed from the middle, evicted, saved and restored, every logit has the bits of a computation from scratch.

use crate::common::scratch::{Event, FromScratch, events};
use crate::common::*;
use std::collections::HashMap;
use verbatim_engine::{
    Backend, KvType, LoadOptions, RestoreError, Row, RowInput, RowOutputs, SequenceId, StateError, Stepper,
};
use verbatim_graph::random::Random;
use verbatim_reference::Reference;

/// Histories on each model, over all KV cache types.
const HISTORIES: usize = 5000;
/// Fewer on the reference backend, which is slow.
const REFERENCE_HISTORIES: usize = 400;
const CONTEXT: usize = 200;
const SEQUENCES: usize = 4;

#[derive(Clone)]
struct DraftToken {
    parent: Option<usize>,
    token: u32,
    is_computed: bool,
}

/// A sequence, its operation history, and its tokens in flight.
#[derive(Clone)]
struct Tracked {
    sequence: SequenceId,
    history: Vec<Event>,
    tokens: Vec<u32>,
    draft: Vec<DraftToken>,
}

impl Tracked {
    fn path(&self, index: usize) -> Vec<usize> {
        let mut path = vec![index];
        while let Some(parent) = self.draft[path[path.len() - 1]].parent {
            path.push(parent);
        }
        path.reverse();
        path
    }

    fn history_of(&self, index: usize) -> Vec<Event> {
        let path = self.path(index);
        let tokens = path.into_iter().map(|index| Event::Token(self.draft[index].token));
        self.history.iter().copied().chain(tokens).collect()
    }
}

/// The text that most histories share, so that they hit the same prefix-tree nodes.
fn token_at(position: usize, otherwise: bool) -> u32 {
    ((position * position * 17 + position * 5 + 11) % 251 + 251 * usize::from(otherwise)) as u32
}

struct World<B: Backend> {
    engine: Stepper<B>,
    scratch: FromScratch<B>,
    random: Random,
    sequences: Vec<Tracked>,
    ended: usize,
    /// Logits compared, positions reused, and how often each kind of operation was carried out.
    compared: usize,
    reused: usize,
    done: HashMap<&'static str, usize>,
}

impl<B: Backend> World<B> {
    fn new(backend: &impl Fn() -> B, model: &str, k: KvType, v: KvType, seed: u64) -> World<B> {
        let options = LoadOptions { context: Some(CONTEXT), k, v, ..LoadOptions::default() };
        let many = LoadOptions { sequences: SEQUENCES, cache_bytes: 400_000, ..options };
        World {
            engine: engine_on(backend(), model, many),
            scratch: FromScratch::new(engine_on(backend(), model, options)),
            random: Random(seed),
            sequences: Vec::new(),
            ended: 0,
            compared: 0,
            reused: 0,
            done: HashMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    fn begin(&mut self) {
        let Ok(sequence) = self.engine.begin() else { return };
        let mut tokens = Vec::new();
        if self.random.below(5) > 0 {
            let text: Vec<u32> =
                (0..self.random.below(150)).map(|position| token_at(position, false)).collect();
            let reused = self.engine.resume_prefix(sequence, &text).expect("empty");
            self.reused += reused;
            tokens = text[..reused].to_vec();
            let rest = text.len() - reused;
            self.sequences.push(Tracked { sequence, history: events(&tokens), tokens, draft: Vec::new() });
            if rest > 0 {
                // In one step, as a prompt is.
                self.append(self.sequences.len() - 1, rest, false);
            }
            return;
        }
        self.sequences.push(Tracked { sequence, history: events(&tokens), tokens, draft: Vec::new() });
    }

    fn append(&mut self, at: usize, count: usize, tree: bool) {
        let Tracked { sequence, ref tokens, ref draft, .. } = self.sequences[at];
        let (committed, base) = (tokens.len(), draft.len());
        let parents: Vec<Option<usize>> = (0..count)
            .map(|i| match tree {
                true => self.random.below(base + i + 1).checked_sub(1),
                false => (base + i).checked_sub(1),
            })
            .collect();
        let appended = match tree {
            true => self.engine.append_tree(sequence, &parents),
            false => self.engine.append(sequence, count),
        };
        if let Err(error) = appended {
            let expected = matches!(
                error,
                StateError::ContextFull { .. }
                    | StateError::TooManyInFlight { .. }
                    | StateError::NoPages { .. }
            );
            assert!(expected, "{error}");
            return;
        }
        self.count(if tree { "trees" } else { "chains" });
        for parent in parents {
            let tracked = &mut self.sequences[at];
            let depth = parent.map_or(0, |parent| tracked.path(parent).len());
            let otherwise = count < 20 && self.random.below(6) == 0;
            let token = token_at(committed + depth, otherwise);
            tracked.draft.push(DraftToken { parent, token, is_computed: false });
        }
    }

    /// Computes the positions that are not computed yet, of some sequences or one, and compares.
    fn step(&mut self, only: Option<usize>) {
        let (mut rows, mut whose) = (Vec::new(), Vec::new());
        for at in 0..self.sequences.len() {
            if only.is_some_and(|only| only != at) || only.is_none() && self.random.below(3) == 0 {
                continue;
            }
            let tracked = &self.sequences[at];
            for (index, token) in tracked.draft.iter().enumerate().filter(|(_, token)| !token.is_computed) {
                let last = index + 1 == tracked.draft.len();
                let want = RowOutputs::logits_if(last || self.random.below(8) == 0);
                let kv_index = tracked.tokens.len() + index;
                rows.push(Row {
                    sequence: tracked.sequence,
                    kv_index,
                    input: RowInput::Token(token.token),
                    want,
                });
                whose.push((at, index));
            }
        }
        if rows.is_empty() {
            return;
        }
        let outputs = self.engine.step(&rows).expect("a step");
        let mut output_rows = 0;
        for (row, &(at, index)) in whose.iter().enumerate() {
            self.sequences[at].draft[index].is_computed = true;
            if let Some(logits) = outputs.logits(row) {
                let history = self.sequences[at].history_of(index);
                let logits = logits.iter().map(|x| x.to_bits());
                output_rows += 1;
                assert!(
                    logits.eq(self.scratch.logits(&history).expect("removed before").iter().copied()),
                    "{} tokens and {index} in flight: {history:?}",
                    self.sequences[at].tokens.len()
                );
            }
        }
        self.compared += output_rows;
    }

    fn commit(&mut self, at: usize) {
        self.step(Some(at));
        let tracked = &mut self.sequences[at];
        let mut path = Vec::new();
        if !tracked.draft.is_empty() && self.random.below(6) > 0 {
            // Mostly tokens of the shared text.
            let index = self.random.below(tracked.draft.len());
            path = tracked.path(index);
            let follows = |&index: &usize| tracked.draft[index].token < 251 || self.random.below(20) == 0;
            path = path.into_iter().take_while(follows).collect();
        }
        match self.engine.commit_path(tracked.sequence, &path) {
            Ok(()) => {
                for index in path {
                    tracked.tokens.push(tracked.draft[index].token);
                    tracked.history.push(Event::Token(tracked.draft[index].token));
                }
            }
            Err(error) => {
                assert!(matches!(error, StateError::NoCheckpoint { .. }), "{error}");
                self.engine.rollback(tracked.sequence).expect("begun");
            }
        }
        tracked.draft.clear();
        self.count("commits");
    }

    fn act(&mut self) {
        if self.sequences.len() < 2 || self.random.below(14) == 0 {
            return self.begin();
        }
        let at = self.random.below(self.sequences.len());
        let Tracked { sequence, ref tokens, ref history, .. } = self.sequences[at];
        let (committed, has_removed) = (tokens.len(), tokens.len() != history.len());
        match self.random.below(20) {
            0..4 => {
                let most = [2, 9, 17][self.random.below(3)];
                let count = 1 + self.random.below(most);
                let tree = self.random.below(3) == 0;
                self.append(at, count, tree);
            }
            4..6 => self.step(None),
            6..11 => self.commit(at),
            11..14 => {
                self.engine.end(sequence).expect("begun");
                self.sequences.swap_remove(at);
                self.ended += 1;
            }
            14 | 15 => {
                let len = self.random.below(2) * self.random.below(committed + 1);
                // A removal before `len` cannot be replayed from the start.
                if has_removed && len > 0 {
                    return;
                }
                match self.engine.truncate(sequence, len) {
                    Ok(()) => {
                        let tracked = &mut self.sequences[at];
                        tracked.tokens.truncate(len);
                        tracked.history = events(&tracked.tokens);
                        tracked.draft.clear();
                        self.count("truncations");
                    }
                    Err(error) => assert!(matches!(error, StateError::CannotTruncate { .. }), "{error}"),
                }
            }
            16 => match self.engine.fork(sequence) {
                Ok(fork) => {
                    self.sequences.push(Tracked { sequence: fork, ..self.sequences[at].clone() });
                    self.count("forks");
                }
                Err(error) => {
                    assert!(matches!(error, StateError::NoSequence(_) | StateError::InFlight(_)), "{error}");
                }
            },
            17 => {
                let start = self.random.below(committed + 1);
                let end = (start + self.random.below(committed + 1 - start)).min(committed.saturating_sub(1));
                if start >= end {
                    return;
                }
                match self.engine.remove_and_shift(sequence, start..end) {
                    Ok(left) => {
                        let tracked = &mut self.sequences[at];
                        tracked.tokens.drain(start..end);
                        tracked.history.push(Event::Removed(start, end));
                        assert_eq!(left, tracked.tokens.len());
                        self.count("removals");
                    }
                    Err(error) => assert!(
                        matches!(
                            error,
                            StateError::InFlight(_) | StateError::CannotShift(_) | StateError::NoPages { .. }
                        ),
                        "{error}"
                    ),
                }
            }
            18 => {
                let saved = self.engine.save(sequence).expect("begun");
                match self.engine.restore(&saved, Vec::new()) {
                    Ok(restored) => {
                        let tracked = Tracked {
                            sequence: restored.sequence,
                            draft: Vec::new(),
                            ..self.sequences[at].clone()
                        };
                        assert_eq!(restored.positions, tracked.tokens.len());
                        self.sequences.push(tracked);
                        self.count("restores");
                    }
                    Err(RestoreError::State(StateError::NoSequence(_) | StateError::NoPages { .. })) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {
                if self.random.below(10) == 0 {
                    self.engine.clear_cache();
                    self.count("clearings");
                }
            }
        }
    }
}

const TYPES: [(KvType, KvType); 4] = [
    (KvType::F16, KvType::F16),
    (KvType::Q8_0, KvType::Q5_1),
    (KvType::Q4_0, KvType::Iq4Nl),
    (KvType::F32, KvType::Bf16),
];

/// Runs so many histories on one model, an equal share of them with each pair of KV cache types.
fn random_histories<B: Backend>(backend: impl Fn() -> B, histories: usize, model: &str, removes: bool) {
    let mut all: HashMap<&str, usize> = HashMap::new();
    let mut total = [0; 2];
    for (round, (k, v)) in TYPES.into_iter().enumerate() {
        let mut world = World::new(&backend, model, k, v, 40 + round as u64);
        while world.ended < histories / TYPES.len() {
            world.act();
            world.engine.integrity().unwrap_or_else(|problem| panic!("{model}: {problem}"));
        }
        let World { compared, reused, done, .. } = world;
        println!(
            "{model} {}/{}: {compared} logits compared, {reused} positions reused, {done:?}",
            k.name(),
            v.name()
        );
        total[0] += compared;
        total[1] += reused;
        done.into_iter().for_each(|(what, count)| *all.entry(what).or_default() += count);
    }
    assert!(total.iter().all(|&total| total > histories), "{total:?}");
    for what in ["chains", "trees", "commits", "truncations", "forks", "restores"] {
        assert!(all.contains_key(what), "no {what}");
    }
    assert_eq!(all.contains_key("removals"), removes);
}

#[test]
fn full_attention() {
    random_histories(|| cpu(2), HISTORIES, "models/llama-gqa-tied/model.gguf", true);
}

#[test]
fn windows_of_sixteen() {
    random_histories(|| cpu(2), HISTORIES, "models/gemma3-iswa/model.gguf", true);
}

#[test]
fn recurrent_layers() {
    random_histories(|| cpu(2), HISTORIES, "models/qwen35-hybrid/model.gguf", false);
}

#[test]
fn experts() {
    random_histories(|| cpu(2), HISTORIES, "models/qwen3moe/model.gguf", true);
}

#[test]
fn full_attention_on_the_reference() {
    random_histories(|| Reference, REFERENCE_HISTORIES, "models/llama-gqa-tied/model.gguf", true);
}

#[test]
fn windows_of_sixteen_on_the_reference() {
    random_histories(|| Reference, REFERENCE_HISTORIES, "models/gemma3-iswa/model.gguf", true);
}

#[test]
fn recurrent_layers_on_the_reference() {
    random_histories(|| Reference, REFERENCE_HISTORIES, "models/qwen35-hybrid/model.gguf", false);
}

#[test]
fn experts_on_the_reference() {
    random_histories(|| Reference, REFERENCE_HISTORIES, "models/qwen3moe/model.gguf", true);
}
