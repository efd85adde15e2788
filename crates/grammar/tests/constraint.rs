//! What a constraint promises about masks, rollback, drafts, forced and end tokens.

mod support;

use serde_json::json;
use support::{GPT2, LLAMA2, LLAMA3, QWEN2, Random, SMOLLM, encode, own_data, sample, vocabulary};
use verbatim_grammar::{Constraint, ConstraintError, Grammar, TokenMask, Vocabulary, VocabularyError};

fn gbnf(name: &str) -> Grammar {
    Grammar::Gbnf(std::fs::read_to_string(own_data(&format!("gbnf/{name}.gbnf"))).unwrap())
}

fn grammars() -> Vec<Grammar> {
    let schema = json!({
        "type": "object",
        "properties": { "first_name": { "type": "string" }, "numbers": { "type": "array", "items": { "type": "integer" } } },
        "required": ["first_name", "numbers"],
        "additionalProperties": false
    });
    vec![
        Grammar::JsonSchema(schema),
        Grammar::Regex(r"(?i)select [a-z]{1,9}( where [a-z]+ = \d+)?;".to_owned()),
        Grammar::Lark("start: \"[\" item (\",\" item)* \"]\"\nitem: /[0-9]+/ | start\n".to_owned()),
        gbnf("json"),
        gbnf("arithmetic"),
        gbnf("chess"),
    ]
}

/// Random allowed tokens, and the mask before each.
fn walk(constraint: &mut Constraint, random: &mut Random, steps: usize) -> (Vec<u32>, Vec<TokenMask>) {
    let (mut tokens, mut masks) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let mask = constraint.mask().unwrap().clone();
        let allowed: Vec<u32> = mask.tokens().collect();
        let token = *random.choose(&allowed);
        masks.push(mask);
        constraint.accept(token).unwrap();
        tokens.push(token);
        if constraint.is_stopped() {
            break;
        }
    }
    (tokens, masks)
}

#[test]
fn masks_after_rollback_are_those_before() {
    for name in [SMOLLM, LLAMA2] {
        let vocabulary = vocabulary(name);
        for grammar in grammars() {
            let compiled = grammar.compile(&vocabulary).unwrap();
            for seed in 0..5 {
                let mut random = Random(seed);
                let mut constraint = compiled.constraint();
                let (tokens, masks) = walk(&mut constraint, &mut random, 20);
                // Back and forth, with other tokens in between.
                let mut len = tokens.len();
                for _ in 0..15 {
                    let back = random.below(len + 1);
                    constraint.rollback(back).unwrap();
                    len -= back;
                    if let Some(mask) = masks.get(len) {
                        assert_eq!(constraint.mask().unwrap(), mask);
                    }
                    let (other, _) = walk(&mut constraint, &mut random, 3);
                    constraint.rollback(other.len()).unwrap();
                    let _ = constraint.forced_tokens();
                    for &token in &tokens[len..] {
                        assert_eq!(constraint.mask().unwrap(), &masks[len]);
                        constraint.accept(token).unwrap();
                        len += 1;
                    }
                }
            }
        }
    }
}

#[test]
fn masks_depend_on_accepted_tokens_only() {
    let vocabulary = vocabulary(SMOLLM);
    for grammar in grammars() {
        let compiled = grammar.compile(&vocabulary).unwrap();
        let (tokens, masks) = walk(&mut compiled.constraint(), &mut Random(7), 25);
        // Without asking for masks in between, and with questions of all kinds.
        let mut silent = compiled.constraint();
        let mut curious = compiled.constraint();
        for (token, mask) in tokens.iter().zip(&masks) {
            assert_eq!(silent.clone().mask().unwrap(), mask);
            let _ = (curious.forced_tokens(), curious.is_accepting(), curious.validate(&tokens));
            assert_eq!(curious.mask().unwrap(), mask);
            silent.accept(*token).unwrap();
            curious.accept(*token).unwrap();
        }
    }
}

#[test]
fn clones_share_nothing() {
    let vocabulary = vocabulary(SMOLLM);
    let mut constraint = gbnf("arithmetic").compile(&vocabulary).unwrap().constraint();
    let before = constraint.mask().unwrap().clone();
    let mut copy = constraint.clone();
    walk(&mut copy, &mut Random(1), 10);
    assert_eq!(constraint.mask().unwrap(), &before);
    let sent = std::thread::spawn(move || copy.mask().map(TokenMask::count).unwrap());
    assert!(sent.join().unwrap() > 0);
}

#[test]
fn validate_counts_legal_tokens() {
    for name in [SMOLLM, QWEN2] {
        let vocabulary = vocabulary(name);
        let end = vocabulary.ends()[0];
        for grammar in grammars() {
            let compiled = grammar.compile(&vocabulary).unwrap();
            let mut constraint = compiled.constraint();
            let (mut draft, _) = walk(&mut compiled.constraint(), &mut Random(3), 12);
            assert_eq!(constraint.validate(&draft), draft.len());
            let last = vocabulary.vocab_len() as u32;
            let middle = draft.len() / 2;
            draft.insert(middle, last + 5);
            assert_eq!(constraint.validate(&draft), middle);
            draft[middle] = end;
            assert!(constraint.validate(&draft) <= middle + 1);
            assert_eq!(constraint.validate(&[]), 0);
            // The constraint is where it was.
            assert_eq!(constraint.mask().unwrap(), compiled.constraint().mask().unwrap());
        }
    }
}

