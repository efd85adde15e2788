//! Synthetic models: they load, run, and the same parameters give the same bytes.

use std::path::Path;

use verbatim_cpu::Cpu;
use verbatim_engine::{LoadOptions, RowInput, RowOutputs, Sampler, Stepper};
use verbatim_gguf::GgufFile;
use verbatim_lab::synth::{
    ModelSkeleton, QuantType, SynthError, WriteOptions, architectures, known_shapes, write,
};
use verbatim_quant::DType;

/// Rows of 256, 512 and 64 elements: whole blocks of every format in some tensors, and not in others.
const QWEN3: &str = r#"{"model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 512, "vocab_size": 320,
    "max_position_embeddings": 512, "rope_theta": 1000000, "rms_norm_eps": 1e-6, "tie_word_embeddings": true}"#;

/// A small model of every architecture: what it has beyond [`small`].
const SMALL: [(&str, &str); 13] = [
    (
        "gemma2",
        r#""model_type": "gemma2", "sliding_window": 16, "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0, "head_dim": 32, "tie_word_embeddings": null"#,
    ),
    (
        "gemma3",
        r#""model_type": "gemma3_text", "sliding_window": 16, "head_dim": 32, "num_hidden_layers": 6,
        "tie_word_embeddings": null, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}"#,
    ),
    (
        "gpt-oss",
        r#""model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}"#,
    ),
    (
        "granite",
        r#""model_type": "granite", "embedding_multiplier": 12.0, "attention_multiplier": 0.1,
        "residual_multiplier": 0.2, "logits_scaling": 8.0"#,
    ),
    (
        "llama",
        r#""model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 128}"#,
    ),
    ("olmo2", r#""model_type": "olmo2""#),
    (
        "phi3",
        r#""model_type": "phi3", "original_max_position_embeddings": 128, "partial_rotary_factor": 0.5,
        "rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1.5, 2, 2, 2, 3, 3],
                         "long_factor": [1, 2, 2, 3, 4, 5, 6, 7]}"#,
    ),
    (
        "qwen2",
        r#""model_type": "qwen2", "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 128}"#,
    ),
    ("qwen3", r#""model_type": "qwen3", "head_dim": 64"#),
    (
        "qwen35",
        r#""model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text", "head_dim": 32,
        "num_hidden_layers": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "rope_parameters": {"rope_theta": 10000000, "mrope_section": [2, 1, 1]}}"#,
    ),
    (
        "qwen35moe",
        r#""model_type": "qwen3_5_moe_text", "num_hidden_layers": 4, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64"#,
    ),
    (
        "qwen3moe",
        r#""model_type": "qwen3_moe", "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "decoder_sparse_step": 1"#,
    ),
    ("smollm3", r#""model_type": "smollm3""#),
];

/// A configuration: what all have, then `more`, whose keys win.
fn small(more: &str) -> String {
    let text = r#"{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 32, "intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0}"#;
    let mut config: serde_json::Value = serde_json::from_str(text).unwrap();
    let more: serde_json::Value = serde_json::from_str(&format!("{{{more}}}")).unwrap();
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.to_string()
}

fn made(config: &str, quant: QuantType, seed: u64, threads: usize) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let skeleton = ModelSkeleton::from_config("tiny", config).unwrap();
    let bytes = write(&skeleton, &WriteOptions { quant, seed, threads }, &path, &mut |_| true).unwrap();
    let content = std::fs::read(&path).unwrap();
    assert_eq!(content.len() as u64, bytes);
    assert_eq!(entries(folder.path()), ["model.gguf"]);
    content
}

