//! Sampling and grammars as a user meets them: flags, recommendations of the file, seeds, and wrong input.

mod support;

use serde_json::Value;
use support::{data, run_with_input, stderr, stdout, verbatim};

fn run(arguments: &[&str], input: &[u8]) -> std::process::Output {
    let home = tempfile::tempdir().unwrap();
    run_with_input(verbatim(home.path()).args(arguments), input)
}

fn model() -> String {
    data("models/qwen3/model.gguf").to_str().unwrap().to_owned()
}

/// `verbatim run` on a small model, with these flags, for 12 tokens.
fn ask(flags: &[&str]) -> std::process::Output {
    let model = model();
    run(
        &[&["run", "-m", &model, "--no-template", "-n", "12", "--threads", "2"], flags, &["hello"]].concat(),
        b"",
    )
}

#[test]
fn a_random_seed_is_reported_and_repeats_the_text() {
    let (first, second) = (ask(&["--temp", "1.5"]), ask(&["--temp", "1.5", "--seed", "-1"]));
    let seed = |said: &std::process::Output| {
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        let (_, seed) = errors.split_once("seed ").expect("the summary has the seed");
        seed.split(|c: char| !c.is_ascii_digit()).next().unwrap().to_owned()
    };
    assert_ne!(seed(&first), seed(&second));
    let again = ask(&["--temp", "1.5", "--seed", &seed(&first)]);
    assert_eq!(stdout(&again), stdout(&first));
    let shows_seed = |flags: &[&str]| String::from_utf8_lossy(&ask(flags).stderr).contains("seed");
    assert!(!shows_seed(&["--temp", "0"]), "greedy has none");
    assert!(shows_seed(&["--temp", "0", "--xtc-probability", "0.5", "--xtc-threshold", "0.05"]));
    assert!(shows_seed(&["--temp", "0", "--adaptive-target", "0.3"]));
}

#[test]
fn sampling_outside_the_graph_gives_the_same_text_and_is_reported() {
    for flags in
        [&["--top-k", "20"][..], &["--temp", "0", "--repeat-penalty", "1.2"], &["--samplers", "temp"]]
    {
        let said = |more: &[&str]| stdout(&ask(&[flags, &["--seed", "5"], more].concat()));
        assert_eq!(said(&[]), said(&["--no-backend-sampling"]), "{flags:?}");
        assert_eq!(said(&[]), said(&["--backend-sampling"]), "{flags:?}");
    }
    let outside = ask(&["--mirostat", "2", "--seed", "1"]);
    assert!(String::from_utf8_lossy(&outside.stderr).contains("sampled outside the graph"));
    let in_graph = ask(&["--seed", "1"]);
    assert!(!String::from_utf8_lossy(&in_graph.stderr).contains("sampled outside the graph"));
}

#[test]
fn flags_that_do_not_fit_are_errors_that_name_them() {
    for (flags, code, problem) in [
        (&["--samplers", "top_k;top_q"][..], 2, "there is no sampler \"top_q\""),
        (&["--sampler-seq", "kz"], 2, "there is no sampler \"z\""),
        (&["--mirostat", "1"], 2, "mirostat 1.0 is not supported"),
        (&["--logit-bias", "abc"], 2, "a bias is written as"),
        (&["--seed", "x"], 2, "a seed is a whole number, or -1"),
        (&["--json-schema", "{"], 2, "--json-schema: the JSON schema is not JSON"),
        (&["--json-schema", r#"{"type":"nothing"}"#], 1, "JSON schema"),
        (&["--grammar", "root ::= missing"], 1, "GBNF grammar, line 1"),
        (
            &["--grammar-file", "/nowhere/at-all.gbnf"],
            1,
            "--grammar-file /nowhere/at-all.gbnf cannot be read",
        ),
        (&["--grammar", "root ::= \"a\"", "--json-schema", "{}"], 2, "cannot be used with"),
        (&["--json-schema", "Cargo.toml"], 2, "this is a file; use --json-schema-file Cargo.toml"),
        (&["--grammar", "Cargo.toml"], 2, "this is a file; use --grammar-file Cargo.toml"),
    ] {
        let said = stderr(&ask(flags), code);
        assert!(said.contains(problem), "{flags:?}: {said}");
    }
}

#[test]
fn an_answer_by_a_schema_is_json_of_that_schema() {
    let model = model();
    let schema = r#"{"type":"object","properties":{"ok":{"type":"boolean"},"kind":{"enum":["a","b"]}},
        "required":["ok","kind"],"additionalProperties":false}"#;
    for seed in ["1", "2", "3"] {
        let flags = [
            "run",
            "-m",
            &model,
            "--no-template",
            "-n",
            "200",
            "--seed",
            seed,
            "--temp",
            "1.5",
            "-j",
            schema,
            "hello",
        ];
        let said: Value = serde_json::from_str(&stdout(&run(&flags, b""))).expect("JSON");
        assert!(said["ok"].is_boolean() && (said["kind"] == "a" || said["kind"] == "b"), "{said}");
    }
    let yes_or_no = ask(&["--grammar", "root ::= \"yes\" | \"no\"", "--seed", "4"]);
    assert!(["yes\n", "no\n"].contains(&&*stdout(&yes_or_no)));
}

#[test]
fn a_banned_token_does_not_come() {
    let first = |flags: &[&str]| {
        let model = model();
        stdout(&run(
            &[&["run", "-m", &model, "--no-template", "--temp", "0", "-n", "1"], flags, &["hello"]].concat(),
            b"",
        ))
    };
    let plain = first(&[]);
    let tokens = run(&["tokenize", "-m", &model()], plain.trim_end_matches('\n').as_bytes());
    let id: String =
        stdout(&tokens).split_whitespace().next().unwrap().chars().filter(char::is_ascii_digit).collect();
    assert_ne!(first(&["--logit-bias", &format!("{id}-inf")]), plain);
}

#[test]
fn an_answer_that_is_cut_before_its_grammar_ends_is_reported() {
    let cut = ask(&["--grammar", "root ::= [a-z]{40}", "-n", "3", "--seed", "1"]);
    let said = String::from_utf8_lossy(&cut.stderr).into_owned();
    assert!(
        cut.status.success() && said.contains("warning: the answer was cut before its grammar"),
        "{said}"
    );
    let json = stdout(&ask(&["--grammar", "root ::= [a-z]{40}", "-n", "3", "--json"]));
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["finish_reason"], "length");
    // Nothing was decoded by steps: there is no speed to report.
    let forced = ask(&["--grammar", "root ::= \"hello world\""]);
    assert!(!String::from_utf8_lossy(&forced.stderr).contains("tokens/s"));
}

#[test]
fn an_empty_schema_is_any_object() {
    for seed in ["1", "2", "3"] {
        assert!(stdout(&ask(&["-j", " {} ", "--seed", seed, "-n", "4"])).trim_start().starts_with('{'));
    }
}
