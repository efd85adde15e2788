//! Template features beyond the golden ones, and limits against hostile templates.

mod support;

use serde_json::{Value, json};
use std::time::{Duration, Instant};
use verbatim_text::{ChatTemplate, Clock, TemplateError};

fn render(source: &str, context: &Value) -> Result<String, TemplateError> {
    let clock = Clock::Fixed(jiff::civil::date(2025, 2, 3).at(4, 5, 6, 0));
    ChatTemplate::with_clock(source, clock)?.render(context)
}

#[track_caller]
fn assert_renders(source: &str, expected: &str) {
    let context = json!({
        "text": "it's", "none": null, "yes": true, "float": 1.0, "list": ["a", 1, null, 0.5], "map": {"b": 1, "a": "é<"}
    });
    assert_eq!(render(source, &context), Ok(expected.to_owned()), "{source}");
}

#[test]
fn values_are_written_as_python_writes_them() {
    assert_renders("{{ none }} {{ yes }} {{ float }} {{ undefined_name }}|", "None True 1.0 |");
    assert_renders("{{ list }} {{ map }}", "['a', 1, None, 0.5] {'b': 1, 'a': 'é<'}");
    assert_renders("{{ [text] }} {{ (1,) }} {{ (1, 2)|string }}", r#"["it's"] (1,) (1, 2)"#);
    assert_renders("{{ 1e16 }} {{ 10 ** 20 }} {{ 7 // 2 }} {{ 7 / 2 }}", "1e+16 100000000000000000000 3 3.5");
}

#[test]
fn tojson_equals_json_dumps() {
    assert_renders("{{ map|tojson }}", r#"{"b": 1, "a": "é<"}"#);
    assert_renders("{{ list|tojson(indent=2) }}", "[\n  \"a\",\n  1,\n  null,\n  0.5\n]");
    assert_renders("{{ [[], {}]|tojson(indent=1) }}", "[\n [],\n {}\n]");
    assert_renders("{{ map|tojson(ensure_ascii=True, sort_keys=True) }}", r#"{"a": "\u00e9<", "b": 1}"#);
    assert_renders("{{ map|tojson(separators=(',', ':')) }}", r#"{"b":1,"a":"é<"}"#);
    assert!(matches!(render("{{ missing|tojson }}", &json!({})), Err(TemplateError::Render { .. })));
}

#[test]
fn python_methods_and_tests_work() {
    assert_renders("{{ 'a-b-c'.partition('-')[2] }} {{ 'a-b-c'.rpartition('-')[0] }}", "b-c a-b");
    assert_renders("{{ 'prefixed'.removeprefix('pre') }}{{ 'x.py'.removesuffix('.py') }}", "fixedx");
    assert_renders("{{ '{}-{x}'.format(1, x='y') }} {{ ', '.join(['a', 'b']) }}", "1-y a, b");
    assert_renders("{{ ' x '.strip() }}{{ 'ab'.startswith('a') }}{{ map.get('zz') }}", "xTrueNone");
    assert_renders(
        "{{ map is sequence }} {{ text is sequence }} {{ map is mapping }} {{ 1 is sequence }}",
        "True True True False",
    );
}

#[test]
fn chat_template_extensions_work() {
    assert_renders("{% generation %}a{% endgeneration %}", "a");
    assert_renders(
        "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
        "13",
    );
    assert_renders("{% for x in [1, 2, 3] %}{{ x }}{% break %}{% endfor %}", "1");
    assert_renders("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc");
    assert_renders(
        "{% set ns = namespace(n=0) %}{% for x in list %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "4",
    );
    assert_renders(
        "{%- macro f(x, y='d') %}<{{ x }}{{ y }}>{% endmacro %}{{ f(1) }}{{ f(1, y=2) }}",
        "<1d><12>",
    );
}

#[test]
fn the_clock_can_be_fixed() {
    assert_renders("{{ strftime_now('%d %b %Y') }} {{ strftime_now('%H:%M') }}", "03 Feb 2025 04:05");
    let system = ChatTemplate::new("{{ strftime_now('%Y') }}").unwrap().render(&json!({})).unwrap();
    assert!(system.parse::<i32>().unwrap() >= 2025);
    assert!(matches!(render("{{ strftime_now('%!') }}", &json!({})), Err(TemplateError::Render { .. })));
}

#[test]
fn exceptions_pass_on_their_message() {
    let raised = |message: &str| Err(TemplateError::Raised { message: message.to_owned() });
    assert_eq!(render("{{ raise_exception('no ' ~ 'way') }}", &json!({})), raised("no way"));
    let in_macro = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{% set x = m() %}";
    assert_eq!(render(in_macro, &json!({})), raised("deep"));
}

#[test]
fn errors_name_the_line_and_the_cause() {
    assert!(matches!(render("a\n{% if %}", &json!({})), Err(TemplateError::Syntax { line: 2, .. })));
    assert!(matches!(render("\n\n{{ a.b.c }}", &json!({})), Err(TemplateError::Render { line: 3, .. })));
    assert!(matches!(
        render("{{ x|no_such_filter }}", &json!({})),
        Err(TemplateError::Syntax { .. } | TemplateError::Render { .. })
    ));
    assert!(matches!(
        render("{% for x in none %}{% endfor %}", &json!({})),
        Err(TemplateError::Render { .. })
    ));
    assert_eq!(render("x", &json!([])), Err(TemplateError::ContextNotAnObject));
    assert!(matches!(render(&"x".repeat(2 << 20), &json!({})), Err(TemplateError::TooLong { .. })));
    // Nothing is loaded from anywhere.
    assert!(render("{% include '/etc/passwd' %}", &json!({})).is_err());
}

#[test]
fn hostile_templates_fail_quickly_with_an_error() {
    let nested = |open: &str, close: &str, depth: usize| open.repeat(depth) + "1" + &close.repeat(depth);
    let doubling = |then: &str| {
        format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(200) %}}{{% set ns.x = [ns.x, ns.x] %}}{{% endfor %}}{then}"
        )
    };
    let deep = |then: &str| {
        format!(
            "{{% set ns = namespace(x=1) %}}{{% for i in range(20000) %}}{{% set ns.x = [ns.x] %}}{{% endfor %}}{then}"
        )
    };
    let hostile = [
        "{% for a in range(10000000000) %}x{% endfor %}".to_owned(),
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}".to_owned(),
        "{{ 'x' * 100000000000 }}".to_owned(),
        "{{ [0] * 100000000000 }}".to_owned(),
        "{{ range(10000000000)|list }}".to_owned(),
        "{{ 9 ** 9 ** 9 ** 9 }}".to_owned(),
        "{{ 'x'|center(100000000000) }}".to_owned(),
        "{{ '%0100000000000d'|format(1) }}".to_owned(),
        "{{ '{:>100000000000}'.format(1) }}".to_owned(),
        "{{ ('{0}' * 100000).format('x' * 1000000) }}".to_owned(),
        "{{ ('x' * 1000000).join(['y'] * 100000) }}".to_owned(),
        "{{ 'x'|indent(100000000000) }}{{ 'a\nb'|indent(100000000000) }}".to_owned(),
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}".to_owned(),
        "{{ (['a'] * 1000000)|join('b' * 1000000) }}".to_owned(),
        "{{ [1]|tojson(indent=100000000000) }}".to_owned(),
        "{{ strftime_now('%Y' * 10000000) }}".to_owned(),
        "{{ strftime_now('%999999999d') }}".to_owned(),
        "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
            .to_owned(),
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}".to_owned(),
        "{% macro m(x, n) %}{% if n %}{{ m([x, x], n - 1) }}{% else %}{{ x ~ '' }}{% endif %}{% endmacro %}{{ m(1, 40) }}"
            .to_owned(),
        "{% for x in [[1]] recursive %}{% if loop.depth < 40 %}{{ loop([[x, x]]) }}{% else %}{{ x ~ '' }}{% endif %}\
            {% endfor %}"
            .to_owned(),
        "{% with a = [1] %}".to_owned()
            + &"{% with a = [a, a] %}".repeat(60)
            + "{{ a ~ '' }}"
            + &"{% endwith %}".repeat(61),
        doubling("{{ ns.x }}"),
        doubling("{{ ns.x|tojson }}"),
        doubling("{{ ns.x|string }}"),
        doubling("{{ ns.x ~ '' }}"),
        doubling("{{ ','.join(ns.x) }}"),
        doubling("{{ '{}'.format(ns.x) }}"),
        doubling("{{ ns.x|join }}{{ ns.x|upper }}"),
        doubling("{{ ns.x|list|length }}{{ ns.x == [ns.x[0], ns.x[1]] }}{{ ns.x|pprint }}"),
        doubling("{{ ns.x == ns.y }}"),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns ~ '' }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = [{'a': ns}] %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set a = [ns] %}{% set ns.x = a %}{{ ns ~ ''}}".to_owned(),
        "{% set a = 'xxxxxxxxxx' %}".to_owned() + &"{% set a = [a, a] %}".repeat(60) + "{{ a ~ a }}",
        deep("{{ ns.x }}"),
        deep("{{ ns.x|tojson }}"),
        nested("(", ")", 100_000),
        nested("[", "]", 100_000),
        format!("{{{{ {} }}}}", nested("(", ")", 100_000)),
        format!("{{{{ {} }}}}", nested("[", "]", 100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(100_000)),
        format!("{{{{ 1{} }}}}", " + 1".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(990)),
        format!("{{{{ {}1 }}}}", "not ".repeat(990)),
        format!("{{{{ 1{} }}}}", "|abs".repeat(490)),
        format!("{{{{ x{} }}}}", ".x".repeat(490)),
        format!("{{{{ {}1 }}}}", "1 if 0 else ".repeat(240)),
        format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}x".repeat(500)),
        format!("{{% if false %}}{}{{% endif %}}", "{% elif false %}x".repeat(50_000)),
        "{% if true %}".repeat(20_000) + &"{% endif %}".repeat(20_000),
        "{% for x in ".repeat(80_000),
        "{{ '".repeat(200_000),
        "{% raw %}".repeat(100_000),
        "x".repeat(70_000) + "{{ x",
        "x".repeat(70_000) + "{{ x }}",
        "{% raw %}\n".repeat(70_000),
        "{{ x }}\n".repeat(70_000),
        "{% set x".to_owned() + &" ".repeat(60_000),
        (0..20_000).map(|n| format!("{{% if x{n} %}}{{% set y{n} = 1 %}}{{% endif %}}")).collect(),
        (0..25_000).map(|n| format!("{{% if x{} %}}{{% set y = 1 %}}{{% endif %}}", n % 900)).collect(),
        "{% macro m() %}".repeat(100) + &"{{ x }}".repeat(100_000) + &"{% endmacro %}".repeat(100),
        "{% for x in y %}".repeat(100) + &"{{ loop }}".repeat(80_000) + &"{% endfor %}".repeat(100),
        "{% set ns = namespace() %}{% for i in range(99999) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x|map('string') %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x='') %}{% for i in range(99999) %}{% set ns.x = ns.x.upper.lower %}{% endfor %}".to_owned(),
        "{% for x in [1] %}{{ loop.changed(loop) }}{{ loop.changed([loop]) }}{% endfor %}".to_owned(),
        "{% set ns = namespace() %}{% macro m() %}{{ ns.m() }}{% endmacro %}{% set ns.m = m %}{{ ns.m() }}".to_owned(),
        "{{ (range(99999)|list|join('x' * 99999))|length }}".to_owned(),
        "{{ ('x' * 9999999)|replace('x', 'yyyyyyyyyyyyyyyyyyyyyyyyyy')|replace('y', 'zzzzzzzzzzzzzzzzz') }}".to_owned(),
        "{{ range(99999)|batch(1)|map('list')|list|tojson(indent=9)|list|length }}".to_owned(),
        "{{ [[1] * 99999]|sum(start=[])|sort|unique|list|length }}".to_owned(),
        "{%".repeat(29_000),
        "{#".repeat(29_000),
        "{{'".repeat(19_000),
    ];
    for source in hostile {
        let shown: String = source.chars().take(120).collect();
        let start = Instant::now();
        let result = render(&source, &json!({}));
        let took = start.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}: {shown}");
        // What is merely long may also come out right; then it is no longer than its budget.
        assert!(result.map_or(0, |text| text.len()) < 1 << 20, "{shown}");
    }
}

