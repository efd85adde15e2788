//! Answers under a grammar and within a reasoning budget.

use crate::common::*;
use verbatim_engine::{
    Engine, EngineOptions, Event, EventStream, FinishReason, GenerationStats, Grammar, LoadOptions, LogProbs,
    Prompt, Request, RequestError, Sampling, TextProcessor,
};
use verbatim_text::Tokenizer;

const SCHEMA: &str = r#"{"type": "object", "required": ["name", "parts"], "additionalProperties": false, "properties":
    {"name": {"enum": ["small", "large"]}, "parts": {"type": "array", "maxItems": 3, "items": {"type": "boolean"}}}}"#;

fn started(options: LoadOptions) -> Engine {
    let file = model_file("models/qwen3/model.gguf");
    let tokenizer = Tokenizer::from_gguf(file.metadata()).expect("a vocabulary").into();
    let stepper =
        load(&file, &LoadOptions { context: options.context.or(Some(400)), ..options }).expect("a model");
    let text = TextProcessor { tokenizer, template: None };
    Engine::start(stepper, text, EngineOptions::default()).expect("a thread")
}

struct Answer {
    text: String,
    tokens: Vec<u32>,
    reason: FinishReason,
    stats: GenerationStats,
}

fn read(answer: EventStream) -> Result<Answer, RequestError> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for event in answer {
        match event {
            Event::Started { .. } => {}
            Event::Text { text: more, tokens: their, log_probs, .. } => {
                assert_eq!(their.len(), log_probs.len());
                text.push_str(&more);
                tokens.extend(their);
            }
            Event::Finished { reason, stats } => return Ok(Answer { text, tokens, reason, stats }),
            Event::Failed(error) => return Err(error),
        }
    }
    panic!("no final event");
}

fn request(seed: u64) -> Request {
    let sampling = Sampling { temperature: 1.5, seed: Some(seed), ..Sampling::default() };
    let grammar = Some(Grammar::json_schema(SCHEMA).expect("JSON"));
    Request { sampling, grammar, max_tokens: Some(300), ..Request::new(Prompt::Text("hello".to_owned())) }
}

#[test]
fn an_answer_follows_its_grammar_to_the_end() {
    let engine = started(LoadOptions::default());
    let outside = started(LoadOptions { backend_sampling: false, ..LoadOptions::default() });
    let mut texts = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let answer = read(engine.submit(request(seed))).expect("an answer");
        assert_eq!(answer.reason, FinishReason::EndOfText, "{}", answer.text);
        let json: serde_json::Value = serde_json::from_str(&answer.text).expect("JSON");
        assert!(json["name"] == "small" || json["name"] == "large");
        assert!(json["parts"].as_array().expect("a list").iter().all(serde_json::Value::is_boolean));
        // With log-probabilities every token is drawn; without, forced ones are not. And sampling outside the graph draws alike.
        let log_probs = Some(LogProbs { top: 0, after_chain: false });
        for other in [Request { log_probs, ..request(seed) }, request(seed)] {
            let drawn = read(outside.submit(other)).expect("an answer");
            assert_eq!(
                (drawn.tokens, drawn.text),
                (answer.tokens.clone(), answer.text.clone()),
                "seed {seed}"
            );
        }
        texts.insert(answer.text);
    }
    assert!(texts.len() > 5, "only {texts:?}");
}

#[test]
fn a_limit_within_forced_text_holds() {
    let engine = started(LoadOptions::default());
    for limit in 1..12 {
        let answer =
            read(engine.submit(Request { max_tokens: Some(limit), ..request(1) })).expect("an answer");
        assert_eq!((answer.reason, answer.stats.generated_tokens), (FinishReason::MaxTokens, limit));
        assert_eq!(answer.tokens.len(), limit);
    }
    let stop = vec!["\"name".to_owned()];
    let answer = read(engine.submit(Request { stop, ..request(1) })).expect("an answer");
    assert!(matches!(answer.reason, FinishReason::StopString(_)) && !answer.text.contains("name"));
}

#[test]
fn a_wrong_grammar_fails_its_request_only() {
    let engine = started(LoadOptions::default());
    let wrong = Request { grammar: Some(Grammar::Gbnf("root ::= nothing".to_owned())), ..request(1) };
    assert!(matches!(read(engine.submit(wrong)), Err(RequestError::Grammar(_))));
    assert!(read(engine.submit(request(1))).is_ok());
}

#[test]
fn reasoning_ends_when_its_budget_is_spent() {
    let engine = started(LoadOptions::default());
    let ask = |prompt: &str, budget: Option<usize>| {
        let sampling = Sampling { temperature: 1.2, seed: Some(3), ..Sampling::default() };
        let prompt = Prompt::Text(prompt.to_owned());
        let request =
            Request { sampling, reasoning_budget: budget, max_tokens: Some(40), ..Request::new(prompt) };
        read(engine.submit(request)).expect("an answer")
    };
    let free = ask("hello <think>", None);
    assert!(!free.text.contains("</think>"));
    for budget in [0, 1, 7] {
        let answer = ask("hello <think>", Some(budget));
        // Up to there the text is that of a model that may think on.
        assert_eq!(answer.tokens[..budget], free.tokens[..budget]);
        assert!(answer.text.contains("</think>"), "{budget}: {}", answer.text);
        assert!(budget > 0 || answer.text.starts_with("</think>"), "{}", answer.text);
    }
    // A prompt that ended its reasoning, or began none, is not affected.
    for prompt in ["hello <think> </think>", "hello"] {
        let before = |answer: Answer| answer.text.split("<think>").next().map(str::to_owned);
        assert_eq!(before(ask(prompt, Some(0))), before(ask(prompt, None)));
    }
}

#[test]
fn a_grammar_begins_where_the_reasoning_ends() {
    let engine = started(LoadOptions::default());
    for (seed, budget) in [(1, 0), (2, 3), (3, 11)] {
        let request = Request {
            prompt: Prompt::Text("hello <think>".to_owned()),
            grammar: Some(Grammar::Gbnf("root ::= [a-z ]{5,20}".to_owned())),
            reasoning_budget: Some(budget),
            max_tokens: Some(60),
            ..request(seed)
        };
        let answer = read(engine.submit(request)).expect("an answer");
        let (thoughts, said) = answer.text.split_once("</think>").expect("an end of the reasoning");
        assert!(budget == 0 || !thoughts.is_empty());
        assert!((5..=20).contains(&said.len()), "{said:?}");
        assert!(said.chars().all(|c| c == ' ' || c.is_ascii_lowercase()), "{said:?}");
    }
}

#[test]
fn forced_text_ends_with_the_context_and_can_be_cancelled() {
    let engine = started(LoadOptions { context: Some(64), ..LoadOptions::default() });
    let long = |times: usize| {
        let grammar = Some(Grammar::Gbnf(format!("root ::= \"{}\"", "hello world ".repeat(times))));
        Request { grammar, max_tokens: None, ..request(1) }
    };
    let answer = read(engine.submit(long(1000))).expect("an answer");
    assert_eq!(answer.reason, FinishReason::ContextFull);
    // The last token is sampled when the context is full.
    let GenerationStats { prompt_tokens, generated_tokens, .. } = answer.stats;
    assert_eq!(prompt_tokens + generated_tokens, 64 + 1);
    let answer = engine.submit(long(900));
    answer.cancel();
    assert_eq!(read(answer).expect("an end").reason, FinishReason::Cancelled);
}
