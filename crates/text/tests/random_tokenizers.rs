//! Tokenizers on random texts, and random vocabularies: decoding undoes encoding, user text never becomes control tokens, and a
//! damaged vocabulary is rejected or works.
//!
//! The cases are the same in every run. `PROPTEST_CASES=1000000 PROPTEST_RNG_SEED=2` searches on.

#[path = "../../gguf/tests/common/measured.rs"]
mod measured;
mod support;

use measured::measured;
use proptest::prelude::*;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use unicode_normalization::UnicodeNormalization;
use verbatim_text::{SpecialIds, SpecialTokens, TokenKind, Tokenizer, VocabSource};

/// Far above what any case takes on a busy machine, far below a hang.
const TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes that encoding may hold for each byte of the text, and at least: each thread has a cache of the pre-tokenizer's states.
const PEAK_BYTES_PER_BYTE_MAX: isize = 256;
const PEAK_BYTES_MAX: isize = 16 << 20;

/// A tokenizer of a real model.
struct Real {
    name: &'static str,
    tokenizer: Tokenizer,
    /// The names of its control tokens.
    control_tokens: Vec<(u32, String)>,
    is_byte_level: bool,
    /// Bytes that it has no token for.
    missing: Vec<u8>,
}

static REAL: LazyLock<Vec<Real>> = LazyLock::new(|| {
    let names = [
        "ggml-vocab-llama-bpe.gguf",
        "ggml-vocab-qwen2.gguf",
        "ggml-vocab-gpt-2.gguf",
        "ggml-vocab-llama-spm.gguf",
        "SmolLM2-135M-Instruct.vocab-only.gguf",
    ];
    names.map(real).into()
});

fn real(name: &'static str) -> Real {
    let source = support::vocabulary(name);
    let tokenizer = Tokenizer::new(&source).unwrap();
    let ids = 0..tokenizer.vocab_len() as u32;
    let named = |id| (id, String::from_utf8(tokenizer.piece(id).to_vec()).unwrap());
    let control_tokens = ids.clone().filter(|&id| tokenizer.kind(id) == Some(TokenKind::Control)).map(named);
    let control_tokens = control_tokens.collect::<Vec<_>>();
    assert!(!control_tokens.is_empty(), "{name}");
    let has = |byte: &u8| ids.clone().any(|id| tokenizer.piece(id) == [*byte]);
    let is_byte_level = source.model == "gpt2";
    let missing = (0..=u8::MAX).filter(|byte| is_byte_level && !has(byte)).collect();
    Real { name, tokenizer, control_tokens, is_byte_level, missing }
}

impl Real {
    /// What must come back of a text: Qwen composes it. SentencePiece writes U+2581 and space alike, and puts a space in front.
    fn comes_back(&self, text: &str) -> Vec<u8> {
        match self.is_byte_level {
            true if self.name.contains("qwen2") => text.nfc().collect::<String>().into_bytes(),
            true => text.bytes().filter(|byte| !self.missing.contains(byte)).collect(),
            false if text.is_empty() => Vec::new(),
            false => format!(" {}", text.replace('▁', " ")).into_bytes(),
        }
    }

    /// Encodes within bounds on time and memory.
    fn encode(&self, text: &str, special: SpecialTokens, add_bos_eos: bool) -> Vec<u32> {
        let start = Instant::now();
        let (ids, peak_bytes) = measured(|| self.tokenizer.encode(text, special, add_bos_eos));
        assert!(start.elapsed() < TIME_MAX, "{} took {:?}", self.name, start.elapsed());
        let most = PEAK_BYTES_MAX.max(PEAK_BYTES_PER_BYTE_MAX * text.len() as isize);
        assert!(peak_bytes < most, "{} held {peak_bytes} bytes for {}", self.name, text.len());
        assert!(ids.iter().all(|&id| (id as usize) < self.tokenizer.vocab_len()));
        // No token stands for less than a byte; SentencePiece and the vocabulary may put one in front, and one behind.
        assert!(ids.len() <= text.len() + 3);
        ids
    }
}