#[test]
fn namespaces_hold_ordinary_values() {
    let source = "{% set ns = namespace(list=[], last=none) %}{% for m in messages %}\
        {% set ns.list = ns.list + [m] %}{% set ns.last = m %}{% endfor %}{{ ns.list|length }} {{ ns.last.n }}";
    let messages: Vec<Value> = (0..1000).map(|n| json!({"role": "user", "n": n})).collect();
    assert_eq!(render(source, &json!({"messages": messages})), Ok("1000 999".to_owned()));
}

#[test]
fn long_conversations_fit_the_budget() {
    let source =
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content.split('</think>')[-1].strip() }}{% endfor %}";
    let messages: Vec<Value> =
        (0..5000).map(|_| json!({"role": "user", "content": "x".repeat(1000)})).collect();
    let text = render(source, &json!({"messages": messages})).unwrap();
    assert_eq!(text.len(), 5000 * (1000 + "<|user|>".len()));
}

#[test]
fn what_is_not_supported_is_named() {
    for (source, name) in [
        ("{{ [1]|random }}", "the filter `random`"),
        ("{{ 'x'|urlize }}", "the filter `urlize`"),
        ("{{ 'x'|wordwrap }}", "the filter `wordwrap`"),
        ("{{ 'x'|striptags }}", "the filter `striptags`"),
        ("{{ 'x'|pprint }}", "the filter `pprint`"),
        ("{{ lipsum() }}", "the function `lipsum`"),
        ("{{ 'x'.encode() }}", "the method `encode` of strings"),
        ("\n{% include 'x' %}", "the tag `include`"),
        ("{{ 2 ** 127 }}", "an integer of more than 128 bits"),
    ] {
        let line = source.lines().count();
        assert_eq!(
            render(source, &json!({})),
            Err(TemplateError::Unsupported { line, what: name.to_owned() })
        );
    }
}

