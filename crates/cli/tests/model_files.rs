//! `inspect`, `tokenize` and `template` on the golden data.

mod support;

use std::fs;

use serde_json::{Value, json};
use support::{data, run_with_input, stderr, stdout, verbatim};

fn vocabulary(name: &str) -> String {
    data(&format!("tokenizers/vocab/{name}")).to_str().unwrap().to_owned()
}

const SMOLLM2: &str = "SmolLM2-135M-Instruct.vocab-only.gguf";

fn read_json(path: &str) -> Value {
    serde_json::from_slice(&fs::read(data(path)).unwrap()).unwrap()
}

fn run(arguments: &[&str], input: &[u8]) -> std::process::Output {
    let home = tempfile::tempdir().unwrap();
    run_with_input(verbatim(home.path()).args(arguments), input)
}

#[test]
fn inspect_succeeds_exactly_for_loadable_files() {
    for file in read_json("hostile/index.json")["files"].as_array().unwrap() {
        let name = file["file"].as_str().unwrap();
        let output = run(&["inspect", data(&format!("hostile/{name}")).to_str().unwrap()], b"");
        match file["outcome"].as_str().unwrap() {
            "accepted" => {
                assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr))
            }
            "rejected at open" => {
                let error = stderr(&output, 1);
                assert!(error.starts_with("error: "), "{name}: {error}");
            }
            _ => {
                let error = String::from_utf8_lossy(&output.stderr);
                assert_eq!(output.status.code(), Some(1), "{name}: {error}");
                assert!(error.starts_with("error: "), "{name}: {error}");
            }
        }
    }
}

#[test]
fn inspect_shows_what_is_in_a_file() {
    let text = stdout(&run(&["inspect", data("hostile/valid-unknown-keys.gguf").to_str().unwrap()], b""));
    for expected in [
        "\nformat    GGUF version 3, alignment 32, 39.55 kB\n",
        "\nvocabulary\n  24 tokens, ",
        "\nsizes by type (12 tensors; --tensors lists them)\n  F32 ",
    ] {
        assert!(text.contains(expected), "{expected:?} is not in:\n{text}");
    }
    // The file has a string that is not UTF-8; what is printed is, and has no control characters but line
    // ends.
    assert!(text.contains("\\xff"), "{text}");
    assert!(!text.chars().any(|character| character.is_control() && character != '\n'), "{text}");
}

#[test]
fn inspect_begins_with_what_people_ask() {
    let model = data("models/qwen3/model.gguf");
    let text = stdout(&run(&["inspect", model.to_str().unwrap()], b""));
    let begins: Vec<&str> =
        text.lines().map(|line| line.split_whitespace().next().unwrap_or_default()).take(9).collect();
    let expected =
        ["model", "weights", "context", "template", "loads", "memory", "speed", "sampling", "file"];
    assert_eq!(begins, expected, "{text}");
    assert!(text.contains("\nloads     yes: it needs "), "{text}");
    assert!(!text.contains("blk.0.attn_q.weight"), "{text}");
    let with_tensors = stdout(&run(&["show", "--tensors", model.to_str().unwrap()], b""));
    assert!(with_tensors.contains("\n  blk.0.attn_q.weight"), "{with_tensors}");
    let report: Value =
        serde_json::from_slice(&run(&["show", "--json", model.to_str().unwrap()], b"").stdout).unwrap();
    let needs = &report["summary"]["needs"];
    assert_eq!(needs["weight_bytes"].as_u64(), tensor_bytes(&report));
    assert!(needs["state_bytes"].as_u64().unwrap() > 0);
    // The LM head is read for every token, the embedding is not; a tied one is the head.
    assert!(needs["token_bytes"].as_u64() <= tensor_bytes(&report));

    let broken = run(&["inspect", data("hostile/missing-architecture.gguf").to_str().unwrap()], b"");
    let text = String::from_utf8_lossy(&broken.stdout);
    assert!(text.contains("\nloads     no: metadata key `general.architecture` is missing\n"), "{text}");
}

