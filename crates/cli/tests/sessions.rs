//! Sessions that are saved in one process and resumed in the next, and what happens when a context is full.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use support::{data, run_with_input, stderr, stdout, verbatim};
use verbatim_gguf::{GgufFile, GgufWriter, Value};

const MODELS: [&str; 3] = ["qwen3", "gemma3-iswa", "qwen35-hybrid"];

fn run(home: &Path, model: &str, arguments: &[&str]) -> Output {
    let mut command = verbatim(home);
    command.args(["run", "--no-template", "--temp", "0.9", "--seed", "0", "--threads", "2", "-m"]);
    command.arg(data(&format!("models/{model}/model.gguf"))).args(arguments).output().unwrap()
}

#[test]
fn a_session_generates_the_same_text_as_a_run_without_one() {
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
            let messages = String::from_utf8_lossy(&again.stderr).into_owned();
            // Recurrent states and windows cannot go back to the end of the prompt.
            assert_eq!(messages.contains(" cached)"), model == "qwen3", "{messages}");
            let other = "it was a dark and stormy morning";
            assert_eq!(stdout(&with(&session, other)), stdout(&with(&[], other)), "{model}");
        }
    }
}

#[test]
fn an_invalid_session_file_is_rejected_and_not_modified() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("session");
    let session = ["--session", file.to_str().unwrap(), "-n", "3"];
    let with = |model, more: &[&str]| run(home.path(), model, &[&session[..], more, &["hello"]].concat());
    stdout(&with("qwen3", &[]));
    let whole = fs::read(&file).unwrap();
    for (model, more, words) in [
        ("qwen3", &["--ctk", "q4_0"][..], "q4_0"),
        ("gemma3-iswa", &[], "a different model"),
        ("qwen3", &["--ctx", "2"], "context of 2"),
    ] {
        let error = stderr(&with(model, more), 1);
        assert!(error.contains("--session cannot be continued") && error.contains(words), "{error}");
        assert_eq!(fs::read(&file).unwrap(), whole);
    }
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    assert!(stderr(&with("qwen3", &[]), 1).contains("checksum"));
    fs::write(&file, b"notes of mine").unwrap();
    assert!(stderr(&with("qwen3", &[]), 1).contains("not a file of saved sequences"));
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
        let (_, messages) = with(&[]);
        assert!(messages.contains("the context is full"), "{messages}");
        let (shifted, messages) = with(&["--context-shift"]);
        let tokens = messages.split(", ").nth(1).and_then(|text| text.split(' ').next()).unwrap();
        assert!(
            tokens.parse::<usize>().unwrap() > 40 && !messages.contains("the context is full"),
            "{messages}"
        );
        assert_eq!(with(&["--context-shift", "--ctk", "f16"]).0, shifted, "{model}");
        assert!(!with(&["--context-shift", "--ctk", "q4_0", "--keep", "0"]).0.is_empty());
    }
    let hybrid = run(home.path(), "qwen35-hybrid", &["--context-shift", "hello"]);
    assert!(stderr(&hybrid, 1).contains("--context-shift does not work with this model"));
    let keep = run(home.path(), "qwen3", &["--context-shift", "--ctx", "40", "--keep", "39", "hello"]);
    assert!(stderr(&keep, 1).contains("--keep 39 leaves no room in a context of 40 tokens: use at most 38"));
}

#[test]
fn a_stop_string_ends_the_answer_and_is_not_shown() {
    let home = tempfile::tempdir().unwrap();
    let with = |more: &[&str]| run(home.path(), "qwen3", &[more, &["-n", "30", "hello there"]].concat());
    let whole = stdout(&with(&[]));
    let middle: String = whole.chars().skip(9).take(5).collect();
    let output = with(&["--stop", "never said", "--stop", &middle]);
    assert_eq!(stdout(&output), format!("{}\n", &whole[..whole.find(&middle).unwrap()]));
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(messages.contains("; stopped at "), "{messages}");
    assert_eq!(stdout(&with(&["--stop", "-"])), stdout(&with(&["--stop=-"])));
    stderr(&with(&["--stop", ""]), 2);
}

/// A golden model with this chat template.
fn with_template(home: &Path, template: &str) -> PathBuf {
    with_keys(home, &[("tokenizer.chat_template", template.into())])
}

