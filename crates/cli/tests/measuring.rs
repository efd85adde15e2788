//! `verbatim bench`, `perplexity` and `synth`, run as a program.

mod support;

use serde_json::Value;
use support::{data, stderr, stdout, verbatim};

#[test]
fn bench_prints_a_list_of_rows() {
    let home = tempfile::tempdir().unwrap();
    let output = verbatim(home.path())
        .args(["bench", "-p", "16,0", "-n", "4", "-d", "0,32", "-r", "2", "--widths", "2", "--threads", "2"])
        .args(["--ctk", "f32", "--output", "json", "-m"])
        .arg(data("models/qwen3/model.gguf"))
        .output()
        .unwrap();
    let rows: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let rows = rows.as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp16", "tg4", "width2", "pp16@d32", "tg4@d32", "width2@d32"]);
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        assert!(0.0 < number("min") && number("min") <= number("tokens_per_s"), "{row}");
        assert!(number("tokens_per_s") <= number("max"), "{row}");
        assert_eq!(row["samples"].as_array().unwrap().len(), 2);
        assert_eq!(row["ms_per_step"].is_null(), row["test"].as_str().unwrap().starts_with("pp"));
        assert_eq!((&row["model"], &row["weights"]), (&"model.gguf".into(), &"F32".into()));
        assert_eq!((number("threads"), number("bytes")), (2.0, 1_033_728.0));
        assert_eq!((&row["ctk"], &row["ctv"]), (&"f32".into(), &"f16".into()));
        assert!(row["isa"].is_string() && row["read_gb_per_s"].is_null());
    }
}

#[test]
fn bench_prints_markdown_and_csv() {
    let home = tempfile::tempdir().unwrap();
    let print = |format: &str| {
        let mut command = verbatim(home.path());
        command.args(["bench", "-p", "8", "-n", "0", "-r", "1", "--widths", "0", "-o", format, "-m"]);
        stdout(&command.arg(data("models/qwen3/model.gguf")).output().unwrap())
    };
    let table = print("md");
    assert!(table.contains("| test ") && table.contains("\n| pp8 "), "{table}");
    let lines = print("csv");
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.starts_with("test,tokens_per_s,") && lines.contains("\npp8,"), "{lines}");
}

#[test]
fn bench_measures_cache_operations() {
    let home = tempfile::tempdir().unwrap();
    let output = verbatim(home.path())
        .args(["bench", "--cache-ops", "-d", "70", "-r", "2", "--ctk", "q8_0", "-o", "json", "-m"])
        .arg(data("models/qwen3/model.gguf"))
        .output()
        .unwrap();
    let rows: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let reject = rows.as_array().unwrap().iter().find(|row| row["operation"] == "reject 8").unwrap();
    assert!(reject["us"].as_f64().unwrap() > 0.0 && reject["depth"] == 70, "{reject}");
}

#[test]
fn bench_rejects_invalid_tests() {
    let home = tempfile::tempdir().unwrap();
    let rejected = |arguments: &[&str], status: i32, words: &str| {
        let mut command = verbatim(home.path());
        command.arg("bench").args(arguments).arg("-m").arg(data("models/qwen3/model.gguf"));
        let error = stderr(&command.output().unwrap(), status);
        assert!(error.contains(words), "{arguments:?}: {error}");
    };
    rejected(&["-r", "0"], 2, "repetitions");
    rejected(&["-p", "many"], 2, "n-prompt");
    rejected(&["-p", "0", "-n", "0", "--widths", "0"], 1, "nothing to measure");
    rejected(&["--widths", "1000"], 1, "a step has at most 512 rows, not 1000");
    rejected(&["-d", "5000000000"], 1, "context");
    rejected(&["--backend", "reference", "--profile"], 2, "backend reference has no profiler");
    rejected(&["--backend", "abacus"], 2, "possible values: cpu, reference");
}

