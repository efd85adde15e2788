//! Many prompts at once, drafts, and their comparison with plain decoding, as a user meets them.

mod support;

use serde_json::Value;
use std::path::Path;
use std::process::Output;
use support::{data, run_with_input, stderr, stdout, verbatim};

fn model() -> String {
    data("models/qwen3/model.gguf").to_str().unwrap().to_owned()
}

fn run(arguments: &[&str], input: &[u8]) -> Output {
    let home = tempfile::tempdir().unwrap();
    run_with_input(verbatim(home.path()).args(arguments), input)
}

/// The answers to these lines, by id or index.
fn parallel(lines: &[&str], flags: &[&str]) -> Output {
    let model = model();
    let fixed =
        ["run", "-m", &model, "--no-template", "--ctx", "200", "-n", "12", "--seed", "3", "--parallel", "-"];
    run(&[&fixed, flags].concat(), lines.join("\n").as_bytes())
}

fn answers(text: &str) -> Vec<Value> {
    let mut answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    answers.sort_by_key(|answer| answer["index"].as_u64());
    answers
}

#[test]
fn every_line_gets_the_answer_that_it_gets_alone() {
    let prompts = ["hello", "it was a dark night", "one two three one two three", "the rain"];
    let lines: Vec<String> =
        prompts.iter().map(|prompt| serde_json::json!({ "prompt": prompt }).to_string()).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let alone: Vec<String> = prompts
        .iter()
        .map(|prompt| {
            let model = model();
            let fixed = [
                "run",
                "-m",
                &model,
                "--no-template",
                "--ctx",
                "200",
                "-n",
                "12",
                "--seed",
                "3",
                "--spec",
                "off",
            ];
            let text = stdout(&run(&[&fixed[..], &[prompt]].concat(), b""));
            text.strip_suffix('\n').unwrap().to_owned()
        })
        .collect();
    for flags in [&["--np", "4"][..], &["--np", "2", "--spec", "7"], &["--np", "1", "--spec-type", "none"]] {
        let said = answers(&stdout(&parallel(&lines, flags)));
        let texts: Vec<&str> = said.iter().map(|answer| answer["text"].as_str().unwrap()).collect();
        assert_eq!(texts, alone, "{flags:?}");
        assert!(said.iter().all(|answer| answer["finish_reason"].is_string() && answer["seed"] == 3));
    }
}

