//! GBNF grammars have the language that their definition says: outputs are in it, and texts of it are allowed.

mod support;

use support::matcher::{generate, matches};
use support::{GPT2, LLAMA2, QWEN2, Random, SMOLLM, encode, finished, own_data, vocabulary};
use verbatim_grammar::gbnf::{self, Rules};
use verbatim_grammar::{Constraint, Grammar, GrammarError, Vocabulary};

const SEEDS: u64 = 20;
/// Of the grammars where the lexemes that are allowed together are least obvious.
const RECURSIVE_GRAMMARS: u64 = 300;

/// Names and texts of the grammars in `tests/data/gbnf`.
fn grammars() -> Vec<(String, String)> {
    let files = std::fs::read_dir(own_data("gbnf")).unwrap().map(|entry| entry.unwrap().path());
    let mut grammars: Vec<(String, String)> =
        files.map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap())).collect();
    grammars.sort();
    assert!(grammars.len() >= 20);
    grammars
}

fn constraint(text: &str, vocabulary: &Vocabulary) -> Constraint {
    let grammar = Grammar::Gbnf(text.to_owned()).compile(vocabulary);
    grammar.unwrap_or_else(|error| panic!("{error}\n{text}")).constraint()
}

#[test]
fn outputs_are_in_the_language() {
    let mut total = 0;
    let grammars = grammars();
    for (index, (name, text)) in grammars.iter().enumerate() {
        let vocabulary = vocabulary([SMOLLM, GPT2, LLAMA2][index % 3]);
        let rules = gbnf::parse(text).unwrap();
        let grammar = Grammar::Gbnf(text.clone()).compile(&vocabulary).unwrap();
        let finished = finished(&grammar, &vocabulary, SEEDS, |output| {
            assert!(matches(&rules, output), "{name}: {output:?}");
        });
        assert!(finished > 0, "{name}: no output of {SEEDS} is finished");
        total += finished;
    }
    assert!(total * 10 >= grammars.len() * SEEDS as usize * 7, "only {total} outputs are finished");
}

/// Checks that a text is allowed, in the tokenizer's tokens and character by character.
fn check_allowed(name: &str, constraint: &Constraint, vocabulary: &Vocabulary, text: &str) {
    let characters: Vec<u32> = text.chars().flat_map(|c| encode(vocabulary, &c.to_string())).collect();
    for tokens in [encode(vocabulary, text), characters] {
        if vocabulary.tokenizer().decode(&tokens, true) != text.as_bytes() {
            continue;
        }
        let mut constraint = constraint.clone();
        assert_eq!(constraint.validate(&tokens), tokens.len(), "{name}: {text:?}");
        for token in tokens {
            constraint.accept(token).unwrap_or_else(|error| panic!("{name}: {error} in {text:?}"));
        }
        assert!(constraint.is_accepting(), "{name}: {text:?}");
    }
}

#[test]
fn texts_of_the_language_are_allowed() {
    let vocabulary = vocabulary(GPT2);
    for (name, text) in grammars() {
        let rules = gbnf::parse(&text).unwrap();
        let constraint = constraint(&text, &vocabulary);
        for seed in 0..SEEDS {
            let output = generate(&rules, &mut Random(seed));
            assert!(matches(&rules, &output), "{name}: {output:?}");
            if output.len() < 400 {
                check_allowed(&name, &constraint, &vocabulary, &output);
            }
        }
    }
}

/// A random grammar over a few characters, where lexemes often collide.
fn random_grammar(random: &mut Random) -> String {
    let names = ["root", "one", "two", "three"];
    let mut text = String::new();
    for name in names {
        let alternatives: Vec<String> =
            (0..1 + random.below(3)).map(|_| random_sequence(random, &names, 2)).collect();
        text += &format!("{name} ::= {}\n", alternatives.join(" | "));
    }
    text
}

