//! Checks that apply to every command: help, man pages, completions, exit codes and closed pipes.

mod support;

use std::io::Read;
use std::process::Stdio;

use support::{data, run_with_input, stderr, stdout, verbatim};

const COMMANDS: [&str; 18] = [
    "bench",
    "chat",
    "completions",
    "config",
    "cp",
    "inspect",
    "list",
    "logits",
    "man",
    "perplexity",
    "pull",
    "rm",
    "run",
    "serve",
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

fn model() -> String {
    data("models/qwen3/model.gguf").to_str().unwrap().to_owned()
}

/// Runs a command line in which MODEL is a small model, with variables.
fn with(line: &[&str], variables: &[(&str, &str)]) -> std::process::Output {
    let home = tempfile::tempdir().unwrap();
    let model = model();
    let line = line.iter().map(|word| if *word == "MODEL" { &model } else { *word });
    verbatim(home.path()).args(line).envs(variables.iter().copied()).output().unwrap()
}

/// The answer that all of the command lines below ask for, or its beginning.
fn answer() -> String {
    stdout(&with(&["run", "-m", "MODEL", "--no-template", "-n", "6", "--temp", "0", "hello"], &[]))
}

/// The commonest command lines of llama-cli, as its README and manual have them, with the program's name changed.
#[test]
fn command_lines_of_llama_cli_work() {
    let home = tempfile::tempdir().unwrap();
    let prompt = home.path().join("prompt.txt");
    std::fs::write(&prompt, "hello\n").unwrap();
    let (prompt, answer) = (prompt.to_str().unwrap(), answer());
    for line in [
        &["-m", "MODEL", "-p", "hello", "-n", "6", "-no-cnv", "--temp", "0"][..],
        &["-m", "MODEL", "-no-cnv", "--prompt", "hello", "--n-predict", "6", "--temp", "0", "-ngl", "99"],
        &[
            "-m",
            "MODEL",
            "-no-cnv",
            "-f",
            prompt,
            "--predict",
            "6",
            "--temp",
            "0",
            "-c",
            "512",
            "-t",
            "2",
            "-b",
            "64",
        ],
        &[
            "-m",
            "MODEL",
            "-no-cnv",
            "-p",
            "hello",
            "-n",
            "6",
            "--top-k",
            "1",
            "-s",
            "42",
            "--no-display-prompt",
            "--mlock",
        ],
        &[
            "--model",
            "MODEL",
            "-no-cnv",
            "-e",
            "-p",
            "hel\\x6co",
            "-n",
            "6",
            "--temp",
            "0",
            "-fa",
            "on",
            "--jinja",
        ],
        &[
            "-no-cnv", "-m", "MODEL", "-p", "hello", "-n", "6", "--temp", "0", "-ctk", "F16", "-ctv", "f16",
            "--color",
        ],
        &[
            "-m",
            "MODEL",
            "-no-cnv",
            "-p",
            "hello",
            "-n",
            "6",
            "--temp",
            "0",
            "--no-mmap",
            "--no-warmup",
            "-ub",
            "8",
            "-st",
        ],
        // Long names behind one dash, which would otherwise be `-t emp` and `-f it`.
        &[
            "-m", "MODEL", "-no-cnv", "-prompt", "hello", "-n", "6", "-temp", "0", "-fit", "on", "-nr", "-C",
            "3",
        ],
        &[
            "-m",
            "MODEL",
            "-no-cnv",
            "-p",
            "hello",
            "-n",
            "6",
            "--temp",
            "0",
            "-rea",
            "off",
            "--reasoning-format",
            "none",
            "--show-timings",
            "--log-colors",
            "off",
            "-kvu",
            "-cram",
            "10",
        ],
    ] {
        assert_eq!(stdout(&with(line, &[])), answer, "{line:?}");
    }
    let grammar = ["-m", "MODEL", "-no-cnv", "-n", "9", "--grammar", "root ::= \"yes\"", "-p", "Is it?"];
    assert_eq!(stdout(&with(&grammar, &[])), "yes\n");
    let schema =
        ["-m", "MODEL", "-no-cnv", "-n", "99", "-j", "{\"const\": 1}", "-p", "Request: schedule a call"];
    assert_eq!(stdout(&with(&schema, &[])), "1\n");
    // Chat: `-cnv`, a system message, and a template by its name. The input has ended at once.
    let chat = ["-m", "MODEL", "-cnv", "-sys", "Be brief.", "--chat-template", "chatml", "-n", "4"];
    assert_eq!(stdout(&with(&chat, &[])), "");
    let single = ["-m", "MODEL", "-st", "-p", "hello", "--chat-template", "chatml", "-n", "4", "--temp", "0"];
    assert!(!stdout(&with(&single, &[])).is_empty());
}

/// The commonest command lines of Ollama, with the program's name changed.
#[test]
fn command_lines_of_ollama_work_or_say_what_to_type() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(home.path().join("models")).unwrap();
    std::fs::copy(model(), home.path().join("models/mine.gguf")).unwrap();
    let with = |line: &[&str], input: &str| {
        let mut command = verbatim(home.path());
        command.args(line).env("VERBATIM_MAX_TOKENS", "4").env("VERBATIM_CHAT_TEMPLATE", "chatml");
        command.env("VERBATIM_TEMP", "0");
        run_with_input(&mut command, input.as_bytes())
    };
    let hello = stdout(&with(&["run", "mine", "hello"], ""));
    assert_eq!(
        stdout(&with(&["run", "mine", "hello", "--think=false", "--hidethinking", "--nowordwrap"], "")),
        hello
    );
    assert_eq!(stdout(&with(&["run", "mine"], "hello")), hello, "a prompt on standard input");
    assert_eq!(stdout(&with(&["run", "mine", "hello", "--verbose", "--keepalive", "5m"], "")), hello);
    assert_eq!(stdout(&with(&["chat", "mine"], "hello\n")), hello);
    let joined = stdout(&with(&["run", "mine", "hello"], "world"));
    assert_eq!(joined, stdout(&with(&["run", "mine", "hello\n\nworld"], "")));
    let json = stdout(&with(&["run", "mine", "hello", "--format", "json", "-n", "300", "--json"], ""));
    assert!(
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["text"].as_str().unwrap().starts_with('{')
    );
    assert!(stdout(&with(&["ls"], "")).contains("mine"));
    assert!(stdout(&with(&["list"], "")).contains("mine"));
    assert!(stdout(&with(&["show", "mine"], "")).contains("qwen3"));
    for (command, tip) in [
        (&["ps"][..], "nothing stays loaded"),
        (&["create", "mine", "-f", "Modelfile"], "verbatim config set"),
        (&["stop", "mine"], "nothing stays loaded"),
        (&["run", "lama", "hello"], "is not a model here (see `verbatim list`)"),
        (&["run", "mine", "hello", "--nothink"], "use --reasoning-budget; 0 turns thinking off"),
        (&["signin"], "there is no command 'signin'"),
    ] {
        let said = stderr(&with(command, ""), 2);
        assert!(said.contains(tip), "{command:?}: {said}");
    }
    stdout(&with(&["rm", "mine"], ""));
}

