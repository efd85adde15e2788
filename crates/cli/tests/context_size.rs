//! The context size: what is taken where none is given, what is rejected, and what is said.

mod support;

use std::path::Path;
use std::process::Output;

use support::{data, stderr, stdout, verbatim};

/// The golden models that differ in their state: full attention, sliding windows, recurrent layers.
const MODELS: [&str; 3] = ["qwen3", "gemma3-iswa", "qwen35-hybrid"];

fn run(home: &Path, model: &str, more: &[&str]) -> Output {
    let mut command = verbatim(home);
    command.args(["run", "--no-template", "--temp", "0", "-n", "8", "--threads", "2", "-m"]);
    command.arg(data(&format!("models/{model}/model.gguf"))).args(more).output().unwrap()
}

fn messages(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The context that the model was trained for.
fn trained(home: &Path, model: &str) -> usize {
    let path = data(&format!("models/{model}/model.gguf"));
    let output = verbatim(home).args(["inspect", "--json"]).arg(path).output().unwrap();
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let (summary, needs) = (&report["summary"], &report["summary"]["needs"]);
    assert_eq!(needs["context"], summary["context"], "the default is the trained context");
    assert_eq!(summary["fitting_context"], summary["context"]);
    summary["context"].as_u64().unwrap() as usize
}

#[test]
fn the_default_is_what_the_model_was_trained_for_and_the_text_does_not_depend_on_the_size() {
    let home = tempfile::tempdir().unwrap();
    for model in MODELS {
        let trained = trained(home.path(), model);
        let default = run(home.path(), model, &["hello"]);
        assert!(!messages(&default).contains("warning"), "{}", messages(&default));
        let sizes = ["0", "64", &trained.to_string(), &(10 * trained).to_string(), "300000"];
        for size in sizes {
            let output = run(home.path(), model, &["-c", size, "hello"]);
            assert_eq!(stdout(&output), stdout(&default), "{model} {size}");
            let is_long = size.parse::<usize>().unwrap() > trained;
            let warning =
                format!("--ctx-size {size} is more than the {trained} tokens that the model was trained for");
            assert_eq!(messages(&output).contains(&warning), is_long, "{}", messages(&output));
        }
        // The context is full: it is as long as the model was trained for, so a prompt of that length leaves no room.
        let prompt = "a b ".repeat(trained);
        let output = run(home.path(), model, &[prompt.as_str()]);
        let error = stderr(&output, 1);
        assert!(
            error.contains(&format!("but the context has room for {trained}; use a larger --ctx-size")),
            "{error}"
        );
    }
}

#[test]
fn a_context_of_one_token_has_no_room_for_an_answer() {
    let home = tempfile::tempdir().unwrap();
    for model in MODELS {
        let output = run(home.path(), model, &["-c", "1", "hello there"]);
        let error = stderr(&output, 1);
        assert!(error.contains("the context has room for 1; use a larger --ctx-size"), "{error}");
    }
}

#[test]
fn a_context_that_can_never_fit_is_rejected_with_the_one_that_does() {
    let home = tempfile::tempdir().unwrap();
    // Two terabytes of KV cache.
    let output = run(home.path(), "qwen3", &["-c", "1000000000", "--ctk", "f32", "--ctv", "f32", "hello"]);
    let error = stderr(&output, 1);
    let said = [
        "a context of 1000000000 tokens takes 2048",
        " of memory: ",
        " tokens fit",
        "(--ctx-size, --cache-type-k",
    ];
    assert!(said.iter().all(|part| error.contains(part)), "{error}");
    let output = run(home.path(), "qwen3", &["-c", "99999999999", "hello"]);
    assert!(stderr(&output, 1).contains("context size 99999999999 is out of range"), "{}", messages(&output));
}

#[test]
fn a_session_longer_than_the_context_says_which_flag() {
    let home = tempfile::tempdir().unwrap();
    let session = home.path().join("session").to_str().unwrap().to_owned();
    let long = ["--session", &session, "-c", "64", "one two three four five six seven eight nine ten"];
    stdout(&run(home.path(), "qwen3", &long));
    let output = run(home.path(), "qwen3", &["--session", &session, "-c", "12", "more"]);
    let error = stderr(&output, 1);
    assert!(error.contains("cannot be continued with this --ctx-size"), "{error}");
    stdout(&run(home.path(), "qwen3", &["--session", &session, "more"]));
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_the_address_space_is_an_error_and_not_a_crash() {
    let home = tempfile::tempdir().unwrap();
    // Three gigabytes of context, in an address space of one.
    let program = "ulimit -v 1048576; exec \"$0\" run --no-template -n 1 --threads 2 -m \"$1\" \
                   -c 1500000 --ctk f32 --ctv f32 hello";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", program, env!("CARGO_BIN_EXE_verbatim")]).arg(data("models/qwen3/model.gguf"));
    let error = stderr(&command.env("VERBATIM_HOME", home.path()).output().unwrap(), 1);
    assert!(error.contains("not enough memory for the KV cache") && error.contains("--ctx-size"), "{error}");
}
