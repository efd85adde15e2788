//! llama.cpp's routes.

mod support;

use serde_json::json;
use support::*;
use verbatim_serve::ServerOptions;

#[tokio::test]
async fn a_completion_has_llama_cpps_form() {
    let server = server(ServerOptions::default(), 1);
    let plain =
        post(&server, "/v1/completions", &json!({ "prompt": "it was", "max_tokens": 8 })).await.json();
    let body = json!({ "prompt": "it was", "n_predict": 8, "return_tokens": true, "n_probs": 2 });
    let answer = post(&server, "/completion", &body).await.json();
    assert_eq!(answer["content"], plain["choices"][0]["text"]);
    assert_eq!((&answer["stop_type"], &answer["tokens_predicted"]), (&json!("limit"), &json!(8)));
    assert_eq!(answer["tokens"].as_array().expect("tokens").len(), 8);
    assert_eq!(answer["completion_probabilities"][7]["top_logprobs"].as_array().expect("a list").len(), 2);
    assert_eq!(answer["generation_settings"]["seed"], 1);
    let body = json!({ "prompt": "it was", "n_predict": 8, "stream": true, "n_probs": 1, "post_sampling_probs": true });
    let streamed = post(&server, "/completion", &body).await;
    let chunks = events(&streamed.text);
    let text = chunks.iter().map(|chunk| chunk["content"].as_str().expect("a text")).collect::<String>();
    assert_eq!(text, answer["content"]);
    let probability = chunks[0]["completion_probabilities"][0]["prob"].as_f64().expect("a number");
    assert!(probability > 0.0 && probability <= 1.0);
    assert_eq!(chunks.last().expect("a last one")["stop"], true);
    let tokens = answer["tokens"].clone();
    let text = post(&server, "/detokenize", &json!({ "tokens": tokens })).await.json();
    assert_eq!(text["content"], answer["content"]);
}

#[tokio::test]
async fn texts_become_tokens_and_back() {
    let server = server(ServerOptions::default(), 1);
    let tokens = post(&server, "/tokenize", &json!({ "content": "it was a dark night" })).await.json();
    let count = tokens["tokens"].as_array().expect("tokens").len();
    assert_eq!(tokens["count"], count);
    let text = post(&server, "/detokenize", &json!({ "tokens": tokens["tokens"] })).await.json();
    assert_eq!(text["content"], "it was a dark night");
    let pieces = json!({ "content": "it was", "with_pieces": true });
    let pieces = post(&server, "/tokenize", &pieces).await.json();
    assert_eq!(pieces["tokens"][0]["id"], tokens["tokens"][0]);
    assert!(pieces["tokens"][0]["piece"].is_string());
    let prompt = post(&server, "/apply-template", &json!({ "messages": user("hi") })).await.json();
    assert_eq!(prompt["prompt"], "user: hi\nassistant:");
    let chat = post(&server, "/tokenize", &json!({ "messages": user("hi") })).await.json();
    let text = post(&server, "/detokenize", &json!({ "tokens": chat["tokens"] })).await.json();
    assert_eq!(text["content"], prompt["prompt"]);
}

#[tokio::test]
async fn what_the_server_does_can_be_watched() {
    let server = server(ServerOptions::default(), 3);
    let props = get(&server, "/props").await.json();
    assert_eq!((&props["total_slots"], &props["chat_template"]), (&json!(3), &json!(TEMPLATE)));
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
    post(&server, "/completion", &json!({ "prompt": "it was", "n_predict": 8 })).await;
    let slots = get(&server, "/slots").await.json();
    let slots = slots.as_array().expect("slots");
    assert!(slots.len() == 3 && slots.iter().all(|slot| slot["is_processing"] == false));
    let reply = get(&server, "/metrics").await;
    assert!(reply.header("content-type").starts_with("application/openmetrics-text"));
    for line in [
        "llamacpp:tokens_predicted_total 8",
        "llamacpp:requests_processing 0.0",
        "vllm:num_requests_waiting 0.0",
        "vllm:num_requests_running 0.0",
        "vllm:kv_cache_usage_perc 0.0",
        "vllm:generation_tokens_total 8",
        "vllm:cache_config_info{block_size=",
        "vllm:request_success_total{finished_reason=\"length\"} 1",
        "vllm:time_to_first_token_seconds_count 1",
        "vllm:e2e_request_latency_seconds_bucket{le=\"640.0\"} 1",
        "# EOF",
    ] {
        assert!(reply.text.contains(line), "{line} is missing in\n{}", reply.text);
    }
}