fn entries(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Greedy tokens after a prompt.
fn generated(content: &[u8]) -> Vec<u32> {
    let file = GgufFile::from_bytes(content.to_vec()).unwrap();
    let mut engine = Stepper::load(Cpu::new(2).unwrap(), &file, &LoadOptions::default()).unwrap();
    let sequence = engine.begin().unwrap();
    let greedy = Sampler::greedy();
    let mut fed = vec![1, 2, 3, 4];
    let mut tokens = Vec::new();
    for _ in 0..8 {
        let token = engine.advance(sequence, &fed, &greedy, || true).unwrap().unwrap().token;
        tokens.push(token);
        fed = vec![token];
    }
    tokens
}

#[test]
fn every_quantisation_type_makes_a_runnable_model_that_depends_only_on_the_seed() {
    for quant in QuantType::ALL {
        let content = made(QWEN3, quant, 1, 1);
        assert!(content == made(QWEN3, quant, 1, 3), "{quant:?}: threads change the bytes");
        assert!(content != made(QWEN3, quant, 2, 1), "{quant:?}: the seed changes nothing");
        let file = GgufFile::from_bytes(content.clone()).unwrap();
        verbatim_engine::read_hyperparameters(&file).unwrap_or_else(|error| panic!("{quant:?}: {error}"));
        assert_eq!(generated(&content), generated(&content), "{quant:?}");
    }
}

#[test]
fn logits_are_finite_and_differ_between_tokens() {
    let file = GgufFile::from_bytes(made(QWEN3, QuantType::Q4_K_M, 1, 2)).unwrap();
    let mut engine = Stepper::load(Cpu::new(1).unwrap(), &file, &LoadOptions::default()).unwrap();
    let sequence = engine.begin().unwrap();
    let kv_index = engine.append(sequence, 1).unwrap();
    let input = RowInput::Token(5);
    let row = verbatim_engine::Row { sequence, kv_index, input, want: RowOutputs::LOGITS };
    let outputs = engine.step(&[row]).unwrap();
    let mut logits = outputs.logits(0).unwrap().to_vec();
    assert!(logits.iter().all(|logit| logit.is_finite() && logit.abs() < 100.0));
    logits.sort_by(f32::total_cmp);
    logits.dedup();
    assert!(logits.len() > 300, "only {} different logits of 320", logits.len());
}

#[test]
fn every_architecture_that_can_be_run_can_be_made() {
    let names: Vec<&str> = architectures().collect();
    let run = verbatim_models::architectures();
    assert_eq!(
        names, run,
        "an architecture needs a file in crates/lab/src/synth/arch and a line in its table"
    );
    assert_eq!(names, SMALL.map(|(name, _)| name));
    for (name, more) in SMALL {
        for quant in [QuantType::F16, QuantType::Q4_K_M, QuantType::IQ4_XS] {
            let content = made(&small(more), quant, 3, 2);
            let file = GgufFile::from_bytes(content.clone()).unwrap();
            let numbers = verbatim_engine::read_hyperparameters(&file)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(numbers.architecture, name);
            assert_eq!(generated(&content).len(), 8);
        }
    }
}

/// Those of `tests/data/models`, which llama.cpp's converter made.
#[test]
fn tensors_match_those_of_converted_models() {
    let golden = [
        (
            "gemma3-iswa",
            r#""model_type": "gemma3_text", "num_hidden_layers": 6, "intermediate_size": 128,
            "head_dim": 32, "sliding_window": 16, "tie_word_embeddings": true"#,
        ),
        (
            "qwen3moe",
            r#""model_type": "qwen3_moe", "num_attention_heads": 4, "num_key_value_heads": 2,
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48"#,
        ),
        (
            "qwen35-hybrid",
            r#""model_type": "qwen3_5_text", "tie_word_embeddings": true, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 128, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
            "linear_num_value_heads": 4"#,
        ),
        (
            "qwen35moe-hybrid",
            r#""model_type": "qwen3_5_moe_text", "tie_word_embeddings": true, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 8,
            "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48"#,
        ),
        (
            "llama3-rope-untied",
            r#""model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 160, "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128}"#,
        ),
    ];
    for (folder, more) in golden {
        let path = format!("{}/../../tests/data/models/{folder}/model.gguf", env!("CARGO_MANIFEST_DIR"));
        let converted = GgufFile::open(path).unwrap();
        let file =
            GgufFile::from_bytes(made(&small(&format!("{more}, \"vocab_size\": 512")), QuantType::F32, 0, 1))
                .unwrap();
        let table = |file: &GgufFile| {
            let mut table: Vec<(String, Vec<usize>)> =
                file.tensors().iter().map(|info| (info.name().to_owned(), info.dims().to_vec())).collect();
            table.sort();
            table
        };
        assert_eq!(table(&file), table(&converted), "{folder}");
        let prefix = format!("{}.", file.metadata().require_str("general.architecture").unwrap());
        for (key, _) in converted.metadata().iter().filter(|(key, _)| key.starts_with(&prefix)) {
            let is_known = file.metadata().contains(key);
            let is_implied = key.ends_with(".vocab_size") || key.ends_with("recurrent_layers");
            assert!(is_known || is_implied, "{folder}: {key}");
        }
    }
}

#[test]
fn the_vocabulary_is_usable() {
    let file = GgufFile::from_bytes(made(QWEN3, QuantType::Q8_0, 1, 1)).unwrap();
    let metadata = file.metadata();
    let tokens = metadata.require_bytes_array("tokenizer.ggml.tokens").unwrap();
    let source = verbatim_text::VocabSource {
        model: metadata.require_str("tokenizer.ggml.model").unwrap().into(),
        pre: metadata.get_str("tokenizer.ggml.pre").unwrap().map(str::to_owned),
        tokens: tokens.iter().map(<[u8]>::to_vec).collect(),
        token_types: metadata.get_i32_array("tokenizer.ggml.token_type").unwrap(),
        merges: metadata
            .get_str_array("tokenizer.ggml.merges")
            .unwrap()
            .map(|merges| merges.iter().map(str::to_owned).collect()),
        ..Default::default()
    };
    assert_eq!(source.tokens.len(), 320);
    let distinct: std::collections::HashSet<_> = source.tokens.iter().collect();
    assert_eq!(distinct.len(), 320);
    let tokenizer = verbatim_text::Tokenizer::new(&source).unwrap();
    let text = "the other thing and\n Größe 漢字 🙂";
    let ids = tokenizer.encode(text, verbatim_text::SpecialTokens::Parse, false);
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.piece(id).to_vec()).collect();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    assert!(ids.len() < text.len(), "nothing was merged: {ids:?}");
    assert_eq!(tokenizer.encode("<|im_start|>", verbatim_text::SpecialTokens::Parse, false).len(), 1);
}

