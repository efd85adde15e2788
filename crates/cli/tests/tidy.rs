//! Rules for the source itself: crate dependencies, where `unsafe`, intrinsics and libm functions may be used, function length,
//! wording, undeclared files, import cycles, manifests and documents.

mod import_cycles;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates, from the bottom up. Dependencies go down only.
const LAYERS: [&str; 21] = [
    "quant",
    "gguf",
    "sample",
    "graph",
    "plan",
    "text",
    "grammar",
    "backend",
    "simd",
    "team",
    "matrix",
    "cpu",
    "reference",
    "device",
    "models",
    "state",
    "draft",
    "engine",
    "lab",
    "serve",
    "cli",
];

/// The only crate that depends on concrete backends.
const BACKENDS: [&str; 2] = ["cpu", "reference"];
const CHOOSES_BACKEND: &str = "device";
/// Parts of the CPU backend, which no other crate may depend on.
const CPU_PARTS: [&str; 3] = ["simd", "team", "matrix"];

/// Lines of a function, its signature and last brace included.
const FUNCTION_LINES_MAX: usize = 70;
/// Longer ones: one match with an arm for each op.
const LONG_FUNCTIONS: [(&str, &str); 2] =
    [("graph/src/op.rs", "infer"), ("cpu/src/executor.rs", "compute_row")];

/// Where `unsafe` may stand: vector instructions, memory that threads share, the arena, system calls.
const UNSAFE_FILES: [&str; 6] =
    ["simd/src/", "team/src/", "matrix/src/", "matrix/tests/", "cpu/src/", "cpu/tests/"];