#[test]
fn bench_prints_a_profile() {
    let home = tempfile::tempdir().unwrap();
    let bench = |arguments: &[&str]| {
        let mut command = verbatim(home.path());
        command.current_dir(home.path());
        command.args(["bench", "-p", "8", "-n", "2", "-r", "1", "--widths", "0", "--threads", "2"]);
        command.args(arguments).arg("-m").arg(data("models/qwen3/model.gguf"));
        command.output().unwrap()
    };
    let text = stdout(&bench(&["--profile"]));
    assert!(text.contains("peaks: memory read "), "{text}");
    for part in [
        "\npp8: 1 steps, ",
        "\ntg2: 2 steps, ",
        "| Linear F32 ",
        "| AttentionPartials ",
        "| waiting for threads ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let rows: Value = serde_json::from_str(&stdout(&bench(&["-o", "json", "--profile"]))).unwrap();
    assert!(rows[1]["int8_gops"].as_f64().unwrap() > 0.0);
    let profile = &rows[1]["profile"];
    assert_eq!((&profile["test"], &profile["steps"]), (&"tg2".into(), &2.into()));
    assert!(profile["parts"].as_array().unwrap().len() > 5, "{profile}");

    stdout(&bench(&["--profile-out", "p.svg"]));
    let svg = std::fs::read_to_string(home.path().join("p.svg")).unwrap();
    assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(svg.contains(">pp8: 1 steps, ") && svg.contains(">tg2: 2 steps, "), "{svg}");
    stdout(&bench(&["--profile-out", "p.html"]));
    let page = std::fs::read_to_string(home.path().join("p.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg "), "{page}");

    assert!(stderr(&bench(&["--profile-out", "p.png"]), 2).contains("must end in .svg or .html"));
    assert!(stderr(&bench(&["--profile", "-o", "csv"]), 2).contains("--output md or json"));
}

#[cfg(target_os = "linux")]
#[test]
fn threads_stay_on_the_cpus_of_the_mask() {
    let home = tempfile::tempdir().unwrap();
    let bench = |mask: &str, threads: &[&str]| {
        let mut command = verbatim(home.path());
        command.args(["bench", "-p", "8", "-n", "0", "-r", "1", "--widths", "0", "-o", "json"]).args(threads);
        command.args(["--cpu-mask", mask, "-m"]).arg(data("models/qwen3/model.gguf")).output().unwrap()
    };
    let one = bench("0x1", &[]);
    let rows: Value = serde_json::from_str(&stdout(&one)).unwrap();
    assert_eq!((&rows[0]["threads"], &*one.stderr), (&1.into(), &b""[..]));
    let crowded = bench("1", &["--threads", "2"]);
    stdout(&crowded);
    let said = String::from_utf8(crowded.stderr).unwrap();
    assert_eq!(said, "warning: 2 threads share the 1 CPUs of --cpu-mask, which is slow\n");
    assert!(stderr(&bench("0", &[]), 2).contains("a mask of 0 leaves no CPU"));
    assert!(
        stderr(&bench("ff00000000000000000000000000000000", &[]), 1).contains("--cpu-mask includes CPU 128")
    );
    assert!(stderr(&bench("cores", &[]), 2).contains("in hexadecimal"));
}

#[test]
fn perplexity_prints_text_csv_and_json() {
    let home = tempfile::tempdir().unwrap();
    let text = "What the tiny model makes of this says nothing at all. ".repeat(12);
    let file = home.path().join("some text.txt");
    std::fs::write(&file, &text).unwrap();
    let run = |model: &str, arguments: &[&str], path: &std::path::Path| {
        let mut command = verbatim(home.path());
        command.args(["perplexity", "--ctx", "50", "--threads", "2"]).args(arguments);
        command.arg("-m").arg(data(&format!("models/{model}/model.gguf"))).arg("--file").arg(path);
        stdout(&support::run_with_input(&mut command, text.as_bytes()))
    };
    for model in ["qwen3", "gemma3-iswa"] {
        let json = |arguments: &[&str], path: &std::path::Path| -> Value {
            let arguments = [&["--format", "json"], arguments].concat();
            serde_json::from_str(&run(model, &arguments, path)).unwrap()
        };
        let all = json(&[], &file);
        let number = |key: &str| all[key].as_f64().unwrap_or_else(|| panic!("{key}: {all}"));
        assert!(number("chunks") >= 3.0 && number("chunks") == number("chunks_asked"), "{all}");
        assert_eq!((number("ctx"), number("tokens")), (50.0, number("chunks") * 24.0));
        assert!((number("perplexity") - number("nll").exp()).abs() < 1e-9 * number("perplexity"), "{all}");
        // Nearer to none of 512 tokens than to another.
        assert!((100.0..2000.0).contains(&number("perplexity")) && number("perplexity_error") > 0.0, "{all}");
        assert_eq!((&all["text"], &all["ctk"]), (&"some text.txt".into(), &"f16".into()));
        assert!(all.get("divergence").is_none());

        let piped = json(&[], "-".as_ref());
        assert_eq!((&piped["nll"], &piped["text"]), (&all["nll"], &"standard input".into()));
        let two = json(&["--chunks", "2", "--kl-against", "f32,f32"], &file);
        assert_eq!((&two["chunks"], &two["tokens"]), (&2.into(), &48.into()));
        let divergence = two["divergence"]["mean"].as_f64().unwrap();
        assert!(divergence > 0.0 && divergence < 0.01, "{two}");
        assert_eq!(json(&["--chunks", "2", "--kl-against", "f16,f16"], &file)["divergence"]["mean"], 0.0);
    }
    assert!(run("qwen3", &[], &file).contains("\nperplexity  "));
    assert!(run("qwen3", &["--format", "markdown"], &file).starts_with("| model | weights | text | K | V |"));
}

#[test]
fn perplexity_rejects_binary_and_short_files() {
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(home.path().join(name), bytes).unwrap();
    write("short.txt", b"Not much.");
    write("empty.txt", b"");
    write("bytes.txt", b"ab\xffcd");
    let rejected = |arguments: &[&str], status: i32, words: &str| {
        let mut command = verbatim(home.path());
        command.current_dir(home.path()).arg("perplexity").args(arguments);
        command.arg("-m").arg(data("models/qwen3/model.gguf"));
        let error = stderr(&command.output().unwrap(), status);
        assert!(error.contains(words), "{arguments:?}: {error}");
    };
    rejected(&[], 2, "--file");
    rejected(&["-f", "none.txt"], 1, "cannot read none.txt");
    rejected(&["-f", "."], 1, "cannot read .: it is a folder");
    rejected(&["-f", "empty.txt"], 1, "empty.txt is empty");
    rejected(&["-f", "-"], 1, "standard input is empty");
    rejected(&["-f", "bytes.txt"], 1, "bytes.txt is not UTF-8 text: the byte at offset 2");
    rejected(&["-f", "short.txt"], 1, "fewer than one chunk of 512; use a longer text or shorter chunks");
    for ctx in ["0", "1", "2"] {
        rejected(&["-f", "short.txt", "--ctx", ctx], 1, "tokens are too short");
    }
    rejected(&["-f", "short.txt", "--ctx", "-1"], 2, "-1");
    rejected(&["-f", "short.txt", "--chunks", "0"], 2, "chunks");
    rejected(&["-f", "short.txt", "--kl-against", "f32"], 2, "two types are needed");
}

#[test]
fn a_synthetic_model_generates_text() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("config.json");
    std::fs::write(
        &config,
        r#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
            "head_dim": 32, "intermediate_size": 96, "vocab_size": 400, "max_position_embeddings": 256,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": false}"#,
    )
    .unwrap();
    let path = home.path().join("tiny.gguf");
    let synth = |seed: &str, threads: &str| {
        let output = verbatim(home.path())
            .args(["synth", "tiny"])
            .arg(&path)
            .arg("--config")
            .arg(&config)
            .args(["--quant", "q8_0", "--seed", seed, "--threads", threads])
            .output()
            .unwrap();
        assert_eq!(stdout(&output), "");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("qwen3, ") && said.contains("Q8_0"), "{said}");
        std::fs::read(&path).unwrap()
    };
    let first = synth("7", "1");
    assert!(first != synth("8", "2"));
    assert!(first == synth("7", "2"));
    stdout(&verbatim(home.path()).arg("inspect").arg(&path).output().unwrap());
    let mut run = verbatim(home.path());
    run.args(["run", "--temp", "1", "--seed", "3", "-n", "5", "the thing", "-m"]).arg(&path);
    let (once, again) = (stdout(&run.output().unwrap()), stdout(&run.output().unwrap()));
    assert_eq!(once, again);
}

