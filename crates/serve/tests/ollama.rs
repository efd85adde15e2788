//! Ollama's routes.

mod support;

use serde_json::{Value, json};
use support::*;
use verbatim_serve::ServerOptions;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn a_chat_is_streamed_as_lines_unless_it_says_otherwise() {
    let server = server(ServerOptions::default(), 1);
    let openai = json!({ "messages": user("hello"), "max_tokens": 8 });
    let openai = post(&server, "/v1/chat/completions", &openai).await.json();
    let wanted = openai["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    let body = json!({ "model": "tiny:latest", "messages": user("hello"), "options": { "num_predict": 8 } });
    let reply = post(&server, "/api/chat", &body).await;
    assert_eq!(reply.header("content-type"), "application/x-ndjson");
    let parts = lines(&reply.text);
    let text =
        parts.iter().map(|part| part["message"]["content"].as_str().expect("a text")).collect::<String>();
    assert_eq!(text, wanted);
    let last = parts.last().expect("a last one");
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["eval_count"]),
        (&json!(true), &json!("length"), &json!(8))
    );
    let mut whole = body.clone();
    whole["stream"] = false.into();
    let answer = post(&server, "/api/chat", &whole).await.json();
    assert_eq!((&answer["message"]["content"], &answer["done"]), (&json!(wanted), &json!(true)));
}

#[tokio::test]
async fn generate_uses_the_template_unless_it_is_raw() {
    let server = server(ServerOptions::default(), 1);
    let options = json!({ "num_predict": 8, "num_ctx": 4096 });
    let body = json!({ "model": "tiny", "prompt": "hello", "stream": false, "options": options });
    let reply = post(&server, "/api/generate", &body).await;
    assert_eq!(reply.header("x-verbatim-warning"), "");
    let chat = json!({ "messages": user("hello"), "max_tokens": 8 });
    let chat = post(&server, "/v1/chat/completions", &chat).await.json();
    assert_eq!(reply.json()["response"], chat["choices"][0]["message"]["content"]);
    let mut raw = body.clone();
    raw["raw"] = true.into();
    let raw = post(&server, "/api/generate", &raw).await.json();
    let plain = post(&server, "/v1/completions", &json!({ "prompt": "hello", "max_tokens": 8 })).await.json();
    assert_eq!(raw["response"], plain["choices"][0]["text"]);
    let format = json!({ "model": "tiny", "prompt": "?", "stream": false, "format": "json",
        "options": { "num_predict": 200, "seed": 3, "temperature": 0.5 } });
    let object = post(&server, "/api/generate", &format).await.json();
    let text = object["response"].as_str().expect("a text");
    assert!(text.starts_with('{') && object["done"] == true, "{object}");
    let loaded = post(&server, "/api/generate", &json!({ "model": "tiny" })).await.json();
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
}

#[tokio::test]
async fn models_are_listed_and_shown() {
    let server = server(ServerOptions::default(), 1);
    let tags = get(&server, "/api/tags").await.json();
    assert_eq!(
        (&tags["models"][0]["name"], &tags["models"][0]["details"]["family"]),
        (&json!("tiny"), &json!("qwen3"))
    );
    assert_eq!(get(&server, "/api/ps").await.json()["models"][0]["context_length"], 512);
    let shown = post(&server, "/api/show", &json!({ "model": "tiny" })).await.json();
    assert_eq!((&shown["template"], &shown["capabilities"][0]), (&json!(TEMPLATE), &json!("completion")));
    assert!(get(&server, "/api/version").await.json()["version"].is_string());
    let absent = post(&server, "/api/chat", &json!({ "model": "huge", "messages": user("hi") })).await;
    assert_eq!(absent.status, 404);
    assert!(absent.json()["error"].as_str().expect("a text").contains("huge"));
}
