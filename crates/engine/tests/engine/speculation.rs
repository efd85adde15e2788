//! A request's text, tokens and log-probabilities are the same with any draft, in any batch, and with any cache.

use crate::common::answers::*;
use crate::common::*;
use verbatim_engine::{
    DrafterFactory, Engine, EngineOptions, FinishReason, Grammar, KvType, LoadOptions, MAX_DRAFT,
    NgramDrafter, NotDrafted, Prompt, Request, Sampling, Script, ScriptedDrafter, SessionOptions,
    Speculation, TextProcessor,
};

const MODELS: [&str; 5] = ["llama-gqa-tied", "qwen3", "gemma3-iswa", "qwen35-hybrid", "qwen3moe"];
struct Setting {
    model: &'static str,
    kv: KvType,
    sequences: usize,
    cache_bytes: usize,
}

impl Setting {
    fn start(&self, drafters: DrafterFactory) -> Engine {
        let options = LoadOptions {
            context: Some(128),
            sequences: self.sequences,
            cache_bytes: self.cache_bytes,
            k: self.kv,
            v: self.kv,
            ..LoadOptions::default()
        };
        let stepper = engine(&format!("models/{}/model.gguf", self.model), options);
        let text = TextProcessor { tokenizer: tokenizer(self.model), template: None };
        let options = EngineOptions { drafters, ..EngineOptions::default() };
        Engine::start(stepper, text, options).expect("a thread")
    }
}

/// The answers of single requests without drafts, and what a scripted drafter must know.
fn plain(setting: &Setting) -> (Vec<Answer>, ScriptedDrafter) {
    let engine = Setting { sequences: 1, cache_bytes: 0, ..*setting }.start(DrafterFactory::default());
    let answers: Vec<Answer> =
        (0..REQUESTS).map(|number| read(engine.submit(request(number, Speculation::Off))).0).collect();
    let script = Script::default();
    for (answer, number) in answers.iter().zip(0..) {
        add(&script, number, answer);
    }
    let tokenizer = tokenizer(setting.model);
    let eog = (0..tokenizer.vocab_len() as u32).find(|&token| tokenizer.is_eog(token)).unwrap_or(3);
    (answers, ScriptedDrafter::new(script, eog))
}

fn add(script: &Script, number: u64, answer: &Answer) {
    let Prompt::Tokens(mut whole) = request(number, Speculation::Off).prompt else { unreachable!() };
    whole.extend(&answer.tokens);
    script.add(whole);
}

#[test]
fn answers_are_those_of_single_requests_without_drafts() {
    let (mut compared, mut drafted, mut accepted, mut width) = (0, 0, 0, 0);
    for model in MODELS {
        for (kv, sequences) in [(KvType::F16, 8), (KvType::Q8_0, 5), (KvType::Q4_0, 2), (KvType::F16, 1)] {
            let setting = Setting { model, kv, sequences, cache_bytes: 1 << 22 };
            let (wanted, scripted) = plain(&setting);
            let drafters = [
                DrafterFactory::new(move || Box::new(scripted.clone())),
                DrafterFactory::new(|| Box::new(NgramDrafter::new(1))),
            ];
            for drafters in drafters {
                let engine = setting.start(drafters);
                // Cold, then with the prompts in the prefix cache.
                for _ in 0..2 {
                    let streams = (0..REQUESTS).map(|number| {
                        width = width % MAX_DRAFT + 1;
                        let speculation =
                            if width % 4 == 0 { Speculation::AUTO } else { Speculation::Fixed(width) };
                        engine.submit(request(number, speculation))
                    });
                    for (wanted, stream) in wanted.iter().zip(streams.collect::<Vec<_>>()) {
                        let (answer, stats) = read(stream);
                        assert_eq!(answer, *wanted, "{model} {kv:?} {sequences}");
                        compared += answer.tokens.len();
                        drafted += stats.drafted;
                        accepted += stats.accepted;
                    }
                }
            }
        }
    }
    assert!(compared > 13_000 && drafted > 8_000 && accepted > 4_000, "{compared} {drafted} {accepted}");
}

