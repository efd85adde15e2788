//! A machine whose memory runs short while sequences grow.

use crate::common::{data, engine};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use verbatim_engine::{
    Engine, EngineOptions, Event, LoadError, LoadOptions, Memory, MemoryProbe, Prompt, Request, RequestError,
    SequenceId, StateError, Stepper, TextProcessor,
};
use verbatim_gguf::GgufFile;
use verbatim_text::Tokenizer;

const MODEL: &str = "models/qwen3/model.gguf";
/// Of its KV cache in F16: 4 layers of 2 heads of 32 elements.
const PAGE_BYTES: u64 = 64 * 1024;
/// What is left to other programs.
const RESERVE_BYTES: u64 = 64 << 20;

fn options(memory: MemoryProbe) -> LoadOptions {
    LoadOptions { context: Some(512), sequences: 2, memory: Some(memory), ..LoadOptions::default() }
}

fn memory(available: &AtomicU64) -> Option<Memory> {
    let available = RESERVE_BYTES + available.load(Ordering::Relaxed);
    Some(Memory { total: 1 << 30, available, allocatable: u64::MAX })
}

#[test]
fn a_sequence_that_memory_does_not_suffice_for_is_unchanged_and_freed_pages_are_used() {
    static AVAILABLE: AtomicU64 = AtomicU64::new(PAGE_BYTES);
    let mut stepper = engine(MODEL, options(|| memory(&AVAILABLE)));
    let [a, b]: [SequenceId; 2] = [(); 2].map(|()| stepper.begin().expect("two sequences"));
    stepper.append(a, 64).expect("a page");
    let short = StateError::OutOfMemory { wanted_bytes: PAGE_BYTES, available_bytes: PAGE_BYTES - 1 };
    AVAILABLE.store(PAGE_BYTES - 1, Ordering::Relaxed);
    assert_eq!(stepper.append(b, 10), Err(short));
    let two = StateError::OutOfMemory { wanted_bytes: 2 * PAGE_BYTES, available_bytes: PAGE_BYTES - 1 };
    assert_eq!(stepper.append_tree(b, &[None; 65]), Err(two));
    // The page that is freed needs no memory.
    stepper.rollback(a).expect("it exists");
    assert_eq!(stepper.append(b, 10), Ok(0));
    AVAILABLE.store(100 * PAGE_BYTES, Ordering::Relaxed);
    assert_eq!(stepper.append(a, 500), Ok(0));
}

#[test]
fn a_request_ends_with_an_error_and_the_next_one_is_answered() {
    static AVAILABLE: AtomicU64 = AtomicU64::new(PAGE_BYTES);
    let file = GgufFile::open(data(MODEL)).expect("a model");
    let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata()).expect("a vocabulary"));
    let stepper = engine(MODEL, options(|| memory(&AVAILABLE)));
    let text = TextProcessor { tokenizer, template: None };
    let engine = Engine::start(stepper, text, EngineOptions::default()).expect("a thread");
    let answer = |words| {
        let prompt = Prompt::Text("night ".repeat(words));
        let request = Request { max_tokens: Some(3), ..Request::new(prompt) };
        engine.submit(request).last().expect("a last event")
    };
    // The first page is there; more than it holds is not.
    assert!(matches!(answer(3), Event::Finished { .. }));
    AVAILABLE.store(0, Ordering::Relaxed);
    match answer(70) {
        Event::Failed(RequestError::State(StateError::OutOfMemory { .. })) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(answer(3), Event::Finished { .. }));
    AVAILABLE.store(100 * PAGE_BYTES, Ordering::Relaxed);
    assert!(matches!(answer(70), Event::Finished { .. }));
}

#[test]
fn a_model_that_can_never_fit_is_not_loaded() {
    let file = GgufFile::open(data(MODEL)).expect("a model");
    let load = |context, total: MemoryProbe| {
        let options = LoadOptions { context, memory: Some(total), ..LoadOptions::default() };
        Stepper::load(crate::common::cpu(1), &file, &options).map(|stepper| stepper.context())
    };
    let small = || Some(Memory { total: 1 << 16, available: 1 << 16, allocatable: u64::MAX });
    assert!(matches!(load(None, small), Err(LoadError::WeightMemory { .. })));
    let medium = || Some(Memory { total: 64 << 20, available: 64 << 20, allocatable: u64::MAX });
    assert_eq!(load(None, medium).expect("fits"), 512, "a small context is tried even if it may not fit");
    match load(Some(1 << 20), medium).expect_err("a gigabyte") {
        LoadError::ContextMemory { context: 1_048_576, sequences: 1, fitting, .. } => {
            assert!(fitting > 32 << 10 && fitting < 64 << 10, "{fitting}");
            assert_eq!(load(Some(fitting), medium).expect("fits"), fitting);
        }
        error => panic!("{error}"),
    }
}
