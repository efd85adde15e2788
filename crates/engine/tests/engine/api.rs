//! Requests through `Engine` produce the same text as the stepper alone, stop where they should, and do not affect other requests.

use crate::common::*;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use verbatim_cpu::Cpu;
use verbatim_engine::{
    ChatError, Conversation, Engine, EngineError, EngineOptions, Event, EventStream, FinishReason,
    GenerationStats, LoadOptions, Message, Prompt, Request, RequestError, Role, Sampler, Sampling,
    SessionOptions, Stepper, TextProcessor,
};
use verbatim_gguf::GgufFile;
use verbatim_text::{StopError, Tokenizer};

const MODELS: [&str; 3] = ["qwen3", "gemma3-iswa", "qwen35-hybrid"];
const PROMPT: &str = "it was a dark and stormy night; the rain fell in torrents";
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

fn tokenizer(model: &str) -> Arc<Tokenizer> {
    let file = GgufFile::open(data(&format!("models/{model}/model.gguf"))).expect("a model");
    Arc::new(Tokenizer::from_gguf(file.metadata()).expect("a vocabulary"))
}

fn stepper(model: &str, context: usize) -> Stepper<Cpu> {
    let options =
        LoadOptions { context: Some(context), sequences: 2, cache_bytes: 1 << 24, ..LoadOptions::default() };
    engine(&format!("models/{model}/model.gguf"), options)
}

/// The engine of a model. A request runs at most `event_buffer` events ahead of its client.
fn started(model: &str, context: usize, event_buffer: usize, template: Option<&str>) -> Engine {
    let text = TextProcessor { tokenizer: tokenizer(model), template: template.map(str::to_owned) };
    let options = EngineOptions { model_name: model.to_owned(), event_buffer, ..EngineOptions::default() };
    Engine::start(stepper(model, context), text, options).expect("a thread")
}

fn request(max_tokens: usize) -> Request {
    let sampling = Sampling::unfiltered(0.9, 1);
    Request { sampling, max_tokens: Some(max_tokens), ..Request::new(Prompt::Text(PROMPT.to_owned())) }
}

/// A request that goes on until it is cancelled.
fn endless(engine: &Engine) -> Request {
    let options = SessionOptions { shift_keep: Some(4), file: None };
    let session = engine.open_session(options).expect("a free sequence").id;
    Request { max_tokens: None, session: Some(session), ..request(0) }
}

/// The result of a finished request.
#[derive(Debug, PartialEq)]
struct Completion {
    text: String,
    tokens: Vec<u32>,
    reason: FinishReason,
    stats: GenerationStats,
}

/// Reads to the end and checks the order of events.
fn read(answer: EventStream) -> Result<Completion, RequestError> {
    let (mut text, mut tokens, mut start) = (String::new(), Vec::new(), None);
    let mut end = None;
    for event in answer {
        assert!(end.is_none(), "{event:?} after the end");
        match event {
            Event::Started { prompt_tokens, cached_tokens, .. } => {
                assert!(start.replace((prompt_tokens, cached_tokens)).is_none() && tokens.is_empty());
            }
            Event::Text { text: more, tokens: their, .. } => {
                assert!(start.is_some() && !(more.is_empty() && their.is_empty()));
                text.push_str(&more);
                tokens.extend(their);
            }
            Event::Finished { reason, stats } => end = Some(Ok((reason, stats))),
            Event::Failed(error) => end = Some(Err(error)),
        }
    }
    let (reason, stats) = end.expect("an end")?;
    assert_eq!(start.unwrap_or_default(), (stats.prompt_tokens, stats.cached_tokens));
    assert_eq!(tokens.len(), stats.generated_tokens);
    Ok(Completion { text, tokens, reason, stats })
}

fn complete(engine: &Engine, request: Request) -> Completion {
    read(engine.submit(request)).expect("nothing is wrong")
}

fn failure(engine: &Engine, request: Request) -> RequestError {
    read(engine.submit(request)).expect_err("something is wrong")
}

