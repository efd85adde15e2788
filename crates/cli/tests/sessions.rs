//! What is kept of a sequence from one process to the next, and what happens where its context is full.

mod support;

use std::fs;
use std::path::Path;
use std::process::Output;
use support::{data, stderr, stdout, verbatim};

const MODELS: [&str; 3] = ["qwen3", "gemma3-iswa", "qwen35-hybrid"];

fn run(home: &Path, model: &str, arguments: &[&str]) -> Output {
    let mut command = verbatim(home);
    command.args(["run", "--no-template", "--temp", "0.9", "--threads", "2", "-m"]);
    command.arg(data(&format!("models/{model}/model.gguf"))).args(arguments).output().unwrap()
}

#[test]
fn a_session_says_what_a_run_without_one_says() {
    for model in MODELS {
        for formats in [
            &["--ctk", "f16"][..],
            &["--ctk", "q8_0", "--ctv", "q4_0"],
            &["--ctv", "q5_1", "--no-kv-rotation"],
        ] {
            let home = tempfile::tempdir().unwrap();
            let file = home.path().join("session");
            let session = ["--session", file.to_str().unwrap()];
            let text = "it was a dark and stormy night; the rain fell in torrents";
            let with = |more: &[&str], prompt| {
                run(home.path(), model, &[formats, more, &["-n", "30", prompt]].concat())
            };
            let plain = with(&[], text);
            let first = with(&session, text);
            let again = with(&session, text);
            assert_eq!(stdout(&first), stdout(&plain), "{model}");
            assert_eq!(stdout(&again), stdout(&plain), "{model}");
            let told = String::from_utf8_lossy(&again.stderr).into_owned();
            // Recurrent states and windows cannot go back to the end of the prompt.
            assert_eq!(told.contains(" reused)"), model == "qwen3", "{told}");
            let other = "it was a dark and stormy morning";
            assert_eq!(stdout(&with(&session, other)), stdout(&with(&[], other)), "{model}");
        }
    }
}

#[test]
fn a_session_that_cannot_be_continued_is_refused_and_stays() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("session");
    let session = ["--session", file.to_str().unwrap(), "-n", "3"];
    let with = |model, more: &[&str]| run(home.path(), model, &[&session[..], more, &["hello"]].concat());
    stdout(&with("qwen3", &[]));
    let whole = fs::read(&file).unwrap();
    for (model, more, words) in [
        ("qwen3", &["--ctk", "q4_0"][..], "q4_0"),
        ("gemma3-iswa", &[], "another model"),
        ("qwen3", &["--ctx", "2"], "context of 2"),
    ] {
        let error = stderr(&with(model, more), 1);
        assert!(error.contains("--session cannot be continued") && error.contains(words), "{error}");
        assert_eq!(fs::read(&file).unwrap(), whole);
    }
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    assert!(stderr(&with("qwen3", &[]), 1).contains("checksum"));
    fs::write(&file, b"notes of mine").unwrap();
    assert!(stderr(&with("qwen3", &[]), 1).contains("no file of saved sequences"));
    assert_eq!(fs::read(&file).unwrap(), b"notes of mine");
    let model = data("models/qwen3/model.gguf");
    let over = run(home.path(), "qwen3", &["--session", model.to_str().unwrap(), "hello"]);
    assert_eq!(over.status.code(), Some(1));
}

#[test]
fn a_full_context_ends_the_answer_or_is_shifted() {
    let home = tempfile::tempdir().unwrap();
    for model in ["qwen3", "gemma3-iswa"] {
        let with = |more: &[&str]| {
            let output =
                run(home.path(), model, &[&["--ctx", "40", "-n", "100", "hello there"], more].concat());
            (stdout(&output), String::from_utf8(output.stderr).unwrap())
        };
        let (_, told) = with(&[]);
        assert!(told.contains("the context is full"), "{told}");
        let (shifted, told) = with(&["--context-shift"]);
        let tokens = told.split(", ").nth(1).and_then(|text| text.split(' ').next()).unwrap();
        assert!(tokens.parse::<usize>().unwrap() > 40 && !told.contains("the context is full"), "{told}");
        assert_eq!(with(&["--context-shift", "--ctk", "f16"]).0, shifted, "{model}");
        assert!(!with(&["--context-shift", "--ctk", "q4_0", "--keep", "0"]).0.is_empty());
    }
    let hybrid = run(home.path(), "qwen35-hybrid", &["--context-shift", "hello"]);
    assert!(stderr(&hybrid, 1).contains("--context-shift cannot be used with this model"));
    let keep = run(home.path(), "qwen3", &["--context-shift", "--ctx", "40", "--keep", "39", "hello"]);
    assert!(stderr(&keep, 1).contains("--keep 39 leaves nothing to drop"));
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_shown() {
    let home = tempfile::tempdir().unwrap();
    let with = |more: &[&str]| run(home.path(), "qwen3", &[more, &["-n", "30", "hello there"]].concat());
    let whole = stdout(&with(&[]));
    let middle: String = whole.chars().skip(9).take(5).collect();
    let output = with(&["--stop", "never said", "--stop", &middle]);
    assert_eq!(stdout(&output), format!("{}\n", &whole[..whole.find(&middle).unwrap()]));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("; stopped at "), "{told}");
    assert_eq!(stdout(&with(&["--stop", "-"])), stdout(&with(&["--stop=-"])));
    stderr(&with(&["--stop", ""]), 2);
}