/// Pieces of text that pre-tokenizers tell apart, and spellings of special tokens, whole and cut.
fn piece() -> impl Strategy<Value = String> {
    let control_tokens = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..40usize);
    prop_oneof![
        4 => "[a-zA-Z]{1,12}",
        2 => "[ \t\n\r\u{a0}\u{3000}]{1,8}",
        2 => "[0-9]{1,9}",
        2 => "[!-/:-@\\[-`{-~]{1,6}",
        1 => "'(s|S|t|re|VE|m|ll|d|x)",
        2 => "\\PC{1,6}",
        1 => any::<String>(),
        1 => "[\u{300}-\u{36f}\u{200d}\u{fe0f}]{1,4}",
        1 => "[一-龥ぁ-んァ-ン가-힣]{1,6}",
        1 => "[🙂👩🏽🇩🇪]{1,4}",
        1 => "[▁ĠĊ]{1,3}",
        1 => prop::sample::select(vec!["<|im_end|", "|im_end|>", "<s", "<0x0A>", "<unk>", "</s>"]).prop_map(String::from),
        2 => control_tokens.prop_map(|(tokenizer, token, cut)| {
            let name = &token.get(&tokenizer.get(&REAL).control_tokens).1;
            name[name.floor_char_boundary(cut.saturating_sub(20))..].to_owned()
        }),
        1 => ("[a-z ]{1,3}", 1..200usize).prop_map(|(unit, times)| unit.repeat(times)),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(piece(), 0..12).prop_map(|pieces| pieces.concat())
}

/// Text in which no special token can begin or end.
fn harmless() -> impl Strategy<Value = String> {
    let is_harmless = |text: &String| !text.contains(['<', '>', '|', '[', ']', '/']);
    text().prop_filter("no part of a special token", is_harmless)
}

/// A vocabulary of a few hundred tokens, byte-level or SentencePiece, with merges that its tokens allow.
fn vocabulary() -> impl Strategy<Value = VocabSource> {
    let pieces = prop::collection::vec("[a-e]{1,3}|[ĠĊ][a-e]{0,2}|▁[a-e]{0,2}|é|中", 0..40);
    (pieces, any::<bool>(), prop::collection::vec(-9.0..9.0f32, 400)).prop_map(
        |(pieces, is_byte_level, scores)| {
            let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>", "<|x|>"].map(String::from).into();
            let mut token_types = vec![2, 3, 3, 4];
            match is_byte_level {
                true => tokens.extend((b'!'..=b'~').map(|byte| char::from(byte).to_string())),
                false => tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>"))),
            }
            token_types.resize(tokens.len(), if is_byte_level { 1 } else { 6 });
            for piece in pieces {
                if !tokens.contains(&piece) {
                    tokens.push(piece);
                }
            }
            token_types.resize(tokens.len(), 1);
            let splits = tokens.iter().flat_map(|token| {
                token.char_indices().skip(1).map(|(at, _)| token.split_at(at)).collect::<Vec<_>>()
            });
            let is_known = |part: &str| tokens.iter().any(|token| token == part);
            let merges = splits.filter(|(left, right)| is_known(left) && is_known(right));
            VocabSource {
                model: if is_byte_level { "gpt2" } else { "llama" }.to_owned(),
                pre: is_byte_level.then(|| "qwen2".to_owned()),
                merges: is_byte_level
                    .then(|| merges.map(|(left, right)| format!("{left} {right}")).collect()),
                scores: (!is_byte_level).then(|| scores[..tokens.len()].to_vec()),
                token_types: Some(token_types),
                tokens: tokens.into_iter().map(String::into_bytes).collect(),
                ..VocabSource::default()
            }
        },
    )
}