/// Words that the field does not use, each with its replacement. Whole words only.
const WORDS: [(&str, &str); 158] = [
    ("foretell", "predict"),
    ("helping of", "chunk"),
    ("BookRow", "CacheOpRow"),
    ("guesses", "draft tokens"),
    ("calls ahead", "prefetches"),
    ("RopeLayout::Halves", "RopeLayout::NeoX"),
    ("PlaceError", "BatchError"),
    ("picked", "output row"),
    ("per_picked", "per_output_row"),
    ("Tap", "HiddenOutput"),
    ("taps", "hidden-state outputs"),
    ("Transformed", "HadamardKv"),
    ("KeyRotation", "KeyRope"),
    ("divisors", "freq_factors"),
    ("amplitude", "mscale"),
    ("recurs", "is_recurrent"),
    ("begin_with", "resume_prefix"),
    ("go_on", "should_continue"),
    ("CannotMove", "CannotShift"),
    ("place: start", "kv_index: start"),
    ("places()", "allocations() or kv_len()"),
    ("NoPlace", "NoAllocation"),
    ("Pick", "GatherRows"),
    ("TopExperts", "MoeTopK"),
    ("ExpertLinear", "MoeLinear"),
    ("WeightedSum", "MoeCombine"),
    ("minima", "mins"),
    ("put_code", "put_quant"),
    ("NotNumbers", "AllNan"),
    ("Fate", "RowOutcome"),
    ("tap_rows", "hidden_rows"),
    ("bring_together", "compact_path"),
    ("K/V heads", "KV heads"),
    ("layers that recur", "recurrent layers"),
    ("layers that attend", "attention layers"),
    ("bookkeeping", "cache metadata"),
    ("WeightForm", "WeightKind"),
    ("LogitForm", "LogitScaling"),
    ("MixtureShape", "MoeShape"),
    ("Suppliers", "Sources"),
    ("get_or_make", "get_or_build"),
    ("MOST_PROGRAMS", "MAX_PROGRAMS"),
    ("LARGEST_NOISE", "MAX_NOISE"),
    ("least_logit", "min_logit"),
    ("could not be had", "could not be fetched"),
    ("GOPS of bytes", "int8 GOPS"),
    ("StateForm", "StateLayers"),
    ("ProductWork", "MatmulWork"),
    ("KindTime", "OpTime"),
    ("Products::", "MatmulKind::"),
    ("BindError::Unknown", "BindError::NoData"),
    ("HAS_DOTS", "USES_INT8_DOT"),
    ("DENSE_SUMS", "MATMUL_ACCUMULATORS"),
    ("ATTENTION_SUMS", "ATTENTION_ACCUMULATORS"),
    ("DenseWeights", "FloatWeights"),
    ("dense_tile", "float_tile"),
    ("quantize_planes", "quantize_terms"),
    ("HEAD_PLANES", "LM_HEAD_TERMS"),
    ("to_length", "l2_normalize"),
    ("ExpertRows", "ExpertPairs"),
    ("IQ1_SHIFT", "IQ1_DELTA"),
    ("put_numbers", "put_elements"),
    ("OwnerId", "ModelId"),
    ("OwnerSpec", "ModelSpec"),
    ("OwnerSet", "ModelSet"),
    ("append_owner", "append_model"),
    ("CannotGoBack", "CannotTruncate"),
    ("OtherForm", "KvFormatMismatch"),
    ("CacheForm", "KvFormat"),
    ("first_seen", "first_visible"),
    ("release_unseen", "release_out_of_window"),
    ("whole_from", "valid_from"),
    ("whole_pages", "valid_pages"),
    ("exact_prefix_len", "cacheable_len"),
    ("keep_full_pages", "cache_full_pages"),
    ("filled_before_flight", "computed_start"),
    ("clip_filled", "clip_computed"),
    ("drafts_that_filled", "drafts_that_computed"),
    ("most_in_flight", "max_in_flight"),
    ("SavedError", "SavedFileError"),
    ("ModelText", "TextProcessor"),
    ("events_ahead", "event_buffer"),
    ("other_sequences", "new_memory"),
    ("swap_sequences", "swap_memory"),
    ("row contract", "batch invariance"),
    ("dealt out", "split into tasks"),
    ("handed out", "assigned"),
    ("busies", "keeps busy"),
    ("is refused", "is rejected"),
    ("are refused", "are rejected"),
    ("spoiled", "corrupt"),
    ("bit planes", "packed with stride"),
    ("residual terms", "int8 terms"),
    ("KV slot", "KV cell"),
    ("through the door", "through the API"),
    ("place_threads", "configure_threads"),
    ("OtherFile", "ChecksumMismatch"),
    ("OtherWeights", "WeightsMismatch"),
    ("OtherModel", "ModelMismatch"),
    ("OtherNumerics", "NumericsMismatch"),
    ("OtherKvFormat", "KvFormatMismatch"),
    ("refuse_count", "require_count"),
    ("refuse_model", "reject_model_output"),
    ("multiply_adds(", "run_peak_throughput_kernel("),
    ("yarn_rounds_pairs", "yarn_truncate"),
    ("whole_pairs", "truncate"),
    ("own_row", "row_local"),
    ("own_unit", "unit_local"),
    ("reads_own_row_only", "is_row_local"),
    ("Weigh", "ScoreAndSoftmax"),
    ("AddValues", "AccumulateV"),
    ("input_per_slot", "input_per_pair"),
    ("SHAKES", "TOLERANCE_FACTOR"),
    ("SHAKEN", "PERTURBATION"),
    ("computed_before_flight", "computed_start"),
    ("swallows_whitespace", "rstrip"),
    ("NeedlessPlace", "UnneededAllocation"),
    ("Blueprint", "ModelSkeleton"),
    ("byte_gops", "int8_gops"),
    ("float_gops", "f32_gops"),
    ("Work::Width", "Work::VerifyBatch"),
    ("cache_ops_room", "cache_ops_capacity"),
    ("HALF_SCALES", "F16_SCALES"),
    ("plane_place", "packed_position"),
    ("plane_position", "packed_position"),
    ("keep_if_ge", "select_ge_or_zero"),
    ("mul_sub_from", "neg_mul_add"),
    ("two_quads", "two_groups_of_4"),
    ("Bytes::Held", "Bytes::Owned"),
    ("settle", "commit, record or finish_step"),
    ("take_back", "roll_back"),
    ("of_grammar", "grammar_tokens"),
    ("CHECKPOINTS", "MAX_STATE_CHECKPOINTS"),
    ("REFRESHED_SUFFIXES", "MAX_REFRESHED_SUFFIXES"),
    ("range_sum", "part_sum"),
    ("top_experts", "top_k"),
    ("one_expert", "compute_expert"),
    ("local_rope", "sliding_window_rope"),
    ("MAX_OPERATORS", "MAX_REPETITION_OPERATORS"),
    ("is_asked_for", "is_requested"),
    ("is_again", "regenerate"),
    ("RIVALS", "EXCLUSIVE_FLAGS"),
    ("TalkFlags", "InferenceFlags"),
    ("constraint library", "llguidance"),
    ("speculative tokens", "draft tokens"),
    ("as many as pay", "as many as are worth verifying"),
    ("higher rank", "higher precedence"),
    ("piped in beside", "piped in with"),
    ("put in front", "prepended"),
    ("what became of", "the outcome of"),
    ("What became of", "The outcome of"),
    ("by turns", "alternately"),
    ("where it lies", "zero-copy view"),
    ("where they lie", "zero-copy views"),
    ("indention", "indent"),
    ("is no integer", "is not an integer"),
    ("is no string", "is not a string"),
    ("is no text", "is not text"),
];