fn tensor_bytes(report: &Value) -> Option<u64> {
    report["tensors"].as_array()?.iter().map(|tensor| tensor["bytes"].as_u64()).sum()
}

#[test]
fn inspect_takes_links_and_names() {
    let home = tempfile::tempdir().unwrap();
    let model = data("models/qwen3/model.gguf").canonicalize().unwrap();
    let show = |name: &str| verbatim(home.path()).args(["show", name]).output().unwrap();
    #[cfg(unix)]
    {
        let link = home.path().join("link");
        std::os::unix::fs::symlink(&model, &link).unwrap();
        assert!(stdout(&show(link.to_str().unwrap())).starts_with("model     "));
    }
    stdout(
        &verbatim(home.path()).args(["pull", model.to_str().unwrap(), "--name", "mine"]).output().unwrap(),
    );
    assert!(stdout(&show("mine")).starts_with("model     "));
    // What is not there yet is shown from the catalogue.
    let output = show("qwen3:4b");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.starts_with("model     qwen3:4b, qwen3\nweights   4B parameters, Q4_K_M, 2.50 GB\n"),
        "{text}"
    );
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(error, "error: qwen3:4b is not in the store: run `verbatim pull qwen3:4b` first\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn inspect_abbreviates_only_text_output() {
    let file = vocabulary(SMOLLM2);
    // A file without tensors is shown, but is not a loadable model.
    let output = run(&["inspect", &file], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tensor `token_embd.weight` is missing"));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("string[49152]   [\"<|endoftext|>\", \"<|im_start|>\", \"<|im_end|>\""), "{text}");
    assert!(text.contains(", … 49146 more]\n"), "{text}");
    assert!(text.contains("\nchat template (") && text.contains("\n  | {%"), "{text}");
    let report: Value = serde_json::from_slice(&run(&["inspect", &file, "--json"], b"").stdout).unwrap();
    assert_eq!(report["loadable"], false);
    assert_eq!(report["metadata"]["general.architecture"], json!({"type": "string", "value": "llama"}));
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"]["value"].as_array().unwrap().len(), 49152);
    assert_eq!(report["vocabulary"]["roles"]["bos"], json!({"id": 1, "token": "<|im_start|>"}));
}

