//! Sessions of `Engine`: they resume from their token history, in the same process or after being saved and restored.

use crate::common::*;
use std::path::Path;
use std::sync::Arc;
use verbatim_engine::{
    Engine, EngineOptions, Event, LoadOptions, OpenedSession, Prompt, Request, RequestError, RowError,
    Sampling, SessionError, SessionId, SessionOptions, StepError, TextProcessor,
};
use verbatim_gguf::{GgufFile, GgufWriter};
use verbatim_text::Tokenizer;

const MODELS: [&str; 3] = ["qwen3", "gemma3-iswa", "qwen35-hybrid"];

fn started(model: &str, context: usize) -> Engine {
    started_with(model, context, EngineOptions::default())
}

fn started_with(model: &str, context: usize, engine_options: EngineOptions) -> Engine {
    let path = format!("models/{model}/model.gguf");
    let file = GgufFile::open(data(&path)).expect("a model");
    let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata()).expect("a vocabulary"));
    let options =
        LoadOptions { context: Some(context), sequences: 2, cache_bytes: 1 << 24, ..LoadOptions::default() };
    let text = TextProcessor { tokenizer, template: None };
    Engine::start(engine(&path, options), text, engine_options).expect("a thread")
}

fn open(engine: &Engine, shift_keep: Option<usize>, file: Option<&Path>) -> OpenedSession {
    let options = SessionOptions { shift_keep, file: file.map(Path::to_owned) };
    engine.open_session(options).expect("a free sequence")
}

/// The tokens that a prompt is continued with, and its number of cached tokens.
fn complete(engine: &Engine, session: Option<SessionId>, prompt: &[u32], count: usize) -> (Vec<u32>, usize) {
    let answer = engine.submit(Request {
        sampling: Sampling::unfiltered(0.9, 3),
        max_tokens: Some(count),
        session,
        ..Request::new(Prompt::Tokens(prompt.to_vec()))
    });
    let (mut generated, mut cached) = (Vec::new(), 0);
    for event in answer {
        match event {
            Event::Started { cached_tokens, .. } => cached = cached_tokens,
            Event::Text { tokens, .. } => generated.extend(tokens),
            Event::Finished { .. } => {}
            Event::Failed(error) => panic!("{error}"),
        }
    }
    (generated, cached)
}

fn text(start: u32, count: u32) -> Vec<u32> {
    (start..start + count).map(|i| (i * 31 + 7) % 500).collect()
}

#[test]
fn a_session_resumes_from_its_history() {
    for model in MODELS {
        let engine = started(model, 300);
        let session = open(&engine, None, None).id;
        let mut talk = text(0, 70);
        let (generated, cached) = complete(&engine, Some(session), &talk, 12);
        assert_eq!(cached, 0);
        talk.extend(&generated);
        talk.extend(text(90, 5));
        let (generated, cached) = complete(&engine, Some(session), &talk, 12);
        // The last token of the answer was not computed.
        assert_eq!(cached, 81, "{model}");
        let fresh = started(model, 300);
        assert_eq!(complete(&fresh, None, &talk, 12), (generated, 0), "{model}");
        // A different continuation, from the longest common prefix that the model can resume from.
        let other = [&talk[..60], &text(200, 9)].concat();
        assert_eq!(
            complete(&engine, Some(session), &other, 12).0,
            complete(&fresh, None, &other, 12).0,
            "{model}"
        );
    }
}

#[test]
fn a_saved_session_resumes_in_a_new_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    for (model, shift_keep) in
        [("qwen3", None), ("qwen3", Some(4)), ("gemma3-iswa", Some(2)), ("qwen35-hybrid", None)]
    {
        let file = folder.path().join(model);
        let context = if shift_keep.is_some() { 64 } else { 300 };
        let engine = started(model, context);
        let opened = open(&engine, shift_keep, Some(&file));
        assert!(opened.restored.is_none());
        let mut talk = text(0, 50);
        talk.extend(complete(&engine, Some(opened.id), &talk, 40).0);
        let sections = vec![("notes".to_owned(), b"of mine".to_vec())];
        engine.save_session(opened.id, &file, sections).expect("written");
        talk.extend(text(90, 5));
        let expected = complete(&engine, Some(opened.id), &talk, 30);
        let other = started(model, context);
        let opened = open(&other, shift_keep, Some(&file));
        let restored = opened.restored.expect("restored");
        assert_eq!(restored.section("notes"), Some(&b"of mine"[..]));
        assert!(restored.positions <= context);
        assert_eq!(complete(&other, Some(opened.id), &talk, 30), expected, "{model}");
        std::fs::remove_file(file).expect("written");
    }
}

