//! Runs the examples and checks their output.

#[path = "../../examples/complete.rs"]
#[allow(dead_code)] // Its `main`.
mod complete;
#[path = "../../examples/scores.rs"]
#[allow(dead_code)]
mod scores;
#[path = "../../examples/session.rs"]
#[allow(dead_code)]
mod session;

use std::error::Error;
use std::io::Write;

/// What an example prints.
fn output(
    run: impl Fn(&[String], &mut dyn Write) -> Result<(), Box<dyn Error>>,
    arguments: &[&str],
) -> String {
    let model = crate::common::data("models/qwen3/model.gguf").display().to_string();
    let arguments: Vec<String> =
        std::iter::once(model).chain(arguments.iter().map(|argument| (*argument).to_owned())).collect();
    let mut out = Vec::new();
    run(&arguments, &mut out).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    String::from_utf8(out).expect("a text")
}

#[test]
fn a_text_is_continued() {
    let text = output(complete::run, &["Once upon a time"]);
    assert!(text.starts_with("Once upon a time") && text.contains("[64 tokens, MaxTokens]"), "{text}");
    assert_eq!(text, output(complete::run, &["Once upon a time"]));
}

#[test]
fn a_session_is_resumed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("session").display().to_string();
    let first = output(session::run, &[&file, "Once"]);
    assert!(first.starts_with("[0 of "), "{first}");
    let second = output(session::run, &[&file, "upon"]);
    let numbers: Vec<usize> =
        second.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    // The first answer's last token was drawn but not fed, and there are new ones.
    assert!(numbers[0] >= 10 && numbers[0] < numbers[1], "{second}");
}

#[test]
fn a_text_is_scored() {
    let text = output(scores::run, &["The quick brown fox"]);
    let lines: Vec<&str> = text.lines().collect();
    let (perplexity, tokens) = lines.split_last().expect("lines");
    let probabilities =
        tokens.iter().map(|line| line.trim().split(' ').next().unwrap().parse::<f64>().unwrap());
    let mean = probabilities.map(f64::ln).sum::<f64>() / tokens.len() as f64;
    let perplexity: f64 = perplexity.strip_prefix("perplexity ").unwrap().parse().unwrap();
    assert!(tokens.len() > 2 && ((-mean).exp() / perplexity - 1.0).abs() < 0.01, "{text}");
}
