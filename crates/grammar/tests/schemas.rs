//! Outputs under JSON schemas are valid, as another implementation says.

mod support;

use serde_json::{Value, json};
use support::{GPT2, SMOLLM, encode, finished, own_data, vocabulary};
use verbatim_grammar::{Grammar, GrammarError};

const SEEDS: u64 = 20;

fn schemas() -> Vec<(String, Value)> {
    let text = std::fs::read_to_string(own_data("schemas.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    cases
        .into_iter()
        .map(|case| (case["name"].as_str().unwrap().to_owned(), case["schema"].clone()))
        .collect()
}

#[test]
fn outputs_are_valid() {
    let schemas = schemas();
    assert!(schemas.len() >= 30);
    let mut total = 0;
    for (index, (name, schema)) in schemas.iter().enumerate() {
        let vocabulary = vocabulary([SMOLLM, GPT2][index % 2]);
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        let grammar = Grammar::JsonSchema(schema.clone()).compile(&vocabulary);
        let grammar = grammar.unwrap_or_else(|error| panic!("{name}: {error}"));
        let finished = finished(&grammar, &vocabulary, SEEDS, |output| {
            let value: Value = match serde_json::from_str(output) {
                Ok(value) => value,
                // Valid JSON, which this reader cannot represent: 1e999.
                Err(error) if error.to_string().contains("number out of range") => return,
                Err(error) => panic!("{name}: {error} in {output:?}"),
            };
            // Leap seconds: here they may come at any time, and there only at midnight.
            if output.contains(":60") {
                return;
            }
            let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{name}: {errors:?} in {output:?}");
        });
        assert!(finished > 0, "{name}: no output of {SEEDS} is finished");
        total += finished;
    }
    assert!(total * 10 >= schemas.len() * SEEDS as usize * 7, "only {total} outputs are finished");
}

fn accepts(schema: &Value, output: &str) -> bool {
    let vocabulary = vocabulary(GPT2);
    let mut constraint = Grammar::JsonSchema(schema.clone()).compile(&vocabulary).unwrap().constraint();
    let tokens = encode(&vocabulary, output);
    tokens.iter().all(|token| constraint.accept(*token).is_ok()) && constraint.is_accepting()
}

#[test]
fn typical_documents_are_accepted() {
    let call = &schemas().into_iter().find(|(name, _)| name == "weather call").unwrap().1;
    assert!(accepts(call, r#"{"name": "get_weather", "arguments": {"city": "Zürich", "unit": "celsius"}}"#));
    assert!(accepts(
        call,
        "{\n  \"name\": \"get_weather\",\n  \"arguments\": {\n    \"city\": \"Bern\"\n  }\n}"
    ));
    assert!(!accepts(call, r#"{"name": "get_time", "arguments": {"city": "Bern"}}"#));
    assert!(!accepts(call, r#"{"name": "get_weather", "arguments": {}}"#));
    assert!(!accepts(call, r#"{"name": "get_weather""#));
}

#[test]
fn whitespace_is_bounded() {
    let schema = json!({ "type": "array", "items": { "type": "integer" } });
    let blanks = |count: usize| format!("[{}1]", " ".repeat(count));
    assert!(accepts(&schema, &blanks(64)));
    assert!(!accepts(&schema, &blanks(65)));
    let compact = json!({ "type": "array", "x-guidance": { "whitespace_flexible": false } });
    assert!(accepts(&compact, "[1,2]"));
    assert!(!accepts(&compact, "[1, 2]"));
}

#[test]
fn descriptions_that_look_like_json_change_nothing() {
    let plain = json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"], "additionalProperties": false });
    let mut described = plain.clone();
    described["description"] = json!("{\"type\": \"string\"}");
    described["properties"]["a"]["description"] = json!("{\"$ref\": \"#/nowhere\"}");
    for (output, is_valid) in [("{\"a\": 1}", true), ("\"a\"", false), ("{\"a\": \"x\"}", false)] {
        assert_eq!(accepts(&plain, output), is_valid);
        assert_eq!(accepts(&described, output), is_valid);
    }
}

#[test]
fn what_cannot_be_enforced_is_an_error() {
    let vocabulary = vocabulary(GPT2);
    let overlapping = json!({ "oneOf": [{ "type": "object", "properties": { "a": { "type": "integer" } } }, { "type": "object", "properties": { "b": { "type": "integer" } } }] });
    for schema in [
        overlapping,
        json!({ "not": { "type": "string" } }),
        json!({ "type": "array", "uniqueItems": true }),
        json!({ "type": "string", "format": "no-such-format" }),
        json!({ "type": "no-such-type" }),
        json!({ "type": "string", "x-guidance": 1 }),
        json!({ "uniqueItems": true, "x-guidance": { "lenient": true } }),
        json!(["type", "string"]),
        json!("string"),
    ] {
        let error = Grammar::JsonSchema(schema.clone()).compile(&vocabulary);
        let Err(GrammarError::Schema { what }) = error else { panic!("{schema} gives {error:?}") };
        assert!(!what.is_empty() && !what.contains("non-verbose"), "{what}");
    }
    assert!(matches!(Grammar::json_schema("{\"type\": "), Err(GrammarError::Json(_))));
}

#[test]
fn contradictions_are_errors() {
    let vocabulary = vocabulary(GPT2);
    for schema in [
        json!(false),
        json!({ "type": "integer", "minimum": 3, "maximum": 2 }),
        json!({ "allOf": [{ "type": "string" }, { "type": "integer" }] }),
        json!({ "type": "object", "properties": { "a": false }, "required": ["a"] }),
        json!({ "type": "string", "minLength": 3, "maxLength": 2 }),
        json!({ "enum": [] }),
    ] {
        let error = Grammar::JsonSchema(schema.clone()).compile(&vocabulary).unwrap_err();
        assert!(matches!(error, GrammarError::Empty { .. }), "{schema}: {error}");
    }
}

#[test]
fn schemas_without_an_end_are_errors() {
    let vocabulary = vocabulary(GPT2);
    let node = |kind: Value, needs: Value| json!({ "type": kind, "properties": { "next": { "$ref": "#/$defs/node" } }, "required": needs });
    let list = |node: Value| json!({ "$ref": "#/$defs/node", "$defs": { "node": node } });
    let array = |least: usize| json!({ "type": "array", "items": { "$ref": "#" }, "minItems": least });
    let either = |other: Value| json!({ "anyOf": [{ "type": "array", "prefixItems": [{ "$ref": "#" }], "minItems": 1 }, other] });
    for (schema, is_endless) in [
        (list(node(json!("object"), json!(["next"]))), true),
        (list(node(json!("object"), json!([]))), false),
        (list(node(json!(["object", "null"]), json!(["next"]))), false),
        (list(json!({ "anyOf": [node(json!("object"), json!(["next"])), { "type": "null" }] })), false),
        (json!({ "type": "object", "properties": { "list": array(0) }, "required": ["list"] }), false),
        (
            json!({ "type": "object", "properties": { "a": { "type": "array", "items": { "$ref": "#" }, "minItems": 1 } }, "required": ["a"] }),
            true,
        ),
        (array(1), true),
        (array(0), false),
        (either(json!({ "type": "integer" })), false),
        (either(json!({ "$ref": "#" })), true),
        (json!({ "$ref": "#" }), true),
        (
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
            true,
        ),
    ] {
        match Grammar::JsonSchema(schema.clone()).compile(&vocabulary) {
            Ok(_) => assert!(!is_endless, "{schema} compiles"),
            Err(GrammarError::Empty { what, .. }) => {
                assert!(is_endless && what.contains("requires itself"), "{schema}: {what}");
            }
            Err(error) => panic!("{schema}: {error}"),
        }
    }
}

#[test]
fn depth_is_limited() {
    let vocabulary = vocabulary(GPT2);
    let nested = |levels: usize| format!("{}{{}}{}", "{\"items\":".repeat(levels), "}".repeat(levels));
    let text = |levels: usize| Grammar::json_schema(&nested(levels));
    let value = |levels: usize| {
        let value = (0..levels).fold(json!({}), |items, _| json!({ "items": items }));
        Grammar::JsonSchema(value).compile(&vocabulary)
    };
    assert!(text(126).is_ok() && value(126).is_ok());
    for error in
        [text(127).unwrap_err(), text(3000).unwrap_err(), value(128).unwrap_err(), value(3000).unwrap_err()]
    {
        assert!(matches!(error, GrammarError::TooDeep { max_depth: 128, .. }), "{error:?}");
        assert!(error.to_string().contains("nested more than 128 deep"), "{error}");
    }
}

#[test]
fn true_and_the_empty_schema_are_any_json() {
    for schema in [json!(true), json!({})] {
        for output in ["1", "\"x\"", "[null]", "{\"a\": [1.5e3]}"] {
            assert!(accepts(&schema, output), "{output}");
        }
        assert!(!accepts(&schema, "yes"));
    }
    assert!(!accepts(&json!({ "type": "object" }), "[]"));
}

/// Samples a schema and checks the outputs; how many are finished.
fn check_samples(schema: &Value, seeds: u64) -> usize {
    let vocabulary = vocabulary(GPT2);
    let grammar = Grammar::JsonSchema(schema.clone()).compile(&vocabulary);
    let grammar = grammar.unwrap_or_else(|error| panic!("{schema}: {error}"));
    let validator = jsonschema::validator_for(schema).unwrap();
    finished(&grammar, &vocabulary, seeds, |output| {
        let value: Value =
            serde_json::from_str(output).unwrap_or_else(|error| panic!("{error} in {output:?}"));
        assert!(validator.is_valid(&value), "{schema}: {output}");
    })
}

/// All ways to write an ASCII character in a JSON string.
fn spellings(c: char) -> Vec<String> {
    let short = "\u{8}\u{C}\n\r\t\"\\".chars().zip("bfnrt\"\\".chars()).find(|(from, _)| *from == c);
    let mut spellings: Vec<String> = short.iter().map(|(_, letter)| format!("\"\\{letter}\"")).collect();
    match c {
        '\0'..='\x1F' | '\x7F' => spellings.push(format!("\"\\u{:04x}\"", c as u32)),
        '"' | '\\' => {}
        _ => spellings.push(format!("\"{c}\"")),
    }
    spellings
}

#[test]
fn classes_of_patterns_hold_exactly() {
    let vocabulary = vocabulary(GPT2);
    for class in [
        r#"[^"]"#,
        r#"[^a"\\]"#,
        r#"[^\\]"#,
        r"[^a]",
        r"[^A]",
        r"[^\n]",
        r#"[^\n"]"#,
        ".",
        r"[\x00-\x1f]",
        r"[\x00-\x20]",
        r"\p{Cc}",
        r"\x01|[\x02-\x1f]|[\x00\x01]",
        r"[\x00-\x1f\\]",
        r#"[\x00-\x1f"]"#,
        r"[\x00-\x1e]",
        r"\s",
        r"\S",
        r"\w",
        r"\W",
        r"\d",
        r"\D",
        r"[\w-]",
        r"[^\w\s]",
        r"[ -~]",
        r"[\x7f]",
        r"(?:\x01|(\x02))",
    ] {
        let schema = json!({ "type": "string", "pattern": format!("^(?:{class})$") });
        let validator = jsonschema::validator_for(&schema).unwrap();
        let grammar = Grammar::JsonSchema(schema.clone()).compile(&vocabulary);
        let start = grammar.unwrap_or_else(|error| panic!("{class}: {error}")).constraint();
        for c in '\0'..='\x7F' {
            let is_valid = validator.is_valid(&json!(c.to_string()));
            for output in spellings(c) {
                let mut constraint = start.clone();
                let tokens = encode(&vocabulary, &output);
                let is_accepted =
                    tokens.iter().all(|token| constraint.accept(*token).is_ok()) && constraint.is_accepting();
                // U+0000 may be excluded.
                assert!(
                    is_accepted == is_valid || c == '\0' && !is_accepted,
                    "{class}: {output} {is_accepted}"
                );
            }
        }
    }
}

#[test]
fn strings_of_patterns_are_valid() {
    let mut total = 0;
    let patterns = [
        r#"^[^"]*$"#,
        r#"^[^a"\\]{1,9}$"#,
        "^.*$",
        ".",
        "^.{3,9}$",
        r"^[\x00-\x1f]{3}$",
        r"^\p{Cc}{1,5}$",
        r#"[^"]"#,
        r"^(\x01|[\x02-\x20])+$",
        r#"^([^"]|a)*$"#,
        r#"^"[^"]*"$"#,
        r"^(?:[\x00-\x0f]|[\x10-\x1f])x$",
        r"^\S+$",
    ];
    for pattern in patterns {
        total += check_samples(&json!({ "type": "string", "pattern": pattern }), SEEDS);
        total += check_samples(&json!({ "type": "string", "pattern": pattern, "minLength": 2 }), SEEDS / 4);
    }
    total += check_samples(
        &json!({ "allOf": [{ "pattern": r#"^[^"]*$"# }, { "pattern": r"^[^\\]*$" }], "type": "string" }),
        SEEDS,
    );
    total += check_samples(
        &json!({ "type": "object", "patternProperties": { r#"^[^"]{1,3}$"#: { "type": "null" } }, "additionalProperties": false }),
        SEEDS,
    );
    assert!(total * 2 > patterns.len() * SEEDS as usize, "only {total} outputs are finished");
}

#[test]
fn patterns_are_ecma_262() {
    let vocabulary = vocabulary(GPT2);
    for pattern in [
        "^+[a-z]$",
        "^*",
        "$?",
        r"\b+",
        "a**",
        "a+*",
        "a{2}{3}",
        "*a",
        "(?:+)",
        "a|*",
        "[[:cntrl:]]",
        r"\Aa",
        r"a\z",
        r"\x{41}",
        r"\pL",
        "(?i)a",
        "(",
        "[b-a]",
        r"\x00",
        "(?=a)b",
        r"(a)\1",
    ] {
        for schema in [
            json!({ "type": "string", "pattern": pattern }),
            json!({ "type": "array", "items": { "anyOf": [{ "type": "string", "pattern": pattern }] } }),
            json!({ "type": "object", "patternProperties": { pattern: {} }, "additionalProperties": false }),
        ] {
            let error = Grammar::JsonSchema(schema.clone()).compile(&vocabulary).unwrap_err().to_string();
            assert!(error.starts_with("JSON schema: `pattern") && error.len() < 400, "{schema}: {error}");
        }
    }
    let open = json!({ "type": "object", "patternProperties": { r#"^[^"]*$"#: { "type": "null" } } });
    let error = Grammar::JsonSchema(open).compile(&vocabulary).unwrap_err().to_string();
    assert!(error.contains("only with `\"additionalProperties\": false`"), "{error}");
}

#[test]
fn constants_are_not_schemas() {
    let pattern = json!({ "pattern": "^+[" });
    assert!(accepts(&json!({ "const": pattern }), &pattern.to_string()));
    assert!(accepts(&json!({ "enum": [pattern] }), &pattern.to_string()));
    let named = json!({ "type": "object", "properties": { "pattern": { "const": 1 }, "enum": { "type": "null" } }, "required": ["pattern"] });
    assert!(accepts(&named, "{\"pattern\": 1, \"enum\": null}"));
    assert!(accepts(&json!({ "$ref": "#/$defs/enum", "$defs": { "enum": { "const": 1 } } }), "1"));
    for target in ["#/enum/0", "#/properties/a/const", "#/%65num/0"] {
        let schema = json!({ "$ref": target, "enum": [{ "type": "string", "pattern": "^[^\"]$" }] });
        let error = Grammar::JsonSchema(schema).compile(&vocabulary(GPT2)).unwrap_err().to_string();
        assert!(error.contains("must lead to a schema"), "{error}");
    }
}

#[test]
fn numbers_are_exact_or_errors() {
    for text in [
        "{\"const\": 12345678901234567890123}",
        "{\"enum\": [1, 0.1234567890123456789012]}",
        "{\"minimum\": -1.00000000000000000001}",
    ] {
        let error = Grammar::json_schema(text).unwrap_err().to_string();
        assert!(error.contains("cannot be represented exactly"), "{error}");
    }
    for (schema, is_possible) in [
        (json!({ "const": 9_007_199_254_740_992_i64 }), true),
        (json!({ "const": 9_007_199_254_740_993_i64 }), false),
        (json!({ "enum": [[{ "a": 9_007_199_254_740_993_i64 }]] }), false),
        (json!({ "const": u64::MAX }), false),
        (json!({ "const": 1_u64 << 63 }), false),
        (json!({ "const": 10_000_000_000_000_000_000_u64 }), true),
        (json!({ "const": i64::MIN }), false),
        (json!({ "const": 1e22 }), true),
        (json!({ "const": -1.5e-7 }), true),
        (json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }), true),
        (json!({ "type": "integer", "minimum": i64::MIN }), false),
        (json!({ "type": "integer", "minimum": i64::MAX }), false),
        (json!({ "type": "integer", "maximum": u64::MAX }), false),
        (json!({ "type": "integer", "minimum": -9.3e18, "maximum": 9.3e18 }), false),
        (json!({ "type": "integer", "minimum": 9_007_199_254_740_993_i64 }), false),
        (json!({ "type": "integer", "minimum": 9_007_199_254_740_994_i64 }), true),
        (json!({ "type": "integer", "exclusiveMinimum": 9_007_199_254_740_994_i64 }), false),
        (
            json!({ "type": "integer", "minimum": -500_000_000_000_000_000_i64, "maximum": 500_000_000_000_000_000_i64 }),
            true,
        ),
        (json!({ "type": "number", "minimum": -500_000_000_000_000_000_i64 }), true),
        (json!({ "type": "number", "exclusiveMaximum": 9_007_199_254_740_991_i64 }), true),
        (json!({ "maximum": 999_999_999_999_999_872_i64 }), false),
        (json!({ "maximum": i64::MAX }), false),
        (json!({ "default": i64::MAX, "type": "null" }), true),
    ] {
        match Grammar::JsonSchema(schema.clone()).compile(&vocabulary(GPT2)) {
            Ok(_) => {
                assert!(is_possible, "{schema} compiles");
                check_samples(&schema, SEEDS);
            }
            Err(error) => assert!(!is_possible && error.to_string().contains("exact"), "{schema}: {error}"),
        }
    }
    assert!(accepts(&json!({ "const": 10_000_000_000_000_000_000_u64 }), "10000000000000000000"));
}

#[test]
fn options_that_let_out_what_is_not_json_are_errors() {
    for (option, value) in [
        ("whitespace_pattern", json!("[a-z]*")),
        ("item_separator", json!("")),
        ("key_separator", json!("XX")),
        ("json_allowed_escapes", json!("")),
        ("json_allow_general_unicode_escapes", json!(true)),
        ("lenient", json!(true)),
        ("coerce_one_of", json!(true)),
        ("whitespace_flexible", json!(1)),
    ] {
        let schema = json!({ "x-guidance": { option: value }, "type": "array" });
        let lark = Grammar::Lark(format!("%llguidance {{}}\nstart: \"x\"\n | %json {schema}"));
        for grammar in [Grammar::JsonSchema(schema), lark] {
            let error = grammar.compile(&vocabulary(GPT2)).unwrap_err().to_string();
            assert!(error.contains(&format!("`x-guidance.{option}`")), "{error}");
        }
    }
}

#[test]
fn errors_say_what_to_do() {
    let error = |schema: Value| Grammar::JsonSchema(schema).compile(&vocabulary(GPT2)).unwrap_err();
    let remote = error(
        json!({ "type": "object", "properties": { "a": { "$ref": "https://example.com/schema.json" } } }),
    )
    .to_string();
    assert!(remote.contains("https://example.com/schema.json") && remote.contains("`$defs`"), "{remote}");
    assert!(!remote.contains("retriever"), "{remote}");
    let values: Vec<String> = (0..100_000).map(|number| format!("value {number}")).collect();
    let large = error(json!({ "enum": values }));
    assert!(matches!(large, GrammarError::TooComplex { .. }), "{large}");
    assert!(Grammar::json_schema("\u{FEFF}{}").is_ok());
}

#[test]
fn named_keys_cannot_be_spelled_in_another_way() {
    for (schema, output) in [
        (json!({ "type": "object", "properties": { "a": { "type": "integer" } } }), r#"{"\u0061": "x"}"#),
        (json!({ "type": "object", "properties": { "\n": { "type": "integer" } } }), r#"{"\u000a": "x"}"#),
        (
            json!({ "type": "object", "patternProperties": { "^a": { "type": "integer" } } }),
            r#"{"\u0061": "x"}"#,
        ),
    ] {
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert!(!validator.is_valid(&serde_json::from_str(output).unwrap()));
        assert!(!accepts(&schema, output), "{schema}: {output}");
        assert!(accepts(&schema, r#"{"b": "\n\"\\"}"#), "{schema}");
    }
    let closed = json!({ "type": "object", "properties": { "a": { "const": "\u{1}" } }, "additionalProperties": false });
    assert!(accepts(&closed, r#"{"a": "\u0001"}"#));
    for value in [
        json!({ "const": ["\u{1}"] }),
        json!({ "type": "string", "pattern": r"a\x7f" }),
        json!({ "type": "string", "pattern": r"^[\x0e-\x1f]$" }),
    ] {
        assert!(Grammar::JsonSchema(value.clone()).compile(&vocabulary(GPT2)).is_ok(), "{value}");
        let open = json!({ "type": "object", "properties": { "a": value } });
        let error = Grammar::JsonSchema(open).compile(&vocabulary(GPT2)).unwrap_err().to_string();
        assert!(error.contains("`\"additionalProperties\": false`"), "{error}");
    }
}