/// The tokens that the stepper generates without an engine.
fn generate_with_stepper(model: &str, prompt: &[u32], count: usize) -> Vec<u32> {
    let (mut stepper, tokenizer) = (stepper(model, 300), tokenizer(model));
    let sampler = Sampler::new(Sampling::unfiltered(0.9, 1), 0).expect("valid");
    let sequence = stepper.begin().expect("free");
    let (mut pending, mut tokens) = (prompt.to_vec(), Vec::new());
    while tokens.len() < count {
        let token =
            stepper.advance(sequence, &pending, &sampler, || true).expect("fits").expect("not stopped").token;
        if tokenizer.is_eog(token) {
            break;
        }
        tokens.push(token);
        pending = vec![token];
    }
    tokens
}

#[test]
fn a_request_generates_the_same_tokens_as_the_stepper_alone() {
    for model in MODELS {
        let engine = started(model, 300, 256, None);
        let prompt = engine.chat_format().text_tokens(PROMPT, verbatim_text::SpecialTokens::Parse).ids;
        let expected = generate_with_stepper(model, &prompt, 40);
        let first = complete(&engine, request(40));
        assert_eq!(first.tokens, expected, "{model}");
        let bytes = engine.tokenizer().decode(&expected, false);
        assert_eq!(first.text, String::from_utf8_lossy(&bytes), "{model}");
        assert_eq!((first.stats.prompt_tokens, first.stats.cached_tokens), (prompt.len(), 0));
        // From the prefix cache, and as tokens.
        let again = complete(&engine, Request { prompt: Prompt::Tokens(prompt), ..request(40) });
        assert_eq!((&again.tokens, &again.reason), (&expected, &first.reason), "{model}");
        assert_eq!((engine.context(), engine.model_name()), (300, model));
    }
}

#[test]
fn a_stop_string_ends_the_text_at_any_token_boundary() {
    let engine = started("qwen3", 300, 256, None);
    let whole = complete(&engine, request(24)).text;
    let borders: Vec<usize> = whole.char_indices().map(|(index, _)| index).chain([whole.len()]).collect();
    for (from, &start) in borders.iter().enumerate() {
        for &end in borders[from + 1..].iter().take(9).step_by(2) {
            let stop = whole[start..end].to_owned();
            let completion = complete(
                &engine,
                Request { stop: vec!["never generated".to_owned(), stop.clone()], ..request(24) },
            );
            assert_eq!(Some(completion.text.len()), whole.find(&stop), "{stop:?}");
            assert!(whole.starts_with(&completion.text));
            assert_eq!(completion.reason, FinishReason::StopString(stop));
        }
    }
    // A prefix of a stop string is text.
    let last = whole.chars().next_back().expect("some text");
    let begun = complete(&engine, Request { stop: vec![format!("{last}\u{1}never")], ..request(24) });
    assert_eq!((begun.text, begun.reason), (whole, FinishReason::MaxTokens));
}

#[test]
fn an_answer_ends_at_max_tokens_or_when_the_context_is_full() {
    let engine = started("qwen3", 40, 256, None);
    let none = complete(&engine, request(0));
    assert_eq!((none.tokens.len(), none.reason), (0, FinishReason::MaxTokens));
    let one = complete(&engine, request(1));
    assert_eq!((one.tokens.len(), one.reason), (1, FinishReason::MaxTokens));
    let full = complete(&engine, Request { max_tokens: None, ..request(0) });
    assert_eq!(full.reason, FinishReason::ContextFull);
    // The last token needs no room.
    assert_eq!(full.stats.prompt_tokens + full.tokens.len(), 41);
    let shifted = complete(&engine, Request { max_tokens: Some(100), ..endless(&engine) });
    assert_eq!((shifted.tokens.len(), shifted.reason), (100, FinishReason::MaxTokens));
    assert_eq!(shifted.tokens[..full.tokens.len()], full.tokens);
    assert_eq!(complete(&engine, request(1)).tokens, one.tokens);
}

