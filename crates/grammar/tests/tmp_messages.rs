mod support;
use serde_json::json;
use support::*;
use verbatim_grammar::Grammar;
#[test]
fn keys() {
    let v = vocabulary(GPT2);
    for (schema, doc) in [
        (json!({"type":"object","properties":{"a":{"type":"integer"}}}), r#"{"\u0061": "x"}"#),
        (
            json!({"type":"object","properties":{"a":{"type":"integer"}}, "additionalProperties":{"type":"null"}}),
            r#"{"\u0061": null}"#,
        ),
        (json!({"type":"object","patternProperties":{"^a":{"type":"integer"}}}), r#"{"\u0061": "x"}"#),
        (json!({"type":"object"}), r#"{"\u0061": "x"}"#),
        (json!({"type":"object","properties":{"\n":{"type":"integer"}}}), r#"{"\u000a": "x"}"#),
        (
            json!({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}),
            r#"{"a": 1, "a": "x"}"#,
        ),
        (json!({"type":"object","properties":{"a":{"type":"integer"}}}), r#"{"b": "x", "a": "1"}"#),
        (
            json!({"type":"object","additionalProperties":{"type":"integer"},"minProperties":2}),
            r#"{"b": 1, "b": 1}"#,
        ),
    ] {
        let mut c = Grammar::JsonSchema(schema.clone()).compile(&v).unwrap().constraint();
        let ok = encode(&v, doc).iter().all(|t| c.accept(*t).is_ok()) && c.is_accepting();
        println!("{schema} {doc} accepted={ok}");
    }
}
