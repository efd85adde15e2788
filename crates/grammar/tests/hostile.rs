//! Hostile grammars give an error or work, in bounded time and memory.

mod support;

use serde_json::{Value, json};
use std::sync::mpsc;
use std::time::Duration;
use support::{GPT2, vocabulary};
use verbatim_grammar::Grammar;

/// Far more than anything here takes, on any machine.
const TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Outcome {
    Error,
    Works,
    Either,
}
use Outcome::{Either, Error, Works};

/// Compiles a grammar on a thread with an ordinary stack and follows it for some tokens.
fn check(name: &str, grammar: Grammar, expected: Outcome) {
    let vocabulary = vocabulary(GPT2);
    let (sender, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let outcome = match grammar.compile(&vocabulary) {
            Err(error) => {
                let message = error.to_string();
                assert!(message.len() < 2000, "{message}");
                (Error, message)
            }
            Ok(compiled) => {
                let mut constraint = compiled.constraint();
                for _ in 0..20 {
                    let Ok(mask) = constraint.mask() else { break };
                    let Some(token) = mask.tokens().next() else { break };
                    if constraint.accept(token).is_err() || constraint.is_stopped() {
                        break;
                    }
                }
                (Works, String::new())
            }
        };
        sender.send(outcome).unwrap();
    });
    let (outcome, message) =
        receiver.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{name} did not return"));
    thread.join().unwrap();
    assert!(expected == Either || outcome == expected, "{name}: {outcome:?} {message}");
}

fn gbnf(name: &str, text: String, expected: Outcome) {
    check(name, Grammar::Gbnf(text), expected);
}

