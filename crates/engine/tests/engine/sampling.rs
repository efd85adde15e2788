//! A request's tokens and log-probabilities depend on the request alone: not on the batch, the cache, threads, or on where its
//! tokens are sampled. New sets of requests and other settings build no new program.

use crate::common::*;
use verbatim_engine::{
    Backend, Draw, LoadOptions, LogProbs, Row, RowInput, RowOutputs, Sampler, SamplerKind, SamplerState,
    Sampling, SequenceId, Stepper, TokenLogProbs,
};
use verbatim_graph::random::Random;
use verbatim_reference::Reference;

const MODEL: &str = "models/llama-gqa-tied/model.gguf";
const ANSWER: usize = 3;

/// The settings of the request with this number: of every kind, in the graph and outside it.
fn settings(number: u64) -> Sampling {
    let sampling = Sampling { seed: Some(number), ..Sampling::default() };
    match number % 10 {
        0 => sampling,
        1 => Sampling { repeat_penalty: 1.3, ..Sampling::greedy() },
        2 => Sampling::unfiltered(1.2, number),
        3 => Sampling { typical_p: 0.8, xtc_probability: 0.5, ..sampling },
        4 => Sampling { mirostat: true, mirostat_tau: 3.0, ..sampling },
        5 => Sampling { top_k: 0, ..sampling },
        6 => Sampling { dynatemp_range: 0.5, frequency_penalty: 0.2, ..sampling },
        7 => Sampling {
            adaptive_target: 0.3,
            samplers: vec![SamplerKind::MinP, SamplerKind::AdaptiveP],
            ..sampling
        },
        8 => Sampling { dry_multiplier: 0.8, logit_bias: vec![(3, 2.0), (9, f32::NEG_INFINITY)], ..sampling },
        _ => Sampling { top_n_sigma: 1.5, presence_penalty: 0.3, ..sampling },
    }
}

fn prompt(number: u64) -> Vec<u32> {
    (0..9 + number % 7).map(|i| ((i * i + number * 31) % 300) as u32).collect()
}

/// What a request has said: tokens, and the bits of their log-probabilities if they were asked for.
type Said = Vec<(u32, Option<Vec<u32>>)>;

/// A request that goes on token by token.
struct Going {
    number: u64,
    sequence: SequenceId,
    sampler: Sampler,
    state: SamplerState,
    history: Vec<u32>,
    /// How many of the history are computed.
    computed: usize,
    said: Said,
}

impl Going {
    fn start<B: Backend>(engine: &mut Stepper<B>, number: u64, log_probs: Option<LogProbs>) -> Going {
        let sequence = engine.begin().expect("a free sequence");
        let history = prompt(number);
        let computed = engine.resume_prefix(sequence, &history[..history.len() - 1]).expect("empty");
        let sampler = Sampler::new(settings(number), 0).expect("in range").with_log_probs(log_probs);
        Going { number, sequence, state: sampler.start(), sampler, history, computed, said: Vec::new() }
    }

    fn hear(&mut self, token: u32, state: SamplerState, log_probs: Option<TokenLogProbs>) {
        let bits = |log_probs: TokenLogProbs| {
            let top = log_probs.top.into_iter().flat_map(|(token, log_prob)| [token, log_prob.to_bits()]);
            [log_probs.log_prob.to_bits()].into_iter().chain(top).collect()
        };
        self.computed = self.history.len();
        self.history.push(token);
        self.state = state;
        self.said.push((token, log_probs.map(bits)));
    }
}

/// One step over all these requests.
fn step<B: Backend>(engine: &mut Stepper<B>, going: &mut [&mut Going]) {
    let mut rows = Vec::new();
    for going in going.iter() {
        let pending = &going.history[going.computed..];
        let start = engine.append(going.sequence, pending.len()).expect("room");
        for (i, &token) in pending.iter().enumerate() {
            let Going { sequence, ref sampler, state, ref history, .. } = **going;
            let is_last = i + 1 == pending.len();
            let draw = Draw { sampler, state, history, mask: None };
            let want = if is_last { RowOutputs::token(draw) } else { RowOutputs::NONE };
            rows.push(Row { sequence, kv_index: start + i, input: RowInput::Token(token), want });
        }
    }
    let outputs = engine.step(&rows).expect("a step");
    let samples: Vec<_> =
        (0..rows.len()).filter_map(|row| outputs.sample(row).expect("computed").cloned()).collect();
    drop(outputs);
    drop(rows);
    for (going, sample) in going.iter_mut().zip(samples) {
        let computed = going.history.len() - going.computed;
        engine.commit(going.sequence, computed).expect("in flight");
        going.hear(sample.token, sample.state, sample.log_probs);
    }
}

fn say<B: Backend>(engine: &mut Stepper<B>, numbers: &[u64], log_probs: Option<LogProbs>) -> Vec<Said> {
    let mut all: Vec<Going> = numbers.iter().map(|&number| Going::start(engine, number, log_probs)).collect();
    for _ in 0..ANSWER {
        step(engine, &mut all.iter_mut().collect::<Vec<_>>());
    }
    let ended = all.into_iter().map(|going| {
        engine.end(going.sequence).expect("begun");
        going.said
    });
    ended.collect()
}

