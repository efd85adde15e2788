//! Speculation against plain decoding: `cargo bench -p verbatim-lab --bench speculation -- MODEL.gguf [PROMPTS.jsonl]`.
//!
//! Answers of 128 tokens to prompts of several kinds, alone and five at once: without drafts, with fixed draft lengths, and with
//! the automatic choice. The modes take turns, and answers must be equal. Figures are tokens per second of generation, as
//! ratios to plain decoding, by kind of prompt; `all wrong` drafts what is never accepted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;
use verbatim_cpu::Cpu;
use verbatim_engine::{
    Drafter, DrafterFactory, Engine, EngineOptions, Event, LoadOptions, Message, Prompt, Request, Role,
    Sampling, Speculation, Stepper, TextProcessor,
};
use verbatim_gguf::GgufFile;
use verbatim_text::Tokenizer;

const TOKENS: usize = 128;
const ROUNDS: usize = 3;

/// Drafts tokens that no model says in a row.
#[derive(Debug)]
struct Wrong;

impl Drafter for Wrong {
    fn method(&self) -> &'static str {
        "wrong"
    }

    fn propose(&mut self, _: &[u32], max: usize, draft: &mut Vec<u32>) {
        draft.extend((0..max as u32).map(|i| 9000 + 7 * i));
    }
}

struct Mode {
    name: &'static str,
    speculation: Speculation,
    is_wrong: bool,
}

const MODES: [Mode; 6] = [
    Mode { name: "plain", speculation: Speculation::Off, is_wrong: false },
    Mode { name: "auto", speculation: Speculation::AUTO, is_wrong: false },
    Mode { name: "fixed 2", speculation: Speculation::Fixed(2), is_wrong: false },
    Mode { name: "fixed 4", speculation: Speculation::Fixed(4), is_wrong: false },
    Mode { name: "fixed 8", speculation: Speculation::Fixed(8), is_wrong: false },
    Mode { name: "all wrong", speculation: Speculation::AUTO, is_wrong: true },
];

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with("--"));
    let Some(path) = arguments.next() else {
        println!("no model: cargo bench -p verbatim-lab --bench speculation -- MODEL.gguf [PROMPTS.jsonl]");
        return;
    };
    let prompts = arguments.next();
    let prompts = prompts
        .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/prompts.jsonl").to_owned());
    let prompts = std::fs::read_to_string(prompts).expect("prompts");
    let prompts: Vec<serde_json::Value> =
        prompts.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for prompt in &prompts {
        let text = |key: &str| prompt[key].as_str().expect("a text").to_owned();
        kinds.entry(text("category")).or_default().push(text("prompt"));
    }
    let file = GgufFile::open(&path).expect("a GGUF file");
    let engines = [false, true].map(|is_wrong| start(&file, is_wrong));
    for sampling in [Sampling::greedy(), Sampling { seed: Some(1), ..Sampling::default() }] {
        for at_once in [1, 5] {
            println!(
                "\ntemperature {}, {at_once} at once; tokens/s of plain, then ratios, and accepted/drafted by auto",
                sampling.temperature
            );
            println!("{:<12}{}", "", MODES.map(|mode| format!("{:>11}", mode.name)).concat());
            for (kind, prompts) in &kinds {
                report(kind, &engines, prompts, &sampling, at_once);
            }
        }
    }
}

fn start(file: &GgufFile, is_wrong: bool) -> Engine {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = LoadOptions { sequences: 5, context: Some(1024), ..LoadOptions::default() };
    let stepper = Stepper::load(Cpu::new(threads).expect("a backend"), file, &options).expect("a model");
    let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata()).expect("a vocabulary"));
    let template = file.metadata().get_str("tokenizer.chat_template").expect("a text").map(str::to_owned);
    let drafters = if is_wrong { DrafterFactory::new(|| Box::new(Wrong)) } else { DrafterFactory::default() };
    let options = EngineOptions { drafters, ..EngineOptions::default() };
    Engine::start(stepper, TextProcessor { tokenizer, template }, options).expect("a thread")
}

fn report(kind: &str, engines: &[Engine; 2], prompts: &[String], sampling: &Sampling, at_once: usize) {
    let mut speeds = MODES.map(|_| Vec::new());
    let (mut accepted, mut drafted) = (0, 0);
    for _ in 0..ROUNDS {
        for prompt in prompts {
            let mut texts = Vec::new();
            for (mode, speeds) in MODES.iter().zip(&mut speeds) {
                let engine = &engines[usize::from(mode.is_wrong)];
                let (text, speed, drafts) = run(engine, prompt, sampling, mode.speculation, at_once);
                texts.push(text);
                speeds.push(speed);
                if mode.name == "auto" {
                    accepted += drafts.0;
                    drafted += drafts.1;
                }
            }
            assert!(texts.iter().all(|text| *text == texts[0]), "the modes differ: {texts:?}");
        }
    }
    let medians = speeds.map(|mut speeds| {
        speeds.sort_by(f64::total_cmp);
        speeds[speeds.len() / 2]
    });
    let ratios: String = medians[1..].iter().map(|speed| format!("{:>11.3}", speed / medians[0])).collect();
    println!("{kind:<12}{:>11.1}{ratios}   {accepted}/{drafted}", medians[0]);
}

/// The text of the last request, tokens per second of all, and draft tokens accepted and verified.
fn run(
    engine: &Engine,
    prompt: &str,
    sampling: &Sampling,
    speculation: Speculation,
    at_once: usize,
) -> (String, f64, (usize, usize)) {
    let streams: Vec<_> = (0..at_once)
        .map(|number| {
            let seed = sampling.seed.map(|seed| seed + number as u64);
            let message = Message::new(Role::User, prompt);
            engine.submit(Request {
                sampling: Sampling { seed, ..sampling.clone() },
                max_tokens: Some(TOKENS),
                speculation,
                ..Request::new(Prompt::Chat(vec![message]))
            })
        })
        .collect();
    let (mut text, mut tokens, mut drafts) = (String::new(), 0, (0, 0));
    let mut started = None;
    for stream in streams {
        text.clear();
        for event in stream {
            match event {
                Event::Started { .. } => {}
                Event::Text { text: more, .. } => {
                    started.get_or_insert_with(Instant::now);
                    text += &more;
                }
                Event::Finished { stats, .. } => {
                    tokens += stats.generated_tokens;
                    drafts.0 += stats.drafts.accepted;
                    drafts.1 += stats.drafts.drafted;
                }
                Event::Failed(error) => panic!("{error}"),
            }
        }
    }
    let seconds = started.expect("some text").elapsed().as_secs_f64();
    (text, tokens as f64 / seconds, drafts)
}
