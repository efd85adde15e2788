//! Requests that a draft model drafts for: answers are those of plain decoding, acceptance does not depend on the batch or the
//! cache, and draft models that do not fit are rejected.

use crate::common::answers::*;
use crate::common::*;
use verbatim_engine::{
    DraftModel, DraftOptions, DraftStats, DrafterFactory, Engine, EngineOptions, FinishReason, KvType,
    LoadError, LoadOptions, MAX_DRAFT, Message, NotDrafted, Prompt, Request, Role, SessionOptions,
    Speculation, Stepper, TextProcessor,
};
use verbatim_gguf::GgufFile;

#[derive(Clone, Copy)]
struct Setting {
    target: &'static str,
    draft: Option<&'static str>,
    kv: KvType,
    sequences: usize,
    context: usize,
    backend_sampling: bool,
}

impl Setting {
    /// A target with a draft model, which may be one that was made for another target.
    fn new(target: &'static str, draft: &'static str) -> Setting {
        let draft = Some(draft);
        Setting { target, draft, kv: KvType::F16, sequences: 1, context: 128, backend_sampling: true }
    }

    fn start(self) -> Engine {
        self.start_with(self.draft.map(|draft| std::fs::read(data(&draft_path(draft))).expect("a file")))
    }

    fn start_with(self, draft: Option<Vec<u8>>) -> Engine {
        let Setting { target, kv, sequences, context, backend_sampling, .. } = self;
        let (target_path, text) = (format!("models/{target}/model.gguf"), tokenizer(target));
        let options = LoadOptions {
            context: Some(context),
            sequences,
            cache_bytes: 1 << 22,
            k: kv,
            v: kv,
            backend_sampling,
            ..LoadOptions::default()
        };
        let mut stepper = engine(&target_path, options);
        let draft_model = draft.map(|draft| {
            let options = DraftOptions { k: kv, v: kv, backend_sampling, ..DraftOptions::default() };
            let draft = GgufFile::from_bytes(draft).expect("a file");
            let model = stepper.append_draft(&draft, &model_file(&target_path), &options).expect("it fits");
            DraftModel::new(model)
        });
        let options =
            EngineOptions { drafters: DrafterFactory::none(), draft_model, ..EngineOptions::default() };
        Engine::start(stepper, TextProcessor { tokenizer: text, template: None }, options).expect("a thread")
    }

    /// The answers of single requests without a draft model.
    fn plain(self) -> Vec<Answer> {
        let engine = Setting { sequences: 1, draft: None, ..self }.start();
        (0..REQUESTS).map(|number| read(engine.submit(request(number, Speculation::Off))).0).collect()
    }
}

fn draft_path(draft: &str) -> String {
    format!("drafts/{draft}/draft.gguf")
}

/// Two that were trained, some with random weights, and some that were made for other targets, a hybrid and one with windows.
const PAIRS: [(&str, &str); 8] = [
    ("qwen3", "qwen3.eagle3-rounds"),
    ("qwen3", "qwen3.dflash-rounds"),
    ("llama-gqa-tied", "llama.eagle3"),
    ("llama-gqa-tied", "llama.dflash"),
    ("gemma3-iswa", "qwen3.eagle3"),
    ("gemma3-iswa", "qwen3.dflash"),
    ("qwen35-hybrid", "qwen3.eagle3"),
    ("qwen35-hybrid", "qwen3.dflash"),
];

/// All requests at once; each drafts as `speculation` says.
fn ask(engine: &Engine, speculation: impl Fn(u64) -> Speculation) -> Vec<(Answer, DraftStats)> {
    let streams = (0..REQUESTS).map(|number| engine.submit(request(number, speculation(number))));
    streams.collect::<Vec<_>>().into_iter().map(read).collect()
}

#[test]
fn answers_are_those_of_plain_decoding() {
    let (mut compared, mut drafted, mut accepted) = (0, 0, 0);
    for (target, draft) in PAIRS {
        for (kv, sequences) in [(KvType::F16, 5), (KvType::Q8_0, 5), (KvType::F16, 1)] {
            let setting = Setting { kv, sequences, ..Setting::new(target, draft) };
            let wanted = setting.plain();
            let engine = setting.start();
            // Cold, then with the prompts in the prefix cache.
            for round in 0..4 {
                let width = |number: u64| match (number + round * 3) % 16 {
                    0 => Speculation::AUTO,
                    width => Speculation::Fixed(width as usize),
                };
                for ((answer, stats), wanted) in ask(&engine, width).into_iter().zip(&wanted) {
                    assert_eq!(answer, *wanted, "{target} {draft} {kv:?} {sequences}");
                    compared += answer.tokens.len();
                    drafted += stats.drafted;
                    accepted += stats.accepted;
                }
            }
        }
    }
    println!("{compared} tokens compared, {drafted} drafted, {accepted} accepted");
    assert!(compared > 15_000 && drafted > 30_000 && accepted > 500, "{compared} {drafted} {accepted}");
}

