//! Chat templates of real models, cut and spliced at random, over random conversations: each gives a text or an error with
//! its line, in little time and memory.
//!
//! The cases are the same in every run. `PROPTEST_CASES=1000000 PROPTEST_RNG_SEED=2` searches on.

#[path = "../../gguf/tests/common/measured.rs"]
mod measured;
mod support;

use measured::measured;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use verbatim_text::{ChatTemplate, Clock, TemplateError};

/// Far above what any case takes on a busy machine, far below a hang.
const TIME_MAX: Duration = Duration::from_secs(10);
/// A rendering has fuel for 128 MB of text.
const PEAK_BYTES_MAX: isize = 512 << 20;

static TEMPLATES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let folder = std::fs::read_dir(support::data("templates")).unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|kind| kind == "jinja")).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect()
});

/// What templates are made of, and what has broken template engines before.
const SNIPPETS: &[&str] = &[
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "#}",
    "{%- ",
    " -%}",
    "{% raw %}",
    "{% endraw %}",
    "{% if true %}",
    "{% elif x %}",
    "{% else %}",
    "{% endif %}",
    "{% for message in messages %}",
    "{% for i in range(99999) %}",
    "{% for a, b in messages %}",
    "{% for x in messages recursive %}{{ loop(messages) }}",
    "{% endfor %}",
    "{% break %}",
    "{% continue %}",
    "{% set ns = namespace(x=[]) %}",
    "{% set ns.x = [ns.x, ns.x] %}",
    "{% set x = x ~ x %}",
    "{% set messages = messages + messages %}",
    "{% macro m(a) %}",
    "{% endmacro %}",
    "{{ m(messages) }}",
    "{% generation %}",
    "{% endgeneration %}",
    "{% filter upper %}",
    "{% endfilter %}",
    "{% include 'x' %}",
    "{% block x %}{% endblock %}",
    "{{ raise_exception('no') }}",
    "{{ strftime_now('%Y-%q') }}",
    "{{ 'ab' * 1000000000 }}",
    "{{ [0] * 1000000000 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ -9223372036854775808 // -1 }}",
    "{{ 1 // 0 }}",
    "{{ 1 % 0 }}",
    "{{ messages[-1]['content'][::-1] }}",
    "{{ messages[9223372036854775807] }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x' | indent(1000000000) }}",
    "{{ ''.join(messages) }}",
    "{{ 'aaaa'.replace('', messages | string) }}",
    "{{ messages | map(attribute='content') | list }}",
    "{{ messages | batch(0) }}",
    "{{ messages | slice(0) }}",
    "{{ loop.cycle() }}",
    "{{ caller() }}",
    "{{ self }}",
    ".content",
    "['content']",
    "|trim",
    "|length",
    "| selectattr('role', 'equalto', 'user') | list",
    " is defined and ",
    " not in ",
    " or ",
    "'",
    "\"",
    "\\",
    "\\u{41}",
    "(",
    ")",
    "[",
    "]",
    "0x",
    "1e999",
    "99999999999999999999",
    "\n",
    "\r\n",
    "\t",
    "\0",
    "é",
    "🙂",
];

/// A change of a template. Places are parts of its length in 65536ths.
#[derive(Debug, Clone)]
enum Change {
    Remove { at: u16, len: usize },
    Repeat { at: u16, len: usize, times: usize },
    Move { at: u16, len: usize, to: u16 },
    Insert { at: u16, snippet: &'static str },
    Splice { at: u16, other: prop::sample::Index, from: u16, len: usize },
    Replace { at: u16, with: char },
}

fn change() -> impl Strategy<Value = Change> {
    let (at, len) = (any::<u16>, || prop_oneof![1..12usize, 1..400usize]);
    prop_oneof![
        2 => (at(), len()).prop_map(|(at, len)| Change::Remove { at, len }),
        1 => (at(), len(), 1..40usize).prop_map(|(at, len, times)| Change::Repeat { at, len, times }),
        1 => (at(), len(), at()).prop_map(|(at, len, to)| Change::Move { at, len, to }),
        4 => (at(), prop::sample::select(SNIPPETS)).prop_map(|(at, snippet)| Change::Insert { at, snippet }),
        2 => (at(), any::<prop::sample::Index>(), at(), len())
            .prop_map(|(at, other, from, len)| Change::Splice { at, other, from, len }),
        1 => (at(), any::<char>()).prop_map(|(at, with)| Change::Replace { at, with }),
    ]
}

/// The byte that is so far into a text, moved to a whole character.
fn place(text: &str, at: u16) -> usize {
    text.floor_char_boundary(text.len() * usize::from(at) / 65536)
}

fn part(text: &str, at: u16, len: usize) -> std::ops::Range<usize> {
    let start = place(text, at);
    start..text.ceil_char_boundary(start + len)
}

impl Change {
    fn apply(&self, text: &mut String) {
        match self {
            Change::Remove { at, len } => text.replace_range(part(text, *at, *len), ""),
            Change::Repeat { at, len, times } => {
                let range = part(text, *at, *len);
                let repeated = text[range.clone()].repeat(*times);
                text.insert_str(range.end, &repeated);
            }
            Change::Move { at, len, to } => {
                let range = part(text, *at, *len);
                let moved = text[range.clone()].to_owned();
                text.replace_range(range, "");
                text.insert_str(place(text, *to), &moved);
            }
            Change::Insert { at, snippet } => text.insert_str(place(text, *at), snippet),
            Change::Splice { at, other, from, len } => {
                let other: &String = other.get(&TEMPLATES);
                let spliced = other[part(other, *from, *len)].to_owned();
                text.insert_str(place(text, *at), &spliced);
            }
            Change::Replace { at, with } => {
                text.replace_range(part(text, *at, 1), with.encode_utf8(&mut [0; 4]));
            }
        }
    }
}

fn content() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        "[ -~\n]{0,40}",
        "\\PC{0,40}",
        Just("<|im_end|>".to_owned()),
        Just("{{ 7 * 7 }}{% endfor %}".to_owned()),
        Just("<think>so</think> then".to_owned()),
        (1..4000usize).prop_map(|len| "long ".repeat(len)),
    ];
    let part = text.clone().prop_map(|text| json!({ "type": "text", "text": text }));
    prop_oneof![
        6 => text.prop_map(Value::from),
        1 => prop::collection::vec(part, 0..3).prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
    ]
}

