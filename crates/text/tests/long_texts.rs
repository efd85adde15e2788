//! Long texts take near linear time, whatever they contain, and decoding undoes encoding.

mod support;

use proptest::prelude::*;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use unicode_normalization::UnicodeNormalization;
use verbatim_text::{SpecialTokens, Tokenizer};

/// The one that forgets case and spaces.
const WORDPIECE: &str = "ggml-vocab-bert-bge.gguf";

static TOKENIZERS: LazyLock<Vec<(&str, Tokenizer)>> = LazyLock::new(|| {
    [
        "ggml-vocab-llama-bpe.gguf",
        "ggml-vocab-qwen2.gguf",
        "ggml-vocab-gpt-2.gguf",
        "ggml-vocab-llama-spm.gguf",
        "ggml-vocab-gemma-4.gguf",
        WORDPIECE,
    ]
    .map(|name| (name, Tokenizer::new(&support::vocabulary(name)).unwrap()))
    .into()
});

/// What must come back of a text: SentencePiece writes U+2581 and space alike, and puts a space in front; Qwen composes.
fn comes_back(name: &str, text: &str) -> String {
    match name {
        "ggml-vocab-llama-spm.gguf" if !text.is_empty() => format!(" {}", text.replace('▁', " ")),
        "ggml-vocab-gemma-4.gguf" => text.replace('▁', " "),
        "ggml-vocab-qwen2.gguf" => text.nfc().collect(),
        _ => text.to_owned(),
    }
}

#[test]
fn a_quarter_megabyte_of_anything_is_encoded_quickly() {
    const BYTES: usize = 1 << 18;
    let repeated = |unit: &str| unit.repeat(BYTES / unit.len());
    let texts = [
        repeated(" "),
        repeated("a"),
        repeated("\n"),
        repeated("\n "),
        repeated("1"),
        repeated("!"),
        repeated("'s"),
        repeated("aA"),
        repeated("\u{301}"),
        repeated("中"),
        repeated("😀"),
        repeated("<|im_start|>"),
        repeated("<|im_start"),
        repeated("The quick brown fox jumps over the lazy dog.\n"),
        " ".repeat(BYTES / 2) + &"\n".repeat(BYTES / 2),
        "\n".repeat(BYTES / 2) + &" ".repeat(BYTES / 2) + "x",
    ];
    for (name, tokenizer) in TOKENIZERS.iter() {
        for text in &texts {
            let start = Instant::now();
            let ids = tokenizer.encode(text, SpecialTokens::Parse, false);
            let guarded = tokenizer.encode(&tokenizer.guard(text), SpecialTokens::ParseUnguarded, false);
            let took = start.elapsed();
            // It takes well below a second; in quadratic time it would take minutes.
            assert!(
                took < Duration::from_secs(10),
                "{name} {took:?} {}",
                text.chars().take(12).collect::<String>()
            );
            if *name == WORDPIECE {
                continue;
            }
            assert!(tokenizer.decode(&guarded, true) == comes_back(name, text).as_bytes());
            if !text.contains("<|im_start|>") {
                assert!(ids == guarded);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn decoding_undoes_encoding(
        text in prop_oneof![any::<String>(), "[ a-c\n'sé中1😀\u{301}]{0,40}", "\\s{0,20}[a-z<|>]{0,9}\\s{0,20}"],
    ) {
        for (name, tokenizer) in TOKENIZERS.iter().filter(|(name, _)| *name != WORDPIECE) {
            let ids = tokenizer.encode(&text, SpecialTokens::Ignore, false);
            prop_assert_eq!(tokenizer.decode(&ids, true), comes_back(name, &text).into_bytes(), "{}", name);
            let ids = tokenizer.encode(&text, SpecialTokens::Parse, true);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
        }
    }
}