#[test]
fn acceptance_depends_neither_on_other_requests_nor_on_the_cache() {
    for (target, draft) in &PAIRS[..4] {
        let setting = Setting::new(target, draft);
        // The last prompt token is computed again after a prefix-cache hit, and all else is not.
        let counts = |engine: &Engine| -> Vec<(usize, usize, usize)> {
            let answers = ask(engine, |_| Speculation::Fixed(5)).into_iter();
            answers.map(|(_, stats)| (stats.rounds, stats.drafted, stats.accepted)).collect()
        };
        let wanted = counts(&setting.start());
        assert!(wanted.iter().all(|(rounds, drafted, _)| rounds <= drafted && *rounds > 0), "{wanted:?}");
        for backend_sampling in [true, false] {
            let engine = Setting { sequences: 5, backend_sampling, ..setting }.start();
            for how in ["cold", "hot"] {
                assert_eq!(counts(&engine), wanted, "{target} {draft} {how}");
            }
        }
    }
}

#[test]
fn drafts_end_with_the_context() {
    for (target, draft) in PAIRS {
        let setting = Setting { context: 40, sequences: 2, ..Setting::new(target, draft) };
        let long = |speculation| Request { max_tokens: None, ..request(2, speculation) };
        let plain = read(Setting { draft: None, ..setting }.start().submit(long(Speculation::Off))).0;
        let engine = setting.start();
        for width in [1, 5, 8, MAX_DRAFT] {
            let (answer, stats) = read(engine.submit(long(Speculation::Fixed(width))));
            assert_eq!(answer, plain, "{target} {draft} {width}");
            assert!(stats.drafted > 0 || answer.reason != FinishReason::ContextFull);
        }
    }
}

/// A file with some bytes replaced by as many others, at the first occurrence.
fn patched(draft: &str, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = std::fs::read(data(&draft_path(draft))).expect("a file");
    let at = bytes.windows(from.len()).position(|window| window == from).expect("the bytes");
    bytes[at..at + to.len()].copy_from_slice(to);
    bytes
}

/// A u32 of the metadata as it is stored.
fn entry(key: &str, value: u32) -> Vec<u8> {
    [key.as_bytes(), &4u32.to_le_bytes(), &value.to_le_bytes()].concat()
}

#[test]
fn nothing_is_drafted_beyond_the_context_that_the_draft_model_was_trained_for() {
    let setting = Setting::new("qwen3", "qwen3.eagle3-rounds");
    let key = "eagle3.context_length";
    let short = patched("qwen3.eagle3-rounds", &entry(key, 512), &entry(key, 20));
    let (wanted, engine) = (setting.plain(), setting.start_with(Some(short)));
    for ((answer, stats), wanted) in ask(&engine, |_| Speculation::Fixed(5)).into_iter().zip(&wanted) {
        assert_eq!(answer, *wanted);
        assert_eq!(stats.not_drafted, Some(NotDrafted::DraftContext));
    }
}

#[test]
fn a_session_from_before_the_draft_model_goes_on_without_it() {
    let setting = Setting::new("qwen3", "qwen3.eagle3-rounds");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("saved");
    let talk =
        |draft: Option<&'static str>, file: Option<std::path::PathBuf>, turns: std::ops::Range<u64>| {
            let engine = Setting { draft, ..setting }.start();
            let options = SessionOptions { shift_keep: None, file };
            let session = engine.open_session(options).expect("free").id;
            let mut history = Vec::new();
            let mut last = None;
            for turn in 0..turns.end {
                let Prompt::Tokens(more) = request(turn, Speculation::Off).prompt else { unreachable!() };
                history.extend(&more[..9]);
                if turns.contains(&turn) {
                    let speculation = Speculation::Fixed(4);
                    let prompt = Prompt::Tokens(history.clone());
                    let request = Request {
                        prompt,
                        session: Some(session),
                        max_tokens: Some(8),
                        ..request(0, speculation)
                    };
                    last = Some(read(engine.submit(request)));
                }
            }
            engine.save_session(session, &path, Vec::new()).expect("idle");
            last.expect("an answer")
        };
    talk(None, None, 0..1);
    let (plain, _) = talk(None, Some(path.clone()), 1..2);
    talk(None, None, 0..1);
    let (answer, stats) = talk(Some("qwen3.eagle3-rounds"), Some(path.clone()), 1..2);
    assert_eq!(answer.tokens, plain.tokens);
    // What the draft model has followed since the session was opened is enough to draft from.
    assert!(stats.drafted > 0 || stats.not_drafted == Some(NotDrafted::NotFollowed), "{stats:?}");
}

