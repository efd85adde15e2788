//! Random lives of sequences, many at a time, on the tiny models: whatever is appended, kept, dropped, forked, cut, removed
//! from the middle, forgotten, saved and restored, every logit has the bits of a computation from scratch.

mod common;

use common::scratch::{Event, FromScratch, events};
use common::*;
use std::collections::HashMap;
use verbatim_engine::{
    Backend, KvType, LoadOptions, RestoreError, Row, RowInput, SequenceId, StateError, Stepper, Want,
};
use verbatim_graph::random::Random;
use verbatim_reference::Reference;

/// Lives of sequences on each model, over all types of K and V.
const LIVES: usize = 5000;
/// As many on the reference backend as its pace allows.
const REFERENCE_LIVES: usize = 400;
const CONTEXT: usize = 200;
const SEQUENCES: usize = 4;

#[derive(Clone)]
struct DraftToken {
    parent: Option<usize>,
    token: u32,
    is_computed: bool,
}

/// A sequence, what has happened to it, and what is in flight.
#[derive(Clone)]
struct Life {
    sequence: SequenceId,
    history: Vec<Event>,
    tokens: Vec<u32>,
    draft: Vec<DraftToken>,
}

impl Life {
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

/// The text that lives mostly follow, so that they meet in the prefix tree.
fn said(position: usize, otherwise: bool) -> u32 {
    ((position * position * 17 + position * 5 + 11) % 251 + 251 * usize::from(otherwise)) as u32
}

struct World<B: Backend> {
    engine: Stepper<B>,
    scratch: FromScratch<B>,
    random: Random,
    lives: Vec<Life>,
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
            lives: Vec::new(),
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
            let text: Vec<u32> = (0..self.random.below(150)).map(|position| said(position, false)).collect();
            let reused = self.engine.resume_prefix(sequence, &text).expect("empty");
            self.reused += reused;
            tokens = text[..reused].to_vec();
            let rest = text.len() - reused;
            self.lives.push(Life { sequence, history: events(&tokens), tokens, draft: Vec::new() });
            if rest > 0 {
                // As a prompt is computed.
                self.append(self.lives.len() - 1, rest, false);
            }
            return;
        }
        self.lives.push(Life { sequence, history: events(&tokens), tokens, draft: Vec::new() });
    }

    fn append(&mut self, at: usize, count: usize, tree: bool) {
        let Life { sequence, ref tokens, ref draft, .. } = self.lives[at];
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
            let life = &mut self.lives[at];
            let depth = parent.map_or(0, |parent| life.path(parent).len());
            let otherwise = count < 20 && self.random.below(6) == 0;
            let token = said(committed + depth, otherwise);
            life.draft.push(DraftToken { parent, token, is_computed: false });
        }
    }

    /// Computes what is not, of some lives or one, and compares.
    fn step(&mut self, only: Option<usize>) {
        let (mut rows, mut whose) = (Vec::new(), Vec::new());
        for at in 0..self.lives.len() {
            if only.is_some_and(|only| only != at) || only.is_none() && self.random.below(3) == 0 {
                continue;
            }
            let life = &self.lives[at];
            for (index, token) in life.draft.iter().enumerate().filter(|(_, token)| !token.is_computed) {
                let last = index + 1 == life.draft.len();
                let want = Want::logits_if(last || self.random.below(8) == 0);
                let kv_index = life.tokens.len() + index;
                rows.push(Row {
                    sequence: life.sequence,
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
            self.lives[at].draft[index].is_computed = true;
            if let Some(logits) = outputs.logits(row) {
                let history = self.lives[at].history_of(index);
                let logits = logits.iter().map(|x| x.to_bits());
                output_rows += 1;
                assert!(
                    logits.eq(self.scratch.logits(&history).expect("removed before").iter().copied()),
                    "{} tokens and {index} in flight: {history:?}",
                    self.lives[at].tokens.len()
                );
            }
        }
        self.compared += output_rows;
    }

    fn commit(&mut self, at: usize) {
        self.step(Some(at));
        let life = &mut self.lives[at];
        let mut path = Vec::new();
        if !life.draft.is_empty() && self.random.below(6) > 0 {
            // Mostly what the text says.
            let index = self.random.below(life.draft.len());
            path = life.path(index);
            let follows = |&index: &usize| life.draft[index].token < 251 || self.random.below(20) == 0;
            path = path.into_iter().take_while(follows).collect();
        }
        match self.engine.commit_path(life.sequence, &path) {
            Ok(()) => {
                for index in path {
                    life.tokens.push(life.draft[index].token);
                    life.history.push(Event::Token(life.draft[index].token));
                }
            }
            Err(error) => {
                assert!(matches!(error, StateError::NoCheckpoint { .. }), "{error}");
                self.engine.rollback(life.sequence).expect("begun");
            }
        }
        life.draft.clear();
        self.count("commits");
    }

    fn act(&mut self) {
        if self.lives.len() < 2 || self.random.below(14) == 0 {
            return self.begin();
        }
        let at = self.random.below(self.lives.len());
        let Life { sequence, ref tokens, ref history, .. } = self.lives[at];
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
                self.lives.swap_remove(at);
                self.ended += 1;
            }
            14 | 15 => {
                let len = self.random.below(2) * self.random.below(committed + 1);
                // What a removal did before `len` cannot be played from the start.
                if has_removed && len > 0 {
                    return;
                }
                match self.engine.truncate(sequence, len) {
                    Ok(()) => {
                        let life = &mut self.lives[at];
                        life.tokens.truncate(len);
                        life.history = events(&life.tokens);
                        life.draft.clear();
                        self.count("cuts");
                    }
                    Err(error) => assert!(matches!(error, StateError::CannotTruncate { .. }), "{error}"),
                }
            }
            16 => match self.engine.fork(sequence) {
                Ok(fork) => {
                    self.lives.push(Life { sequence: fork, ..self.lives[at].clone() });
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
                        let life = &mut self.lives[at];
                        life.tokens.drain(start..end);
                        life.history.push(Event::Removed(start, end));
                        assert_eq!(left, life.tokens.len());
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
                        let life =
                            Life { sequence: restored.sequence, draft: Vec::new(), ..self.lives[at].clone() };
                        assert_eq!(restored.positions, life.tokens.len());
                        self.lives.push(life);
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

/// As many lives, on one model, with every pair of types an equal part of them.
fn lives<B: Backend>(backend: impl Fn() -> B, lives: usize, model: &str, removes: bool) {
    let mut all: HashMap<&str, usize> = HashMap::new();
    let mut total = [0; 2];
    for (round, (k, v)) in TYPES.into_iter().enumerate() {
        let mut world = World::new(&backend, model, k, v, 40 + round as u64);
        while world.ended < lives / TYPES.len() {
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
    assert!(total.iter().all(|&total| total > lives), "{total:?}");
    for what in ["chains", "trees", "commits", "cuts", "forks", "restores"] {
        assert!(all.contains_key(what), "no {what}");
    }
    assert_eq!(all.contains_key("removals"), removes);
}

#[test]
fn full_attention() {
    lives(|| cpu(2), LIVES, "models/llama-gqa-tied/model.gguf", true);
}

#[test]
fn windows_of_sixteen() {
    lives(|| cpu(2), LIVES, "models/gemma3-iswa/model.gguf", true);
}

#[test]
fn recurrent_layers() {
    lives(|| cpu(2), LIVES, "models/qwen35-hybrid/model.gguf", false);
}

#[test]
fn experts() {
    lives(|| cpu(2), LIVES, "models/qwen3moe/model.gguf", true);
}

#[test]
fn full_attention_on_the_reference() {
    lives(|| Reference, REFERENCE_LIVES, "models/llama-gqa-tied/model.gguf", true);
}

#[test]
fn windows_of_sixteen_on_the_reference() {
    lives(|| Reference, REFERENCE_LIVES, "models/gemma3-iswa/model.gguf", true);
}

#[test]
fn recurrent_layers_on_the_reference() {
    lives(|| Reference, REFERENCE_LIVES, "models/qwen35-hybrid/model.gguf", false);
}

#[test]
fn experts_on_the_reference() {
    lives(|| Reference, REFERENCE_LIVES, "models/qwen3moe/model.gguf", true);
}
