//! Requests that share a prefix, or only seem to: each generates the same tokens as alone.

use crate::common::*;
use verbatim_engine::{LoadOptions, Row, RowInput, RowOutputs, Sampler, Sampling, SequenceId, StateError};

const MODELS: [&str; 4] = ["llama-gqa-tied", "gemma3-iswa", "qwen35-hybrid", "qwen3moe"];
const PREFIX: usize = 150;
const ANSWER: usize = 12;

fn load(model: &str, sequences: usize, cache_bytes: usize) -> Engine {
    let options = LoadOptions { sequences, cache_bytes, context: Some(400), ..LoadOptions::default() };
    engine(&format!("models/{model}/model.gguf"), options)
}

fn text(start: usize, count: usize) -> Vec<u32> {
    (start..start + count).map(|i| ((i * i * 17 + i * 5 + 11) % 500) as u32).collect()
}

/// Two requests that share their first 150 tokens, and one that differs from them in tokens 70 to 99 only.
fn requests() -> [Vec<u32>; 3] {
    let shared = text(0, PREFIX);
    let mut foreign = shared.clone();
    foreign[70..100].copy_from_slice(&text(9000, 30));
    let one = [&[1], &text(500, 9)[..]].concat();
    let other = [&[2], &text(700, 20)[..]].concat();
    [[&shared[..], &one].concat(), [&shared[..], &other].concat(), [&foreign[..], &one].concat()]
}

/// A running request.
struct Request {
    sequence: SequenceId,
    next: Vec<u32>,
    generated: Vec<u32>,
    reused: usize,
}

impl Request {
    fn begin(engine: &mut Engine, prompt: &[u32]) -> Request {
        let sequence = engine.begin().expect("free");
        let reused = engine.resume_prefix(sequence, &prompt[..prompt.len() - 1]).expect("empty");
        Request { sequence, next: prompt[reused..].to_vec(), generated: Vec::new(), reused }
    }

    fn step(&mut self, engine: &mut Engine) {
        let sampler = Sampler::new(Sampling::unfiltered(0.9, 5), 0).expect("valid");
        let token = engine.advance(self.sequence, &self.next, &sampler, || true).expect("fits");
        self.next = vec![token.expect("not stopped").token];
        self.generated.extend(&self.next);
        engine.integrity().expect("consistent cache metadata");
    }

    fn answer(engine: &mut Engine, prompt: &[u32]) -> Request {
        let mut request = Request::begin(engine, prompt);
        (0..ANSWER).for_each(|_| request.step(engine));
        engine.end(request.sequence).expect("begun");
        request
    }
}

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[test]
fn requests_in_every_order_one_at_a_time_and_concurrently() {
    for model in MODELS {
        let requests = requests();
        let cold: Vec<Vec<u32>> =
            requests.iter().map(|prompt| Request::answer(&mut load(model, 1, 0), prompt).generated).collect();
        for order in ORDERS {
            for cache_bytes in [0, 1 << 20, 64 << 20] {
                let mut engine = load(model, 1, cache_bytes);
                let mut reused = [0; 3];
                for index in order {
                    let request = Request::answer(&mut engine, &requests[index]);
                    assert_eq!(request.generated, cold[index], "{model}: {index} of {order:?}");
                    reused[index] = request.reused;
                }
                assert!(cache_bytes > 0 || reused == [0; 3]);
                if cache_bytes == 64 << 20 {
                    let later = order.into_iter().rfind(|&index| index < 2).expect("0 or 1");
                    // A recurrent model resumes from the end of a page, others from the last common token.
                    let most = if engine.is_recurrent() { 128 } else { PREFIX };
                    assert_eq!(reused[later], most, "{model}: {order:?}");
                    assert!(reused[2] <= 70 && (reused[2] > 60 || engine.is_recurrent() || order[0] == 2));
                }

                // All at once, one token of each in turn.
                let mut engine = load(model, 3, cache_bytes);
                let mut running: Vec<Request> = Vec::new();
                for index in order {
                    running.push(Request::begin(&mut engine, &requests[index]));
                    running.iter_mut().for_each(|request| request.step(&mut engine));
                }
                for (request, index) in running.iter_mut().zip(order) {
                    while request.generated.len() < ANSWER {
                        request.step(&mut engine);
                    }
                    assert_eq!(request.generated, cold[index], "{model}: {index} of {order:?} at once");
                }
            }
        }
    }
}

#[test]
fn an_uncommitted_prefix_is_not_reused() {
    for model in MODELS {
        let [first, second, _] = requests();
        let cold = Request::answer(&mut load(model, 1, 0), &second);
        let mut engine = load(model, 2, 64 << 20);
        let writer = engine.begin().expect("free");
        let start = engine.append(writer, first.len()).expect("room");
        let row = |(i, &token)| Row {
            sequence: writer,
            kv_index: start + i,
            input: RowInput::Token(token),
            want: RowOutputs::NONE,
        };
        let rows: Vec<Row> = first.iter().enumerate().map(row).collect();
        engine.step(&rows).expect("a step");
        let other = Request::answer(&mut engine, &second);
        assert_eq!(
            (other.reused, other.generated),
            (0, cold.generated.clone()),
            "{model}: computed and not committed"
        );
        engine.commit(writer, first.len()).expect("computed");
        let other = Request::answer(&mut engine, &second);
        assert!(other.reused >= 128, "{model}: {} reused", other.reused);
        assert_eq!(other.generated, cold.generated, "{model}");
    }
}

#[test]
fn a_request_without_memory_fails_and_the_others_continue() {
    for model in MODELS {
        let mut engine = load(model, 2, 0);
        let cold = Request::answer(&mut load(model, 1, 0), &text(3, 50));
        let mut other = Request::begin(&mut engine, &text(3, 50));
        let greedy = engine.begin().expect("free");
        let mut full = None;
        for _ in 0..ANSWER {
            for count in [100, 1, 399] {
                full = engine.append(greedy, count).err().or(full);
            }
            other.step(&mut engine);
        }
        assert!(matches!(full, Some(StateError::ContextFull { .. } | StateError::TooManyInFlight { .. })));
        assert_eq!(other.generated, cold.generated, "{model}");
    }
}