fn message() -> impl Strategy<Value = Value> {
    let role = prop_oneof![
        8 => prop::sample::select(vec!["system", "user", "assistant", "tool", "developer", "ipython"]),
        1 => Just(""),
    ];
    let arguments = prop_oneof![Just(json!("{\"a\": [1]}")), Just(json!("{")), content()];
    (role, content(), prop::option::weighted(0.2, arguments), any::<bool>()).prop_map(
        |(role, content, arguments, has_role)| {
            let mut message = json!({ "content": content });
            if has_role || role != "user" {
                message["role"] = role.into();
            }
            if let Some(arguments) = arguments {
                let function = json!({ "name": "look_up", "arguments": arguments });
                message["tool_calls"] =
                    json!([{ "id": "abcdefghi", "type": "function", "function": function }]);
            }
            message
        },
    )
}

fn context() -> impl Strategy<Value = Value> {
    let tool = json!({ "type": "function", "function": {
        "name": "look_up", "description": "Looks up.",
        "parameters": { "type": "object", "properties": { "a": { "type": ["string", "null"] } } },
    } });
    let tools = prop_oneof![
        3 => Just(Value::Null),
        2 => Just(json!([tool])),
        1 => Just(json!([])),
        1 => content(),
    ];
    (prop::collection::vec(message(), 0..8), tools, any::<[bool; 2]>()).prop_map(
        |(messages, tools, [generate, thinking])| {
            json!({
                "messages": messages, "tools": tools, "add_generation_prompt": generate,
                "enable_thinking": thinking, "bos_token": "<s>", "eos_token": "</s>",
            })
        },
    )
}

fn rendered(source: &str, context: &Value) -> Result<String, TemplateError> {
    let clock = Clock::Fixed(jiff::civil::date(2025, 2, 3).at(4, 5, 6, 0));
    let template = ChatTemplate::with_clock(source, clock)?;
    let text = template.render(context);
    assert_eq!(text, template.render(context), "a template that gives now this, now that");
    text
}

/// Renders within bounds on time and memory, and looks at the error if there is one.
fn check(source: &str, context: &Value) -> Result<String, TemplateError> {
    let start = Instant::now();
    let (result, peak_bytes) = measured(|| rendered(source, context));
    assert!(start.elapsed() < TIME_MAX, "it took {:?}", start.elapsed());
    assert!(peak_bytes < PEAK_BYTES_MAX, "it held {peak_bytes} bytes");
    if let Err(error) = &result {
        let line = match error {
            TemplateError::Syntax { line, reason } | TemplateError::Render { line, reason } => {
                assert!(!reason.is_empty());
                *line
            }
            TemplateError::OutOfBudget { line } => *line,
            TemplateError::Unsupported { line, what } => {
                assert!(!what.is_empty());
                *line
            }
            TemplateError::Raised { .. } => 0,
            other => panic!("neither too long nor without variables: {other}"),
        };
        assert!(line <= source.lines().count() + 1, "line {line} of {}", source.lines().count());
    }
    result
}

proptest! {
    #![proptest_config(support::config(2500))]

    #[test]
    fn changed_templates_give_a_text_or_an_error(
        index in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 1..6),
        context in context(),
    ) {
        let mut source: String = index.get(&TEMPLATES).clone();
        changes.iter().for_each(|change| change.apply(&mut source));
        let _ = check(&source, &context);
    }

    #[test]
    fn templates_of_snippets_give_a_text_or_an_error(
        snippets in prop::collection::vec(prop::sample::select(SNIPPETS), 0..24),
        context in context(),
    ) {
        let _ = check(&snippets.concat(), &context);
    }

    #[test]
    fn real_templates_take_any_conversation(
        index in any::<prop::sample::Index>(),
        context in context(),
    ) {
        let source: &String = index.get(&TEMPLATES);
        match check(source, &context) {
            // Python would raise an error of its own: content that is not text, a role that is missing.
            Ok(_) | Err(TemplateError::Raised { .. } | TemplateError::Render { .. }) => {}
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}
