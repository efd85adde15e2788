//! Invalid vocabularies are rejected with a message, and tolerated ones work.

mod support;

use verbatim_text::{
    PromptWarning, SpecialIds, SpecialTokens, TokenKind, Tokenizer, TokenizerError, TokenizerWarning,
    VocabSource,
};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// A byte-level vocabulary of the printable ASCII bytes, space, line break, "ab", "abc" and two control tokens.
fn byte_level() -> VocabSource {
    let mut tokens: Vec<Vec<u8>> = (b'!'..=b'~').map(|byte| vec![byte]).collect();
    tokens.extend(["Ġ", "Ċ", "ab", "abc", "<|im_start|>", "<|im_end|>"].map(|text| text.as_bytes().to_vec()));
    let mut types = vec![NORMAL; tokens.len()];
    let count = types.len();
    types[count - 2..].fill(CONTROL);
    VocabSource {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        token_types: Some(types),
        tokens,
        merges: Some(vec!["a b".to_owned(), "ab c".to_owned()]),
        ..VocabSource::default()
    }
}

/// A SentencePiece vocabulary with all byte tokens and a few pieces.
fn sentencepiece() -> VocabSource {
    let mut tokens = vec![b"<unk>".to_vec(), b"<s>".to_vec(), b"</s>".to_vec()];
    let mut types = vec![UNKNOWN, CONTROL, CONTROL];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>").into_bytes()));
    types.extend([BYTE; 256]);
    tokens.extend(["▁", "a", "b", "ab", "▁ab", "<", "s", ">", "<s"].map(|text| text.as_bytes().to_vec()));
    types.resize(tokens.len(), NORMAL);
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    VocabSource {
        model: "llama".to_owned(),
        tokens,
        token_types: Some(types),
        scores: Some(scores),
        ..VocabSource::default()
    }
}

fn error(change: impl FnOnce(&mut VocabSource), mut source: VocabSource) -> TokenizerError {
    change(&mut source);
    Tokenizer::new(&source).expect_err("the vocabulary was accepted")
}

fn text(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| String::from_utf8_lossy(tokenizer.piece(id)).into_owned()).collect()
}

#[test]
fn small_vocabularies_work() {
    let tokenizer = Tokenizer::new(&byte_level()).unwrap();
    let ids = tokenizer.encode("abcab ab<|im_end|>", SpecialTokens::Parse, true);
    assert_eq!(text(&tokenizer, &ids), ["abc", "ab", " ", "ab", "<|im_end|>"]);
    assert!(tokenizer.is_eog(*ids.last().unwrap()));
    assert_eq!(tokenizer.decode(&ids, false), b"abcab ab");
    let ids = tokenizer.encode("<|im_end|>", SpecialTokens::Ignore, true);
    assert_eq!(ids.len(), "<|im_end|>".len());

    let tokenizer = Tokenizer::new(&sentencepiece()).unwrap();
    let ids = tokenizer.encode("ab é", SpecialTokens::Ignore, true);
    assert_eq!(tokenizer.decode(&ids, true), "<s> ab é".as_bytes());
    assert_eq!(ids.len(), 5);
}

#[test]
fn ordinary_text_never_becomes_a_control_token() {
    let tokenizer = Tokenizer::new(&sentencepiece()).unwrap();
    // "<s" is a token and "<s" + ">" would be the token "<s>".
    let ids = tokenizer.encode("<s>", SpecialTokens::Ignore, false);
    assert_eq!(text(&tokenizer, &ids), [" ", "<s", ">"]);
    assert!(ids.iter().all(|&id| tokenizer.kind(id) == Some(TokenKind::Normal)));
    assert_eq!(tokenizer.encode("<s>", SpecialTokens::Parse, false), [1]);
}

#[test]
fn unsupported_names_are_rejected_by_name() {
    let message = error(|source| source.model = "t5".to_owned(), byte_level()).to_string();
    assert!(message.contains("`t5`") && message.contains("gpt2"), "{message}");
    let message = error(|source| source.pre = Some("superbpe".to_owned()), byte_level()).to_string();
    assert!(message.contains("`superbpe`") && message.contains("qwen2"), "{message}");
    let message = error(|source| source.pre = Some("x".repeat(1 << 20)), byte_level()).to_string();
    assert!(message.len() < 2000);
}