/// Functions for which std uses the system libm, whose last bits vary by platform. The crate `libm` is the same everywhere.
const SYSTEM_FUNCTIONS: [&str; 15] = [
    ".exp()",
    ".exp2()",
    ".exp_m1()",
    ".ln()",
    ".ln_1p()",
    ".log(",
    ".log2()",
    ".log10()",
    ".powf(",
    ".sin()",
    ".cos()",
    ".sin_cos()",
    ".tan()",
    ".tanh()",
    ".cbrt()",
];
/// Where they may be used: where no output depends on them, and in the reference backend.
const MAY_USE_SYSTEM_FUNCTIONS: [&str; 3] = ["lab/", "reference/", "sample/src/log_softmax.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// All files of the crates with this extension, by path relative to `crates`.
fn files(ending: &str) -> BTreeMap<String, String> {
    files_below(&root().join("crates"), ending)
}

/// All files below a folder with this extension, by relative path, except hidden and built ones.
fn files_below(start: &Path, ending: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![start.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let path = entry.path();
            let file_name = entry.file_name();
            if file_name == "target" || file_name.to_string_lossy().starts_with('.') {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == ending) {
                let name = path.strip_prefix(start).expect("below").to_string_lossy().replace('\\', "/");
                found.insert(name, fs::read_to_string(&path).expect("a text"));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

/// The workspace crates that a crate depends on, except for its tests.
fn dependencies(name: &str) -> Vec<String> {
    let manifest =
        fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect("a manifest");
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names =
        section.lines().filter_map(|line| line.strip_prefix("verbatim-")?.split(['.', ' ', '=']).next());
    names.map(str::to_owned).collect()
}

#[test]
fn dependencies_between_crates_go_down_only() {
    let mut crates: Vec<String> = fs::read_dir(root().join("crates"))
        .expect("crates")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    crates.sort();
    let mut layers = LAYERS.map(str::to_owned).to_vec();
    layers.sort();
    assert_eq!(crates, layers, "a crate that is missing in LAYERS");
    for (layer, name) in LAYERS.iter().enumerate() {
        for dependency in dependencies(name) {
            let below =
                LAYERS.iter().position(|other| *other == dependency).expect("a crate of this workspace");
            assert!(below < layer, "{name} depends on {dependency}, which is above it");
            let names_backend = BACKENDS.contains(&&*dependency);
            assert!(!names_backend || *name == CHOOSES_BACKEND, "{name} depends on the backend {dependency}");
            let names_part = CPU_PARTS.contains(&&*dependency);
            assert!(
                !names_part || *name == "cpu" || CPU_PARTS.contains(name),
                "{name} depends on cpu's {dependency}"
            );
        }
    }
}

#[test]
fn intrinsics_are_in_one_crate() {
    for (path, text) in files("rs") {
        let uses =
            ["std::arch::", "core::arch::", "target_feature(enable"].iter().any(|word| text.contains(word));
        assert!(
            !uses || path.starts_with("simd/src/") || path.ends_with("tests/tidy.rs"),
            "{path} has intrinsics"
        );
    }
}

#[test]
fn every_source_file_is_declared() {
    let files = files("rs");
    for path in files.keys().filter(|path| path.contains("/src/")) {
        let (folder, file) = path.rsplit_once('/').expect("a folder");
        let name = file.trim_end_matches(".rs");
        if matches!(name, "lib" | "main") {
            continue;
        }
        let (folder, name) =
            if name == "mod" { folder.rsplit_once('/').expect("a folder") } else { (folder, name) };
        let parents = [format!("{folder}/mod.rs"), format!("{folder}/lib.rs"), format!("{folder}.rs")];
        let declares =
            |text: &String| text.lines().any(|line| line.trim_end().ends_with(&format!("mod {name};")));
        assert!(
            parents.iter().filter_map(|parent| files.get(parent)).any(declares),
            "nothing declares {path}"
        );
    }
}

#[test]
fn no_import_cycles() {
    let files = files("rs");
    let mut found = String::new();
    for name in LAYERS {
        let folder = format!("{name}/src/");
        let sources = files.iter().filter_map(|(path, text)| Some((path.strip_prefix(&folder)?, text)));
        let edges =
            import_cycles::edges(&sources.map(|(path, text)| (path.to_owned(), text.clone())).collect());
        let cycles = import_cycles::cycles(&edges);
        let texts = cycles.iter().map(|cycle| import_cycles::describe(cycle, &edges));
        found.extend(texts.map(|text| format!("\n{name}/src:{text}")));
    }
    assert!(found.is_empty(), "files import each other: {found}");
}

/// Name, first line (from 1) and lines of each function of a formatted file.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        let Some((before, after)) = code.split_once("fn ") else { continue };
        let is_item = before.split_whitespace().all(|word| {
            matches!(word, "const" | "async" | "unsafe" | "extern")
                || word.starts_with("pub")
                || word.starts_with("in")
        });
        if !is_item || code.ends_with(';') || code.starts_with("//") {
            continue;
        }
        let closes = |line: &&str| {
            line.trim_end() == format!("{}}}", " ".repeat(indent))
                || line.ends_with(';') && line.len() - line.trim_start().len() == indent
        };
        let is_empty = line.ends_with("{}");
        let end = if is_empty { 0 } else { lines[start..].iter().position(closes).unwrap_or(0) };
        let name: String = after.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        found.push((name, start + 1, end + 1));
    }
    found
}

#[test]
fn functions_fit_on_a_screen() {
    let mut long = Vec::new();
    for (path, text) in files("rs").iter().filter(|(path, _)| path.contains("/src/")) {
        for (name, line, lines) in
            functions(text).into_iter().filter(|(.., lines)| *lines > FUNCTION_LINES_MAX)
        {
            match LONG_FUNCTIONS.iter().any(|(file, function)| path == file && name == *function) {
                true => long.push((path.clone(), name)),
                false => panic!("{path}:{line}: {name} has {lines} lines, more than {FUNCTION_LINES_MAX}"),
            }
        }
    }
    assert_eq!(
        long.len(),
        LONG_FUNCTIONS.len(),
        "remove functions from the list that are no longer long: not {long:?}"
    );
}

#[test]
fn unsafe_code_is_only_where_allowed() {
    for (path, text) in files("rs") {
        let is_used = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
        });
        let may = UNSAFE_FILES.iter().any(|allowed| path.starts_with(allowed));
        // A counting allocator needs it.
        let is_allocator = text.contains("GlobalAlloc");
        assert!(!is_used || may || is_allocator || path.ends_with("tests/tidy.rs"), "{path} has unsafe code");
    }
}