/// Damage to a vocabulary.
#[derive(Debug, Clone)]
enum Damage {
    Token(prop::sample::Index, Vec<u8>),
    Kind(prop::sample::Index, i32),
    Score(prop::sample::Index, f32),
    Merge(prop::sample::Index, String),
    Swap(prop::sample::Index, prop::sample::Index),
    Cut(usize),
    Ids(Option<u32>, Option<u32>),
    Model(&'static str, Option<&'static str>),
    Name,
    Flags([Option<bool>; 3]),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<prop::sample::Index>;
    let token = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..6),
        "[a-e]{0,4}".prop_map(String::into_bytes),
        "<0x[0-9A-G]{0,3}>?".prop_map(String::into_bytes),
        Just(b"<|im_end|>".to_vec()),
    ];
    let models = prop::sample::select(vec!["gpt2", "llama", "gemma4", "bert", ""]);
    let pre = prop::option::of(prop::sample::select(vec!["gpt-2", "llama-bpe", "qwen35", "tekken", "no"]));
    prop_oneof![
        4 => (index(), token).prop_map(|(at, token)| Damage::Token(at, token)),
        3 => (index(), prop_oneof![-1..9i32, any::<i32>()]).prop_map(|(at, kind)| Damage::Kind(at, kind)),
        2 => (index(), any::<f32>()).prop_map(|(at, score)| Damage::Score(at, score)),
        3 => (index(), "[a-eĠ ]{0,6}").prop_map(|(at, merge)| Damage::Merge(at, merge)),
        2 => (index(), index()).prop_map(|(a, b)| Damage::Swap(a, b)),
        1 => (0..400usize).prop_map(Damage::Cut),
        1 => any::<[Option<u32>; 2]>().prop_map(|[bos, unk]| Damage::Ids(bos, unk)),
        2 => (0..400u32, 0..400u32).prop_map(|(bos, unk)| Damage::Ids(Some(bos), Some(unk))),
        1 => (models, pre).prop_map(|(model, pre)| Damage::Model(model, pre)),
        1 => Just(Damage::Name),
        1 => any::<[Option<bool>; 3]>().prop_map(Damage::Flags),
    ]
}

impl Damage {
    fn apply(self, source: &mut VocabSource) {
        fn at<T>(list: &mut [T], index: prop::sample::Index, value: T) {
            if !list.is_empty() {
                list[index.index(list.len())] = value;
            }
        }
        match self {
            Damage::Token(index, token) => at(&mut source.tokens, index, token),
            Damage::Kind(index, kind) => at(source.token_types.get_or_insert_default(), index, kind),
            Damage::Score(index, score) => at(source.scores.get_or_insert_default(), index, score),
            Damage::Merge(index, merge) => at(source.merges.get_or_insert_default(), index, merge),
            Damage::Swap(a, b) if !source.tokens.is_empty() => {
                let len = source.tokens.len();
                source.tokens.swap(a.index(len), b.index(len));
            }
            Damage::Swap(..) => {}
            Damage::Cut(len) => source.tokens.truncate(len),
            Damage::Ids(bos, unk) => {
                source.special = SpecialIds { bos, unk, eos: unk, ..source.special };
            }
            Damage::Model(model, pre) => {
                source.model = model.to_owned();
                source.pre = pre.map(str::to_owned);
            }
            Damage::Name => source.name = Some("Phi-3 mini".to_owned()),
            Damage::Flags([bos, eos, prefix]) => {
                (source.add_bos, source.add_eos, source.add_space_prefix) = (bos, eos, prefix);
            }
        }
    }
}