#[test]
fn missing_keys_are_named() {
    let missing = |error| match error {
        TokenizerError::MissingKey { key, .. } => key,
        other => panic!("{other}"),
    };
    assert_eq!(missing(error(|source| source.pre = None, byte_level())), "tokenizer.ggml.pre");
    assert_eq!(missing(error(|source| source.merges = None, byte_level())), "tokenizer.ggml.merges");
    assert_eq!(missing(error(|source| source.scores = None, sentencepiece())), "tokenizer.ggml.scores");
}

#[test]
fn arrays_must_fit_the_vocabulary() {
    use TokenizerError::{LengthMismatch, VocabularySize};
    let found = error(|source| source.tokens.clear(), byte_level());
    assert!(matches!(found, VocabularySize { count: 0 }));
    let found = error(|source| source.token_types = Some(vec![1; 3]), byte_level());
    assert!(matches!(found, LengthMismatch { key: "tokenizer.ggml.token_type", found: 3, .. }));
    let found = error(|source| source.scores = Some(vec![0.0; 3]), sentencepiece());
    assert!(matches!(found, LengthMismatch { key: "tokenizer.ggml.scores", found: 3, .. }));
}

#[test]
fn llama_cpp_3634_and_7157_special_ids_outside_the_vocabulary_are_left_out_with_a_warning() {
    for source in [byte_level(), sentencepiece()] {
        let plain = Tokenizer::new(&source).unwrap();
        assert!(plain.warnings().is_empty());
        for outside in [u32::MAX, source.tokens.len() as u32] {
            let mut source = source.clone();
            let bad = Some(outside);
            source.special = SpecialIds {
                bos: bad,
                eos: bad,
                eot: bad,
                eom: bad,
                unk: bad,
                sep: bad,
                pad: bad,
                mask: bad,
            };
            let tokenizer = Tokenizer::new(&source).unwrap();
            assert_eq!(tokenizer.special_ids(), plain.special_ids());
            let warnings: Vec<String> = tokenizer.warnings().iter().map(ToString::to_string).collect();
            for (role, warning) in
                ["bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"].iter().zip(&warnings)
            {
                let key = format!("`tokenizer.ggml.{role}_token_id` is {outside}");
                assert!(warning.starts_with(&key) && warning.ends_with("the key is ignored"), "{warning}");
            }
            assert_eq!(warnings.len(), 8);
            let encode = |tokenizer: &Tokenizer| tokenizer.encode("ab", SpecialTokens::Parse, true);
            assert_eq!(encode(&tokenizer), encode(&plain));
        }
    }
}

#[test]
fn llama_cpp_21492_a_token_that_the_file_calls_ordinary_is_ordinary() {
    // `</s>` ends an HTML element in these two vocabularies.
    let qwen = Tokenizer::new(&support::vocabulary("ggml-vocab-qwen2.gguf")).unwrap();
    let gemma = Tokenizer::new(&support::vocabulary("ggml-vocab-gemma-4.gguf")).unwrap();
    for tokenizer in [&qwen, &gemma] {
        let id = tokenizer.find(b"</s>").unwrap();
        assert_eq!(tokenizer.kind(id), Some(TokenKind::Normal));
        assert!(!tokenizer.is_eog(id) && !tokenizer.is_control(id));
        assert_eq!(tokenizer.visible_piece(id), b"</s>");
    }
    let with = |text: &str, kind: i32, change: fn(&mut VocabSource, u32)| {
        let mut source = byte_level();
        let id = source.tokens.len() as u32;
        source.tokens.push(text.as_bytes().to_vec());
        source.token_types.as_mut().unwrap().push(kind);
        change(&mut source, id);
        let tokenizer = Tokenizer::new(&source).unwrap();
        let parsed = tokenizer.encode(text, SpecialTokens::Parse, false) == [id];
        (tokenizer.is_eog(id), tokenizer.is_control(id), parsed)
    };
    assert_eq!(with("</s>", NORMAL, |_, _| {}), (false, false, false));
    assert_eq!(with("<end_of_turn>", NORMAL, |_, _| {}), (false, false, false));
    // All HTML tags are user-defined in Gemma 3's vocabulary.
    assert_eq!(with("</s>", USER_DEFINED, |_, _| {}), (false, false, true));
    // Other types leave it to the text, and so do files without types and keys that name the token.
    for (text, kind) in [("</s>", 0), ("</s>", CONTROL), ("<end_of_turn>", USER_DEFINED)] {
        assert_eq!(with(text, kind, |_, _| {}), (true, true, true), "{text} {kind}");
    }
    assert_eq!(with("</s>", NORMAL, |source, _| source.token_types = None), (true, true, true));
    assert_eq!(with("</s>", NORMAL, |source, id| source.special.eos = Some(id)), (true, true, true));
    assert_eq!(with("</s>", USER_DEFINED, |source, id| source.special.eos = Some(id)), (true, true, true));
}

