//! What the tests share.
#![allow(dead_code, reason = "not every test file uses everything")]

pub mod matcher;

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, Mutex, OnceLock};

use verbatim_gguf::GgufFile;
use verbatim_grammar::{CompiledGrammar, Constraint, ConstraintError, Vocabulary};
use verbatim_text::{SpecialTokens, Tokenizer, VocabSource};

/// Byte-level BPE with 49,152 tokens, not all bytes among them.
pub const SMOLLM: &str = "SmolLM2-135M-Instruct.vocab-only.gguf";
/// Byte-level BPE with 50,257 tokens.
pub const GPT2: &str = "ggml-vocab-gpt-2.gguf";
/// Byte-level BPE with 151,936 tokens and several end tokens.
pub const QWEN2: &str = "ggml-vocab-qwen2.gguf";
/// SentencePiece with byte tokens, and a space that encoding prepends.
pub const LLAMA2: &str = "ggml-vocab-llama-spm.gguf";
/// Byte-level BPE with 128,256 tokens.
pub const LLAMA3: &str = "ggml-vocab-llama-bpe.gguf";

/// The path of a file below `tests/data` of the workspace.
pub fn data(path: &str) -> String {
    format!("{}/../../tests/data/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The path of a file below `tests/data` of this crate.
pub fn own_data(path: &str) -> String {
    format!("{}/tests/data/{path}", env!("CARGO_MANIFEST_DIR"))
}

/// The source of a vocabulary in `tests/data/tokenizers/vocab`; the largest are kept compressed.
pub fn source(name: &str) -> VocabSource {
    let path = data(&format!("tokenizers/vocab/{name}"));
    let file = match std::fs::File::open(format!("{path}.gz")) {
        Ok(compressed) => {
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(compressed).read_to_end(&mut bytes).unwrap();
            GgufFile::from_bytes(bytes).unwrap()
        }
        Err(_) => GgufFile::open(path).unwrap(),
    };
    VocabSource::from_gguf(file.metadata()).unwrap()
}

/// A prepared vocabulary, shared by the tests of a file.
pub fn vocabulary(name: &str) -> Vocabulary {
    static VOCABULARIES: OnceLock<Mutex<HashMap<String, Vocabulary>>> = OnceLock::new();
    let mut vocabularies = VOCABULARIES.get_or_init(Mutex::default).lock().unwrap();
    let new = || Vocabulary::new(Arc::new(Tokenizer::new(&source(name)).unwrap())).unwrap();
    vocabularies.entry(name.to_owned()).or_insert_with(new).clone()
}

pub fn encode(vocabulary: &Vocabulary, text: &str) -> Vec<u32> {
    vocabulary.tokenizer().encode(text, SpecialTokens::Ignore, false)
}

/// SplitMix64: seeded, and the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// Random tokens that the masks allow. After `patience` tokens, it prefers those that close something, so that most outputs
/// are finished. `None` if the output is not finished after `max_tokens`.
pub fn sample(
    constraint: &mut Constraint,
    vocabulary: &Vocabulary,
    seed: u64,
    patience: usize,
    max_tokens: usize,
) -> Option<Vec<u8>> {
    let tokenizer = vocabulary.tokenizer();
    let mut random = Random(seed);
    let mut output = Vec::new();
    for step in 0..max_tokens {
        let is_accepting = constraint.is_accepting();
        let allowed: Vec<u32> = constraint.mask().unwrap().tokens().collect();
        assert!(!allowed.is_empty());
        let (ends, texts): (Vec<u32>, Vec<u32>) = allowed.into_iter().partition(|id| tokenizer.is_eog(*id));
        assert_eq!(
            !ends.is_empty(),
            is_accepting,
            "end tokens are allowed exactly when the output is complete"
        );
        let hurries = step >= patience;
        if is_accepting && (texts.is_empty() || random.chance(if hurries { 90 } else { 15 })) {
            constraint.accept(*random.choose(&ends)).unwrap();
            assert!(constraint.is_stopped());
            return Some(output);
        }
        let token = choose(&mut random, tokenizer, &texts, hurries);
        match constraint.accept(token) {
            Ok(()) => output.extend_from_slice(tokenizer.piece(token)),
            // Half a palindrome of thousands of characters could have its middle anywhere.
            Err(ConstraintError::TooComplex { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
    }
    None
}

fn choose(random: &mut Random, tokenizer: &Tokenizer, texts: &[u32], hurries: bool) -> u32 {
    let all = |id: &u32, characters: &[u8]| tokenizer.piece(*id).iter().all(|byte| characters.contains(byte));
    if hurries && random.chance(80) {
        let closers: &[u8] = if random.chance(15) { b"\n" } else { b"\"]})>;.z" };
        let closing: Vec<u32> = texts.iter().copied().filter(|id| all(id, closers)).collect();
        if !closing.is_empty() {
            return *random.choose(&closing);
        }
        let short: Vec<u32> = texts.iter().copied().filter(|id| tokenizer.piece(*id).len() == 1).collect();
        let other: Vec<u32> = short.iter().copied().filter(|id| !all(id, b"[{( \n\t\r")).collect();
        let order = if random.chance(70) { [other, short] } else { [short, other] };
        for candidates in order {
            if !candidates.is_empty() {
                return *random.choose(&candidates);
            }
        }
    }
    *random.choose(texts)
}

/// Samples with so many seeds and checks every finished output; how many are finished.
pub fn finished(
    grammar: &CompiledGrammar,
    vocabulary: &Vocabulary,
    seeds: u64,
    check: impl Fn(&str),
) -> usize {
    let mut finished = 0;
    for seed in 0..seeds {
        if let Some(output) = sample(&mut grammar.constraint(), vocabulary, seed, 12, 120) {
            check(std::str::from_utf8(&output).expect("an output is UTF-8"));
            finished += 1;
        }
    }
    finished
}