fn loaded(threads: usize, options: LoadOptions) -> Engine {
    engine_on(cpu(threads), MODEL, LoadOptions { context: Some(64), sequences: 8, ..options })
}

#[test]
fn a_thousand_requests_say_the_same_however_they_are_served() {
    let outside = LoadOptions { backend_sampling: false, ..LoadOptions::default() };
    let cached = LoadOptions { cache_bytes: 1 << 22, ..LoadOptions::default() };
    let mut alone = loaded(2, LoadOptions::default());
    let mut others = [
        ("outside the graph", loaded(2, outside)),
        ("behind a cached prefix", loaded(2, cached)),
        ("on one thread", loaded(1, LoadOptions::default())),
        ("in a batch", loaded(2, LoadOptions::default())),
        ("in a batch outside the graph, on one thread", loaded(1, outside)),
    ];
    let asked =
        [None, Some(LogProbs { top: 3, after_chain: false }), Some(LogProbs { top: 3, after_chain: true })];
    let mut different = std::collections::BTreeSet::new();
    for batch in 0..125u64 {
        let numbers: Vec<u64> = (0..8).map(|i| batch * 8 + i).collect();
        // Asking for log-probabilities changes where tokens are sampled, and nothing else.
        let log_probs = asked[batch as usize % 3];
        let wanted: Vec<Said> =
            numbers.iter().flat_map(|&number| say(&mut alone, &[number], log_probs)).collect();
        for (how, engine) in &mut others {
            let found = if how.contains("batch") {
                say(engine, &numbers, log_probs)
            } else {
                numbers.iter().flat_map(|&number| say(engine, &[number], log_probs)).collect()
            };
            assert_eq!(found, wanted, "{how}, requests {numbers:?}");
            let without = say(engine, &numbers[..1], None).remove(0).into_iter().map(|(token, _)| token);
            assert!(
                without.eq(wanted[0].iter().map(|(token, _)| *token)),
                "log-probabilities change the text"
            );
        }
        different.extend(
            wanted.into_iter().map(|said| said.into_iter().map(|(token, _)| token).collect::<Vec<_>>()),
        );
    }
    assert!(different.len() > 700, "only {} answers differ: the seeds do little", different.len());
}

#[test]
fn another_backend_draws_the_same_where_its_logits_are_as_good_as_the_same() {
    let options = LoadOptions { context: Some(64), sequences: 8, ..exact() };
    let mut cpu = engine_on(cpu(2), MODEL, options);
    let mut reference = engine_on(Reference, MODEL, options);
    let first = |said: Vec<Said>| said.into_iter().map(|said| said[0].0).collect::<Vec<_>>();
    let (mut same, mut all) = (0, 0);
    for batch in 0..25u64 {
        let numbers: Vec<u64> = (0..8).map(|i| batch * 8 + i).collect();
        let (found, wanted) =
            (first(say(&mut reference, &numbers, None)), first(say(&mut cpu, &numbers, None)));
        same += found.iter().zip(&wanted).filter(|(a, b)| a == b).count();
        all += found.len();
    }
    assert!(same * 100 >= all * 98, "{same} of {all} draws are the same");
}

/// What a step's program depends on here: the buckets of its rows and output rows, and what samples them.
fn bucket(active: &[&mut Going]) -> [usize; 4] {
    let rows: usize = active.iter().map(|going| going.history.len() - going.computed).sum();
    let in_graph = active.iter().filter(|going| going.sampler.can_lower()).count();
    let is_any = |count: usize| usize::from(count > 0);
    let outside = active.len() - in_graph;
    [rows.next_power_of_two(), active.len().next_power_of_two(), is_any(in_graph), is_any(outside)]
}

#[test]
fn changing_sets_and_settings_build_a_program_for_each_bucket_and_no_other() {
    let mut alone = loaded(2, LoadOptions::default());
    let mut engine = loaded(2, LoadOptions::default());
    let mut random = Random(6);
    let (mut going, mut next) = (Vec::<Going>::new(), 0);
    let mut buckets = std::collections::BTreeSet::new();
    for _ in 0..500 {
        while going.len() < 8 && (going.is_empty() || random.below(3) == 0) {
            going.push(Going::start(&mut engine, next, None));
            next += 1;
        }
        let mut active: Vec<&mut Going> = going.iter_mut().filter(|_| random.below(3) > 0).collect();
        if !active.is_empty() {
            buckets.insert(bucket(&active));
            step(&mut engine, &mut active);
        }
        let (ended, rest): (Vec<Going>, Vec<Going>) =
            going.into_iter().partition(|going| going.said.len() >= ANSWER);
        going = rest;
        for ended in ended {
            engine.end(ended.sequence).expect("begun");
            assert_eq!(vec![ended.said], say(&mut alone, &[ended.number], None), "request {}", ended.number);
        }
    }
    assert!(next > 100, "only {next} requests");
    assert_eq!(engine.statistics().built, buckets.len() as u64, "{buckets:?}");
}