#[test]
fn end_tokens_are_allowed_exactly_at_the_end() {
    let vocabulary = vocabulary(QWEN2);
    assert!(vocabulary.ends().len() > 1);
    let mut constraint =
        Grammar::Gbnf("root ::= \"yes\" \"!\"?".to_owned()).compile(&vocabulary).unwrap().constraint();
    let (yes, mark) = (encode(&vocabulary, "yes"), encode(&vocabulary, "!"));
    let ends = vocabulary.ends().to_vec();
    assert!(matches!(constraint.accept(ends[0]), Err(ConstraintError::NotAllowed { .. })));
    assert_eq!(constraint.validate(&[yes[0], ends[1], yes[0]]), 2);
    constraint.accept(yes[0]).unwrap();
    for &end in &ends {
        assert!(constraint.mask().unwrap().allows(end));
        constraint.accept(end).unwrap();
        assert!(constraint.is_stopped() && constraint.is_accepting());
        assert_eq!(constraint.validate(&mark), 0);
        assert!(constraint.accept(mark[0]).is_err());
        assert_eq!(constraint.mask().unwrap().tokens().collect::<Vec<_>>(), ends);
        constraint.rollback(1).unwrap();
        assert!(!constraint.is_stopped());
    }
    constraint.accept(mark[0]).unwrap();
    assert!(constraint.is_stopped(), "nothing can follow");
    assert_eq!(constraint.mask().unwrap().tokens().collect::<Vec<_>>(), ends);
    assert_eq!(constraint.validate(&[ends[1]]), 1);
    assert!(constraint.forced_tokens().is_empty());
    constraint.rollback(2).unwrap();
    assert!(matches!(constraint.rollback(1), Err(ConstraintError::Rollback { tokens: 1, accepted: 0 })));
    assert!(constraint.mask().unwrap().allows(yes[0]));
}

#[test]
fn refused_tokens_change_nothing() {
    let vocabulary = vocabulary(GPT2);
    let mut constraint = gbnf("date").compile(&vocabulary).unwrap().constraint();
    let before = constraint.mask().unwrap().clone();
    let refused = encode(&vocabulary, "x")[0];
    for token in [refused, vocabulary.vocab_len() as u32, u32::MAX] {
        assert!(matches!(constraint.accept(token), Err(ConstraintError::NotAllowed { .. })));
    }
    assert_eq!(constraint.mask().unwrap(), &before);
}

#[test]
fn forced_tokens_are_what_the_masks_allow() {
    for name in [SMOLLM, LLAMA3] {
        let vocabulary = vocabulary(name);
        let mut forced_count = 0;
        for grammar in grammars() {
            let compiled = grammar.compile(&vocabulary).unwrap();
            for seed in 0..3 {
                let mut constraint = compiled.constraint();
                let mut random = Random(seed);
                for _ in 0..20 {
                    let forced = constraint.forced_tokens();
                    assert_eq!(constraint.validate(&forced), forced.len());
                    for token in &forced {
                        assert_eq!(constraint.mask().unwrap().tokens().collect::<Vec<_>>(), [*token]);
                        constraint.accept(*token).unwrap();
                    }
                    forced_count += forced.len();
                    if constraint.is_stopped() {
                        break;
                    }
                    let allowed: Vec<u32> = constraint.mask().unwrap().tokens().collect();
                    constraint.accept(*random.choose(&allowed)).unwrap();
                    if constraint.is_stopped() {
                        break;
                    }
                }
            }
        }
        assert!(forced_count > 10, "{name}: {forced_count}");
    }
}

#[test]
fn a_regex_matches_the_whole_output() {
    let vocabulary = vocabulary(SMOLLM);
    let allows = |regex: &str, output: &str| {
        let mut constraint = Grammar::Regex(regex.to_owned()).compile(&vocabulary).unwrap().constraint();
        let tokens = encode(&vocabulary, output);
        tokens.iter().all(|token| constraint.accept(*token).is_ok()) && constraint.is_accepting()
    };
    for regex in
        ["[a-z]+/\\d{2}", "^[a-z]+/\\d{2}$", "(?x) [a-z]+ / \\d{2} # comment\n", "(?i)[A-Z]+/[0-9][0-9]"]
    {
        assert!(allows(regex, "abc/42"), "{regex}");
        assert!(!allows(regex, "abc/4"), "{regex}");
        assert!(!allows(regex, "abc/421"), "{regex}");
    }
    assert!(allows("", "") && !allows("", "a"));
    assert!(allows("a*", "") && allows("a*", "aaa"));
    for regex in ["(", "a\\", "[z-a]", "(?=a)b", "\\bword\\b", "(?P<stop>a)b", "a{2,1}"] {
        assert!(Grammar::Regex(regex.to_owned()).compile(&vocabulary).is_err(), "{regex}");
    }
}

#[test]
fn outputs_finish_under_every_vocabulary() {
    for name in [SMOLLM, GPT2, QWEN2, LLAMA2, LLAMA3] {
        let vocabulary = vocabulary(name);
        for grammar in [gbnf("date"), gbnf("json")] {
            let compiled = grammar.compile(&vocabulary).unwrap();
            let finished =
                (0..3).filter_map(|seed| sample(&mut compiled.constraint(), &vocabulary, seed, 10, 200));
            assert!(finished.count() > 0, "{name}");
        }
    }
}

#[test]
fn vocabularies_without_end_tokens_are_refused() {
    let mut source = support::source(GPT2);
    source.special.eos = None;
    source.tokens[50256] = b"no-such-token".to_vec();
    let tokenizer = verbatim_text::Tokenizer::new(&source).unwrap();
    assert!(matches!(Vocabulary::new(tokenizer.into()), Err(VocabularyError::NoEndToken)));
}

#[test]
fn types_can_be_shared() {
    fn check<T: Send + Sync>() {}
    check::<Vocabulary>();
    check::<verbatim_grammar::CompiledGrammar>();
    check::<Constraint>();
    check::<TokenMask>();
}