fn append(target: &str, draft: &GgufFile) -> Result<(), LoadError> {
    let path = format!("models/{target}/model.gguf");
    let mut stepper = engine(&path, LoadOptions::default());
    let options = DraftOptions::default();
    let appended = stepper.append_draft(draft, &model_file(&path), &options).map(|_| ());
    // Nothing was modified where it failed: the target works.
    assert_eq!(logits(&mut stepper, &[1, 2, 3], &[3]).len(), 3 * stepper.hyperparameters().vocabulary);
    appended
}

fn refusal(target: &str, draft: Vec<u8>) -> String {
    let draft = GgufFile::from_bytes(draft).expect("a GGUF file");
    append(target, &draft).expect_err("it does not fit").to_string()
}

#[test]
fn draft_models_that_do_not_fit_are_refused_by_name() {
    let (eagle3, dflash) = ("qwen3.eagle3", "qwen3.dflash");
    let whole = |draft: &str| std::fs::read(data(&draft_path(draft))).expect("a file");
    let cases = [
        // A target with fewer layers.
        (refusal("qwen3moe", whole(eagle3)), "enters layer 3, but the target has 2 layers"),
        (refusal("qwen3moe", whole(dflash)), "enters layer 3, but the target has 2 layers"),
        (
            refusal("qwen3", {
                let key = "eagle3.target_hidden_size";
                patched(eagle3, &entry(key, 64), &entry(key, 65))
            }),
            "reads hidden states of 65 elements (eagle3.target_hidden_size), but the target's hidden size is 64",
        ),
        (
            // Two tokens change places.
            refusal(
                "qwen3",
                patched(
                    eagle3,
                    b"\x01\0\0\0\0\0\0\0\"\x01\0\0\0\0\0\0\0#",
                    b"\x01\0\0\0\0\0\0\0#\x01\0\0\0\0\0\0\0\"",
                ),
            ),
            "its tokenizer differs: token 1 is \"#\", but \"\\\"\" in the target",
        ),
        (
            refusal("qwen3", std::fs::read(data("models/qwen3/model.gguf")).expect("a file")),
            "is not that of a draft model",
        ),
        (
            refusal("qwen3", {
                let key = "dflash.block_size";
                patched(dflash, &entry(key, 8), &entry(key, 1))
            }),
            "dflash.block_size is 1, but must be at least 2",
        ),
        (
            refusal("qwen3", {
                let key = "tokenizer.ggml.mask_token_id";
                patched(dflash, &entry(key, 507), &entry(key, 512))
            }),
            "mask_token_id is 512, but must be below 512",
        ),
    ];
    for (message, wanted) in cases {
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn damaged_draft_models_are_refused() {
    for draft in ["qwen3.eagle3", "qwen3.dflash"] {
        let whole = std::fs::read(data(&draft_path(draft))).expect("a file");
        for len in [0, 3, 100, whole.len() / 2, whole.len() - 1] {
            assert!(GgufFile::from_bytes(whole[..len].to_vec()).is_err(), "{draft} of {len} bytes");
        }
        let with = |name: &str, element: f32, all: bool| {
            let file = GgufFile::from_bytes(whole.clone()).expect("valid");
            let data = file.require_tensor(name).expect("a tensor").data().expect("readable");
            let start = whole.windows(data.len()).position(|window| *window == data[..]).expect("the tensor");
            let (mut bytes, len) = (whole.clone(), data.len());
            let changed = if all { start..start + len } else { start + len / 2..start + len / 2 + 4 };
            bytes[changed].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&element.to_le_bytes()));
            refusal("qwen3", bytes)
        };
        let nan = with("fc.weight", f32::NAN, false);
        assert!(nan.contains("fc.weight") && nan.contains("not finite"), "{nan}");
        let zero = with("blk.0.attn_k.weight", 0.0, true);
        assert!(zero.contains("attn_k") && zero.contains("no element but 0"), "{zero}");
    }
    // A draft vocabulary with a token twice, and one that the target does not have.
    let file = GgufFile::open(data(&draft_path("qwen3.eagle3"))).expect("valid");
    let ids = file.require_tensor("d2t").expect("a tensor").data().expect("readable");
    for (id, message) in [(ids[..8].to_vec(), "twice"), (512i64.to_le_bytes().to_vec(), "token id 512")] {
        let damaged = patched("qwen3.eagle3", &ids, &[&ids[..8], &id, &ids[16..]].concat());
        let refused = refusal("qwen3", damaged);
        assert!(refused.contains("d2t") && refused.contains(message), "{refused}");
    }
}

