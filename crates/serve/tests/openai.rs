//! OpenAI's routes: forms of answers, and that their texts are the engine's.

mod support;

use serde_json::{Value, json};
use support::*;
use verbatim_engine::{Event, Prompt, Request, Role};
use verbatim_serve::ServerOptions;

/// The text of a request through the engine alone.
fn alone(request: Request) -> String {
    let engine = engine(1, Some(TEMPLATE));
    let text = engine.submit(request).map(|event| match event {
        Event::Text { text, .. } => text,
        Event::Failed(error) => panic!("{error}"),
        _ => String::new(),
    });
    text.collect()
}

fn chat_prompt(text: &str) -> Prompt {
    Prompt::Chat(vec![verbatim_engine::Message::new(Role::User, text)])
}

#[tokio::test]
async fn a_chat_is_answered_as_by_the_engine() {
    let server = server(ServerOptions::default(), 2);
    // Longer than a page of the KV cache.
    let question = "hello ".repeat(40);
    let wanted = alone(Request { prompt: chat_prompt(&question), ..defaults() });
    let body = json!({ "model": "tiny", "messages": user(&question) });
    let reply = post(&server, "/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let answer = reply.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"]["content"], wanted);
    assert_eq!((&choice["finish_reason"], &answer["object"]), (&json!("length"), &json!("chat.completion")));
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    assert_eq!(
        answer["usage"]["total_tokens"].as_u64(),
        answer["usage"]["prompt_tokens"].as_u64().map(|prompt| prompt + 20)
    );
    assert_eq!((&answer["seed"], &answer["timings"]["predicted_n"]), (&json!(1), &json!(20)));
    assert!(reply.header("x-request-id").starts_with("req-"));
    assert_eq!(reply.header("x-verbatim-warning"), "");
    // The same again, streamed: from the prefix cache.
    let body =
        json!({ "messages": user(&question), "stream": true, "stream_options": { "include_usage": true } });
    let reply = post(&server, "/v1/chat/completions", &body).await;
    assert!(reply.header("content-type").starts_with("text/event-stream"));
    assert!(reply.text.ends_with("data: [DONE]\n\n"));
    let chunks = events(&reply.text);
    let delta =
        |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned();
    assert_eq!(chunks.iter().map(delta).collect::<String>(), wanted);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let [.., last, usage] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    let cold = json!({ "messages": user(&question), "cache_prompt": false });
    let cold = post(&server, "/v1/chat/completions", &cold).await.json();
    assert_eq!(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    assert_eq!(cold["choices"][0]["message"]["content"], wanted);
}

#[tokio::test]
async fn several_answers_have_seeds_that_count_up() {
    let server = server(ServerOptions::default(), 2);
    let body = json!({ "prompt": ["one", "two"], "n": 2, "seed": 7, "max_tokens": 6, "echo": true });
    let answer = post(&server, "/v1/completions", &body).await.json();
    let choices = answer["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        let prompt = ["one", "two"][index / 2];
        let mut request = Request { prompt: Prompt::Text(prompt.into()), max_tokens: Some(6), ..defaults() };
        request.sampling.seed = Some(7 + index as u64 % 2);
        assert_eq!(choice["text"], format!("{prompt}{}", alone(request)));
        assert_eq!(choice["index"], index);
    }
    assert_eq!(answer["usage"]["completion_tokens"], 24);
    // Streamed, with more answers than slots.
    let streamed = post(
        &server,
        "/v1/completions",
        &json!({ "prompt": ["one", "two"], "n": 2, "seed": 7, "max_tokens": 6, "stream": true, "echo": true }),
    )
    .await;
    let mut texts = vec![String::new(); 4];
    for chunk in events(&streamed.text) {
        let choice = &chunk["choices"][0];
        texts[choice["index"].as_u64().expect("an index") as usize] +=
            choice["text"].as_str().expect("a text");
    }
    let wanted: Vec<_> = choices.iter().map(|choice| choice["text"].as_str().expect("a text")).collect();
    assert_eq!(texts, wanted);
}