#[test]
fn options_without_effect_are_accepted_with_a_line() {
    let output =
        with(&["-m", "MODEL", "-p", "hello", "-no-cnv", "-n", "1", "-ngl", "99", "-fa", "--mlock"], &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("-ngl: accepted without effect, there is no GPU backend yet\n"), "{said}");
    assert_eq!(said.matches("accepted without effect").count(), 3, "{said}");
    let quiet = with(&["-m", "MODEL", "-p", "hello", "-no-cnv", "-n", "1", "-ngl", "99", "-q"], &[]);
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
}

#[test]
fn unknown_flags_get_a_tip() {
    for (flag, tip) in [
        ("--max-new-tokens", "use --max-tokens (-n)"),
        ("--num-ctx", "use --ctx-size (-c)"),
        ("--temprature", "a similar one is '--temperature'"),
        ("--mmproj", "only text is supported yet"),
        ("-mm", "only text is supported yet"),
        ("-hft", "set the variable HF_TOKEN"),
        ("-clever", "unexpected argument '--clever' found"),
        ("--chat-template-kwargs", "--reasoning-budget 0 turns thinking off"),
        ("-5 degrees", "write -- before a prompt"),
    ] {
        let said = stderr(&with(&["run", "-m", "MODEL", flag, "x"], &[]), 2);
        assert!(said.contains(tip) && !said.contains("as a value"), "{flag}: {said}");
    }
}

