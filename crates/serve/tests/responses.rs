//! OpenAI's Responses API.

mod support;

use serde_json::{Value, json};
use support::*;
use verbatim_serve::ServerOptions;

#[tokio::test]
async fn a_response_is_whole_or_a_stream_of_events() {
    let server = server(ServerOptions::default(), 1);
    let chat = json!({ "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "hello" }],
        "max_tokens": 8 });
    let chat = post(&server, "/v1/chat/completions", &chat).await.json();
    let wanted = &chat["choices"][0]["message"]["content"];
    let mut body =
        json!({ "model": "tiny", "instructions": "Be brief.", "input": "hello", "max_output_tokens": 8 });
    let answer = post(&server, "/v1/responses", &body).await.json();
    assert_eq!(&answer["output"][0]["content"][0]["text"], wanted, "{answer}");
    assert_eq!(
        (&answer["status"], &answer["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(answer["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    body["stream"] = true.into();
    let events = events(&post(&server, "/v1/responses", &body).await.text);
    let text: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(&json!(text), wanted);
    let numbers: Vec<_> = events.iter().filter_map(|event| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(events[0]["type"], "response.created");
    let last = events.last().expect("a last");
    assert_eq!(
        (&last["type"], &last["response"]["output"][0]["content"][0]["text"]),
        (&json!("response.incomplete"), wanted)
    );
}

#[tokio::test]
async fn a_response_may_have_a_schema_and_a_history() {
    let server = server(ServerOptions::default(), 1);
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
        "additionalProperties": false });
    let body = json!({ "text": { "format": { "type": "json_schema", "name": "x", "schema": schema } }, "input": [
        { "role": "user", "content": [{ "type": "input_text", "text": "Is it?" }] },
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Yes." }] },
        { "role": "user", "content": "Really?" },
    ], "max_output_tokens": 200, "store": false, "metadata": { "a": "b" } });
    let reply = post(&server, "/v1/responses", &body).await;
    let answer = reply.json();
    assert_eq!(
        (reply.header("x-verbatim-warning"), &answer["status"]),
        ("", &json!("completed")),
        "{answer}"
    );
    let text = answer["output"][0]["content"][0]["text"].as_str().expect("a text");
    assert!(serde_json::from_str::<Value>(text).expect(text)["ok"].is_boolean());
    assert_eq!(answer["metadata"], json!({ "a": "b" }));
}