#[test]
fn synth_reports_errors_and_leaves_no_file() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("x.gguf");
    let config = home.path().join("config.json");
    std::fs::write(&config, r#"{"model_type": "qwen3", "hidden_size": 64}"#).unwrap();
    let rejected = |arguments: &[&str], status: i32, words: &str| {
        let mut command = verbatim(home.path());
        command.current_dir(home.path()).args(["synth"]).args(arguments);
        let error = stderr(&command.output().unwrap(), status);
        assert!(error.contains(words), "{arguments:?}: {error}");
        assert!(!out.exists() && !home.path().join("x.gguf.part").exists(), "{arguments:?}");
    };
    rejected(&["qwen9", "x.gguf"], 1, "there is no shape `qwen9`; known shapes are qwen3-0.6b");
    rejected(
        &["qwen3-0.6b", "x.gguf", "--quant", "Q9"],
        2,
        "unknown quantisation type `Q9`; choose one of F32",
    );
    rejected(&["a", "x.gguf", "--config", "config.json"], 1, "key `vocab_size` is missing");
    rejected(&["a", "x.gguf", "--config", "none.json"], 1, "cannot read none.json");
    rejected(&["qwen3-0.6b", "."], 1, "is not a regular file");
    rejected(&["qwen3-0.6b"], 2, "OUT.gguf");
}

/// A limit on the length of files stands in for a disk that fills up.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_no_partial_model() {
    let home = tempfile::tempdir().unwrap();
    let output = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2000; exec \"$0\" synth qwen3-0.6b x.gguf --quant Q8_0"])
        .arg(env!("CARGO_BIN_EXE_verbatim"))
        .current_dir(home.path())
        .output()
        .unwrap();
    let error = stderr(&output, 1);
    assert!(error.contains("x.gguf cannot be written"), "{error}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}