/// Whether a text has a word that is not part of a longer one.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(start, _)| {
        let (before, after) = (&text[..start], &text[start + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

#[test]
fn no_system_libm() {
    for (path, text) in
        files("rs").iter().filter(|(path, _)| path.contains("/src/") && !path.ends_with("tests.rs"))
    {
        let may = MAY_USE_SYSTEM_FUNCTIONS.iter().any(|allowed| path.starts_with(allowed));
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        let used = SYSTEM_FUNCTIONS.iter().find(|function| code.contains(**function));
        assert!(
            may || used.is_none(),
            "{path} uses {}, which differs between systems: use libm",
            used.unwrap_or(&"")
        );
    }
}

#[test]
fn words_are_those_of_the_field() {
    let texts = files("rs").into_iter().chain(files("md"));
    let is_new = |path: &str| !path.ends_with("tests/tidy.rs");
    for (path, text) in texts.filter(|(path, _)| is_new(path)) {
        for (word, instead) in WORDS {
            assert!(!has_word(&text, word), "{path} says {word:?}; the field says {instead:?}");
        }
    }
}

#[test]
fn every_crate_describes_itself() {
    for name in LAYERS {
        let folder = root().join("crates").join(name);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        let package = manifest.split("\n[").next().expect("a package");
        let own = ["description = \"", "keywords = [\"", "categories = [\"", "readme = \"README.md\""];
        let shared =
            ["version", "edition", "rust-version", "license"].map(|key| format!("{key}.workspace = true"));
        for key in own.into_iter().chain(shared.iter().map(String::as_str)) {
            assert!(
                package.lines().any(|line| line.starts_with(key)),
                "crates/{name}/Cargo.toml lacks {key}"
            );
        }
        let readme = fs::read_to_string(folder.join("README.md")).unwrap_or_default();
        assert!(readme.starts_with("# "), "crates/{name} has no README.md");
    }
}

#[test]
fn the_rust_version_is_the_same_everywhere() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect("a text");
    let quoted = |path: &str, key: &str| {
        let text = read(path);
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.split('"').nth(1).map(str::to_owned));
        line.unwrap_or_else(|| panic!("{path} has no {key}"))
    };
    let least = quoted("Cargo.toml", "rust-version = ");
    assert_eq!(
        quoted("rust-toolchain.toml", "channel = "),
        format!("{least}.0"),
        "CI uses the minimum version"
    );
    for path in ["README.md", "CONTRIBUTING.md", ".ci/run"] {
        let text = read(path);
        let versions: Vec<&str> = text.split("Rust ").skip(1).filter(|rest| rest.starts_with("1.")).collect();
        assert!(!versions.is_empty(), "{path} does not say which Rust is needed");
        for version in versions {
            assert!(version.starts_with(&format!("{least} ")), "{path}: Rust {version:.6}, not {least}");
        }
    }
}