#[test]
fn a_prompt_longer_than_the_context_shifts_as_if_computed_token_by_token() {
    let engine = started("qwen3", 40, 256, None);
    let tokens: Vec<u32> = (0..100).map(|i| (i * 31 + 7) % 500).collect();
    let long = |more: usize, session| {
        let prompt = Prompt::Tokens(tokens[..tokens.len() - more].to_vec());
        complete(&engine, Request { prompt, session, ..request(1) })
    };
    let session = endless(&engine).session;
    let expected = long(0, session);
    engine.close_session(session.expect("opened")).expect("open");
    let session = endless(&engine).session;
    (1..70).rev().for_each(|more| drop(long(more, session)));
    assert_eq!(long(0, session).tokens, expected.tokens);
}

#[test]
fn a_request_can_be_cancelled_while_queued_or_running() {
    let engine = started("qwen3", 60, 1, None);
    let alone = complete(&engine, request(5));
    let mut first = engine.submit(endless(&engine));
    // Queued, and never started.
    let second = engine.submit(request(5));
    second.cancel();
    assert!(matches!(first.next(), Some(Event::Started { .. })));
    assert!(matches!(first.next(), Some(Event::Text { .. })));
    let cancelled = read(second).expect("nothing is wrong");
    assert_eq!((cancelled.reason, cancelled.stats), (FinishReason::Cancelled, GenerationStats::default()));
    // While running, from another thread.
    let third = engine.submit(request(5));
    let canceller = first.canceller();
    std::thread::spawn(move || canceller.cancel()).join().expect("no panic");
    let last = first.by_ref().last();
    assert!(matches!(last, Some(Event::Finished { reason: FinishReason::Cancelled, .. })), "{last:?}");
    assert!(first.next().is_none());
    assert_eq!(read(third).expect("nothing is wrong").text, alone.text);
}

#[test]
fn dropping_an_event_stream_frees_the_engine() {
    let engine = started("qwen3", 60, 1, None);
    let alone = complete(&engine, request(5));
    let mut answer = engine.submit(endless(&engine));
    answer.by_ref().take(3).for_each(drop);
    drop(answer);
    assert_eq!(complete(&engine, request(5)).text, alone.text);
    // A request in a session; the session can be closed at once.
    let request = endless(&engine);
    let session = request.session.expect("opened");
    drop(engine.submit(request));
    engine.close_session(session).expect("nobody uses it any more");
}

#[test]
fn a_client_that_does_not_read_blocks_only_requests() {
    let engine = started("qwen3", 60, 1, None);
    let slow = engine.submit(request(30));
    let session = engine.open_session(SessionOptions::default()).expect("a free sequence").id;
    engine.close_session(session).expect("nobody uses it");
    let next = engine.submit(request(30));
    let slow = read(slow).expect("nothing is wrong");
    assert_eq!(slow.tokens, read(next).expect("nothing is wrong").tokens);
}

#[test]
fn an_invalid_request_does_not_affect_others() {
    let engine = started("qwen3", 60, 256, Some("{% for broken"));
    let alone = complete(&engine, request(5));
    let with = |prompt| failure(&engine, Request { prompt, ..request(5) });
    assert!(matches!(with(Prompt::Tokens(vec![])), RequestError::EmptyPrompt));
    let long = with(Prompt::Tokens(vec![1; 61]));
    assert!(matches!(long, RequestError::PromptTooLong { tokens: 61, context: 60 }), "{long}");
    assert!(matches!(with(Prompt::Tokens(vec![1, 1 << 30])), RequestError::Step(_)));
    let message = Message::new(Role::User, "hello");
    for _ in 0..2 {
        let broken = with(Prompt::Chat(vec![message.clone()]));
        assert!(matches!(broken, RequestError::Chat(ChatError::Template(_))), "{broken}");
    }
    let sampling = Sampling::unfiltered(f32::NAN, 0);
    let wrong = failure(&engine, Request { sampling, ..request(5) });
    assert!(matches!(wrong, RequestError::Sampling(_)), "{wrong}");
    let wrong = failure(&engine, Request { stop: vec!["a".into(), String::new()], ..request(5) });
    assert!(matches!(wrong, RequestError::Stop(StopError::Empty { index: 1 })), "{wrong}");
    let closed = endless(&engine);
    engine.close_session(closed.session.expect("opened")).expect("open");
    assert!(matches!(failure(&engine, closed), RequestError::NoSuchSession));
    // Each failure has given back its sequence.
    assert_eq!(complete(&engine, request(5)).text, alone.text);
    let _both = [endless(&engine), endless(&engine)];
    assert!(matches!(failure(&engine, request(5)), RequestError::State(_)));
}