/// The formats that llama.cpp's own quantiser gave, by `tests/data/quants/model`: same shapes, same quantisation types.
#[test]
fn quantisation_types_match_llama_cpp() {
    let config = r#"{"model_type": "qwen3", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 512, "vocab_size": 512,
        "max_position_embeddings": 512, "rope_theta": 1000000, "rms_norm_eps": 1e-6, "tie_word_embeddings": true}"#;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/quants/model");
    let mut compared = 0;
    for quant in QuantType::ALL {
        let Ok(golden) = GgufFile::open(format!("{folder}/qwen3-256.{}.gguf", quant.name())) else {
            continue;
        };
        let file = GgufFile::from_bytes(made(config, quant, 0, 2)).unwrap();
        assert_eq!(file.tensors().len(), golden.tensors().len());
        for tensor in golden.tensors() {
            let ours = file.require_tensor(tensor.name()).unwrap();
            assert_eq!(ours.info().dims(), tensor.dims(), "{} {}", quant.name(), tensor.name());
            assert_eq!(ours.info().dtype(), tensor.dtype(), "{} {}", quant.name(), tensor.name());
        }
        let file_type = |file: &GgufFile| file.metadata().get_u32("general.file_type").unwrap();
        assert_eq!(file_type(&file), file_type(&golden));
        compared += 1;
    }
    assert_eq!(compared, 8);
}

/// Those of the Gemma 3 270M that is published as Q4_K_M: rows of 640 elements are no whole K blocks.
#[test]
fn rows_of_partial_blocks_get_the_fallback_format() {
    let config = r#"{"model_type": "gemma3_text", "hidden_size": 640, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048,
        "vocab_size": 300, "max_position_embeddings": 512, "sliding_window": 64, "rms_norm_eps": 1e-6}"#;
    let file = GgufFile::from_bytes(made(config, QuantType::Q4_K_M, 0, 2)).unwrap();
    let format = |name: &str| file.require_tensor(name).unwrap().info().dtype();
    assert_eq!(format("token_embd.weight"), DType::Q8_0);
    assert_eq!(format("blk.0.attn_q.weight"), DType::Q5_0);
    assert_eq!(format("blk.0.attn_v.weight"), DType::Q8_0);
    assert_eq!(format("blk.0.attn_output.weight"), DType::Q4_K);
    assert_eq!(format("blk.0.ffn_down.weight"), DType::Q6_K);
    assert_eq!(format("blk.0.post_ffw_norm.weight"), DType::F32);
}

