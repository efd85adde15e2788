//! The golden generations of `tests/data`, reproduced by the program: the same on every system, whatever the instruction set.
//!
//! `VERBATIM_TEST_PROGRAM` names a different program to run, with its emulator: `qemu-aarch64-static dist/verbatim`.

mod support;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use support::{data, stdout, verbatim};

/// The program, set up as the tests always do, but perhaps another one.
fn program(home: &Path) -> Command {
    let own = verbatim(home);
    let Some(words) = std::env::var("VERBATIM_TEST_PROGRAM").ok() else { return own };
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().expect("VERBATIM_TEST_PROGRAM names a program"));
    command.args(words);
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// The command line that asks for a recorded text.
fn arguments(recorded: &Value) -> Vec<String> {
    let word = |key: &str| recorded[key].as_str().map_or_else(|| recorded[key].to_string(), str::to_owned);
    let flags = [
        ("--temp", "temperature"),
        ("--seed", "seed"),
        ("-n", "max_tokens"),
        ("--ctx", "context"),
        ("--ctk", "k"),
        ("--ctv", "v"),
    ];
    let mut arguments = vec!["run".to_owned(), "--no-template".to_owned()];
    arguments.extend(flags.iter().flat_map(|(flag, key)| [(*flag).to_owned(), word(key)]));
    if recorded["shift"] == true {
        arguments.push("--context-shift".to_owned());
    }
    arguments.extend(["-m".to_owned(), data(&word("model")).to_str().unwrap().to_owned(), word("prompt")]);
    arguments
}

#[test]
fn the_program_reproduces_the_recorded_texts() {
    let home = tempfile::tempdir().unwrap();
    let lines = std::fs::read_to_string(data("texts.jsonl")).unwrap();
    let all: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(all.len() >= 20);
    for recorded in &all {
        let expected = format!("{}\n", recorded["text"].as_str().unwrap());
        for isa in [None, Some("scalar")] {
            let mut command = program(home.path());
            command.args(arguments(recorded)).args(["--threads", "2"]);
            isa.map(|isa| command.env("VERBATIM_ISA", isa));
            assert_eq!(stdout(&command.output().unwrap()), expected, "{isa:?} {:?}", command.get_args());
        }
    }
    println!("{} texts are those that were recorded", all.len());
}
