//! Chat templates give the text, or the error, that Python's Jinja2 gives.

mod support;

use serde_json::Value;
use verbatim_text::{ChatTemplate, Clock, TemplateError};

const TEMPLATES: [&str; 12] = [
    "Qwen-Qwen3-0.6B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen3.5-4B",
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "google-gemma-2-2b-it",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "microsoft-Phi-3.5-mini-instruct",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "HuggingFaceTB-SmolLM3-3B",
    "openai-gpt-oss-120b",
];

#[test]
fn text_and_errors_equal_those_of_jinja2() {
    let mut texts = 0;
    let mut errors = 0;
    for name in TEMPLATES {
        let source = std::fs::read_to_string(support::data(&format!("templates/{name}.jinja"))).unwrap();
        let cases: Value =
            serde_json::from_slice(&std::fs::read(support::data(&format!("templates/{name}.json"))).unwrap())
                .unwrap();
        // The golden texts were rendered at this time.
        let clock = Clock::Fixed(jiff::civil::date(2025, 2, 3).at(4, 5, 6, 0));
        let template = ChatTemplate::with_clock(&source, clock).unwrap();
        for case in cases["cases"].as_array().unwrap() {
            let result = template.render(&case["context"]);
            let label = format!("{name} {} {}", case["set"], case["add_generation_prompt"]);
            match (case["expected"].as_str(), result) {
                (Some(expected), Ok(text)) if expected == text => texts += 1,
                (None, Err(error)) => {
                    if case["error"] == "TemplateError" {
                        let message = case["error_message"].as_str().unwrap().to_owned();
                        assert_eq!(error, TemplateError::Raised { message }, "{label}");
                    }
                    errors += 1;
                }
                (expected, result) => panic!("{label}\nexpected {expected:?}\ngot      {result:?}"),
            }
        }
    }
    assert_eq!((texts, errors), (176, 24));
}
