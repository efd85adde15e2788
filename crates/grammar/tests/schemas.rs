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