#[test]
fn short_and_unlikely_drafts_are_left_out() {
    let target = "models/qwen3/model.gguf";
    let run = |n_min: usize, p_min: f32| {
        let mut stepper: Stepper<_> = engine(target, LoadOptions::default());
        let draft = GgufFile::open(data(&draft_path("qwen3.eagle3-rounds"))).expect("valid");
        let options = DraftOptions::default();
        let model = stepper.append_draft(&draft, &model_file(target), &options).expect("it fits");
        let draft_model = Some(DraftModel { model, n_min, p_min });
        let options =
            EngineOptions { drafters: DrafterFactory::none(), draft_model, ..EngineOptions::default() };
        let text = TextProcessor { tokenizer: tokenizer("qwen3"), template: None };
        let engine = Engine::start(stepper, text, options).expect("a thread");
        read(engine.submit(request(0, Speculation::Fixed(5))))
    };
    let (answer, all) = run(0, 0.0);
    assert!(all.drafted > 0);
    let rate = |stats: DraftStats| stats.accepted as f64 / stats.drafted.max(1) as f64;
    let (likely_answer, likely) = run(0, 0.3);
    assert_eq!(likely_answer, answer);
    assert!(likely.drafted < all.drafted && rate(likely) >= rate(all), "{likely:?} {all:?}");
    let (none_answer, none) = run(6, 0.0);
    assert_eq!((none_answer, none.drafted), (answer, 0));
}

/// The prompts of each kind of `bench/prompts.jsonl` that come first.
const EVALUATED: [usize; 8] = [0, 3, 6, 9, 12, 15, 18, 21];

/// Acceptance of drafts trained for SmolLM2-135M-Instruct, in the folder that `VERBATIM_TEST_DRAFTS` names, against what llama.cpp
/// (October 2026) accepts of the same files with one request at a time and drafts of 5: 485 of 3413 tokens with EAGLE-3, 473 of
/// 3475 with DFlash. The folder of models has the target.
#[test]
fn real_drafts_are_accepted_as_often_as_elsewhere() {
    let Ok(folder) = std::env::var("VERBATIM_TEST_DRAFTS") else {
        println!("SKIPPED: VERBATIM_TEST_DRAFTS names no folder of draft models");
        return;
    };
    let models = std::env::var("VERBATIM_TEST_MODELS").expect("the folder of models has the target");
    let target = std::path::Path::new(&models).join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let target = GgufFile::open(target).expect("the target");
    let prompts = std::fs::read_to_string(data("../../bench/prompts.jsonl")).expect("prompts");
    let prompts: Vec<serde_json::Value> =
        prompts.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (file, elsewhere) in [("eagle3", 485.0 / 3413.0), ("dflash", 473.0 / 3475.0)] {
        let path = std::path::Path::new(&folder).join(format!("smollm2-135m-{file}-q8_0.gguf"));
        let draft = GgufFile::open(path).expect("a draft model");
        let counts = |sequences: usize, speculation: Speculation| {
            let options = LoadOptions {
                sequences,
                context: Some(1024),
                cache_bytes: 1 << 26,
                ..LoadOptions::default()
            };
            let mut stepper = load(&target, &options).expect("the target");
            let options = DraftOptions::default();
            let model = stepper.append_draft(&draft, &target, &options).expect("it fits");
            let template = target.metadata().get_str("tokenizer.chat_template").expect("valid");
            let text = TextProcessor {
                tokenizer: std::sync::Arc::new(
                    verbatim_text::Tokenizer::from_gguf(target.metadata()).expect("a vocabulary"),
                ),
                template: template.map(str::to_owned),
            };
            let draft_model = Some(DraftModel::new(model));
            let options =
                EngineOptions { drafters: DrafterFactory::none(), draft_model, ..EngineOptions::default() };
            let engine = Engine::start(stepper, text, options).expect("a thread");
            let streams = EVALUATED.map(|index| {
                let content = prompts[index]["prompt"].as_str().expect("a text").to_owned();
                let prompt = Prompt::Chat(vec![Message::new(Role::User, content)]);
                engine.submit(Request { max_tokens: Some(160), speculation, ..Request::new(prompt) })
            });
            streams.map(read)
        };
        let single = counts(1, Speculation::Fixed(5));
        let (drafted, accepted) = single.iter().fold((0, 0), |(drafted, accepted), (_, stats)| {
            (drafted + stats.drafted, accepted + stats.accepted)
        });
        let rate = accepted as f64 / drafted as f64;
        println!("{file}: {accepted} of {drafted} accepted, {rate:.3}; elsewhere {elsewhere:.3}");
        assert!(rate > elsewhere - 0.02, "{file}: {rate}");
        for ((answer, stats), (wanted, plain)) in counts(5, Speculation::Fixed(5)).iter().zip(&single) {
            assert_eq!(answer, wanted, "{file}");
            assert_eq!((stats.drafted, stats.accepted), (plain.drafted, plain.accepted), "{file}");
        }
        for ((answer, _), (wanted, _)) in counts(5, Speculation::Off).iter().zip(&single) {
            assert_eq!(answer, wanted, "{file}");
        }
    }
}