#[test]
fn llama_cpp_24382_every_control_token_can_be_typed() {
    for real in REAL.iter() {
        let expected = |text: &str| real.tokenizer.encode(text, SpecialTokens::Ignore, false);
        for (_, name) in &real.control_tokens {
            for typed in [name.clone(), format!("a {name}{name} b"), format!("{}{name}", &name[..1])] {
                let guarded = real.tokenizer.guard(&typed);
                let ids = real.tokenizer.encode(&guarded, SpecialTokens::ParseUnguarded, false);
                assert_eq!(ids, expected(&typed), "{} {typed}", real.name);
                assert_eq!(
                    real.tokenizer.decode(&ids, false),
                    real.comes_back(&typed),
                    "{} {typed}",
                    real.name
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(support::config(700))]

    #[test]
    fn a_text_is_decoded_as_it_was_and_without_control_tokens(text in text()) {
        for real in REAL.iter() {
            let ids = real.encode(&text, SpecialTokens::Ignore, false);
            prop_assert_eq!(real.tokenizer.decode(&ids, true), real.comes_back(&text), "{}", real.name);
            // It has no control tokens, so that nothing is hidden either.
            prop_assert!(ids.iter().all(|&id| !real.tokenizer.is_control(id)), "{}", real.name);
            prop_assert_eq!(real.tokenizer.decode(&ids, false), real.comes_back(&text), "{}", real.name);
        }
    }

    #[test]
    fn llama_cpp_24382_guarded_text_has_the_tokens_of_text(
        before in harmless(),
        typed in text(),
        marks in "\u{10fffe}{0,2}",
        after in harmless(),
    ) {
        // Every control token's name may be in what a user typed, whole or cut; the template's own are parsed.
        let typed = format!("{marks}{typed}{marks}");
        for real in REAL.iter() {
            for (id, name) in real.control_tokens.iter().step_by(1 + real.control_tokens.len() / 5) {
                let guarded = real.tokenizer.guard(&typed);
                let prompt = format!("{name}{before}{guarded}{after}{name}");
                let ids = real.encode(&prompt, SpecialTokens::ParseUnguarded, false);
                let text = format!("{before}{typed}{after}");
                let expected = real.encode(&text, SpecialTokens::Ignore, false);
                prop_assert_eq!(&ids[1..ids.len() - 1], &expected[..], "{} {}", real.name, name);
                prop_assert_eq!((ids[0], ids[ids.len() - 1]), (*id, *id));
                prop_assert!(expected.iter().all(|&id| !real.tokenizer.is_control(id)), "{}", real.name);
            }
        }
    }

    #[test]
    fn a_special_token_divides_a_text(
        before in harmless(),
        token in any::<prop::sample::Index>(),
        after in harmless(),
    ) {
        for real in REAL.iter() {
            let (id, name): &(u32, String) = token.get(&real.control_tokens);
            let whole = format!("{before}{name}{after}");
            let parts = [&before, &after].map(|part| real.encode(part, SpecialTokens::Parse, false));
            let expected = [&parts[0][..], &[*id], &parts[1][..]].concat();
            prop_assert_eq!(real.encode(&whole, SpecialTokens::Parse, false), expected, "{} {}", real.name, name);
        }
    }

    #[test]
    fn a_text_may_be_cut_before_a_line(before in harmless(), letter in "[a-zA-Zé]", after in harmless()) {
        // Wherever a line break follows a letter, byte-level pre-tokenizers cut, whatever is around it.
        let (before, after) = (before + &letter, format!("\n{after}"));
        let whole = format!("{before}{after}");
        for real in REAL.iter().filter(|real| real.is_byte_level) {
            let parts = [&before, &after].map(|part| real.encode(part, SpecialTokens::Ignore, false));
            prop_assert_eq!(real.encode(&whole, SpecialTokens::Ignore, false), parts.concat(), "{}", real.name);
        }
    }

    #[test]
    fn bos_and_eos_go_around_a_text(text in text()) {
        for real in REAL.iter() {
            let tokenizer = &real.tokenizer;
            let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
            let eos = tokenizer.eos().filter(|_| tokenizer.adds_eos());
            for special in [SpecialTokens::Parse, SpecialTokens::Ignore] {
                let ids = real.encode(&text, special, false);
                let around: Vec<u32> = bos.into_iter().chain(ids).chain(eos).collect();
                prop_assert_eq!(real.encode(&text, special, true), around, "{}", real.name);
            }
        }
    }

    #[test]
    fn any_ids_have_bytes(ids in prop::collection::vec(prop_oneof![any::<u32>(), 0..40_000u32], 0..40)) {
        for Real { tokenizer, .. } in REAL.iter() {
            let pieces: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.piece(id)).copied().collect();
            prop_assert_eq!(tokenizer.decode(&ids, true), pieces);
            prop_assert!(tokenizer.decode(&ids, false).len() <= tokenizer.decode(&ids, true).len());
        }
    }

    #[test]
    fn damaged_vocabularies_are_rejected_or_work(
        mut source in vocabulary(),
        damage in prop::collection::vec(damage(), 0..4),
        text in text(),
    ) {
        let is_whole = damage.is_empty();
        damage.into_iter().for_each(|damage| damage.apply(&mut source));
        let (tokenizer, peak_bytes) = measured(|| Tokenizer::new(&source));
        prop_assert!(peak_bytes < 64 << 20, "it held {} bytes", peak_bytes);
        let tokenizer = match tokenizer {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                prop_assert!(!is_whole, "{}", error);
                prop_assert!(!error.to_string().is_empty());
                return Ok(());
            }
        };
        for special in [SpecialTokens::Parse, SpecialTokens::Ignore] {
            let ids = tokenizer.encode(&text, special, true);
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
            let _ = tokenizer.decode(&ids, false);
        }
        // Control (3) and unknown (2) in the file.
        let is_control_or_unknown = |id: u32| {
            matches!(source.token_types.as_ref().map(|types| types[id as usize]), Some(2 | 3))
        };
        let ids = tokenizer.encode(&text, SpecialTokens::Ignore, false);
        let unknown = tokenizer.special_ids().unk;
        prop_assert!(ids.iter().all(|&id| !is_control_or_unknown(id) || Some(id) == unknown));
    }
}