#[test]
fn a_conversation_is_rendered_with_the_chat_template() {
    let engine = started("qwen3", 300, 256, Some(TEMPLATE));
    let messages = [(Role::System, "be brief"), (Role::User, "hello")];
    let messages = messages.map(|(role, content)| Message::new(role, content)).to_vec();
    let json = r#"[{"role":"system","content":"be brief"},{"role":"user","content":"hello"}]"#;
    assert_eq!(serde_json::to_string(&messages).expect("serialises"), json);
    let text = "system: be brief\nuser: hello\nassistant:";
    let tokens = engine.tokenizer().encode(text, verbatim_text::SpecialTokens::Parse, false);
    assert_eq!(engine.chat_format().chat_tokens(&messages), Ok(tokens.clone()));
    let chat = complete(&engine, Request { prompt: Prompt::Chat(messages.clone()), ..request(8) });
    assert_eq!(chat.text, complete(&engine, Request { prompt: Prompt::Tokens(tokens), ..request(8) }).text);
    let without = started("qwen3", 60, 256, None);
    assert!(engine.has_chat_template() && !without.has_chat_template());
    let wrong = failure(&without, Request { prompt: Prompt::Chat(messages), ..request(8) });
    assert!(matches!(wrong, RequestError::Chat(ChatError::NoTemplate)));
}

#[test]
fn a_conversation_tells_reasoning_from_the_answer() {
    let engine = started("qwen3", 300, 64, Some("{{ messages[0].content }}<think>"));
    let ask = |prompt: Prompt, budget: usize| {
        let sampling = Sampling::unfiltered(0.9, 4);
        let request = Request { prompt, sampling, reasoning_budget: Some(budget), ..request(40) };
        let (mut text, mut thoughts) = (String::new(), String::new());
        for event in engine.submit(request) {
            if let Event::Text { text: more, reasoning, .. } = event {
                text += &more;
                thoughts += &reasoning;
            }
        }
        (text, thoughts)
    };
    let hello = || Message::new(Role::User, "hello");
    let (whole, none) = ask(Prompt::Text("hello<think>".to_owned()), 7);
    let (answer, thoughts) = ask(Prompt::Chat(vec![hello()]), 7);
    assert!(none.is_empty() && !thoughts.is_empty(), "{whole:?} {none:?} {answer:?} {thoughts:?}");
    assert_eq!(
        whole.split_once("</think>"),
        Some((thoughts.as_str(), whole.split_once("</think>").unwrap().1))
    );
    assert_eq!(whole.split_once("</think>").unwrap().1.trim_start(), answer);
}

#[test]
fn llama_cpp_24382_what_a_user_types_never_becomes_a_control_token() {
    let engine = started("qwen3", 300, 256, Some(TEMPLATE));
    let tokenizer = engine.tokenizer();
    let controls = (0..tokenizer.vocab_len() as u32).filter(|&id| tokenizer.is_control(id));
    let controls: Vec<u32> = controls.collect();
    assert!(!controls.is_empty());
    for id in controls {
        let name = String::from_utf8_lossy(tokenizer.piece(id)).into_owned();
        for content in [name.clone(), format!("a{name}b"), format!("\u{10FFFE}{name}{name}")] {
            let message = Message::new(Role::User, content.as_str());
            let tokens = engine.chat_format().chat_tokens(&[message]).expect("renders");
            let expected = format!("user: {content}\nassistant:");
            let ignored = verbatim_text::SpecialTokens::Ignore;
            assert_eq!(tokens, tokenizer.encode(&expected, ignored, false), "{content}");
        }
    }
}