#[test]
fn tokens_and_merges_must_be_valid() {
    use TokenizerError::*;
    let found = error(|source| source.tokens[1] = b"!".to_vec(), byte_level());
    assert!(matches!(found, DuplicateToken { first: 0, second: 1, .. }));
    for merge in ["", "ab", " ", "a", "a "] {
        let found = error(|source| source.merges = Some(vec![merge.to_owned()]), byte_level());
        assert!(matches!(found, MalformedMerge { index: 0, .. }), "{merge:?}: {found}");
    }
    let found = error(|source| source.merges = Some(vec!["a b".to_owned(), "b c".to_owned()]), byte_level());
    assert!(matches!(&found, MergeOfUnknownToken { index: 1, token, .. } if token == "bc"), "{found}");
    let found = error(
        |source| {
            source.tokens = vec![b"hello".to_vec()];
            source.token_types = None;
        },
        byte_level(),
    );
    assert!(matches!(found, NoByteTokens));
    let found = error(|source| source.scores.as_mut().unwrap()[5] = f32::NAN, sentencepiece());
    assert!(matches!(found, ScoreNotANumber { id: 5 }));
    for text in ["<0x4>", "<0xGG>", "<0x+1>", "x", "<0x041>"] {
        let found = error(|source| source.tokens[7] = text.as_bytes().to_vec(), sentencepiece());
        assert!(matches!(found, MalformedByteToken { id: 7, .. }), "{text}: {found}");
    }
    let found = error(
        |source| {
            source.tokens[3 + 0x41] = b"other".to_vec();
            source.token_types.as_mut().unwrap()[..].copy_within(1..2, 0);
            source.token_types.as_mut().unwrap()[3 + 0x41] = NORMAL;
        },
        sentencepiece(),
    );
    assert!(matches!(found, MissingByte { byte: 0x41 }), "{found}");
}

#[test]
fn what_llama_cpp_tolerates_works() {
    let mut source = byte_level();
    source.token_types = None;
    source.tokens.extend([Vec::new(), Vec::new(), b"\xFF\xFE".to_vec()]);
    source.merges.as_mut().unwrap().push("a b".to_owned());
    let tokenizer = Tokenizer::new(&source).unwrap();
    // Known by name, though the file has no types.
    let end = tokenizer.find(b"<|im_end|>").unwrap();
    assert!(tokenizer.is_eog(end) && tokenizer.is_control(end));
    assert_eq!(tokenizer.encode("abc<|im_end|>", SpecialTokens::Parse, false).len(), 2);
    // Bytes without a token encode to nothing.
    assert_eq!(tokenizer.encode("aéa", SpecialTokens::Ignore, false).len(), 2);
    // Ids outside the vocabulary stand for nothing.
    let outside = tokenizer.vocab_len() as u32;
    assert_eq!(
        (tokenizer.piece(outside), tokenizer.kind(outside), tokenizer.is_eog(outside)),
        (&[][..], None, false)
    );

    // Without byte tokens, text outside the vocabulary is unknown.
    let mut source = sentencepiece();
    source.tokens.drain(3..259);
    source.token_types.as_mut().unwrap().drain(3..259);
    source.scores.as_mut().unwrap().drain(3..259);
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(tokenizer.encode("é", SpecialTokens::Ignore, false), [tokenizer.find(b" ").unwrap(), 0]);
}

#[test]
fn user_defined_tokens_are_found_first_and_the_longest_wins() {
    let mut source = byte_level();
    let first = source.tokens.len() as u32;
    source.tokens.extend(["bc", "bca", "  "].map(|text| text.as_bytes().to_vec()));
    source.token_types.as_mut().unwrap().extend([USER_DEFINED; 3]);
    let tokenizer = Tokenizer::new(&source).unwrap();
    for special in [SpecialTokens::Parse, SpecialTokens::Ignore] {
        let ids = tokenizer.encode("abcab   a", special, false);
        assert_eq!(text(&tokenizer, &ids), ["a", "bca", "b", "  ", " ", "a"]);
        assert_eq!(ids[1], first + 1);
    }
}

