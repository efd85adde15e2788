//! Checks that apply to every command: help, man pages, completions, exit codes and closed pipes.

mod support;

use std::io::Read;
use std::process::Stdio;

use support::{data, stderr, stdout, verbatim};

const COMMANDS: [&str; 16] = [
    "bench",
    "chat",
    "completions",
    "cp",
    "inspect",
    "list",
    "logits",
    "man",
    "perplexity",
    "pull",
    "rm",
    "run",
    "synth",
    "template",
    "tokenize",
    "verify",
];

#[test]
fn help_names_every_command() {
    let home = tempfile::tempdir().unwrap();
    let help = stdout(&verbatim(home.path()).arg("--help").output().unwrap());
    for command in COMMANDS {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is not in:\n{help}");
    }
}

#[test]
fn an_unknown_flag_is_a_usage_error() {
    let home = tempfile::tempdir().unwrap();
    let error = stderr(&verbatim(home.path()).args(["list", "--colour"]).output().unwrap(), 2);
    assert!(error.contains("unexpected argument '--colour'"), "{error}");
    stderr(&verbatim(home.path()).args(["dance"]).output().unwrap(), 2);
    stderr(&verbatim(home.path()).output().unwrap(), 2);
}

#[test]
fn the_manual_has_a_page_for_every_command() {
    let home = tempfile::tempdir().unwrap();
    let page = stdout(&verbatim(home.path()).arg("man").output().unwrap());
    assert!(page.contains(".TH verbatim 1"), "{page}");
    let folder = home.path().join("pages");
    stdout(&verbatim(home.path()).arg("man").arg("--out").arg(&folder).output().unwrap());
    let pull = std::fs::read_to_string(folder.join("verbatim-pull.1")).unwrap();
    assert!(pull.contains("VERBATIM_SHA256") && pull.contains("\\-\\-home"), "{pull}");
    let mut pages: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .collect();
    pages.sort();
    let mut expected: Vec<String> = COMMANDS.map(|command| format!("verbatim-{command}.1")).to_vec();
    expected.push("verbatim.1".to_owned());
    assert_eq!(pages, expected);
}

#[test]
fn every_shell_gets_its_completions() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = stdout(&verbatim(home.path()).args(["completions", shell]).output().unwrap());
        // It asks the program, so that it can offer the models in the store.
        assert!(script.contains("VERBATIM_COMPLETE"), "{shell}");
    }
}

#[test]
fn an_environment_variable_sets_its_flag() {
    let home = tempfile::tempdir().unwrap();
    let with = |value: &str| {
        stdout(&verbatim(home.path()).arg("list").env("VERBATIM_JSON", value).output().unwrap())
    };
    assert_eq!(with("1"), "[]\n");
    assert_eq!(with("0"), "NAME  SIZE  TYPE  DATE  SOURCE\n");
    let other = home.path().join("other");
    std::fs::create_dir_all(other.join("models")).unwrap();
    std::fs::write(other.join("models/a.gguf"), "no model").unwrap();
    let listed = stdout(&verbatim(home.path()).arg("list").arg("--home").arg(&other).output().unwrap());
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "SIZE", "TYPE", "DATE", "SOURCE"]);
    assert_eq!((&lines[1][..4], lines[1][5], lines.len()), (&["a", "8", "B", "unreadable"][..], "-", 2));
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let home = tempfile::tempdir().unwrap();
    let mut child = verbatim(home.path())
        .args(["inspect", "--json"])
        .arg(data("tokenizers/vocab/SmolLM2-135M-Instruct.vocab-only.gguf"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Far more is written than a pipe holds, so the program is still writing when its reader leaves.
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success(), "{}", output.status);
}