#[test]
fn tool_calls_and_results_never_become_control_tokens() {
    let escaped = |name: &str| name.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    // Templates write arguments as JSON, which may escape what is not ASCII, or in Python's notation.
    for arguments in [
        "c.function.arguments | tojson",
        "c.function.arguments | tojson(ensure_ascii=true)",
        "c.function.arguments",
    ] {
        let template = format!(
            "{{% for m in messages %}}{{{{ m.role }}}}: {{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}\
             {{{{ c.function.name }}}}({{{{ {arguments} }}}}){{% endfor %}}\n{{% endfor %}}assistant:"
        );
        let engine = started("qwen3", 300, 256, Some(&template));
        let tokenizer = engine.tokenizer();
        for id in (0..tokenizer.vocab_len() as u32).filter(|&id| tokenizer.is_control(id)) {
            let name = String::from_utf8_lossy(tokenizer.piece(id)).into_owned();
            let call = serde_json::json!({"function": {"name": name, "arguments": format!("{{\"x\": \"{}\"}}", escaped(&name))}});
            let messages = serde_json::json!([
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": name},
            ]);
            let messages: Vec<Message> = serde_json::from_value(messages).expect("messages");
            let tokens = engine.chat_format().chat_tokens(&messages).expect("renders");
            assert!(!tokens.iter().any(|&token| tokenizer.is_control(token)), "{template}: {name}");
            let text = String::from_utf8(tokenizer.decode(&tokens, true)).expect("text");
            assert!(!text.contains('\u{10FFFE}') && text.contains(&format!("tool: {name}")), "{text}");
        }
    }
}

#[test]
fn the_progress_of_a_prompt_can_be_seen() {
    let engine = started("gemma3-iswa", 400, 256, None);
    let prompt = Prompt::Tokens(vec![7; 350]);
    let mut events = engine.submit(Request { prompt, ..request(3) });
    let progress = events.progress();
    let Some(Event::Started { cached_tokens, .. }) = events.next() else { panic!("it has not started") };
    assert!(events.any(|event| matches!(event, Event::Finished { .. })));
    assert_eq!(progress.computed_tokens(), 350 - cached_tokens);
}

#[test]
fn loading_counts_the_bytes_that_it_has_packed() {
    let file = GgufFile::open(data("models/qwen3/model.gguf")).expect("a model");
    let packed = std::sync::atomic::AtomicUsize::new(0);
    let cpu = Cpu::new(2).expect("threads");
    Stepper::load_counted(cpu, &file, &LoadOptions::default(), &packed).expect("loads");
    let all: usize = file.tensors().iter().map(|tensor| tensor.byte_len()).sum();
    assert!(packed.into_inner() * 10 >= all * 9);
}

#[test]
fn the_engine_stops_when_its_last_handle_is_dropped() {
    // The request has paused, or is being computed.
    for event_buffer in [4, 1000] {
        let engine = started("qwen3", 60, event_buffer, None);
        let other = engine.clone();
        let mut running = engine.submit(endless(&engine));
        let waiting = engine.submit(request(5));
        drop(engine);
        assert!(matches!(running.next(), Some(Event::Started { .. })) && other.context() == 60);
        let since = Instant::now();
        drop(other);
        assert!(since.elapsed() < Duration::from_secs(10));
        for answer in [running, waiting] {
            let last = answer.last();
            let stopped = |error: &_| matches!(error, RequestError::Engine(EngineError::Stopped { .. }));
            assert!(matches!(&last, Some(Event::Failed(error)) if stopped(error)), "{last:?}");
        }
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The events of a request, read without blocking in between.
fn polled(mut answer: EventStream) -> Vec<String> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut events = Vec::new();
    loop {
        match answer.poll_next(&mut context) {
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(60)),
            Poll::Ready(None) => return events,
            Poll::Ready(Some(Event::Finished { reason, .. })) => events.push(format!("{reason:?}")),
            Poll::Ready(Some(event)) => events.push(format!("{event:?}")),
        }
    }
}

