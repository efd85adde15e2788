//! Sampling in the graph against sampling outside it: `cargo bench -p verbatim-lab --bench sampling -- MODEL.gguf`.
//!
//! Steps of one and of eight rows, every row sampled by the default chain, a greedy one, and one without filters. The two
//! ways take turns; figures are medians, and the ratio is that of the medians. The share is that of the two sampling ops in
//! the time of the graph.

use std::time::{Duration, Instant};
use verbatim_cpu::Cpu;
use verbatim_engine::{Draw, LoadOptions, Row, RowInput, RowOutputs, Sampler, Sampling, SequenceId, Stepper};
use verbatim_gguf::GgufFile;

const STEPS: usize = 150;

type Engine = Stepper<Cpu>;

fn main() {
    let Some(path) = std::env::args().skip(1).find(|argument| !argument.starts_with("--")) else {
        println!("no model: cargo bench -p verbatim-lab --bench sampling -- MODEL.gguf");
        return;
    };
    let file = GgufFile::open(&path).expect("a GGUF file");
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let load = |backend_sampling| {
        let options =
            LoadOptions { sequences: 8, context: Some(2048), backend_sampling, ..LoadOptions::default() };
        Engine::load(Cpu::new(threads).expect("a backend"), &file, &options).expect("a model")
    };
    let (mut graph, mut logits) = (load(true), load(false));
    let chains = [
        ("default chain", Sampling { seed: Some(1), ..Sampling::default() }),
        ("greedy", Sampling::greedy()),
        ("unfiltered", Sampling::unfiltered(0.8, 1)),
    ];
    println!(
        "{:<14} {:>4} {:>11} {:>11} {:>7} {:>7}",
        "", "rows", "graph, us", "logits, us", "ratio", "share"
    );
    for (name, settings) in chains {
        for rows in [1, 8] {
            let sampler = Sampler::new(settings.clone(), 1).expect("in range");
            let (mut in_graph, mut outside) =
                (Going::start(&mut graph, rows), Going::start(&mut logits, rows));
            graph.set_profiling(true);
            let times = (0..STEPS)
                .map(|_| (in_graph.step(&mut graph, &sampler), outside.step(&mut logits, &sampler)));
            let (a, b): (Vec<Duration>, Vec<Duration>) = times.collect();
            graph.set_profiling(false);
            assert_eq!(in_graph.last, outside.last, "the two ways have drawn different tokens");
            in_graph.end(&mut graph);
            outside.end(&mut logits);
            let (a, b) = (median(a), median(b));
            let share = 100.0 * share(&graph);
            println!("{name:<14} {rows:>4} {a:>11.0} {b:>11.0} {:>7.3} {share:>6.2}%", a / b);
        }
    }
}

/// Sequences that go on token by token.
struct Going {
    sequences: Vec<SequenceId>,
    last: Vec<u32>,
}

impl Going {
    fn start(engine: &mut Engine, rows: usize) -> Going {
        let sequences = (0..rows).map(|_| engine.begin().expect("a free sequence")).collect();
        Going { sequences, last: (0..rows as u32).map(|row| 100 + row).collect() }
    }

    fn step(&mut self, engine: &mut Engine, sampler: &Sampler) -> Duration {
        let start = Instant::now();
        let mut rows = Vec::with_capacity(self.last.len());
        for (&sequence, &token) in self.sequences.iter().zip(&self.last) {
            let kv_index = engine.append(sequence, 1).expect("room");
            let want = RowOutputs::token(Draw::from(sampler));
            rows.push(Row { sequence, kv_index, input: RowInput::Token(token), want });
        }
        {
            let outputs = engine.step(&rows).expect("a step");
            let token = |row| outputs.token(row).expect("computed").expect("wanted");
            self.last = (0..rows.len()).map(token).collect();
        }
        for &sequence in &self.sequences {
            engine.commit(sequence, 1).expect("in flight");
        }
        start.elapsed()
    }

    fn end(self, engine: &mut Engine) {
        self.sequences.into_iter().for_each(|sequence| engine.end(sequence).expect("begun"));
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn share(engine: &Engine) -> f64 {
    let profile = engine.profile().expect("it was on");
    let ops = profile.ops().iter().filter(|op| op.op.starts_with("Sample"));
    ops.map(|op| op.time.as_secs_f64()).sum::<f64>() / profile.total().as_secs_f64()
}
