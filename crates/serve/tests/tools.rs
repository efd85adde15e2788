//! Tools through every API, with a template that writes them and a grammar that makes the tiny model call.

mod support;

use serde_json::{Value, json};
use support::*;
use verbatim_serve::{Server, ServerOptions};

const WITH_TOOLS: &str = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>\
    {% endfor %}{{ '\n' }}{% endfor %}assistant:";

fn tool_server() -> Server {
    let server = Server::new(ServerOptions::default());
    server.set_model(served(2, Some(WITH_TOOLS)));
    server
}

fn parameters() -> Value {
    json!({ "type": "object", "properties": { "unit": { "enum": ["C", "F"] } }, "required": ["unit"],
        "additionalProperties": false })
}

fn tools() -> Value {
    let tool =
        |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": parameters() } });
    json!([tool("heat"), tool("cold")])
}

#[tokio::test]
async fn a_model_that_must_call_calls() {
    let server = tool_server();
    let choice = json!({ "type": "function", "function": { "name": "cold" } });
    let mut body = json!({ "messages": user("?"), "tools": tools(), "tool_choice": choice, "max_tokens": 300,
        "parallel_tool_calls": false });
    let answer = post(&server, "/v1/chat/completions", &body).await.json();
    let found = &answer["choices"][0];
    assert_eq!(found["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(found["message"]["content"], Value::Null);
    let call = &found["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("cold")));
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().expect("a text")).expect("JSON");
    assert!(arguments["unit"] == "C" || arguments["unit"] == "F");
    // The same as a stream.
    body["stream"] = true.into();
    let chunks = events(&post(&server, "/v1/chat/completions", &body).await.text);
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let streamed: Vec<&Value> = deltas.iter().filter_map(|delta| delta.get("tool_calls")).collect();
    assert_eq!(streamed.len(), 1);
    assert_eq!((&streamed[0][0]["function"], &streamed[0][0]["index"]), (&call["function"], &json!(0)));
    assert!(deltas.iter().all(|delta| delta["content"].as_str().unwrap_or_default().is_empty()));
    assert_eq!(chunks.last().expect("a last")["choices"][0]["finish_reason"], "tool_calls");
    // Ollama's form.
    let body = json!({ "model": "tiny", "messages": user("?"), "tools": tools(), "tool_choice": choice, "stream": false,
        "parallel_tool_calls": false, "options": { "num_predict": 300 } });
    let answer = post(&server, "/api/chat", &body).await.json();
    let function = json!({ "name": "cold", "arguments": arguments });
    assert_eq!(answer["message"]["tool_calls"][0]["function"], function, "{answer}");
    // Anthropic's form.
    let tools = json!([{ "name": "cold", "input_schema": parameters() }]);
    let mut body = json!({ "messages": user("?"), "tools": tools, "tool_choice": { "type": "any" }, "max_tokens": 300,
        "parallel_tool_calls": false });
    let answer = post(&server, "/v1/messages", &body).await.json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let block = &answer["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("cold")));
    assert!(block["id"].as_str().expect("an id").starts_with("toolu_") && block["input"]["unit"].is_string());
    body["stream"] = true.into();
    let events = events(&post(&server, "/v1/messages", &body).await.text);
    let delta = events.iter().find(|event| event["delta"]["type"] == "input_json_delta").expect("arguments");
    let input: Value =
        serde_json::from_str(delta["delta"]["partial_json"].as_str().expect("a text")).expect("JSON");
    assert_eq!(input, block["input"]);
}

#[tokio::test]
async fn tools_reach_the_template_and_results_follow_calls() {
    let server = tool_server();
    let rounds = json!([
        { "role": "user", "content": "How cold?" },
        { "role": "assistant", "content": null, "tool_calls": [{ "id": "a", "type": "function",
            "function": { "name": "cold", "arguments": "{\"unit\": \"C\"}" } }] },
        { "role": "tool", "tool_call_id": "a", "content": "-4" },
    ]);
    let shown = json!({ "messages": rounds, "tools": tools() });
    let text =
        post(&server, "/apply-template", &shown).await.json()["prompt"].as_str().expect("a text").to_owned();
    assert!(text.starts_with("heat;cold;user: How cold?"), "{text}");
    assert!(
        text.contains("<tool_call>{\"name\": \"cold\", \"arguments\": {\"unit\": \"C\"}}</tool_call>"),
        "{text}"
    );
    assert!(text.ends_with("tool: -4\nassistant:"), "{text}");
    // With a choice, the model may answer with text.
    let body = json!({ "messages": rounds, "tools": tools(), "max_tokens": 8 });
    let answer = post(&server, "/v1/chat/completions", &body).await.json();
    let plain = post(&server, "/v1/completions", &json!({ "prompt": text, "max_tokens": 8 })).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], plain["choices"][0]["text"]);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    // Without one, it does not know of them.
    let none = json!({ "messages": rounds, "tools": tools(), "tool_choice": "none", "max_tokens": 8 });
    let none = post(&server, "/v1/chat/completions", &none).await.json();
    assert!(none["usage"]["prompt_tokens"].as_u64() < answer["usage"]["prompt_tokens"].as_u64());
}