#[test]
fn space_prefixes_follow_the_vocabulary() {
    let mut source = sentencepiece();
    let encode = |source: &VocabSource, text: &str| {
        Tokenizer::new(source).unwrap().encode(text, SpecialTokens::Parse, false)
    };
    let tokenizer = Tokenizer::new(&source).unwrap();
    let pieces = |ids: &[u32]| text(&tokenizer, ids);
    assert_eq!(pieces(&encode(&source, "ab")), [" ab"]);
    assert_eq!(pieces(&encode(&source, "ab</s>ab")), [" ab", "</s>", " ab"]);
    assert!(encode(&source, "").is_empty());
    source.add_space_prefix = Some(false);
    assert_eq!(pieces(&encode(&source, "ab</s>ab")), ["ab", "</s>", "ab"]);
}

#[test]
fn tokens_may_reach_across_words() {
    let mut source = sentencepiece();
    source.tokens.push("b▁a".as_bytes().to_vec());
    source.token_types.as_mut().unwrap().push(NORMAL);
    source.scores.as_mut().unwrap().extend([9.0]);
    // "b▁" is not a token, so only "▁a" could lead to "b▁a".
    source.tokens.push("▁a".as_bytes().to_vec());
    source.token_types.as_mut().unwrap().push(NORMAL);
    source.scores.as_mut().unwrap().extend([8.0]);
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(text(&tokenizer, &tokenizer.encode("b a", SpecialTokens::Ignore, false)), [" ", "b a"]);
}

#[test]
fn phi3_special_tokens_have_rstrip() {
    let mut source = byte_level();
    source.name = Some("Phi-3-mini".to_owned());
    let tokenizer = Tokenizer::new(&source).unwrap();
    let ids = tokenizer.encode("<|im_end|> \n ab", SpecialTokens::Parse, false);
    assert_eq!(text(&tokenizer, &ids), ["<|im_end|>", "ab"]);
}

#[test]
fn bos_and_eos_are_added_where_the_vocabulary_has_them() {
    let mut source = byte_level();
    source.pre = Some("llama-bpe".to_owned());
    let ids =
        |source: &VocabSource| Tokenizer::new(source).unwrap().encode("a", SpecialTokens::Parse, true).len();
    // Llama 3 wants BOS, but this vocabulary has none.
    assert_eq!(ids(&source), 1);
    source.special = SpecialIds { bos: Some(0), eos: Some(1), ..SpecialIds::default() };
    assert_eq!(ids(&source), 2);
    source.add_eos = Some(true);
    assert_eq!(ids(&source), 3);
    source.add_bos = Some(false);
    assert_eq!(ids(&source), 2);
}

#[test]
fn llama_cpp_8990_and_7332_prompts_have_one_bos_and_no_eos() {
    let mut source = byte_level();
    let [start, end] = [source.tokens.len() as u32 - 2, source.tokens.len() as u32 - 1];
    source.special = SpecialIds { bos: Some(start), eos: Some(end), ..SpecialIds::default() };
    (source.add_bos, source.add_eos) = (Some(true), Some(true));
    let tokenizer = Tokenizer::new(&source).unwrap();
    let letter = |byte: u8| u32::from(byte - b'!');
    assert_eq!(tokenizer.encode("a", SpecialTokens::Parse, true), [start, letter(b'a'), end]);
    let prompt = |text, special| tokenizer.encode_prompt(text, special);
    let plain = prompt("a", SpecialTokens::Parse);
    assert_eq!((plain.ids.as_slice(), plain.warning), (&[start, letter(b'a')][..], None));
    // A prompt that brings its own gets no second one.
    let own = prompt("<|im_start|>a", SpecialTokens::Parse);
    assert_eq!((own.ids.as_slice(), own.warning), (&[start, letter(b'a')][..], Some(PromptWarning::OwnBos)));
    assert!(own.warning.unwrap().to_string().contains("BOS"));
    // Typed by a user it is text, and BOS comes in front.
    let guarded = tokenizer.guard("<|im_start|>a").into_owned();
    let typed = prompt(&guarded, SpecialTokens::ParseUnguarded);
    assert_eq!(typed, prompt("<|im_start|>a", SpecialTokens::Ignore));
    assert_eq!((typed.ids[0], typed.ids.len(), typed.warning), (start, 14, None));
    // Not where the file does not want it.
    source.add_bos = Some(false);
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(tokenizer.encode_prompt("a", SpecialTokens::Parse).ids, [letter(b'a')]);
    let own = tokenizer.encode_prompt("<|im_start|>a", SpecialTokens::Parse);
    assert_eq!((own.ids.as_slice(), own.warning), (&[start, letter(b'a')][..], None));
}