fn random_sequence(random: &mut Random, names: &[&str], depth: usize) -> String {
    let items: Vec<String> = (0..1 + random.below(3))
        .map(|_| {
            let item = match random.below(if depth == 0 { 6 } else { 9 }) {
                0 => "\"a\"".to_owned(),
                1 => "\"ab\"".to_owned(),
                2 => "\"ba\"".to_owned(),
                3 => "[ab]".to_owned(),
                4 => "\"é\"".to_owned(),
                5 => "[^a]".to_owned(),
                6 | 7 => (*random.choose(names)).to_owned(),
                _ => {
                    let left = random_sequence(random, names, depth - 1);
                    format!("({left} | {})", random_sequence(random, names, depth - 1))
                }
            };
            item + *random.choose(&["", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,2}"])
        })
        .collect();
    items.join(" ")
}

#[test]
fn random_grammars_have_their_language() {
    let vocabulary = vocabulary(GPT2);
    let (mut grammars, mut checked, mut allowed) = (0, 0, 0);
    for seed in 0..150 {
        let mut random = Random(seed);
        let text = random_grammar(&mut random);
        let Ok(grammar) = Grammar::Gbnf(text.clone()).compile(&vocabulary) else {
            // Rules that never end.
            continue;
        };
        grammars += 1;
        let rules = gbnf::parse(&text).unwrap();
        let start = grammar.constraint();
        for _ in 0..5 {
            let output = generate(&rules, &mut random);
            if output.len() < 60 {
                check_allowed(&text, &start, &vocabulary, &output);
                checked += 1;
            }
        }
        allowed += check_short_texts(&text, &rules, &start, &vocabulary);
    }
    assert!(grammars > 75 && checked > 150 && allowed > 150, "{grammars} {checked} {allowed}");
}

/// Checks, for all short texts, that they are allowed exactly if the definition says so; how many are.
fn check_short_texts(name: &str, rules: &Rules, start: &Constraint, vocabulary: &Vocabulary) -> usize {
    let texts =
        check_all_texts(rules, &mut start.clone(), vocabulary, &["a", "b", "é"], &mut String::new(), 4);
    texts.unwrap_or_else(|text| panic!("{text:?} in\n{name}"))
}

/// Compares a constraint with the definition, for all texts that continue `text` with up to `length` of the characters: how
/// many are allowed, or the first text where they differ.
fn check_all_texts(
    rules: &Rules,
    constraint: &mut Constraint,
    vocabulary: &Vocabulary,
    characters: &[&str],
    text: &mut String,
    length: usize,
) -> Result<usize, String> {
    let is_allowed = constraint.is_accepting();
    if is_allowed != matches(rules, text) {
        return Err(text.clone());
    }
    let mut allowed = usize::from(is_allowed);
    for character in characters.iter().take_while(|_| length > 0) {
        let tokens = encode(vocabulary, character);
        let before = text.len();
        *text += character;
        let accepted = tokens.iter().take_while(|token| constraint.accept(**token).is_ok()).count();
        if accepted == tokens.len() {
            allowed += check_all_texts(rules, constraint, vocabulary, characters, text, length - 1)?;
        } else if can_be_finished(rules, characters, text, length - 1) {
            return Err(text.clone());
        }
        constraint.rollback(accepted).unwrap();
        text.truncate(before);
    }
    Ok(allowed)
}

/// Whether up to `length` more of the characters make a text one of the language.
fn can_be_finished(rules: &Rules, characters: &[&str], text: &mut String, length: usize) -> bool {
    matches(rules, text)
        || length > 0
            && characters.iter().any(|character| {
                let before = text.len();
                *text += character;
                let can = can_be_finished(rules, characters, text, length - 1);
                text.truncate(before);
                can
            })
}

/// A random grammar whose rules use each other within, so that several lexemes remain, which match the same texts and are
/// followed by different ones.
fn recursive_grammar(random: &mut Random) -> String {
    let names = ["root", "one", "two", "three"];
    let lexemes = [
        "\"a\"",
        "\"b\"",
        "\"ab\"",
        "\"ba\"",
        "[ab]",
        "\"a\"+",
        "\"b\"+",
        "\"a\" [ab]",
        "\"ab\"+",
        "\"b\" \"a\"?",
    ];
    let mut text = String::new();
    for name in names {
        let mut alternatives = vec![(*random.choose(&lexemes)).to_owned()];
        for _ in 0..1 + random.below(3) {
            let mut around = || ["", *random.choose(&lexemes)][usize::from(random.chance(70))];
            let (before, after) = (around(), around());
            alternatives.push(format!("{before} {} {after}", random.choose(&names)));
        }
        text += &format!("{name} ::= {}\n", alternatives.join(" | "));
    }
    text
}

#[test]
fn random_recursive_grammars_have_their_language() {
    let vocabulary = vocabulary(GPT2);
    let mut allowed = 0;
    for seed in 0..RECURSIVE_GRAMMARS {
        let text = recursive_grammar(&mut Random(seed));
        let rules = gbnf::parse(&text).unwrap();
        let mut start = constraint(&text, &vocabulary);
        let checked = check_all_texts(&rules, &mut start, &vocabulary, &["a", "b"], &mut String::new(), 7);
        allowed += checked.unwrap_or_else(|output| panic!("seed {seed}: {output:?} in\n{text}"));
    }
    assert!(allowed as u64 > 10 * RECURSIVE_GRAMMARS, "only {allowed} texts are allowed");
}

#[test]
fn tokens_are_terminals() {
    let vocabulary = vocabulary(QWEN2);
    let tokenizer = vocabulary.tokenizer();
    let id = |text: &str| tokenizer.find(text.as_bytes()).unwrap();
    let (start, end) = (id("<|im_start|>"), id("<|im_end|>"));
    assert!(tokenizer.is_eog(end));
    let hello = encode(&vocabulary, "hello");

    let text = "root ::= <|im_start|> \"hello\"";
    let mut by_name = constraint(text, &vocabulary);
    assert_eq!(by_name.mask().unwrap().tokens().collect::<Vec<_>>(), [start]);
    by_name.accept(start).unwrap();
    assert_eq!(by_name.validate(&hello), hello.len());

    let by_id = format!("root ::= [a-z]* <[{start}]>");
    let mut by_id = constraint(&by_id, &vocabulary);
    for &token in hello.iter().chain([&start]) {
        assert!(by_id.mask().unwrap().allows(token));
        by_id.accept(token).unwrap();
    }
    assert!(by_id.is_accepting());

    // Also an ordinary token, by its id; and anything else, up to it.
    let word = encode(&vocabulary, "Hello")[0];
    let mut others = constraint(&format!("root ::= !<[{word}]>* <[{word}]> \"!\""), &vocabulary);
    for &token in hello.iter().chain([&start]) {
        assert!(others.mask().unwrap().allows(token));
        others.accept(token).unwrap();
    }
    assert!(others.mask().unwrap().allows(word));
    assert!(!others.mask().unwrap().allows(end), "it would end the output");
    others.accept(word).unwrap();
    assert_eq!(others.validate(&encode(&vocabulary, "!")), 1);
}

#[test]
fn errors_say_where_and_what_to_do() {
    let vocabulary = vocabulary(GPT2);
    for (text, line, column, words) in [
        ("", 1, 1, "empty"),
        ("# only a comment\n", 1, 1, "empty"),
        ("start ::= \"a\"", 1, 1, "no rule `root`"),
        ("root ::= item\n", 1, 10, "`item` is used but never defined"),
        ("root ::= \"a\"\nroot ::= \"b\"", 2, 1, "defined twice"),
        ("root = \"a\"", 1, 6, "expected `::=`"),
        ("root ::= \"a", 1, 10, "never closed"),
        ("root ::= [a-", 1, 10, "never closed"),
        ("root ::= (\"a\"\n", 1, 10, "never closed"),
        ("root ::= \"a\")", 1, 13, "closes nothing"),
        ("root ::= [z-a]", 1, 11, "swap its ends"),
        ("root ::= []", 1, 10, "matches no character"),
        ("root ::= [^\\x00-\\U0010FFFF]", 1, 10, "matches no character"),
        ("root ::= \"\\q\"", 1, 11, "unknown escape"),
        ("root ::= \"\\x4\"", 1, 11, "2 hexadecimal digits"),
        ("root ::= \"\\uD800\"", 1, 11, "not a character"),
        ("root ::= \"\\UFFFFFFFF\"", 1, 11, "not a character"),
        ("root ::= *", 1, 10, "nothing before it"),
        ("root ::= \"a\"{3,2}", 1, 17, "must not be below"),
        ("root ::= \"a\"{x}", 1, 14, "expected a number"),
        ("root ::= \"a\"{1,1000000000}", 1, 16, "too many"),
        ("root ::= \"a\"\n| \"b\"", 2, 1, "end of the line before"),
        ("root ::= <no such token>", 1, 10, "not one token"),
        ("root ::= \"x\" <[999999]>", 1, 14, "no token 999999"),
        ("root ::= <[x]>", 1, 10, "a number"),
        ("root ::= <|endoftext|>", 1, 10, "ends the output"),
        ("root ::= !\"a\"", 1, 11, "expected a token"),
        ("root ::= \"a\" root", 1, 1, "never ends"),
        ("root ::= \"a\" | loop\nloop ::= \"b\" loop | loop", 2, 1, "never ends"),
        ("root ::= ä", 1, 10, "expected a line end"),
    ] {
        let error = Grammar::Gbnf(text.to_owned()).compile(&vocabulary).unwrap_err();
        let message = error.to_string();
        let GrammarError::Gbnf { line: found_line, column: found_column, what } = error else {
            panic!("{text:?} gives {message}")
        };
        assert_eq!((found_line, found_column), (line, column), "{text:?}: {what}");
        assert!(what.contains(words), "{text:?}: {what}");
        assert!(message.starts_with(&format!("GBNF grammar, line {line}, column {column}: ")));
    }
}

#[test]
fn line_ends_continue_a_rule_in_groups_and_after_bars() {
    let text = "root ::= (\n  \"a\" # first\n  \"b\"\n  | \"c\"\n) tail\r\n\r\ntail ::= \"x\" |\n  # another\n  \"y\"\n";
    let rules = gbnf::parse(text).unwrap();
    for (output, is_match) in [("abx", true), ("cy", true), ("ab", false), ("acx", false)] {
        assert_eq!(matches(&rules, output), is_match, "{output}");
    }
}

#[test]
fn errors_name_rules_of_the_user() {
    let doubling: String = (0..60).map(|number| format!("r{number} ::= r{0} r{0}\n", number + 1)).collect();
    let text = format!("# doubling\nroot ::= r0\n{doubling}r60 ::= \"a\"");
    let error = Grammar::Gbnf(text).compile(&vocabulary(GPT2)).unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, GrammarError::TooComplex { .. }), "{message}");
    let (_, rule) = message.split_once("in the rule `r").unwrap();
    let (number, place) = rule.split_once('`').unwrap();
    let line = number.parse::<usize>().unwrap() + 3;
    assert!(place.starts_with(&format!(" (line {line}, column 1)")) && !message.contains('\n'), "{message}");
}

#[test]
fn texts_in_other_notations_get_a_hint() {
    for (text, hint) in [
        ("start: \"x\" | word\nword: /a+/", "%llguidance {}"),
        ("%import common.INT\nstart: INT", "%llguidance {}"),
        ("?start : \"x\"", "must begin with a line"),
        ("[0-9]{3}", "Grammar::Regex"),
        ("^a+$", "Grammar::Regex"),
        ("yes|no", "Grammar::Regex"),
        ("root ::= \"a", ""),
        ("root = \"a\"", ""),
        ("", ""),
    ] {
        let error = gbnf::parse(text).unwrap_err().to_string();
        assert!(
            error.contains(hint) && (!hint.is_empty() || !error.contains("if this is")),
            "{text}: {error}"
        );
    }
}
