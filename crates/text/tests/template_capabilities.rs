//! What real chat templates take, and messages shaped for them.

mod support;

use serde_json::{Value, json};
use verbatim_text::{ChatTemplate, EmptyContent, TemplateError, ToolArguments};

fn real(name: &str) -> ChatTemplate {
    let source = std::fs::read_to_string(support::data(&format!("templates/{name}.jinja"))).unwrap();
    ChatTemplate::new(&source).unwrap()
}

fn shaped(template: &ChatTemplate, mut messages: Value) -> Result<Value, TemplateError> {
    template.shape_messages(&mut messages)?;
    Ok(messages)
}

fn call(content: Value, arguments: Value) -> Value {
    let function = json!({"name": "clock", "arguments": arguments});
    json!([{"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}])
}

#[test]
fn real_templates_take_what_their_source_says() {
    use EmptyContent::{Null, Text};
    use ToolArguments::{Object, Unknown};
    // Parts, system, tools, tool calls and their arguments, content beside calls, reasoning.
    let expected = [
        ("Qwen-Qwen3-0.6B", false, true, true, true, Object, Some(Text), Some("reasoning_content")),
        ("Qwen-Qwen2.5-7B-Instruct", false, true, true, true, Object, None, None),
        ("Qwen3.5-4B", true, true, true, true, Object, None, Some("reasoning_content")),
        ("meta-llama-Llama-3.1-8B-Instruct", false, true, true, true, Object, None, None),
        ("meta-llama-Llama-3.2-3B-Instruct", false, true, true, true, Object, None, None),
        ("google-gemma-2-2b-it", false, false, false, false, Unknown, None, None),
        ("mistralai-Mistral-Nemo-Instruct-2407", false, true, true, true, Object, None, None),
        ("microsoft-Phi-3.5-mini-instruct", false, true, false, false, Unknown, None, None),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", false, true, true, true, Object, None, None),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", false, true, false, true, Object, Some(Null), None),
        ("HuggingFaceTB-SmolLM3-3B", false, true, false, false, Unknown, None, None),
        ("openai-gpt-oss-120b", false, true, true, true, Object, Some(Text), Some("thinking")),
    ];
    for (name, parts, system, tools, tool_calls, arguments, content, reasoning) in expected {
        let template = real(name);
        let found = template.capabilities();
        assert!(found.takes_text, "{name}");
        assert_eq!(found.takes_parts, parts, "{name}");
        assert_eq!((found.supports_system, found.supports_tools), (system, tools), "{name}");
        assert_eq!((found.supports_tool_calls, found.tool_arguments), (tool_calls, arguments), "{name}");
        assert_eq!((found.tool_call_content, found.reasoning_field), (content, reasoning), "{name}");
    }
}

#[test]
fn mlx_lm_1065_arguments_are_text_where_they_are_joined_and_objects_where_they_are_walked() {
    // As in DeepSeek R1.
    let joins = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name + '(' + c.function.arguments + ')' }}\
        {% endfor %}{% endfor %}";
    let walks = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}:\
        {% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %}{% endfor %}";
    let writes = "{% for m in messages %}{{ m.tool_calls|tojson if m.tool_calls }}{% endfor %}";
    for arguments in [json!({"zone": "UTC"}), json!("{\"zone\": \"UTC\"}")] {
        for (source, expected) in [
            (joins, "clock({\"zone\": \"UTC\"})"),
            (walks, "clock:zone=UTC"),
            (
                writes,
                "[{\"type\": \"function\", \"function\": {\"name\": \"clock\", \"arguments\": {\"zone\": \"UTC\"}}}]",
            ),
        ] {
            let template = ChatTemplate::new(source).unwrap();
            let messages = shaped(&template, call(json!(""), arguments.clone())).unwrap();
            assert_eq!(template.render(&json!({"messages": messages})), Ok(expected.to_owned()));
        }
    }
}

#[test]
fn arguments_of_any_kind_survive() {
    let template = real("Qwen-Qwen2.5-7B-Instruct");
    let cases = [
        (json!(r#"{"b": 1, "a": [2]}"#), json!({"b": 1, "a": [2]})),
        (json!(""), json!({})),
        (json!("[1]"), json!("[1]")),
        (json!("{broken"), json!("{broken")),
        (json!({"x": 1}), json!({"x": 1})),
        (json!(null), json!(null)),
    ];
    for (before, after) in cases {
        assert_eq!(shaped(&template, call(json!("x"), before)), Ok(call(json!("x"), after)));
    }
    for odd in [json!(null), json!([1, {"tool_calls": "x"}]), json!([{"tool_calls": [{"function": 1}, 2]}])] {
        assert_eq!(shaped(&template, odd.clone()), Ok(odd));
    }
}

#[test]
fn content_gets_the_shape_that_keeps_its_words() {
    let parts = ChatTemplate::new(
        "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}",
    )
    .unwrap();
    assert!(parts.capabilities().takes_parts && !parts.capabilities().takes_text);
    let messages = shaped(&parts, json!([{"role": "user", "content": "hi"}])).unwrap();
    assert_eq!(parts.render(&json!({"messages": messages})), Ok("hi;".to_owned()));

    let text = real("Qwen-Qwen2.5-7B-Instruct");
    let two =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    assert_eq!(shaped(&text, two.clone()), Ok(json!([{"role": "user", "content": "a\nb"}])));
    assert_eq!(shaped(&real("Qwen3.5-4B"), two.clone()), Ok(two));

    let image = json!([{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "image"}]}]);
    let error = shaped(&text, image).unwrap_err();
    assert!(matches!(error, TemplateError::Message { index: 1, .. }), "{error}");
}

#[test]
fn what_a_template_would_drop_is_reported() {
    let gemma = real("google-gemma-2-2b-it");
    let system = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]);
    assert!(matches!(shaped(&gemma, system), Err(TemplateError::Message { index: 0, .. })));
    let empty = json!([{"role": "system", "content": ""}, {"role": "user", "content": "hi"}]);
    assert_eq!(shaped(&gemma, empty.clone()), Ok(empty));
    let silent =
        ChatTemplate::new("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}")
            .unwrap();
    let system = json!([{"role": "system", "content": "Be brief."}]);
    assert!(matches!(shaped(&silent, system), Err(TemplateError::Message { index: 0, .. })));
    let calls = shaped(&gemma, call(json!(""), json!({})));
    assert!(matches!(calls, Err(TemplateError::Message { index: 0, .. })));
}

#[test]
fn reasoning_and_empty_content_get_the_names_that_templates_read() {
    let oss = real("openai-gpt-oss-120b");
    let messages = json!([{"role": "assistant", "content": "a", "reasoning_content": "why"}]);
    assert_eq!(shaped(&oss, messages), Ok(json!([{"role": "assistant", "content": "a", "thinking": "why"}])));
    let deepseek = real("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B");
    assert_eq!(shaped(&deepseek, call(json!(""), json!({}))), Ok(call(json!(null), json!({}))));
    let qwen = real("Qwen-Qwen3-0.6B");
    assert_eq!(shaped(&qwen, call(json!(null), json!({}))), Ok(call(json!(""), json!({}))));
}

#[test]
fn hostile_templates_are_probed_in_bounded_time() {
    let start = std::time::Instant::now();
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ raise_exception('no') }}",
        "",
    ] {
        let found = *ChatTemplate::new(source).unwrap().capabilities();
        assert!(found.takes_text && !found.supports_system && !found.supports_tool_calls);
    }
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}