/// Targets of a document's links, except other sites.
fn links(document: &str) -> Vec<&str> {
    let is_code = |index: &usize| index % 2 == 1;
    let texts = document.split("```").enumerate().filter(|(index, _)| !is_code(index)).map(|(_, text)| text);
    let targets =
        texts.flat_map(|text| text.split("](").skip(1)).filter_map(|rest| rest.split([')', ' ']).next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(document: &str) -> Vec<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let anchor = |heading: &str| {
        heading.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect::<String>()
    };
    headings.map(|heading| anchor(heading).replace(' ', "-")).collect()
}

#[test]
fn links_have_targets() {
    let documents = files_below(&root(), "md");
    for (path, text) in &documents {
        let folder = root().join(path).parent().expect("a folder").to_owned();
        for link in links(text) {
            let (file, anchor) =
                link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { root().join(path) } else { folder.join(file) };
            assert!(target.exists(), "{path} links to {link}, which is not there");
            if let Some(anchor) = anchor {
                let anchors = anchors(&fs::read_to_string(&target).expect("a text"));
                assert!(
                    anchors.iter().any(|other| other == anchor),
                    "{path} links to {link}: no such heading"
                );
            }
        }
    }
}

#[test]
fn links_and_anchors_are_found() {
    let text = "# A `b`, c\n[x](y.md#z) [w](https://w) `q`\n```\n[no](no.md)\n```\n[v](../v \"title\")";
    assert_eq!(links(text), ["y.md#z", "../v"]);
    assert_eq!(anchors(text), ["a-b-c"]);
}