/// Conversations of agents: so many messages, and so many rounds of tool calls.
fn long_contexts() -> [Value; 2] {
    let message = |index: usize| match index % 2 {
        0 => json!({"role": "user", "content": format!("question {index}")}),
        _ => json!({"role": "assistant", "content": format!("answer {index}")}),
    };
    let messages: Vec<Value> = (0..1001).map(message).collect();
    let mut rounds =
        vec![json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "go"})];
    for index in 0..490 {
        let function = json!({"name": "look", "arguments": {"at": index, "text": "x".repeat(500)}});
        let calls = json!([{"id": "abcdefghi", "type": "function", "function": function}]);
        rounds.push(json!({"role": "assistant", "content": "", "tool_calls": calls}));
        rounds.push(
            json!({"role": "tool", "name": "look", "tool_call_id": "abcdefghi", "content": "y".repeat(2000)}),
        );
    }
    let tool = json!({"type": "function", "function": {"name": "look", "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "integer"}}}}});
    let context = |messages: Vec<Value>, tools: Value| json!({"messages": messages, "tools": tools, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"});
    [context(messages, Value::Null), context(rounds, json!([tool]))]
}

#[test]
fn llama_cpp_26974_and_vllm_50300_long_conversations_of_real_templates_render() {
    let folder = std::fs::read_dir(support::data("templates")).unwrap();
    let paths = folder
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "jinja"));
    let mut rendered = 0;
    for path in paths {
        let template = ChatTemplate::new(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for context in long_contexts() {
            let start = Instant::now();
            let result = template.render(&context);
            assert!(start.elapsed() < Duration::from_secs(20), "{}: {:?}", path.display(), start.elapsed());
            match result {
                Ok(text) => {
                    assert!(text.len() > 10_000);
                    rendered += 1;
                }
                // A template that cannot take such a conversation at all.
                Err(TemplateError::Raised { .. } | TemplateError::Render { .. }) => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }
    assert!(rendered >= 20, "{rendered}");
}

#[test]
fn a_template_that_looks_back_from_each_message_renders() {
    let source = "{% for m in messages %}{% set ns = namespace(last=none) %}{% for x in messages %}\
        {% if x.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{{ m.role[0] }}{% endfor %}";
    let [context, _] = long_contexts();
    assert_eq!(render(source, &context), Ok("ua".repeat(500) + "u"));
}

#[test]
fn ai_dynamo_3340_none_is_not_iterable() {
    let source = "{% if tools is iterable and tools|length > 0 %}tools{% else %}no tools{% endif %}";
    assert_eq!(render(source, &json!({"tools": null})), Ok("no tools".to_owned()));
    let source = "[{% if m.content is string %}{{ m.content }}{% elif m.content is iterable and m.content is not mapping %}\
        {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}]";
    assert_eq!(render(source, &json!({"m": {"content": null}})), Ok("[]".to_owned()));
    assert_renders("{{ none is iterable }}", "False");
}

#[test]
fn minijinja_670_line_ends_are_those_of_jinja2() {
    let source = "{%- for m in messages -%}\r\n[u]\r\n{{ m.content }}\r\n{% endfor %}\r\n{%- if true %}\r\n[a]\r\n{% endif %}";
    let context = json!({"messages": [{"content": "hi"}]});
    assert_eq!(render(source, &context), Ok("[u]\nhi\n[a]\n".to_owned()));
    assert_renders("a\rb", "a\nb");
    assert_renders("a\r\n\r\n", "a\n");
}