#[test]
fn a_wrong_line_fails_alone_and_is_named() {
    let lines = [
        r#"{"prompt": "hello"}"#,
        r#"{"prompt": "hello", "nonsense": 1}"#,
        r#"{"prompt": "x", "temperature": -1}"#,
    ];
    let output = parallel(&lines, &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = answers(&String::from_utf8(output.stdout).unwrap());
    assert!(said[0]["text"].is_string() && said[0]["error"].is_null());
    assert!(said[1]["error"]["message"].as_str().unwrap().contains("nonsense"), "{said:?}");
    assert!(said[2]["error"]["message"].as_str().unwrap().contains("temperature"), "{said:?}");
    for (line, what) in [("{", "line 1"), (r#"{"id": "a", "prompt": "x"}{"#, "line 1"), ("", "no requests")] {
        let error = stderr(&parallel(&[line], &[]), 1);
        assert!(error.contains(what), "{error}");
    }
    let twice = [r#"{"id": "a", "prompt": "x"}"#, r#"{"id": "a", "prompt": "y"}"#];
    assert!(stderr(&parallel(&twice, &[]), 1).contains("twice"));
    // llama.cpp's `--parallel 4` is a number of slots.
    let error = stderr(&run(&["run", "-m", &model(), "--parallel", "4"], b""), 2);
    assert!(error.contains("there is no file 4: the number of slots is --np"), "{error}");
}

#[test]
fn an_interrupted_run_goes_on_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("answers.jsonl");
    let flags = ["-o", out.to_str().unwrap()];
    let openai = |id: &str, prompt: &str| {
        let body = serde_json::json!({ "model": "m", "messages": [{ "role": "user", "content": prompt }] });
        serde_json::json!({ "custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body })
            .to_string()
    };
    let lines = [
        r#"{"id": "a", "prompt": "hello"}"#.to_owned(),
        r#"{"id": "b", "prompt": "rain"}"#.to_owned(),
        openai("c", "hi"),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    stdout(&parallel(&lines[..1], &flags));
    // A line that was cut off is computed again.
    append(&out, br#"{"id": "b", "te"#);
    let output = parallel(&lines, &flags);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("1 lines are answered already, 2 are left"), "{errors}");
    let text = std::fs::read_to_string(&out).unwrap();
    let whole: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let count =
        |id: &str| whole.iter().filter(|answer| answer["id"] == id || answer["custom_id"] == id).count();
    assert_eq!((count("a"), count("b"), count("c")), (1, 1, 1), "{text}");
    let answer = whole.iter().find(|answer| answer["custom_id"] == "c").unwrap();
    assert!(answer["response"]["body"]["choices"][0]["message"]["content"].is_string(), "{answer}");
    // A failure is not an answer.
    let wrong = r#"{"id": "d", "prompt": "x", "temperature": -1}"#;
    for _ in 0..2 {
        let output = parallel(&[wrong], &flags);
        assert_eq!(output.status.code(), Some(1));
    }
    assert_eq!(std::fs::read_to_string(&out).unwrap().matches(r#""id":"d""#).count(), 2);
}

fn append(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    std::fs::OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

#[test]
fn drafts_change_no_text_and_are_counted() {
    let model = model();
    let ask = |flags: &[&str]| {
        let fixed = ["run", "-m", &model, "--no-template", "-n", "40", "--temp", "0"];
        run(&[&fixed, flags, &["one two one two one two one two"]].concat(), b"")
    };
    let (plain, drafted) = (ask(&["--spec", "off"]), ask(&["--spec", "5"]));
    assert_eq!(stdout(&drafted), stdout(&plain));
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).contains("draft tokens accepted");
    assert!(said(&drafted) && !said(&plain), "{}", String::from_utf8_lossy(&drafted.stderr));
    assert_eq!(stdout(&ask(&["--spec", "auto", "--spec-draft-n-max", "2"])), stdout(&plain));
    assert!(stderr(&ask(&["--spec", "99"]), 2).contains("auto, off, or a number up to 15"));
    assert!(stderr(&ask(&["--spec-type", "draft-medusa"]), 2).contains("ngram-simple"));
}

#[test]
fn a_draft_model_changes_no_text_and_must_fit() {
    let model = model();
    let draft = |name: &str| data(&format!("drafts/{name}/draft.gguf")).to_str().unwrap().to_owned();
    let ask = |flags: &[&str]| {
        let fixed = ["run", "-m", &model, "--no-template", "-n", "40", "--temp", "0"];
        run(&[&fixed, flags, &["one two three"]].concat(), b"")
    };
    let plain = stdout(&ask(&[]));
    let (eagle3, dflash) = (draft("qwen3.eagle3-rounds"), draft("qwen3.dflash-rounds"));
    for flags in [
        &["-md", &eagle3, "--spec", "5"][..],
        &["-md", &dflash, "--spec", "7", "--spec-type", "draft-dflash", "-ctkd", "q8_0", "-ctvd", "q8_0"],
        &[
            "-md",
            &eagle3,
            "--spec",
            "4",
            "--spec-type",
            "ngram-simple,draft-eagle3",
            "--spec-draft-p-min",
            "0.1",
        ],
        &["--model-draft", &eagle3],
    ] {
        let output = ask(flags);
        assert_eq!(stdout(&output), plain, "{flags:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!flags.contains(&"--spec") || said.contains("draft tokens accepted"), "{flags:?}: {said}");
    }
    for (flags, problem) in [
        (&["-md", &eagle3, "--spec-type", "draft-dflash"][..], "a model of the type draft-eagle3"),
        (&["--spec-type", "draft-eagle3"], "needs a draft model"),
        (&["-md", &model], "is not that of a draft model"),
        (&["-md", "/nowhere/draft.gguf"], "the draft model cannot be opened"),
    ] {
        let said = stderr(&ask(flags), 1);
        assert!(said.contains(problem), "{flags:?}: {said}");
    }
}

#[test]
fn verify_compares_a_model_with_itself() {
    let model = model();
    let draft = data("drafts/qwen3.eagle3-rounds/draft.gguf").to_str().unwrap().to_owned();
    let said = stdout(&run(&["verify", "-m", &model, "-md", &draft, "--threads", "2"], b""));
    assert!(said.contains("draft model, 5 at once"), "{said}");
    assert!(said.lines().count() >= 9, "{said}");
    assert!(said.lines().all(|line| line.ends_with(": the same")), "{said}");
    assert!(said.contains("draft tokens accepted"), "{said}");
}