#[test]
fn invalid_session_operations_are_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("session");
    let engine = started("qwen3", 60);
    let rejected = |options| engine.open_session(options).expect_err("something is wrong");
    let keep = rejected(SessionOptions { shift_keep: Some(59), file: None });
    assert!(matches!(keep, SessionError::Keep { keep: 59, context: 60 }), "{keep}");
    std::fs::write(&file, "notes").expect("a file");
    let foreign = rejected(SessionOptions { shift_keep: None, file: Some(file.clone()) });
    assert!(matches!(foreign, SessionError::File(_)), "{foreign}");
    let session = open(&engine, None, None).id;
    let reserved = engine.save_session(session, &file, vec![("history".to_owned(), vec![])]);
    assert!(matches!(reserved, Err(SessionError::Reserved(_))));
    let nowhere = engine.save_session(session, "/no/such/folder/file", vec![]);
    assert!(matches!(nowhere, Err(SessionError::File(_))));
    engine.close_session(session).expect("open");
    assert!(matches!(engine.close_session(session), Err(SessionError::NotOpen)));
    assert!(matches!(engine.save_session(session, &file, vec![]), Err(SessionError::NotOpen)));
    let both = [open(&engine, None, None), open(&engine, None, None)];
    assert!(matches!(rejected(SessionOptions::default()), SessionError::State(_)));
    both.into_iter().for_each(|opened| engine.close_session(opened.id).expect("open"));
    let hybrid = started("qwen35-hybrid", 60);
    let shift = hybrid.open_session(SessionOptions { shift_keep: Some(4), file: None });
    assert!(matches!(shift, Err(SessionError::Shift(_))));
}

#[test]
fn a_file_whose_history_does_not_match_its_sequence_is_rejected() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("session");
    let mut stepper =
        engine("models/qwen3/model.gguf", LoadOptions { context: Some(60), ..LoadOptions::default() });
    let sequence = stepper.begin().expect("free");
    let sampler = verbatim_engine::Sampler::greedy();
    stepper.advance(sequence, &text(0, 20), &sampler, || true).expect("fits");
    let history: Vec<u8> = text(0, 20).into_iter().flat_map(u32::to_le_bytes).collect();
    let engine = started("qwen3", 60);
    let open = |history: Vec<u8>| {
        stepper.save_file(sequence, vec![("history", history)], &file).expect("written");
        engine.open_session(SessionOptions { shift_keep: None, file: Some(file.clone()) })
    };
    let others = [vec![1, 0, 0, 0], vec![], history[..76].to_vec(), [&history[..], &[0]].concat()];
    for other in others {
        assert!(matches!(open(other), Err(SessionError::History { .. })));
    }
    assert!(open(history).is_ok());
}

#[test]
fn a_session_in_use_cannot_be_saved_or_closed() {
    // Requests pause at their first token.
    let engine = started_with("qwen3", 60, EngineOptions { event_buffer: 1, ..EngineOptions::default() });
    let session = open(&engine, Some(4), None).id;
    let request = || Request { session: Some(session), ..Request::new(Prompt::Tokens(text(0, 20))) };
    let (first, second) = (engine.submit(request()), engine.submit(request()));
    assert!(matches!(engine.close_session(session), Err(SessionError::Busy)));
    drop(second);
    assert!(matches!(engine.save_session(session, "/never/written", vec![]), Err(SessionError::Busy)));
    assert!(matches!(engine.close_session(session), Err(SessionError::Busy)));
    drop(first);
    engine.close_session(session).expect("nobody uses it any more");
}

/// A file in which the embedding of one token is NaN.
fn with_damaged_token(file: &GgufFile, token: usize) -> GgufFile {
    let mut writer = GgufWriter::new();
    file.metadata().iter().for_each(|(key, value)| writer.put(key, value).expect("fits"));
    for tensor in file.iter_tensors() {
        writer.declare(tensor.name(), tensor.dtype(), tensor.dims()).expect("fits");
    }
    let mut writer = writer.begin(Vec::new()).expect("memory");
    for tensor in file.iter_tensors() {
        let mut bytes = tensor.data().expect("readable").to_vec();
        if tensor.name() == "token_embd.weight" {
            let row = bytes.len() / tensor.dims()[1];
            let words = bytes[token * row..][..row].as_chunks_mut::<4>().0;
            words.fill(f32::NAN.to_le_bytes());
        }
        writer.append(tensor.name(), &bytes).expect("declared");
    }
    GgufFile::from_bytes(writer.finish().expect("whole")).expect("a model")
}

#[test]
fn nan_logits_fail_only_their_request() {
    const DAMAGED: u32 = 499;
    for model in MODELS {
        let file = GgufFile::open(data(&format!("models/{model}/model.gguf"))).expect("a model");
        let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata()).expect("a vocabulary"));
        let options = LoadOptions { context: Some(300), cache_bytes: 1 << 24, ..LoadOptions::default() };
        let stepper = load(&with_damaged_token(&file, DAMAGED as usize), &options);
        let text = TextProcessor { tokenizer, template: None };
        let engine =
            Engine::start(stepper.expect("loads"), text, EngineOptions::default()).expect("a thread");
        let session = Some(open(&engine, None, None).id);
        let mut talk = text_without(DAMAGED);
        let before = complete(&engine, session, &talk, 5).0;
        let with_damaged = Prompt::Tokens([&talk[..], &[DAMAGED]].concat());
        let last = engine.submit(Request { session, ..Request::new(with_damaged) }).last();
        let failed =
            matches!(last, Some(Event::Failed(RequestError::Step(StepError::Row(RowError::AllNan)))));
        assert!(failed, "{model}: {last:?}");
        assert_eq!(complete(&engine, session, &talk, 5).0, before, "{model}");
        talk.extend(&before);
        assert_eq!(
            complete(&engine, session, &talk, 5).0,
            complete(&started(model, 300), None, &talk, 5).0,
            "{model}"
        );
    }
}

fn text_without(token: u32) -> Vec<u32> {
    text(0, 70).into_iter().filter(|&other| other != token).collect()
}