#[test]
fn numbers_are_checked_with_the_flag_and_the_text_as_typed() {
    for (flags, problem) in [
        (
            &["--top-p", "-0.1"][..],
            "invalid value '-0.1' for '--top-p <P>': this must be a number from 0 to 1",
        ),
        (&["--temp", "warm"], "invalid value 'warm' for '--temp <T>': this must be a number"),
        (&["--top-k", "1.5"], "'--top-k <K>': this must be a whole number"),
        (
            &["--min-keep", "-1"],
            "invalid value '-1' for '--min-keep <N>': this must be a whole number, 0 or more",
        ),
        (
            &["--dry-allowed-length", "-1"],
            "'--dry-allowed-length <N>': this must be a whole number, 0 or more",
        ),
        (&["--ctx", "-5"], "'--ctx-size <N>': this must be a number of tokens, or 0"),
        (&["--threads", "0"], "'--threads <N>': this must be a number of threads from 1"),
        (&["--reasoning-budget", "-2"], "'--reasoning-budget <N>': this must be -1 (any number)"),
        (&["--mirostat", "3"], "'--mirostat <N>': this must be 0 (off) or 2"),
        (&["--mirostat-ent", "-1"], "'--mirostat-ent <N>': this must be a number that is not negative"),
        (&["--repeat-last-n", "-3"], "'--repeat-last-n <N>': this must be -1 (all)"),
        (&["-n", "99999999999999999999"], "this number is too large"),
        (&["--logit-bias", "99999999+1"], "--logit-bias 99999999+1: this model has no token 99999999"),
        (&["-l", "-1+5"], "a bias is written as"),
    ] {
        let said = stderr(&with(&[&["run", "-m", "MODEL"], flags, &["hello"]].concat(), &[]), 2);
        assert!(said.contains(problem), "{flags:?}: {said}");
    }
    for flags in
        [&["--temp", "-1"][..], &["--top-k", "-1"], &["--repeat-penalty", "0"], &["-n", "1", "-n", "6"]]
    {
        let line = ["run", "-m", "MODEL", "--no-template", "-n", "6", "--temp", "0"];
        assert_eq!(stdout(&with(&[&line, flags, &["hello"]].concat(), &[])), answer(), "{flags:?}");
    }
}

