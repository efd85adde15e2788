//! Golden generations, recorded once on Linux: every system, processor and instruction set produces the same texts.
//!
//! `VERBATIM_TEST_RECORD=1 cargo test -p verbatim-engine --test texts` records them again, which is right only if a change
//! raises `NUMERICS`. The command line's tests read the same file.

use crate::common::*;
use serde::{Deserialize, Serialize};
use verbatim_engine::{
    Engine, EngineOptions, Event, KvType, LoadOptions, Prompt, Request, Sampling, SessionOptions,
    TextProcessor,
};
use verbatim_text::Tokenizer;

const TEXTS: &str = "texts.jsonl";

/// One line of the file: a request and its result.
#[derive(Serialize, Deserialize)]
struct Recorded {
    model: String,
    prompt: String,
    temperature: f32,
    seed: u64,
    max_tokens: usize,
    context: usize,
    /// Whether a full context is shifted.
    shift: bool,
    k: String,
    v: String,
    tokens: Vec<u32>,
    text: String,
}

fn kv_type(name: &str) -> KvType {
    KvType::ALL.into_iter().find(|kind| kind.name() == name).expect("a format of K and V")
}

/// The tokens and the text that the engine generates.
fn generate(recorded: &Recorded) -> (Vec<u32>, String) {
    let file = model_file(&recorded.model);
    let options = LoadOptions {
        context: Some(recorded.context),
        k: kv_type(&recorded.k),
        v: kv_type(&recorded.v),
        ..LoadOptions::default()
    };
    let tokenizer = Tokenizer::from_gguf(file.metadata()).expect("a vocabulary").into();
    let stepper = load(&file, &options).expect("a model");
    let text = TextProcessor { tokenizer, template: None };
    let engine = Engine::start(stepper, text, EngineOptions::default()).expect("a thread");
    let session = recorded.shift.then(|| {
        let options = SessionOptions { shift_keep: Some(4), file: None };
        engine.open_session(options).expect("a free sequence").id
    });
    let answer = engine.submit(Request {
        sampling: Sampling {
            temperature: recorded.temperature,
            seed: Some(recorded.seed),
            ..Sampling::default()
        },
        max_tokens: Some(recorded.max_tokens),
        session,
        ..Request::new(Prompt::Text(recorded.prompt.clone()))
    });
    let (mut tokens, mut text) = (Vec::new(), String::new());
    for event in answer {
        match event {
            Event::Started { .. } | Event::Finished { .. } => {}
            Event::Text { text: more, tokens: their, .. } => {
                text.push_str(&more);
                tokens.extend(their);
            }
            Event::Failed(error) => panic!("{}: {error}", recorded.model),
        }
    }
    (tokens, text)
}

#[test]
fn every_machine_reproduces_the_recorded_texts() {
    let path = data(TEXTS);
    let lines = std::fs::read_to_string(&path).expect("the recorded texts");
    let mut all: Vec<Recorded> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a recorded text")).collect();
    assert!(all.len() >= 20);
    if std::env::var_os("VERBATIM_TEST_RECORD").is_some() {
        all.iter_mut().for_each(|recorded| (recorded.tokens, recorded.text) = generate(recorded));
        let lines = all.iter().map(|recorded| serde_json::to_string(recorded).expect("JSON") + "\n");
        return std::fs::write(&path, lines.collect::<String>()).expect("the file can be written");
    }
    for recorded in &all {
        let expected = (recorded.tokens.clone(), recorded.text.clone());
        assert_eq!(generate(recorded), expected, "{} at {}", recorded.model, recorded.temperature);
    }
    println!("{} texts are those that were recorded", all.len());
}