#[test]
fn a_session_continues_as_without_drafts() {
    for model in ["qwen3", "gemma3-iswa", "qwen35-hybrid"] {
        let setting = Setting { model, kv: KvType::F16, sequences: 2, cache_bytes: 0 };
        let (_, scripted) = plain(&setting);
        let talk = |speculation: Speculation, drafter: ScriptedDrafter| {
            let engine = setting.start(DrafterFactory::new(move || Box::new(drafter.clone())));
            let session =
                engine.open_session(SessionOptions { shift_keep: None, file: None }).expect("free").id;
            let mut history = Vec::new();
            let mut said = Vec::new();
            for turn in 0..3u64 {
                let Request { prompt: Prompt::Tokens(more), .. } = request(turn, speculation) else {
                    unreachable!()
                };
                history.extend(more);
                let prompt = Prompt::Tokens(history.clone());
                let request = Request { prompt, session: Some(session), ..request(turn, speculation) };
                let stream = engine.submit(request);
                let (answer, _) = read(stream);
                history.extend(&answer.tokens);
                said.push(answer);
            }
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("saved");
            engine.save_session(session, &path, Vec::new()).expect("idle");
            (said, std::fs::read(&path).expect("written"))
        };
        let plain = talk(Speculation::Off, scripted.clone());
        for width in [1, 4, MAX_DRAFT] {
            assert_eq!(talk(Speculation::Fixed(width), scripted.clone()), plain, "{model} {width}");
        }
    }
}

#[test]
fn stop_strings_and_grammars_cut_a_draft() {
    let setting = Setting { model: "qwen3", kv: KvType::F16, sequences: 4, cache_bytes: 0 };
    let (answers, _) = plain(&setting);
    let limited = |speculation| {
        let middle: String = answers[1].text.chars().skip(6).take(2).collect();
        let stopped = Request { stop: vec![middle], ..request(1, speculation) };
        let grammar = Grammar::Gbnf("root ::= \"<\" [a-z ]{3,30} \">\" \"!\"{9}".to_owned());
        let constrained = Request { grammar: Some(grammar), max_tokens: Some(60), ..request(2, speculation) };
        [stopped, constrained]
    };
    let engine = setting.start(DrafterFactory::default());
    let wanted: Vec<Answer> =
        limited(Speculation::Off).map(|request| read(engine.submit(request)).0).into_iter().collect();
    assert!(matches!(wanted[0].reason, FinishReason::StopString(_)), "{wanted:?}");
    assert!(wanted[1].text.ends_with(">!!!!!!!!!"), "{wanted:?}");
    let script = Script::default();
    add(&script, 1, &answers[1]);
    add(&script, 2, &wanted[1]);
    let scripted = ScriptedDrafter::new(script, 3);
    for drafters in [DrafterFactory::new(move || Box::new(scripted.clone())), DrafterFactory::default()] {
        let engine = setting.start(drafters);
        for width in 1..=MAX_DRAFT {
            let streams = limited(Speculation::Fixed(width)).map(|request| engine.submit(request));
            for (stream, wanted) in streams.into_iter().zip(&wanted) {
                assert_eq!(read(stream).0, *wanted, "{width}");
            }
        }
    }
}

#[test]
fn a_request_says_why_it_does_not_draft() {
    let engine = Setting { model: "qwen3", kv: KvType::F16, sequences: 1, cache_bytes: 0 }
        .start(DrafterFactory::default());
    let why = |request| read(engine.submit(request)).1.not_drafted;
    assert_eq!(why(request(0, Speculation::Off)), Some(NotDrafted::Off));
    assert_eq!(why(request(0, Speculation::AUTO)), None);
    let mirostat = Sampling { mirostat: true, ..Sampling::default() };
    let stateful = Request { sampling: mirostat, ..request(0, Speculation::AUTO) };
    assert_eq!(why(stateful), Some(NotDrafted::StatefulSampler));
}