#[test]
fn a_flag_overrides_variables_and_an_error_names_the_variable() {
    let line = ["run", "-m", "MODEL", "--no-template", "-n", "6"];
    let cold = [&line[..], &["--temp", "0", "hello"]].concat();
    for (variable, value) in [
        ("VERBATIM_TEMP", "abc"),
        ("VERBATIM_MAX_TOKENS", "2"),
        ("VERBATIM_SEED", ""),
        ("VERBATIM_STOP", ""),
        ("VERBATIM_GRAMMAR", ""),
        ("VERBATIM_CTX", ""),
        ("VERBATIM_IGNORE_EOS", "0"),
    ] {
        assert_eq!(stdout(&with(&cold, &[(variable, value)])), answer(), "{variable}={value}");
    }
    let said = stderr(&with(&[&line[..], &["hello"]].concat(), &[("VERBATIM_TEMP", "abc")]), 2);
    assert!(said.contains("note: --temp is set by the environment variable VERBATIM_TEMP"), "{said}");
    let said = stderr(&with(&cold, &[("VERBATIM_LOGIT_BIAS", "99999999+1")]), 2);
    assert!(
        said.contains("note: --logit-bias is set by the environment variable VERBATIM_LOGIT_BIAS"),
        "{said}"
    );
    let grammar = [("VERBATIM_GRAMMAR", "root ::= \"x\""), ("VERBATIM_NO_BACKEND_SAMPLING", "1")];
    let said = with(&[&cold[..], &["-j", "{\"const\":1}", "--backend-sampling"]].concat(), &grammar);
    assert_eq!(stdout(&said), "1\n");
    let stops = with(&cold, &[("VERBATIM_STOP", r#"["zzz", "e"]"#), ("VERBATIM_LOGIT_BIAS", "1+1,2+1")]);
    assert!(!stdout(&stops).contains('e'));
}

#[test]
fn profiles_are_set_shown_and_used() {
    let home = tempfile::tempdir().unwrap();
    let verbatim = |line: &[&str]| verbatim(home.path()).args(line).output().unwrap();
    let path = stdout(&verbatim(&["config", "path"]));
    assert_eq!(path.trim_end(), home.path().join("config.toml").to_str().unwrap());
    stdout(&verbatim(&["config", "set", "temp", "0"]));
    stdout(&verbatim(&["config", "set", "max_tokens", "6"]));
    stdout(&verbatim(&["config", "set", "--profile", "short", "n-predict", "2"]));
    stdout(&verbatim(&["config", "set", "--profile", "short", "stop", "a b", "c"]));
    assert_eq!(stdout(&verbatim(&["config", "get", "temp"])), "0\n");
    assert_eq!(stdout(&verbatim(&["config", "get", "stop", "--profile", "short"])), "a b\nc\n");
    let list = "[default]\ntemp = 0\nmax-tokens = 6\n[short]\nmax-tokens = 2\nstop = a b, c\n";
    assert_eq!(stdout(&verbatim(&["config", "list"])), list);
    let model = model();
    let run = |more: &[&str]| verbatim(&[&["run", "-m", &model, "--no-template", "hello"], more].concat());
    assert_eq!(stdout(&run(&[])), answer());
    let count = |output: &std::process::Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        said.split(", ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    assert_eq!(count(&run(&["--profile", "short"])), "2");
    assert_eq!(count(&run(&["--profile", "short", "-n", "3"])), "3");
    for (line, problem) in [
        (&["config", "set", "temprature", "1"][..], "there is no setting \"temprature\" (is it temp?)"),
        (
            &["config", "set", "top-p", "7"],
            "invalid value '7' for '--top-p <P>': this must be a number from 0 to 1",
        ),
        (&["config", "set", "ignore-eos", "maybe"], "ignore-eos is true or false"),
        (&["run", "-m", &model, "--profile", "shirt", "x"], "has no such profile (is it short?)"),
    ] {
        let said = stderr(&verbatim(line), 2);
        assert!(said.contains(problem), "{line:?}: {said}");
    }
    std::fs::write(home.path().join("config.toml"), "[default]\ntop-p = 7\n").unwrap();
    let said = stderr(&run(&[]), 2);
    assert!(said.contains("--top-p is set by the profile default of "), "{said}");
    assert_eq!(stdout(&run(&["--profile", "none", "-n", "6", "--temp", "0"])), answer());
}

#[test]
fn answers_are_printed_as_json() {
    let line =
        ["run", "-m", "MODEL", "--no-template", "-n", "6", "--temp", "0.5", "--seed", "3", "-q", "hello"];
    let text = stdout(&with(&line, &[]));
    let output = with(&[&line[..], &["--json"]].concat(), &[]);
    let json: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(format!("{}\n", json["text"].as_str().unwrap()), text);
    assert_eq!((&json["finish_reason"], &json["seed"]), (&"length".into(), &3.into()));
    assert_eq!(json["tokens"].as_array().unwrap().len(), 6);
    assert_eq!((&json["timings"]["predicted_n"], &json["timings"]["prompt_n"].is_u64()), (&6.into(), &true));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let lines = stdout(&with(&[&line[..], &["--json-lines"]].concat(), &[]));
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let pieces: String = lines.iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!(pieces + "\n", text);
    assert_eq!(lines.last().unwrap()["finish_reason"], "length");
}
