//! Anthropic's routes.

mod support;

use serde_json::json;
use support::*;
use verbatim_serve::ServerOptions;

#[tokio::test]
async fn a_message_is_answered_whole_or_as_events() {
    let server = server(ServerOptions::default(), 1);
    let chat = json!({ "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "hello" }],
        "max_tokens": 8 });
    let chat = post(&server, "/v1/chat/completions", &chat).await.json();
    let wanted = chat["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    let mut body =
        json!({ "model": "tiny", "max_tokens": 8, "system": "Be brief.", "messages": user("hello") });
    let answer = post(&server, "/v1/messages", &body).await.json();
    assert_eq!(answer["content"], json!([{ "type": "text", "text": wanted }]));
    assert_eq!((&answer["type"], &answer["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    let usage = &answer["usage"];
    let prompt = usage["input_tokens"].as_u64().zip(usage["cache_read_input_tokens"].as_u64());
    assert_eq!(prompt.map(|(input, cached)| input + cached), chat["usage"]["prompt_tokens"].as_u64());
    let counted = post(&server, "/v1/messages/count_tokens", &body).await.json();
    assert_eq!(counted["input_tokens"], chat["usage"]["prompt_tokens"]);
    body["stream"] = true.into();
    let stream = post(&server, "/v1/messages", &body).await.text;
    let events = events(&stream);
    let text = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect::<String>();
    assert_eq!(text, wanted);
    assert_eq!(events.first().expect("a first")["type"], "message_start");
    assert_eq!(events.last().expect("a last")["type"], "message_stop");
    // A stop sequence, and the beginning of an answer.
    let stop: String = wanted.chars().skip(3).take(3).collect();
    let body = json!({ "max_tokens": 8, "system": "Be brief.", "messages": user("hello"), "stop_sequences": [stop] });
    let answer = post(&server, "/v1/messages", &body).await.json();
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    let begun = json!({ "max_tokens": 4, "messages": [
        { "role": "user", "content": "hello" }, { "role": "assistant", "content": "Well," }] });
    let answer = post(&server, "/v1/messages", &begun).await.json();
    let plain = json!({ "prompt": "user: hello\nassistant:Well,", "max_tokens": 4 });
    let plain = post(&server, "/v1/completions", &plain).await.json();
    assert_eq!(answer["content"][0]["text"], plain["choices"][0]["text"]);
}

#[tokio::test]
async fn errors_have_their_own_form() {
    let options = ServerOptions { api_keys: vec!["k".into()], ..ServerOptions::default() };
    let server = server(options, 1);
    let reply = post(&server, "/v1/messages", &json!({})).await;
    assert_eq!(reply.status, 401);
    let error = reply.json();
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("authentication_error")));
}
