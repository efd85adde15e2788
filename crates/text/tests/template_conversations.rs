//! Chat templates of real models give, for some hundred conversations each, the text or the error that Python's jinja2 gives:
//! `tests/data/jinja/record.py` records them.

mod support;

use verbatim_text::{ChatTemplate, Clock, TemplateError};

#[test]
fn conversations_give_what_jinja2_gives() {
    let record = support::compressed_json("jinja/conversations.json.gz");
    let contexts = record["contexts"].as_array().unwrap();
    let (mut texts, mut errors) = (0, 0);
    for (name, results) in record["results"].as_object().unwrap() {
        let source = std::fs::read_to_string(support::data(&format!("templates/{name}.jinja"))).unwrap();
        let clock = Clock::Fixed(jiff::civil::date(2025, 2, 3).at(4, 5, 6, 0));
        let template = ChatTemplate::with_clock(&source, clock).unwrap();
        for (context, case) in contexts.iter().zip(results.as_array().unwrap()) {
            let result = template.render(context);
            match (case["text"].as_str(), &result) {
                (Some(expected), Ok(text)) if expected == text => texts += 1,
                (None, Err(TemplateError::Raised { message })) if case["message"] == message.as_str() => {
                    errors += 1
                }
                (None, Err(TemplateError::Render { .. })) if case["error"] != "TemplateError" => errors += 1,
                _ => panic!("{name}\n{context}\njinja2: {case}\nhere:   {result:?}"),
            }
        }
    }
    assert!(texts > 1000 && errors > 500, "{texts} texts and {errors} errors");
}