#[test]
fn inspect_shows_unloadable_files_with_the_reason() {
    let output =
        run(&["inspect", "--json", data("hostile/missing-architecture.gguf").to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`general.architecture` is missing"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["loadable"], false);
    assert_eq!(report["problem"], "metadata key `general.architecture` is missing");
    assert!(!report["tensors"].as_array().unwrap().is_empty());
}

#[test]
fn tokenize_gives_the_golden_ids_and_their_bytes_back() {
    let golden = read_json("tokenizers/strings-SmolLM2-135M-Instruct.Q4_1.json");
    let strings = golden["strings"].as_array().unwrap();
    let model = vocabulary(SMOLLM2);
    let hex = |text: &Value| -> Vec<u8> {
        let text = text.as_str().unwrap();
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
    };
    let ids = |output| serde_json::from_str::<Value>(&stdout(&output)).unwrap();
    // A process for each string is slow; every twentieth is enough, since the tokenizer has tests of its own.
    for string in strings.iter().step_by(20) {
        let text = hex(&string["utf8_hex"]);
        assert_eq!(ids(run(&["tokenize", "-m", &model], &text)), string["ids_parse_special"]);
        assert_eq!(ids(run(&["tokenize", "-m", &model, "--no-special"], &text)), string["ids"]);
        assert_eq!(
            ids(run(&["tokenize", "-m", &model, "--add-bos"], &text)),
            string["ids_add_and_parse_special"]
        );
        let back = run(&["tokenize", "-m", &model, "--decode"], string["ids"].to_string().as_bytes());
        assert!(back.status.success());
        assert_eq!(back.stdout, hex(&string["detok_hex"]));
    }
}

#[test]
fn tokenize_reads_input_exactly_and_rejects_invalid_input() {
    let model = vocabulary(SMOLLM2);
    let with = stdout(&run(&["tokenize", "-m", &model], b"a\n"));
    assert_ne!(with, stdout(&run(&["tokenize", "-m", &model], b"a")));
    assert_eq!(stdout(&run(&["tokenize", "-m", &model], b"")), "[]\n");
    assert_eq!(stdout(&run(&["tokenize", "-m", &model, "--decode"], with.as_bytes())), "a\n");
    assert_eq!(stdout(&run(&["tokenize", "-m", &model, "--decode", "--no-special"], b"[1, 2]")), "");
    let error = stderr(&run(&["tokenize", "-m", &model], b"ab\xff"), 1);
    assert!(error.contains("is not UTF-8 text: the byte at offset 2"), "{error}");
    let error = stderr(&run(&["tokenize", "-m", &model, "--decode"], b"[49152]"), 1);
    assert!(error.contains("there is no token 49152: the vocabulary has the ids 0 to 49151"), "{error}");
    for wrong in [&b"[-1]"[..], b"[1.5]", b"{}", b"", b"[1"] {
        let error = stderr(&run(&["tokenize", "-m", &model, "--decode"], wrong), 1);
        assert!(error.contains("standard input is not a JSON array of token ids"), "{error}");
    }
    stderr(&run(&["tokenize"], b"a"), 2);
    let error = stderr(&run(&["tokenize", "-m", "/no/such.gguf"], b"a"), 1);
    assert_eq!(error, "error: there is no file /no/such.gguf\n");
}

#[test]
fn templates_render_the_golden_texts() {
    for name in ["Qwen-Qwen3-0.6B", "meta-llama-Llama-3.2-3B-Instruct", "google-gemma-2-2b-it"] {
        let template = data(&format!("templates/{name}.jinja"));
        let arguments = [
            "template",
            "--template-file",
            template.to_str().unwrap(),
            "--context",
            "-",
            "--now",
            "2025-02-03T04:05:06",
        ];
        for case in read_json(&format!("templates/{name}.json"))["cases"].as_array().unwrap() {
            let output = run(&arguments, case["context"].to_string().as_bytes());
            match case["expected"].as_str() {
                Some(expected) => assert_eq!(stdout(&output), expected, "{name}, {}", case["set"]),
                None => assert!(stderr(&output, 1).starts_with("error: "), "{name}, {}", case["set"]),
            }
        }
    }
}

#[test]
fn a_models_own_template_is_rendered_from_messages() {
    let model = vocabulary(SMOLLM2);
    let messages = br#"[{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]"#;
    let expected = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n";
    assert_eq!(stdout(&run(&["template", "-m", &model], messages)), expected);
    let with_prompt = stdout(&run(&["template", "-m", &model, "--add-generation-prompt"], messages));
    assert_eq!(with_prompt, format!("{expected}<|im_start|>assistant\n"));
}

#[test]
fn tools_and_special_tokens_reach_the_template() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (template, tools) = (path("t.jinja"), path("tools.json"));
    let jinja = "{{ bos_token }}{{ tools[0].name }} {% for message in messages %}{{ message.content }}\
                 {% for call in message.tool_calls %}{{ call.function.name }} {{ call.function.arguments | tojson }}\
                 {% endfor %}{% endfor %} {{ strftime_now('%H:%M') }}";
    fs::write(&template, jinja).unwrap();
    fs::write(&tools, r#"[{"name": "add"}]"#).unwrap();
    let calls = json!([{"function": {"name": "add", "arguments": "{\"x\": 7}"}}]);
    let messages = json!([{"role": "assistant", "tool_calls": calls}]).to_string();
    let arguments = [
        "template",
        "-m",
        &vocabulary(SMOLLM2),
        "--template-file",
        &template,
        "--tools",
        &tools,
        "--now",
        "2025-02-03T04:05:06",
    ];
    assert_eq!(stdout(&run(&arguments, messages.as_bytes())), "<|im_start|>add add {\"x\": 7} 04:05");
}

#[test]
fn invalid_template_inputs_are_explained() {
    let model = vocabulary(SMOLLM2);
    let bare = vocabulary("ggml-vocab-gpt-2.gguf");
    let folder = tempfile::tempdir().unwrap();
    let failing = folder.path().join("t.jinja");
    fs::write(&failing, "{{ raise_exception('no\u{1b}[31mway') }}").unwrap();
    let failing = failing.to_str().unwrap();
    let cases: [(&[&str], &[u8], i32, &str); 8] = [
        (&["template", "--template-file", failing], b"[]", 1, "no\\u{1b}[31mway"),
        (&["template"], b"[]", 2, "--model <FILE>"),
        (&["template", "-m", &model], b"{}", 1, "standard input is not a JSON array of messages"),
        (&["template", "-m", &model], b"[", 1, "standard input is not a JSON array of messages"),
        (&["template", "-m", &bare], b"[]", 1, "has no chat template: specify one with --template-file"),
        (&["template", "-m", &model, "--context", "-"], b"[]", 1, "must be an object"),
        (
            &["template", "-m", &model, "--context", "-", "--add-generation-prompt"],
            b"{}",
            2,
            "put them into the context",
        ),
        (&["template", "-m", &model, "--now", "yesterday"], b"[]", 2, "invalid value 'yesterday'"),
    ];
    for (arguments, input, status, expected) in cases {
        let error = stderr(&run(arguments, input), status);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
}

#[test]
fn logits_have_the_golden_shape_and_never_overwrite_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = data("models/qwen3/model.gguf");
    let model = model.to_str().unwrap();
    let out = folder.path().join("logits.safetensors");
    let arguments = ["logits", "-m", model, "--tokens", "1,2,3", "--layers", "--out", out.to_str().unwrap()];
    stdout(&run(&arguments, b""));
    let bytes = fs::read(&out).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.tensor("logits").unwrap().shape(), [3, 512]);
    for name in ["hidden.embed", "hidden.layer0", "hidden.layer3", "hidden.final_norm"] {
        assert_eq!(tensors.tensor(name).unwrap().shape()[0], 3, "{name}");
    }

    let copy = folder.path().join("model.gguf");
    fs::copy(model, &copy).unwrap();
    let arguments = ["logits", "-m", model, "--tokens", "1", "--out", copy.to_str().unwrap()];
    assert!(stderr(&run(&arguments, b""), 1).contains("is a model and will not be overwritten"));
    assert_eq!(fs::read(&copy).unwrap(), fs::read(model).unwrap());
}

#[test]
fn run_gives_the_same_text_for_the_same_request() {
    let model = data("models/qwen3/model.gguf");
    let model = model.to_str().unwrap();
    let text = |threads: &str, seed: &str| {
        let arguments =
            ["run", "-m", model, "-n", "24", "--temp", "1.3", "--threads", threads, "--seed", seed, "hi"];
        run(&[&arguments[..], &["--no-template"]].concat(), b"").stdout
    };
    let first = text("1", "7");
    assert!(!first.is_empty());
    assert_eq!(text("2", "7"), first);
    assert_eq!(text("3", "7"), first);
    assert_ne!(text("1", "8"), first);
}

#[test]
fn run_rejects_contradictory_and_impossible_requests() {
    let model = data("models/qwen3/model.gguf");
    let model = model.to_str().unwrap();
    let both = run(&["run", "-m", model, "--no-template", "--system", "s", "hi"], b"");
    assert!(stderr(&both, 2).contains("--system needs the chat template"));
    let long = run(&["run", "-m", model, "--no-template", "--ctx", "2", "hello there"], b"");
    assert!(stderr(&long, 1).contains("the context has room for 2"));
}
