//! The tokenizer gives llama.cpp's ids and pieces on every golden string, Hugging Face's where Qwen composes Unicode, and undoes
//! itself.

mod support;

use serde_json::Value;
use unicode_normalization::UnicodeNormalization;
use verbatim_text::{Detokenizer, SpecialTokens, Tokenizer};

/// A vocabulary file and the file with its golden strings.
const GOLDEN: [(&str, &str); 5] = [
    ("ggml-vocab-llama-bpe.gguf", "strings-vocab-llama-bpe.json"),
    ("ggml-vocab-qwen2.gguf", "strings-vocab-qwen2.json"),
    ("ggml-vocab-gpt-2.gguf", "strings-vocab-gpt-2.json"),
    ("ggml-vocab-llama-spm.gguf", "strings-vocab-llama-spm.json"),
    ("SmolLM2-135M-Instruct.vocab-only.gguf", "strings-SmolLM2-135M-Instruct.Q4_1.json"),
];

/// Vocabularies of which only the ids of strings are golden.
const STRINGS_ONLY: [(&str, &str); 2] = [
    ("ggml-vocab-bert-bge.gguf", "strings-vocab-bert-bge.json"),
    ("ggml-vocab-gemma-4.gguf", "strings-vocab-gemma-4.json"),
];

fn tokenizer(vocab: &str) -> Tokenizer {
    Tokenizer::new(&support::vocabulary(vocab)).unwrap()
}

fn json(path: &str) -> Value {
    serde_json::from_slice(&support::read(path)).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The strings that a vocabulary's own tokenizer encodes otherwise than llama.cpp, where it is followed: decomposed text and
/// `</s>` in Qwen 2's, Korean in BERT's.
fn own(vocab: &str) -> Vec<(String, Vec<u32>)> {
    let name = match vocab {
        "ggml-vocab-qwen2.gguf" => "own-vocab-qwen2.json",
        "ggml-vocab-bert-bge.gguf" => "own-vocab-bert-bge.json",
        _ => return Vec::new(),
    };
    let cases = json(&format!("tokenizers/{name}"));
    let cases = cases.as_array().unwrap().iter();
    cases.map(|case| (case["text"].as_str().unwrap().to_owned(), ids(&case["ids"]))).collect()
}

#[test]
fn ids_equal_those_of_llama_cpp_on_all_strings() {
    for (vocab, strings) in GOLDEN.into_iter().chain(STRINGS_ONLY) {
        let tokenizer = tokenizer(vocab);
        let golden = json(&format!("tokenizers/{strings}"));
        let strings = golden["strings"].as_array().unwrap();
        assert_eq!(strings.len(), 300);
        let own = own(vocab);
        for (text, expected) in &own {
            assert_eq!(tokenizer.encode(text, SpecialTokens::Parse, false), *expected, "{vocab} {text:?}");
        }
        for case in strings {
            let text = case["text"].as_str().unwrap();
            if own.iter().any(|(own, _)| own == text) {
                continue;
            }
            let equal = |special, add_bos_eos, expected: &str| {
                assert_eq!(
                    tokenizer.encode(text, special, add_bos_eos),
                    ids(&case[expected]),
                    "{vocab} {expected} {text:?}"
                );
            };
            equal(SpecialTokens::Ignore, false, "ids");
            equal(SpecialTokens::Parse, false, "ids_parse_special");
            equal(SpecialTokens::Parse, true, "ids_add_and_parse_special");
        }
    }
}

#[test]
fn llama_cpp_23252_qwen_composes_unicode_first() {
    let tokenizer = tokenizer("ggml-vocab-qwen2.gguf");
    // "한국어" as macOS writes it, and composed.
    let jamo = "\u{1112}\u{1161}\u{11ab}\u{1100}\u{116e}\u{11a8}\u{110b}\u{1165}";
    for text in [jamo, "한국어"] {
        assert_eq!(tokenizer.encode(text, SpecialTokens::Ignore, false), [23573, 124785, 31079]);
    }
    // What must be tokens of exactly these bytes is not composed.
    assert_eq!(tokenizer.decode(&tokenizer.encode_exact(jamo), true), jamo.as_bytes());
    // Special tokens are found before, and what is between them is composed.
    let ids = tokenizer.encode("cafe\u{301} <|im_end|>e\u{301}", SpecialTokens::Parse, false);
    assert_eq!(ids, [924, 58858, 220, 151645, 963]);
}

#[test]
fn ids_equal_the_vocabularies_own_tests() {
    for (vocab, _) in GOLDEN[..4].iter().chain(&STRINGS_ONLY) {
        let tokenizer = tokenizer(vocab);
        let read = |extension| {
            std::fs::read_to_string(support::data(&format!("tokenizers/vocab/{vocab}.{extension}"))).unwrap()
        };
        let (input, output) = (read("inp"), read("out"));
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.len(), 46, "{vocab}");
        // A newline before the separator belongs to the separator; the text may end in further ones.
        for (text, line) in input.split("\n__ggml_vocab_test__\n").zip(lines) {
            let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().unwrap()).collect();
            for special in [SpecialTokens::Ignore, SpecialTokens::Parse] {
                assert_eq!(tokenizer.encode(text, special, false), expected, "{vocab} {text:?}");
            }
        }
    }
}

#[test]
fn pieces_equal_those_of_llama_cpp() {
    for (vocab, strings) in GOLDEN {
        let tokenizer = tokenizer(vocab);
        let golden = json(&format!("tokenizers/{strings}"));
        let lists = golden["detokenise"].as_array().unwrap();
        assert!(lists.len() >= 100);
        for case in lists {
            let ids = ids(&case["ids"]);
            let pieces: Vec<Vec<u8>> = case["pieces_hex"].as_array().unwrap().iter().map(bytes).collect();
            let mut detokenizer = Detokenizer::new();
            let mut text = String::new();
            for (id, piece) in ids.iter().zip(&pieces) {
                assert_eq!(tokenizer.piece(*id), piece, "{vocab} {id}");
                text += detokenizer.push(tokenizer.piece(*id));
            }
            text += detokenizer.finish();
            assert_eq!(tokenizer.decode(&ids, true), pieces.concat());
            assert_eq!(text, String::from_utf8_lossy(&pieces.concat()));
        }
    }
}

#[test]
fn decoding_undoes_encoding() {
    for (vocab, strings) in GOLDEN {
        let tokenizer = tokenizer(vocab);
        let mut lossy = 0;
        for case in json(&format!("tokenizers/{strings}"))["strings"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let decoded = tokenizer.decode(&tokenizer.encode(text, SpecialTokens::Ignore, false), true);
            let decoded = String::from_utf8(decoded).unwrap();
            let text = if vocab.contains("qwen2") { text.nfc().collect() } else { text.to_owned() };
            let prefixed = format!(" {text}");
            if decoded != text && decoded != prefixed {
                lossy += 1;
            }
        }
        // SmolLM2 has no tokens for some bytes, and llama-spm writes spaces and U+2581 alike.
        assert!(lossy <= 4, "{vocab}: {lossy}");
    }
}