#[tokio::test]
async fn answers_follow_their_settings() {
    let server = server(ServerOptions::default(), 2);
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
        "additionalProperties": false });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema, "strict": true } });
    let body = json!({ "messages": user("?"), "response_format": format, "max_tokens": 200 });
    let answer = post(&server, "/v1/chat/completions", &body).await.json();
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    let object: Value = serde_json::from_str(text).expect(text);
    assert!(object["ok"].is_boolean());
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let whole = post(&server, "/v1/completions", &json!({ "prompt": "a" })).await.json();
    let whole = whole["choices"][0]["text"].as_str().expect("a text").to_owned();
    let stop: String = whole.chars().skip(5).take(3).collect();
    let cut = post(&server, "/v1/completions", &json!({ "prompt": "a", "stop": stop })).await.json();
    assert_eq!(cut["choices"][0]["text"], whole[..whole.find(&stop).expect("there")]);
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    // A bias of 100 on one token, in OpenAI's form and in llama.cpp's.
    for bias in [json!({ "65": 100 }), json!([[65, 100.0]])] {
        let body = json!({ "prompt": "a", "logit_bias": bias, "max_tokens": 3, "logprobs": 2 });
        let answer = post(&server, "/v1/completions", &body).await.json();
        let log_probs = &answer["choices"][0]["logprobs"];
        let tokens = log_probs["tokens"].as_array().expect("tokens");
        assert!(tokens.iter().all(|token| token == &tokens[0]), "{log_probs}");
        assert_eq!(log_probs["top_logprobs"][0].as_object().expect("an object").len(), 2);
        assert_eq!(log_probs["text_offset"][0], 0);
    }
    let body = json!({ "messages": user("?"), "logprobs": true, "top_logprobs": 3, "max_tokens": 4 });
    let answer = post(&server, "/v1/chat/completions", &body).await.json();
    let entries = answer["choices"][0]["logprobs"]["content"].as_array().expect("entries");
    assert_eq!((entries.len(), entries[0]["top_logprobs"].as_array().expect("a list").len()), (4, 3));
}

#[tokio::test]
async fn fields_without_effect_are_named() {
    let server = server(ServerOptions::default(), 1);
    let body = json!({ "messages": user("hi"), "max_tokens": 1, "user": "me", "modalities": ["text"],
        "stream_options": { "colour": 1 }, "temperature": null });
    let reply = post(&server, "/v1/chat/completions", &body).await;
    assert_eq!(reply.status, 200);
    let warning = reply.header("x-verbatim-warning");
    assert_eq!(warning, "fields without effect here: stream_options.colour, modalities");
}

#[tokio::test]
async fn a_server_without_a_model_is_loading() {
    let server = verbatim_serve::Server::new(ServerOptions::default());
    for path in ["/health", "/v1/models", "/props", "/slots", "/metrics", "/api/tags"] {
        let reply = get(&server, path).await;
        assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "2"), "{path}");
    }
    let reply = post(&server, "/v1/chat/completions", &json!({ "messages": user("hi") })).await;
    assert_eq!(reply.status, 503);
    server.set_model(served(1, None));
    assert_eq!(get(&server, "/health").await.json(), json!({ "status": "ok" }));
    let models = get(&server, "/v1/models").await.json();
    assert_eq!((&models["data"][0]["id"], &models["object"]), (&json!("tiny"), &json!("list")));
    assert_eq!(get(&server, "/v1/models/tiny").await.json()["max_model_len"], 512);
    assert_eq!(get(&server, "/v1/models/huge").await.status, 404);
    // Without a template there are completions only.
    let reply = post(&server, "/v1/chat/completions", &json!({ "messages": user("hi") })).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text.contains("no chat template"), "{}", reply.text);
}