#[test]
fn gbnf_grammars() {
    gbnf("nested groups", format!("root ::= {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000)), Error);
    gbnf("open groups", format!("root ::= {}", "(".repeat(60_000)), Error);
    gbnf("huge bound", "root ::= \"a\"{1,1000000000}".to_owned(), Error);
    gbnf("nested bounds", "root ::= (((\"a\"{2000}){2000}){2000}){2000}".to_owned(), Either);
    gbnf(
        "nested ranges",
        "root ::= (((\"a\"{0,2000}){0,2000}){0,2000}){0,2000} | \"(\" root \")\"".to_owned(),
        Either,
    );
    gbnf("operators", format!("root ::= \"a\"{}", "*".repeat(100_000)), Error);
    let words: Vec<String> = (0..20_000).map(|number| format!("\"word{number}\"")).collect();
    gbnf("alternation", format!("root ::= {}", words.join(" | ")), Either);
    gbnf("recursive alternation", format!("root ::= {} | \"(\" root \")\"", words.join(" | ")), Either);
    gbnf("long string", format!("root ::= \"{}\"", "x".repeat(100 << 20)), Error);
    gbnf("rather long string", format!("root ::= \"{}\"", "xy".repeat(1 << 20)), Either);
    gbnf(
        "long recursive string",
        format!("root ::= \"{}\" | \"(\" root \")\"", "xy".repeat(1 << 17)),
        Either,
    );
    let chain: String = (0..4000).map(|number| format!("r{number} ::= r{}\n", number + 1)).collect();
    gbnf("chain", format!("root ::= r0\n{chain}r4000 ::= \"a\""), Either);
    gbnf("recursive chain", format!("root ::= r0\n{chain}r4000 ::= \"a\" root \"b\" | \"c\""), Either);
    let doubling: String = (0..60).map(|number| format!("r{number} ::= r{0} r{0}\n", number + 1)).collect();
    gbnf("doubling", format!("root ::= r0\n{doubling}r60 ::= \"a\""), Either);
    gbnf("nullable doubling", format!("root ::= r0\n{doubling}r60 ::= \"a\"?"), Either);
    gbnf(
        "recursive doubling",
        format!("root ::= r0 | \"(\" root \")\"\n{doubling}r60 ::= [ab]? \"a\"?"),
        Either,
    );
    gbnf("too many rules", (0..9000).map(|number| format!("r{number} ::= \"a\"\n")).collect(), Error);
    gbnf("loops", "root ::= a | \"x\"\na ::= b | \"y\"\nb ::= a | root".to_owned(), Works);
    gbnf("empty loops", "root ::= (\"\"* | root* | (root?)+)* \"x\"?".to_owned(), Either);
    gbnf("ambiguous", "root ::= root root | \"a\" | \"aa\" | \"\"".to_owned(), Either);
    gbnf("control characters", "root ::= \"\\x00\\x01\u{7F}\" [\\x00-\\x1F]".to_owned(), Either);
    gbnf("not a character", "root ::= \"\\xff\\uDFFF\"".to_owned(), Error);
    gbnf("binary", "\u{0}\u{1}\u{FFFD}".to_owned(), Error);
}

#[test]
fn regexes() {
    let regex = |name: &str, text: String, expected| check(name, Grammar::Regex(text), expected);
    regex("repeated anchor", "^+[a-z]$".to_owned(), Either);
    regex("anchors", "^^^*$+".to_owned(), Either);
    regex("nested groups", format!("{}a{}", "(".repeat(60_000), ")".repeat(60_000)), Error);
    regex("huge bound", "a{1,1000000000}".to_owned(), Either);
    regex("nested bounds", "(((a{1000}){1000}){1000}){1000}".to_owned(), Either);
    regex("nested ranges", "((((a|b){0,1000}){0,1000}c?){0,1000}){0,1000}".to_owned(), Either);
    regex("nested stars", format!("{}a{}", "(".repeat(60), "*)".repeat(60)), Works);
    regex("exponential", "(a|b)*a(a|b){40}c".to_owned(), Either);
    regex("long", "x".repeat(100 << 20), Error);
    regex("classes", "\\w".repeat(20_000), Either);
    regex(
        "alternation",
        (0..20_000).map(|number| format!("w{number}")).collect::<Vec<_>>().join("|"),
        Either,
    );
    regex("nothing", "[^\\x00-\\x{10FFFF}]".to_owned(), Error);
    regex("invalid UTF-8", "(?-u)\\xFF".to_owned(), Error);
}

#[test]
fn lark_grammars() {
    let lark = |name: &str, text: String, expected| check(name, Grammar::Lark(text), expected);
    lark("empty", String::new(), Error);
    lark("nested groups", format!("start: {}\"a\"{}", "(".repeat(60_000), ")".repeat(60_000)), Error);
    lark("unknown rule", "start: nothing".to_owned(), Error);
    lark("no end", "start: start \"a\"".to_owned(), Error);
    lark("huge bound", "start: \"a\"{1,1000000000}".to_owned(), Either);
    lark("long string", format!("start: \"{}\"", "x".repeat(100 << 20)), Error);
    let chain: String = (0..4990).map(|number| format!("r{number}: r{}\n", number + 1)).collect();
    lark("chain", format!("start: r0\n{chain}r4990: \"a\""), Either);
    let chain: String = (0..4990).map(|number| format!("R{number}: R{} \"b\"\n", number + 1)).collect();
    lark("terminal chain", format!("start: R0\n{chain}R4990: \"a\""), Either);
    lark("blank lines", "\n".repeat(20_000) + "start: \"a\"", Works);
    let chain: String =
        (0..4000).map(|number| format!("A{number}: A{0} | A{0} \"x\"\n", number + 1)).collect();
    lark("forked chain", format!("start: A0\n{chain}A4000: \"a\""), Error);
    let chain: String =
        (0..3000).map(|number| format!("a{number}: a{0} | a{0} \"x\"\n", number + 1)).collect();
    lark("forked rules", format!("start: a0\n{chain}a3000: \"a\""), Either);
    let words: Vec<String> = (0..200_000).map(|number| format!("\"k{number}\"")).collect();
    lark("alternatives", format!("start: {}", words.join("|")), Error);
    lark("some alternatives", format!("start: {}", words[..5000].join("|")), Works);
    lark("groups", format!("start: {}", "(\"a\"|\"b\" start)".repeat(100_000)), Error);
    lark("open string", "start: \"a".to_owned(), Error);
    lark("open expression", "start: /a".to_owned(), Error);
    lark("open token", "start: <a".to_owned(), Error);
    lark("open schema", "start: %json {\"a\": ".to_owned(), Error);
    lark("no schema", "start: %json".to_owned(), Error);
    lark("no object", "start: %json é".to_owned(), Error);
    lark("nested schema", format!("start: %json {}1{}", "[".repeat(3000), "]".repeat(3000)), Error);
    lark("not JSON", "start: %json {\"type\": }".to_owned(), Error);
}

fn nested(levels: usize) -> Value {
    (0..levels).fold(json!({ "type": "integer" }), |items, _| json!({ "type": "array", "items": items }))
}

#[test]
fn schemas() {
    let schema = |name: &str, schema: Value, expected| check(name, Grammar::JsonSchema(schema), expected);
    schema("nested arrays", nested(3000), Error);
    schema("some nested arrays", nested(100), Works);
    schema("long string", json!({ "const": "x".repeat(100 << 20) }), Error);
    schema("rather long string", json!({ "const": "xy".repeat(1 << 20) }), Either);
    schema("long description", json!({ "description": "{".repeat(1 << 20) }), Works);
    schema("itself", json!({ "$ref": "#" }), Either);
    schema(
        "a ring",
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        Either,
    );
    schema(
        "no end",
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        Either,
    );
    schema("recursive allOf", json!({ "allOf": [{ "$ref": "#" }, { "type": "object" }] }), Either);
    schema("recursive anyOf", json!({ "anyOf": [{ "$ref": "#" }, { "type": "null" }] }), Either);
    schema("remote", json!({ "$ref": "https://example.com/schema.json" }), Error);
    schema("file", json!({ "$ref": "file:///etc/passwd" }), Error);
    schema("missing", json!({ "$ref": "#/$defs/missing" }), Error);
    schema(
        "huge string",
        json!({ "type": "string", "minLength": 1_000_000_000, "maxLength": 2_000_000_000 }),
        Either,
    );
    schema(
        "huge array",
        json!({ "type": "array", "items": { "type": "integer" }, "minItems": 1_000_000_000 }),
        Either,
    );
    schema(
        "bounded array",
        json!({ "type": "array", "items": { "type": "integer" }, "maxItems": 1_000_000 }),
        Either,
    );
    schema("huge numbers", json!({ "type": "integer", "minimum": -1e300, "maximum": 1e300 }), Error);
    schema("tiny multiple", json!({ "type": "number", "multipleOf": 1e-300 }), Either);
    schema("odd multiple", json!({ "type": "integer", "multipleOf": 999_983 }), Error);
    schema("odd decimal multiple", json!({ "type": "number", "multipleOf": 0.123457 }), Error);
    schema("int64", json!({ "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX }), Either);
    schema("anchors", json!({ "type": "string", "pattern": "^+[a-z]$" }), Error);
    schema("pattern", json!({ "type": "string", "pattern": "(".repeat(60_000) }), Error);
    schema("exponential pattern", json!({ "type": "string", "pattern": "^(a|b)*a(a|b){40}c$" }), Either);
    schema("huge property count", json!({ "type": "object", "minProperties": 1_000_000_000 }), Either);
    let values: Vec<String> = (0..20_000).map(|number| format!("value {number}")).collect();
    schema("enumeration", json!({ "enum": values }), Either);
    let branch = |number: usize| json!({ "type": "object", "properties": { format!("p{number}"): { "type": "integer" } } });
    schema("alternatives", json!({ "anyOf": (0..2000).map(branch).collect::<Vec<_>>() }), Either);
    schema("merged", json!({ "allOf": (0..2000).map(branch).collect::<Vec<_>>() }), Either);
    let pairs = (0..12).fold(json!({ "type": "integer" }), |inner, _| json!({ "allOf": [{ "anyOf": [inner.clone(), { "type": "null" }] }, { "anyOf": [inner, { "type": "string" }] }] }));
    schema("products", pairs, Either);
    let properties: serde_json::Map<String, Value> =
        (0..5000).map(|number| (format!("p{number}"), json!({ "type": "integer" }))).collect();
    schema("properties", json!({ "type": "object", "properties": properties }), Either);
    let text = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(Grammar::json_schema(&text).is_err());
}

#[test]
fn lark_errors_are_short_and_say_where() {
    let vocabulary = vocabulary(GPT2);
    for (text, line, words) in [
        ("start: <|endoftext|> \"x\"".to_owned(), 1, "ends the output"),
        ("start: \"x\"\n | <[50000-60000]>".to_owned(), 2, "ends the output"),
        ("# <|endoftext|>\nstart: nothing".to_owned(), 2, "unknown name: \"nothing\""),
        (format!("start: /{}a/", "(".repeat(5000)), 1, "invalid regex"),
        (format!("start: nothing {}", "\"x\"".repeat(5000)), 1, "unknown name"),
        ("start: a b\na: %json {\n \"type\": \"object\"\n}\nb: nothing".to_owned(), 5, "unknown name"),
        ("start: %json {\"pattern\": \"^+\"}".to_owned(), 1, "ECMA 262"),
        ("start: %json {\"const\": 12345678901234567890123}".to_owned(), 1, "exactly"),
        (
            "start: %json {\"not\": {}, \"x-guidance\": {\"lenient\": true}}".to_owned(),
            1,
            "`x-guidance.lenient`",
        ),
    ] {
        let message = Grammar::Lark(text).compile(&vocabulary).unwrap_err().to_string();
        assert!(message.starts_with(&format!("Lark grammar: line {line}: ")), "{message}");
        assert!(message.contains(words) && message.len() < 700, "{message}");
    }
    for text in [
        "\u{FEFF}%llguidance {}\nstart: \"x\"",
        "start: \"<|endoftext|>\" /<|endoftext|>/ <[^50256]>* // <|endoftext|>",
        "start: \"%json {\" /%json \\{/ # %json {",
        "start: %json {\"type\": \"object\"} \"x\"",
    ] {
        Grammar::Lark(text.to_owned()).compile(&vocabulary).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}