#[test]
fn events_can_be_polled() {
    // With room for one event, the request pauses again and again.
    let engine = started("qwen3", 300, 1, None);
    let wanted = complete(&engine, request(40));
    let events = polled(engine.submit(request(40)));
    assert_eq!(events.last().expect("an end"), &format!("{:?}", wanted.reason));
    assert!(events.len() > 20);
    // A task that waits is woken when the engine stops.
    let mut waiting = engine.submit(endless(&engine));
    assert!(matches!(waiting.next(), Some(Event::Started { .. })));
    let reader = std::thread::spawn(move || polled(waiting));
    drop(engine);
    assert!(reader.join().expect("no panic").last().expect("an end").contains("Stopped"));
}

#[test]
fn a_conversation_has_tools_variables_and_a_prefill() {
    let template = "{% if mood %}[{{ mood }}]{% endif %}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}\
        {% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    let engine = started("qwen3", 300, 256, Some(template));
    let conversation = |word: &str| Conversation {
        messages: vec![serde_json::json!({ "role": "user", "content": word })],
        tools: serde_json::json!([{ "type": "function", "function": { "name": "look_up" } }]),
        variables: serde_json::json!({ "mood": "calm" }).as_object().expect("an object").clone(),
        prefill: " Well".to_owned(),
    };
    let format = engine.chat_format();
    let text = format.conversation_text(&conversation("hello")).expect("valid");
    assert_eq!(text, "[calm]look_up;user: hello\nassistant: Well");
    let tokens = format.conversation_tokens(&conversation("hello")).expect("valid");
    assert_eq!(tokens, engine.tokenizer().encode(&text, verbatim_text::SpecialTokens::Ignore, false));
    // What any part of it says is text.
    let control = engine.tokenizer().eos().expect("an EOS");
    let name = String::from_utf8(engine.tokenizer().piece(control).to_vec()).expect("a name");
    let mut hostile = conversation(&name);
    hostile.tools[0]["function"]["name"] = name.as_str().into();
    hostile.variables["mood"] = name.as_str().into();
    hostile.prefill = name;
    assert!(!format.conversation_tokens(&hostile).expect("valid").contains(&control));
}

#[test]
fn a_status_tells_what_runs_and_the_cache_can_be_left_out() {
    let engine = started("qwen3", 300, 1, None);
    // Longer than a page of the KV cache.
    let request = |tokens| Request { prompt: Prompt::Text(PROMPT.repeat(3)), ..request(tokens) };
    let idle = engine.status().expect("it runs");
    assert_eq!((idle.sequences, idle.used_sequences, idle.running, idle.waiting), (2, 0, 0, 0));
    let running = [engine.submit(request(40)), engine.submit(request(40)), engine.submit(request(40))];
    // They begin one after the other, and then wait for their readers.
    let mut statuses = (0..1000).map(|_| engine.status().expect("it runs"));
    let busy = statuses.find(|status| status.running == 2).expect("two run at once");
    assert_eq!((busy.used_sequences, busy.running, busy.waiting), (2, 2, 1));
    let first = running.map(|answer| read(answer).map_err(|error| error.to_string()).map(|c| c.tokens));
    assert!(first.iter().all(|tokens| *tokens == first[1]), "{first:?}");
    let cold = complete(&engine, Request { cache_prompt: false, ..request(40) });
    assert_eq!((Ok(cold.tokens), cold.stats.cached_tokens), (first[1].clone(), 0));
    assert!(complete(&engine, request(40)).stats.cached_tokens > 0);
    let idle = engine.status().expect("it runs");
    assert_eq!((idle.used_sequences, idle.used_positions, idle.running), (0, 0, 0));
}