#[test]
fn gemma_4_prompts_have_bos_whatever_the_file_says() {
    let mut source = support::vocabulary("ggml-vocab-gemma-4.gguf");
    source.add_bos = Some(false);
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(tokenizer.encode_prompt("", SpecialTokens::Parse).ids, [2]);
    assert_eq!(tokenizer.warnings(), [TokenizerWarning::BosNeeded]);
}

#[test]
fn wordpiece_ignores_case_and_accents_as_the_file_asks() {
    let mut source = support::vocabulary("ggml-vocab-bert-bge.gguf");
    let words = |source: &VocabSource, text: &str| {
        let tokenizer = Tokenizer::new(source).unwrap();
        self::text(&tokenizer, &tokenizer.encode(text, SpecialTokens::Ignore, true))
    };
    let naive = ["[CLS]", " naive", " cafe", "[SEP]"];
    assert_eq!(words(&source, "Naïve\tCAFÉ"), naive);
    assert_eq!(words(&source, "nai\u{308}ve\u{0} cafe\u{301}\u{200d}"), naive);
    assert_eq!(words(&source, "中文!"), ["[CLS]", " 中", " 文", " !", "[SEP]"]);
    // A word that the vocabulary cannot make up is unknown as a whole.
    assert_eq!(words(&source, "x 🦙y"), ["[CLS]", " x", "[UNK]", "[SEP]"]);
    // Hangul is decomposed, and no jamo is lost.
    assert_eq!(words(&source, "한")[1..4].concat().trim(), "\u{1112}\u{1161}\u{11ab}");
    source.lowercase = Some(false);
    assert_eq!(words(&source, "Cafe"), ["[CLS]", "[UNK]", "[SEP]"]);
    source.special.unk = None;
    source.token_types = None;
    source.tokens.truncate(100);
    let found = Tokenizer::new(&source).unwrap_err();
    assert!(matches!(found, TokenizerError::MissingKey { key: "tokenizer.ggml.unknown_token_id", .. }));
    source.special.unk = Some(0);
    source.tokens[1] = vec![b'a'; 513];
    let found = Tokenizer::new(&source).unwrap_err();
    assert!(matches!(found, TokenizerError::TokenTooLong { id: 1, bytes: 513, limit: 512 }), "{found}");
}

#[test]
fn harmony_answers_do_not_end_at_the_end_of_a_message() {
    let mut source = byte_level();
    let texts = ["<|end|>", "<|return|>", "<|call|>"];
    source.tokens.extend(texts.map(|text| text.as_bytes().to_vec()));
    source.token_types.as_mut().unwrap().extend([CONTROL; 3]);
    let tokenizer = Tokenizer::new(&source).unwrap();
    let ends = texts.map(|text| tokenizer.is_eog(tokenizer.find(text.as_bytes()).unwrap()));
    assert_eq!(ends, [false, true, true]);
}

#[test]
fn real_vocabularies_have_their_eog_tokens() {
    for (vocab, ends) in [
        ("ggml-vocab-llama-bpe.gguf", &["<|eot_id|>", "<|end_of_text|>"][..]),
        ("ggml-vocab-qwen2.gguf", &["<|im_end|>", "<|endoftext|>"]),
        ("ggml-vocab-llama-spm.gguf", &["</s>"]),
        ("ggml-vocab-gpt-2.gguf", &["<|endoftext|>"]),
        ("SmolLM2-135M-Instruct.vocab-only.gguf", &["<|im_end|>", "<|endoftext|>"]),
    ] {
        let tokenizer = Tokenizer::new(&support::vocabulary(vocab)).unwrap();
        for end in ends {
            let id = tokenizer.find(end.as_bytes()).unwrap();
            assert!(tokenizer.is_eog(id) && tokenizer.is_control(id), "{vocab} {end}");
        }
        assert!(tokenizer.is_eog(tokenizer.eos().unwrap()));
    }
}

#[test]
fn no_merge_and_no_byte_makes_a_control_token() {
    let mut source = byte_level();
    let abc = source.tokens.iter().position(|token| token == b"abc").unwrap();
    source.token_types.as_mut().unwrap()[abc] = CONTROL;
    let tokenizer = Tokenizer::new(&source).unwrap();
    assert_eq!(text(&tokenizer, &tokenizer.encode("abc", SpecialTokens::Ignore, false)), ["ab", "c"]);
    assert_eq!(tokenizer.encode("abc", SpecialTokens::Parse, false), [abc as u32]);
    let wrong = error(|source| source.token_types.as_mut().unwrap()[0] = CONTROL, byte_level());
    assert!(matches!(wrong, TokenizerError::ByteIsStructure { byte: b'!', id: 0 }), "{wrong}");
}
