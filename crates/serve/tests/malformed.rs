//! Requests that are wrong: each gets its status, and a message that helps.

mod support;

use axum::body::Body;
use axum::http::Method;
use serde_json::{Value, json};
use support::*;
use verbatim_serve::{Server, ServerOptions};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const HI: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

/// Path, body, status and a part of the message. `HI` in a body is a conversation.
#[rustfmt::skip]
const TABLE: &[(&str, &str, u16, &str)] = &[
    // Bodies.
    (CHAT, "", 400, "no body: send a JSON object"),
    (CHAT, "{", 400, "not valid JSON: EOF"),
    (CHAT, "hello", 400, "not valid JSON: expected value at line 1 column 1"),
    (CHAT, "[]", 400, "must be a JSON object, not an array"),
    (CHAT, "null", 400, "must be a JSON object, not null"),
    (CHAT, "7", 400, "must be a JSON object, not a number"),
    (CHAT, "{} {}", 400, "trailing characters"),
    (CHAT, "{'messages': 1}", 400, "not valid JSON: key must be a string"),
    (CHAT, r#"{"temperature": NaN}"#, 400, "not valid JSON: expected value"),
    (CHAT, r#"{"temperature": Infinity}"#, 400, "not valid JSON: expected value"),
    (CHAT, r#"{"temperature": 1e999}"#, 400, "number out of range"),
    // Messages.
    (CHAT, "{}", 400, "messages: this field is required"),
    (CHAT, r#"{"messages": null}"#, 400, "messages: this field is required"),
    (CHAT, r#"{"messages": []}"#, 400, "messages: there must be at least one message"),
    (CHAT, r#"{"messages": "hi"}"#, 400, "messages: invalid type: string \"hi\", expected an array"),
    (CHAT, r#"{"messages": {}}"#, 400, "messages: invalid type: object, expected an array"),
    (CHAT, r#"{"messages": ["hi"]}"#, 400, "messages[0]: a message must be an object, not a string"),
    (CHAT, r#"{"messages": [{"role": "user"}]}"#, 400, "messages[0].content: this field is required"),
    (CHAT, r#"{"messages": [{"content": "hi"}]}"#, 400, "messages[0].role: this field is required"),
    (CHAT, r#"{"messages": [{"role": "robot", "content": "hi"}]}"#, 400, "\"robot\" is not one of system, developer, user"),
    (CHAT, r#"{"messages": [{"role": 1, "content": "hi"}]}"#, 400, "messages[0].role: invalid type: integer `1`, expected a string"),
    (CHAT, r#"{"messages": [{"role": "user", "content": 1}]}"#, 400, "messages[0].content: it must be a string or an array of parts, not a number"),
    (CHAT, r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}"#, 400, "messages[0].content[0]: parts of type \"image_url\" are not supported"),
    (CHAT, r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#, 400, "messages[0].content[0]: a text part needs a text"),
    (CHAT, r#"{"messages": [{"role": "user", "content": "hi", "tool_calls": [{}]}]}"#, 400, "only the assistant calls tools"),
    (CHAT, r#"{"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}"#, 400, "messages[0].tool_calls[0].function: a tool call needs a function"),
    (CHAT, r#"{HI, "chat_template_kwargs": {"messages": []}}"#, 400, "chat_template_kwargs.messages: this variable is set by the server"),
    (CHAT, r#"{HI, "chat_template_kwargs": 7}"#, 400, "chat_template_kwargs: invalid type: integer `7`, expected an object"),
    // The model.
    (CHAT, r#"{HI, "model": "gpt-5"}"#, 404, "there is no model `gpt-5` here; this server has `tiny`"),
    (CHAT, r#"{HI, "model": 5}"#, 400, "model: invalid type: integer `5`, expected a string"),
    // Settings.
    (CHAT, r#"{HI, "temperature": "hot"}"#, 400, "temperature: invalid type: string \"hot\", expected a number"),
    (CHAT, r#"{HI, "temperature": -1}"#, 400, "temperature: the temperature must be a finite number that is not negative, not -1"),
    (CHAT, r#"{HI, "temperature": 1e300}"#, 400, "temperature: the temperature must be a finite number"),
    (CHAT, r#"{HI, "top_p": 1.5}"#, 400, "top_p: top-p must be from 0 to 1, not 1.5"),
    (CHAT, r#"{HI, "min_p": -0.1}"#, 400, "min_p: min-p must be from 0 to 1"),
    (CHAT, r#"{HI, "top_k": 1.5}"#, 400, "top_k: invalid type: floating point `1.5`, expected an integer"),
    (CHAT, r#"{HI, "repeat_penalty": 0}"#, 400, "repeat_penalty: the repetition penalty must be finite and above 0"),
    (CHAT, r#"{HI, "frequency_penalty": []}"#, 400, "frequency_penalty: invalid type: array, expected a number"),
    (CHAT, r#"{HI, "mirostat": 1}"#, 400, "mirostat: only 0 (off) and 2 are supported"),
    (CHAT, r#"{HI, "samplers": ["magic"]}"#, 400, "samplers: there is no sampler \"magic\"; there are penalties"),
    (CHAT, r#"{HI, "samplers": "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"}"#, 400, "samplers: there may be at most 32"),
    (CHAT, r#"{HI, "samplers": 7}"#, 400, "samplers: expected an array of names of samplers"),
    (CHAT, r#"{HI, "seed": "x"}"#, 400, "seed: expected an integer"),
    (CHAT, r#"{HI, "seed": 1.5}"#, 400, "seed: expected an integer"),
    (CHAT, r#"{HI, "logit_bias": {"999999": 1}}"#, 400, "logit_bias: there is no token 999999"),
    (CHAT, r#"{HI, "logit_bias": {"5": "x"}}"#, 400, "logit_bias: a bias is a number, or false to ban a token"),
    (CHAT, r#"{HI, "logit_bias": 5}"#, 400, "logit_bias: expected an object of token ids and numbers"),
    (CHAT, r#"{HI, "max_tokens": -5}"#, 400, "max_tokens: it must be a number of tokens, or -1 for no limit, not -5"),
    (CHAT, r#"{HI, "max_tokens": "many"}"#, 400, "max_tokens: invalid type: string \"many\", expected an integer"),
    (CHAT, r#"{HI, "max_completion_tokens": 99999999999999999999}"#, 400, "max_completion_tokens: invalid type"),
    (CHAT, r#"{HI, "n": 0}"#, 400, "n: it must be from 1 to 128, not 0"),
    (CHAT, r#"{HI, "n": 1000}"#, 400, "n: it must be from 1 to 128, not 1000"),
    (CHAT, r#"{HI, "n": 100}"#, 400, "asks for 100 answers, but the server takes 9 at most at once"),
    (CHAT, r#"{HI, "n": -1}"#, 400, "n: invalid value: integer `-1`, expected an integer that is not negative"),
    (CHAT, r#"{HI, "stop": ""}"#, 400, "stop: a stop string must have 1 to 4096 bytes"),
    (CHAT, r#"{HI, "stop": [1]}"#, 400, "stop: expected a string or an array of strings"),
    (CHAT, r#"{HI, "stream": "yes"}"#, 400, "stream: invalid type: string \"yes\", expected true or false"),
    (CHAT, r#"{HI, "stream_options": {"include_usage": 1}}"#, 400, "stream_options.include_usage: invalid type: integer `1`"),
    (CHAT, r#"{HI, "logprobs": 5}"#, 400, "logprobs: invalid type: integer `5`, expected true or false"),
    (CHAT, r#"{HI, "logprobs": true, "top_logprobs": 21}"#, 400, "top_logprobs: it must be at most 20, not 21"),
    (CHAT, r#"{HI, "top_logprobs": 2}"#, 400, "top_logprobs: it needs \"logprobs\": true"),
    (CHAT, r#"{HI, "speculation": "wild"}"#, 400, "speculation: \"wild\" is neither \"off\" nor \"auto\""),
    (CHAT, r#"{HI, "priority": "high"}"#, 400, "priority: invalid type: string \"high\", expected an integer"),
    // Schemas and grammars.
    (CHAT, r#"{HI, "response_format": "json"}"#, 400, "response_format: invalid type: string \"json\""),
    (CHAT, r#"{HI, "response_format": {}}"#, 400, "response_format: missing field `type`"),
    (CHAT, r#"{HI, "response_format": {"type": "xml"}}"#, 400, "response_format: type \"xml\" is not one of text, json_object and json_schema"),
    (CHAT, r#"{HI, "response_format": {"type": "json_schema"}}"#, 400, "json_schema.schema: this field is required"),
    (CHAT, r#"{HI, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "blob"}}}}"#, 400, "the grammar or schema of the answer"),
    (CHAT, r#"{HI, "grammar": "root ::= nothing"}"#, 400, "the grammar or schema of the answer"),
    (CHAT, r#"{HI, "grammar": "root ::= \"a\"", "json_schema": {}}"#, 400, "grammar: json_schema already says"),
    // Completions.
    (COMPLETIONS, "{}", 400, "prompt: this field is required"),
    (COMPLETIONS, r#"{"prompt": 7}"#, 400, "prompt: expected a string, an array of strings"),
    (COMPLETIONS, r#"{"prompt": ""}"#, 400, "the prompt is empty"),
    (COMPLETIONS, r#"{"prompt": []}"#, 400, "prompt"),
    (COMPLETIONS, r#"{"prompt": [1, 99999999]}"#, 400, "prompt: there is no token 99999999"),
    (COMPLETIONS, r#"{"prompt": [1, -2]}"#, 400, "prompt: expected a string, an array of strings"),
    (COMPLETIONS, r#"{"prompt": "x", "suffix": "y"}"#, 400, "suffix: filling in is not supported"),
    (COMPLETIONS, r#"{"prompt": "x", "best_of": 3}"#, 400, "best_of: ranking answers is not supported"),
    (COMPLETIONS, r#"{"prompt": "x", "logprobs": 99}"#, 400, "logprobs: it must be at most 20, not 99"),
    (COMPLETIONS, r#"{"prompt": "x", "echo": true, "logprobs": 1}"#, 400, "echo: log-probabilities of prompts are not supported"),
    // llama.cpp's routes.
    ("/completion", r#"{"prompt": "x", "n_probs": 1000}"#, 400, "n_probs: it must be at most 128, not 1000"),
    ("/tokenize", r#"{"content": 7}"#, 400, "content: invalid type: integer `7`, expected a string"),
    ("/tokenize", "{}", 400, "messages: this field is required"),
    ("/detokenize", "{}", 400, "tokens: this field is required"),
    ("/detokenize", r#"{"tokens": [4294967295]}"#, 400, "tokens: there is no token 4294967295"),
    ("/detokenize", r#"{"tokens": ["a"]}"#, 400, "tokens[0]: invalid type: string \"a\""),
    ("/apply-template", r#"{"messages": []}"#, 400, "at least one message"),
    // Ollama's routes.
    ("/api/chat", r#"{HI}"#, 400, "model: this field is required"),
    ("/api/chat", r#"{HI, "model": "llama3"}"#, 404, "there is no model `llama3` here"),
    ("/api/chat", r#"{"model": "tiny", "messages": [{"role": "user", "content": "x", "images": ["aa"]}]}"#, 400, "messages[0].images: images are not supported"),
    ("/api/chat", r#"{HI, "model": "tiny", "options": {"temperature": "x"}}"#, 400, "options.temperature: invalid type"),
    ("/api/chat", r#"{HI, "model": "tiny", "options": 7}"#, 400, "options: invalid type: integer `7`, expected an object"),
    ("/api/chat", r#"{HI, "model": "tiny", "format": "yaml"}"#, 400, "format: it must be \"json\" or a JSON schema"),
    ("/api/chat", r#"{HI, "model": "tiny", "think": 7}"#, 400, "think: it must be true, false or a string"),
    ("/api/generate", r#"{"model": "tiny", "prompt": "x", "suffix": "y"}"#, 400, "suffix: filling in is not supported"),
    ("/api/show", "{}", 400, "model: this field is required"),
    // Anthropic's routes.
    ("/v1/messages", r#"{HI}"#, 400, "max_tokens: this field is required"),
    ("/v1/messages", r#"{"max_tokens": 5}"#, 400, "messages: this field is required"),
    ("/v1/messages", r#"{"max_tokens": 5, "messages": []}"#, 400, "messages: there must be at least one"),
    ("/v1/messages", r#"{"max_tokens": 5, "messages": [{"role": "system", "content": "x"}]}"#, 400, "messages[0].role: it must be user or assistant"),
    ("/v1/messages", r#"{"max_tokens": 5, "messages": [{"role": "user"}]}"#, 400, "messages[0].content: this field is required"),
    ("/v1/messages", r#"{"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image"}]}]}"#, 400, "messages[0].content: blocks of type \"image\" are not supported"),
    ("/v1/messages", r#"{HI, "max_tokens": 5, "system": 7}"#, 400, "system: it must be a string or an array of blocks, not a number"),
    ("/v1/messages", r#"{HI, "max_tokens": 5, "stop_sequences": [""]}"#, 400, "stop_sequences: a stop string must have"),
    ("/v1/messages", r#"{HI, "max_tokens": 5, "thinking": true}"#, 400, "thinking: invalid type: boolean `true`, expected an object with a type"),
    ("/v1/messages", r#"{HI, "max_tokens": 5, "tools": [{"name": "f"}]}"#, 400, "tools: the chat template of this model writes no tools"),
    ("/v1/messages/count_tokens", "{}", 400, "messages: this field is required"),
    // Responses.
    ("/v1/responses", "{}", 400, "input: this field is required"),
    ("/v1/responses", r#"{"input": 7}"#, 400, "input: it must be a string or an array of items, not a number"),
    ("/v1/responses", r#"{"input": []}"#, 400, "at least one message"),
    ("/v1/responses", r#"{"input": [{"type": "item_reference", "id": "x"}]}"#, 400, "input[0]: items of type \"item_reference\" are not supported"),
    ("/v1/responses", r#"{"input": [{"type": "function_call", "call_id": "a"}]}"#, 400, "input[0]: a function_call needs a name"),
    ("/v1/responses", r#"{"input": "x", "previous_response_id": "resp_1"}"#, 400, "previous_response_id: nothing is stored here"),
    ("/v1/responses", r#"{"input": "x", "text": {"format": {"type": "xml"}}}"#, 400, "text.format.type: it must be text, json_object or json_schema"),
    ("/v1/responses", r#"{"input": "x", "text": {"format": {"type": "json_schema"}}}"#, 400, "text.format.schema: this field is required"),
    ("/v1/responses", r#"{"input": "x", "max_output_tokens": -9}"#, 400, "max_output_tokens: it must be a number of tokens"),
    // Tools.
    (CHAT, r#"{HI, "tools": [{"type": "function"}]}"#, 400, "tools[0].name: a tool needs a name"),
    (CHAT, r#"{HI, "tools": [7]}"#, 400, "tools[0]: a tool must be an object, not a number"),
    (CHAT, r#"{HI, "tools": [{"type": "function", "function": {"name": "f", "parameters": 7}}]}"#, 400, "its parameters must be a JSON schema"),
    (CHAT, r#"{HI, "tools": [{"type": "function", "function": {"name": "f"}}]}"#, 400, "tools: the chat template of this model writes no tools"),
    (CHAT, r#"{HI, "tool_choice": "required"}"#, 400, "tool_choice: there are no tools"),
    (CHAT, r#"{HI, "tool_choice": "maybe"}"#, 400, "tool_choice: it must be auto, none, required or the name of a function"),
    (CHAT, r#"{HI, "functions": [{"name": "f"}], "function_call": "auto"}"#, 400, "functions: this form is no longer in use: send \"tools\""),
    // Routes.
    ("/v1/embeddings", "{}", 404, "there is no route /v1/embeddings"),
    ("/v1/models", "{}", 405, "/v1/models does not take POST"),
    ("/../etc/passwd", "{}", 404, "there is no route /../etc/passwd"),
];

fn limited() -> Server {
    server(ServerOptions { queue_max: 8, body_bytes_max: 100_000, ..ServerOptions::default() }, 1)
}

/// The message of an error, in the form of its path's API.
fn message(path: &str, text: &str) -> String {
    let error: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"));
    let message = if path.starts_with("/api/") { &error["error"] } else { &error["error"]["message"] };
    message.as_str().unwrap_or_else(|| panic!("{path}: {text}")).to_owned()
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    let server = limited();
    assert!(TABLE.len() >= 60);
    for (path, body, status, wanted) in TABLE {
        let body = body.replace("HI", HI);
        let reply = send(&server, Method::POST, path, &[], Body::from(body.clone())).await;
        assert_eq!(reply.status.as_u16(), *status, "{path} {body}: {}", reply.text);
        let message = message(path, &reply.text);
        assert!(message.contains(wanted), "{path} {body}: {message}");
    }
    // The server is none the worse for it.
    let reply = post(&server, CHAT, &json!({ "messages": user("hi") })).await;
    assert_eq!(reply.status, 200);
}

#[tokio::test]
async fn sizes_are_limited() {
    let server = limited();
    let deep = format!(r#"{{{HI}, "x": {}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let long = format!(r#"{{"messages": [{{"role": "user", "content": "{}"}}]}}"#, "word ".repeat(2_000));
    let large = format!(r#"{{{HI}, "x": "{}"}}"#, "x".repeat(200_000));
    let mut invalid = br#"{"prompt": "a"#.to_vec();
    invalid.extend([0xff, 0xfe, b'"', b'}']);
    for (body, status, wanted) in [
        (deep.into_bytes(), 400, "recursion limit exceeded"),
        (long.into_bytes(), 400, "but the context has room for 512"),
        (large.into_bytes(), 413, "larger than the 100000 bytes"),
        (invalid, 400, "not valid JSON: invalid unicode code point"),
    ] {
        let reply = send(&server, Method::POST, CHAT, &[], Body::from(body)).await;
        let message = message(CHAT, &reply.text);
        assert_eq!(reply.status.as_u16(), status, "{message}");
        assert!(message.contains(wanted), "{message}");
    }
    // As a stream, an error comes before the stream begins.
    let long = json!({ "messages": user(&"word ".repeat(2_000)), "stream": true });
    assert_eq!(post(&server, CHAT, &long).await.status, 400);
}

#[tokio::test]
async fn strangers_are_turned_away() {
    let server = limited();
    let body = || Body::from(format!("{{{HI}}}"));
    for (headers, status) in [
        ([("host", "evil.example"), ("accept", "*/*")], 403),
        ([("host", "localhost:8080"), ("origin", "https://evil.example")], 403),
        ([("host", "localhost:8080"), ("origin", "http://localhost:8080")], 200),
        ([("host", "127.0.0.1:8080"), ("x-request-id", "mine")], 200),
    ] {
        let reply = send(&server, Method::POST, CHAT, &headers, body()).await;
        assert_eq!(reply.status.as_u16(), status, "{headers:?}: {}", reply.text);
        assert!(reply.headers.get("access-control-allow-origin").is_none());
    }
    let with_key =
        support::server(ServerOptions { api_keys: vec!["k1".into()], ..ServerOptions::default() }, 1);
    for (key, status) in [("Bearer k1", 200), ("Bearer k2", 401), ("k1", 401)] {
        let reply = send(&with_key, Method::POST, CHAT, &[("authorization", key)], body()).await;
        assert_eq!(reply.status.as_u16(), status, "{key}");
    }
    assert_eq!(get(&with_key, "/health").await.status, 200);
    assert_eq!(get(&with_key, "/v1/models").await.status, 401);
    let open =
        ServerOptions { allowed_origins: vec!["https://chat.example".into()], ..ServerOptions::default() };
    let open = support::server(open, 1);
    let reply = send(&open, Method::POST, CHAT, &[("origin", "https://chat.example")], body()).await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("access-control-allow-origin")),
        (200, "https://chat.example")
    );
    let asked = [
        ("origin", "https://chat.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization"),
    ];
    let preflight = send(&open, Method::OPTIONS, CHAT, &asked, Body::empty()).await;
    assert_eq!(preflight.header("access-control-allow-headers"), "authorization");
}