#[test]
fn known_shapes_have_the_sizes_of_their_models() {
    // Millions of weights in the text parts of the publishers' checkpoints.
    let sizes = [
        ("qwen3-0.6b", 596.0),
        ("qwen3-1.7b", 1720.6),
        ("qwen3-4b", 4022.5),
        ("qwen3-8b", 8190.7),
        ("qwen3.6-27b", 26896.0),
        ("gemma-3-270m", 268.1),
        ("llama-3.2-1b", 1235.8),
    ];
    assert_eq!(known_shapes().collect::<Vec<_>>(), sizes.map(|(name, _)| name));
    for (name, millions) in sizes {
        let found = ModelSkeleton::from_shape(name).unwrap().parameters() as f64 / 1e6;
        assert!((found - millions).abs() < 0.06, "{name}: {found}");
    }
    let error = ModelSkeleton::from_shape("gpt-9").unwrap_err().to_string();
    assert!(error.contains("gpt-9") && error.contains("qwen3-0.6b"), "{error}");
}

#[test]
fn an_invalid_configuration_is_rejected_with_a_message() {
    let rejected = |config: &str, words: &str| {
        let error = ModelSkeleton::from_config("x", config).unwrap_err().to_string();
        assert!(error.contains(words), "{config}: {error}");
    };
    rejected("", "not JSON");
    rejected("[1]", "not a JSON object");
    rejected("{}", "key `model_type` is missing");
    rejected(r#"{"model_type": "mamba"}"#, "supported types are gemma2");
    rejected(&QWEN3.replace("\"rms_norm_eps\": 1e-6,", ""), "key `rms_norm_eps` is missing");
    let changed = |key: &str, value: &str| {
        let mut config: serde_json::Value = serde_json::from_str(QWEN3).unwrap();
        config[key] = serde_json::from_str(value).unwrap();
        config.to_string()
    };
    rejected(&changed("hidden_size", "1e30"), "key `hidden_size` is 1e+30; it must be an integer from 1");
    rejected(&changed("hidden_size", "0"), "key `hidden_size` is 0");
    rejected(&changed("hidden_size", "-5"), "key `hidden_size` is -5");
    rejected(&changed("num_hidden_layers", "\"many\""), "key `num_hidden_layers` is \"many\"");
    rejected(&changed("vocab_size", "100"), "for a usable vocabulary");
    rejected(&changed("num_key_value_heads", "3"), "a divisor of the 4 heads");
    rejected(&changed("head_dim", "31"), "even");
    rejected(&changed("num_attention_heads", "4194304"), "fewer, with a head size of 32");
    rejected(&changed("rope_theta", "-1"), "rope_theta");
    rejected(
        &changed("rope_scaling", r#"{"rope_type": "magic"}"#),
        "default, linear, yarn, longrope or llama3",
    );
    rejected(&changed("attention_bias", "true"), "attention_bias");
}

#[test]
fn a_model_that_cannot_be_written_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, "the one before").unwrap();
    let options = WriteOptions { quant: QuantType::Q4_0, seed: 0, threads: 2 };
    let tiny = ModelSkeleton::from_config("tiny", QWEN3).unwrap();

    let mut calls = 0;
    let stopped = write(&tiny, &options, &path, &mut |progress| {
        calls += 1;
        assert!(progress.written <= progress.total);
        calls < 5
    });
    assert!(matches!(stopped, Err(SynthError::Stopped)));

    // More bytes than any disk has.
    let huge = QWEN3.replace("\"intermediate_size\": 512", "\"intermediate_size\": 4194304");
    let huge = huge.replace("\"hidden_size\": 256", "\"hidden_size\": 4194304");
    let huge = ModelSkeleton::from_config(
        "huge",
        &huge.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 999"),
    );
    let error = write(&huge.unwrap(), &options, &path, &mut |_| true).unwrap_err();
    assert!(matches!(error, SynthError::Space { .. }), "{error}");

    let folder_as_target = write(&tiny, &options, folder.path(), &mut |_| true).unwrap_err();
    assert!(folder_as_target.to_string().contains("is not a regular file"), "{folder_as_target}");
    let nowhere = write(&tiny, &options, &folder.path().join("no/model.gguf"), &mut |_| true).unwrap_err();
    assert!(matches!(nowhere, SynthError::Io { .. }), "{nowhere}");

    assert_eq!(entries(folder.path()), ["model.gguf"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "the one before");
}
