//! Expressions and small templates give what Python's jinja2 gives: `tests/data/jinja/record.py` records it.

mod support;

use serde_json::Value;
use verbatim_text::{ChatTemplate, Clock, TemplateError};

/// What jinja2 does and this engine rejects, by the beginning of how its error names it, and how many cases of the table are so.
const REJECTED: &[(&str, usize)] = &[
    ("printing a value of type", 14),
    ("printing a macro", 1),
    ("the attribute `name` of a macro", 1),
    ("complex numbers", 3),
    ("a power of floats with a fraction", 3),
    ("the variable `self`", 2),
    ("\\N{...} in a string", 2),
    ("the method `casefold` of a string with characters outside of ASCII", 1),
    ("the tag `autoescape`", 1),
];

fn render(source: &str, context: &Value) -> Result<String, TemplateError> {
    let clock = Clock::Fixed(jiff::civil::date(2025, 2, 3).at(4, 5, 6, 0));
    ChatTemplate::with_clock(source, clock)?.render(context)
}

#[test]
fn expressions_and_programs_give_what_jinja2_gives() {
    let table = support::compressed_json("jinja/expressions.json.gz");
    let cases = table["cases"].as_array().unwrap();
    let mut differences = Vec::new();
    let mut rejected = vec![0; REJECTED.len()];
    for case in cases {
        let source = case["source"].as_str().unwrap();
        let result = render(source, &table["context"]);
        let is_same = match (case["text"].as_str(), &result) {
            (Some(expected), Ok(text)) => text == expected,
            (Some(_), Err(TemplateError::Unsupported { what, .. })) => {
                let index = REJECTED.iter().position(|(name, _)| what.starts_with(name));
                index.into_iter().for_each(|index| rejected[index] += 1);
                index.is_some()
            }
            (None, Err(TemplateError::Raised { message })) => case["message"].as_str() == Some(message),
            (None, Err(_)) => case["error"] != "TemplateError",
            _ => false,
        };
        if !is_same {
            differences.push(format!(
                "{source}\n  jinja2: {}\n  here:   {result:?}",
                case["text"].as_str().map_or_else(
                    || format!("{} {}", case["error"], case["message"]),
                    |text| format!("{text:?}")
                )
            ));
        }
    }
    assert!(differences.is_empty(), "{} differ:\n{}", differences.len(), differences.join("\n"));
    let expected: Vec<usize> = REJECTED.iter().map(|(_, count)| *count).collect();
    assert_eq!(rejected, expected, "how often each is rejected");
    assert!(cases.len() > 13_000);
}