/// A golden model in whose metadata these keys have these values.
fn with_keys(home: &Path, changed: &[(&str, Value<'_>)]) -> PathBuf {
    let file = GgufFile::open(data("models/qwen3/model.gguf")).unwrap();
    let mut writer = GgufWriter::new();
    let is_changed = |key: &str| changed.iter().any(|(other, _)| *other == key);
    let others = file.metadata().iter().filter(|(key, _)| !is_changed(key));
    others.chain(changed.iter().copied()).for_each(|(key, value)| writer.put(key, value).unwrap());
    for tensor in file.iter_tensors() {
        writer.declare(tensor.name(), tensor.dtype(), tensor.dims()).unwrap();
    }
    let path = home.join("model.gguf");
    let mut writer = writer.begin(fs::File::create(&path).unwrap()).unwrap();
    for tensor in file.iter_tensors() {
        writer.append(tensor.name(), &tensor.data().unwrap()).unwrap();
    }
    writer.finish().unwrap();
    path
}

#[test]
fn a_conversation_resumes_in_a_new_process() {
    let home = tempfile::tempdir().unwrap();
    let model =
        with_template(home.path(), "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:");
    let file = home.path().join("session");
    let chat = |session: bool, input: &str| {
        let mut command = verbatim(home.path());
        command
            .args(["chat", "-n", "12", "--temp", "0", "--threads", "2", "--system", "s", "-m"])
            .arg(&model);
        if session {
            command.arg("--session").arg(&file);
        }
        run_with_input(&mut command, input.as_bytes())
    };
    let whole = stdout(&chat(false, "hello\nand then?\n"));
    let (first, second) = (chat(true, "hello\n"), chat(true, "and then?\n"));
    assert_eq!(stdout(&first) + &stdout(&second), whole);
    let messages = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(messages.contains("the conversation of 3 messages continues"), "{messages}");
    assert!(messages.contains(" cached), "), "{messages}");
    // What fails is taken back and reported, and the conversation goes on.
    let long = "word ".repeat(9000);
    let output = chat(false, &format!("{long}\nhello\n"));
    let failed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        failed.contains("use a larger --ctx-size") && failed.contains("(in a conversation, /clear)"),
        "{failed}"
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().next(), whole.lines().next());
}

#[test]
fn run_continues_the_conversation_of_a_session() {
    let home = tempfile::tempdir().unwrap();
    let model =
        with_template(home.path(), "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:");
    let file = home.path().join("session");
    let ask = |command: &str, more: &[&str], input: &str| {
        let mut asked = verbatim(home.path());
        asked.args([command, "-n", "8", "--temp", "0", "--threads", "2", "-m"]).arg(&model);
        run_with_input(asked.arg("--session").arg(&file).args(more), input.as_bytes())
    };
    let conversation = || {
        let path = home.path().join("saved.json");
        stdout(&ask("chat", &[], &format!("/save {}\n", path.display())));
        let messages: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        messages
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["role"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    stdout(&ask("chat", &["--system", "s"], "hello\n"));
    stdout(&ask("run", &["and then?"], ""));
    assert_eq!(conversation(), ["system", "user", "assistant", "user", "assistant"]);
    let error = stderr(&ask("run", &["--no-template", "hello"], ""), 1);
    assert!(error.contains("--session holds a conversation"), "{error}");
    assert_eq!(conversation().len(), 5);
    // `/undo` is saved, too.
    stdout(&ask("chat", &[], "/undo\n"));
    assert_eq!(conversation(), ["system", "user", "assistant"]);
}

#[test]
fn warnings_of_a_vocabulary_a_template_and_a_prompt_are_shown() {
    let home = tempfile::tempdir().unwrap();
    let said = |arguments: &[&str], model: &Path| {
        let mut command = verbatim(home.path());
        let output = command.args(arguments).arg(model).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let model = with_keys(home.path(), &[("tokenizer.ggml.eot_token_id", 1_000_000_u32.into())]);
    let out_of_range = "`tokenizer.ggml.eot_token_id` is 1000000 but the vocabulary has ";
    let run = ["run", "-n", "1", "--no-template", "-p", "hello", "-m"];
    assert!(said(&run, &model).contains(&format!("warning: {out_of_range}")));
    assert!(
        said(&["chat", "--chat-template", "chatml", "-m"], &model)
            .contains(&format!("warning: {out_of_range}"))
    );
    assert!(said(&["inspect"], &model).contains(&format!("\nwarning   {out_of_range}")));
    let json: serde_json::Value = serde_json::from_str(&said(&["inspect", "--json"], &model)).unwrap();
    assert!(json["warnings"][0].as_str().unwrap().starts_with(out_of_range));
    let broken = with_template(home.path(), "{% for");
    assert!(said(&["inspect"], &broken).contains("\nwarning   the chat template cannot be compiled"));
    let eos = GgufFile::open(data("models/qwen3/model.gguf")).unwrap();
    let eos = eos.metadata().get_u32("tokenizer.ggml.eos_token_id").unwrap().unwrap();
    let keys = [("tokenizer.ggml.bos_token_id", eos.into()), ("tokenizer.ggml.add_bos_token", true.into())];
    let model = with_keys(home.path(), &keys);
    let own_bos = "warning: the prompt begins with the model's BOS token";
    assert!(!said(&run, &model).contains(own_bos));
    assert!(
        said(&["run", "-n", "1", "--no-template", "-p", "<|im_end|>hello", "-m"], &model).contains(own_bos)
    );
}

#[test]
fn two_processes_do_not_use_one_session() {
    use std::io::{Read as _, Write as _};
    use std::process::Stdio;
    let home = tempfile::tempdir().unwrap();
    let model = with_template(home.path(), "{% for m in messages %}{{ m.content }} {% endfor %}");
    let file = home.path().join("session");
    let command = |name: &str| {
        let mut command = verbatim(home.path());
        command.args([name, "-n", "4", "-m"]).arg(&model).arg("--session").arg(&file);
        command
    };
    let mut first = command("chat");
    let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    first.stdin.as_mut().unwrap().write_all(b"hello\n").unwrap();
    first.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let error = stderr(&command("run").arg("hello").output().unwrap(), 1);
    assert!(error.contains("another process is using this session"), "{error}");
    drop(first.stdin.take());
    assert!(first.wait().unwrap().success());
    stdout(&command("run").arg("hello").output().unwrap());
}

#[test]
fn what_a_template_leaves_out_or_cannot_be_used_is_said() {
    let home = tempfile::tempdir().unwrap();
    let user_only = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
    let model = with_template(home.path(), user_only);
    let run = |more: &[&str]| {
        verbatim(home.path()).args(["run", "-n", "3", "-m"]).arg(&model).args(more).output().unwrap()
    };
    let error = stderr(&run(&["--system", "Be brief.", "hello"]), 1);
    assert!(error.contains("takes no system message"), "{error}");
    let error = stderr(
        &run(&["--system", "Be brief.", "--chat-template", "{{ raise_exception('no') }}", "hello"]),
        1,
    );
    assert!(error.contains("the chat template"), "{error}");
    assert!(stderr(&run(&[""]), 2).contains("the prompt is empty"));
    assert!(stderr(&run(&[" \n"]), 2).contains("the prompt is empty"));
    let long = run(&["--ctx-size", "100000", "hello"]);
    assert!(String::from_utf8_lossy(&long.stderr).contains("that the model was trained for"));
    let shifted = run(&["--context-shift", "-c", "32", "-n", "60", "--ignore-eos", "hello"]);
    assert!(String::from_utf8_lossy(&shifted.stderr).contains("its oldest tokens were discarded"));
}

#[test]
#[cfg(unix)]
fn a_chat_that_is_ended_by_the_system_keeps_its_answers() {
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};
    let home = tempfile::tempdir().unwrap();
    let model = with_template(home.path(), "{% for m in messages %}{{ m.content }} {% endfor %}");
    // A caller's `nohup` would be inherited: what is ignored stays ignored.
    let is_ignored = |signal: &str| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
        signal == "-HUP" && mask & 1 != 0
    };
    for (signal, status) in [("-TERM", 143), ("-HUP", 129)] {
        if is_ignored(signal) {
            continue;
        }
        let file = home.path().join(format!("session{signal}"));
        let mut command = verbatim(home.path());
        command
            .args(["chat", "--ignore-eos", "--context-shift", "-c", "64", "--session"])
            .arg(&file)
            .arg("-m")
            .arg(&model);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The answer goes on for ever, and the input stays open.
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"hello\n").unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        let messages = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{messages}");
        drop(stdin);
        let mut next = verbatim(home.path());
        next.args(["chat", "-c", "64", "--session"]).arg(&file).arg("-m").arg(&model);
        let messages = String::from_utf8_lossy(&next.output().unwrap().stderr).into_owned();
        assert!(messages.contains("the conversation of 2 messages continues"), "{messages}");
    }
}

#[test]
fn a_broken_template_does_not_affect_raw_completion() {
    let home = tempfile::tempdir().unwrap();
    let model = with_template(home.path(), "{% for");
    let run = |more: &[&str]| {
        let mut command = verbatim(home.path());
        command.args(["run", "-n", "3", "-m"]).arg(&model).args(more).arg("hello").output().unwrap()
    };
    stdout(&run(&["--no-template"]));
    assert!(stderr(&run(&[]), 1).contains("the chat template cannot be compiled"));
}

#[test]
#[cfg(unix)]
fn ctrl_c_ends_the_answer_and_the_session_is_kept() {
    use std::io::Read as _;
    use std::process::{Command, Stdio};
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("session");
    let mut command = verbatim(home.path());
    command
        .args(["run", "--no-template", "--context-shift", "--ctx", "40", "--session"])
        .arg(&file)
        .arg("-m");
    command.arg(data("models/qwen3/model.gguf")).arg("hello there");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It goes on for ever once it has begun.
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{messages}");
    assert!(messages.ends_with("; interrupted\n") && output.stdout.ends_with(b"\n"), "{messages}");
    assert!(file.is_file());
}
