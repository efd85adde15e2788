//! Many clients at once, over sockets: answers are those of the engine alone, clients that leave free their slots, a full queue says
//! so, slow clients are not waited for, and a server that is told to stop completes its answers.

mod support;

use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::*;
use verbatim_engine::{Event, Prompt, Request, Speculation};
use verbatim_serve::ServerOptions;

const CLIENTS: usize = 64;
const REQUESTS: usize = 3;

/// A request of one of some kinds: with and without drafts, of several lengths, seeds and temperatures.
fn body(number: usize) -> Value {
    let words =
        ["it was a dark night", "the rain", "once upon a time in a land of mist", "a", "it was a dark day"];
    let prompt = words[number % 5].repeat(1 + number % 3);
    let speculation = if number.is_multiple_of(2) { json!(4) } else { json!("off") };
    let temperature = [0.0, 0.7, 1.3][number % 3];
    json!({ "prompt": prompt, "max_tokens": 4 + number * 7 % 40, "seed": number % 11, "temperature": temperature,
        "speculation": speculation })
}

/// The engine's request for it.
fn request(body: &Value) -> Request {
    let number = |key: &str| body[key].as_u64().expect("a number");
    let mut request = Request {
        prompt: Prompt::Text(body["prompt"].as_str().expect("a text").to_owned()),
        max_tokens: Some(number("max_tokens") as usize),
        speculation: Speculation::Off,
        ..defaults()
    };
    request.sampling.seed = Some(number("seed"));
    request.sampling.temperature = body["temperature"].as_f64().expect("a number") as f32;
    request
}

/// The texts of all kinds of requests, each computed alone.
fn expected(numbers: impl Iterator<Item = usize>) -> HashMap<String, String> {
    let engine = engine(1, None);
    let text = |event| match event {
        Event::Text { text, .. } => text,
        Event::Failed(error) => panic!("{error}"),
        _ => String::new(),
    };
    let answers = numbers.map(|number| {
        let body = body(number);
        let request = Request { cache_prompt: false, ..request(&body) };
        (body.to_string(), engine.submit(request).map(text).collect())
    });
    answers.collect()
}

fn streamed(text: &str) -> String {
    let texts = events(text).into_iter();
    texts.map(|chunk| chunk["choices"][0]["text"].as_str().expect("a text").to_owned()).collect()
}

/// Waits until nothing runs, and checks that no slot is in use.
fn is_idle(server: &Running) -> bool {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, metrics) = server.request("GET", "/metrics", "");
        let (_, slots) = server.request("GET", "/slots", "");
        let idle = [
            "vllm:num_requests_running 0.0",
            "vllm:num_requests_waiting 0.0",
            "vllm:kv_cache_usage_perc 0.0",
        ]
        .iter()
        .all(|line| metrics.contains(line))
            && !slots.contains("\"is_processing\":true");
        if idle || Instant::now() > deadline {
            return idle;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn many_clients_get_the_answers_of_the_engine_alone() {
    let wanted = expected(0..CLIENTS * REQUESTS);
    let server = Running::start(server(ServerOptions::default(), 8));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (server, wanted) = (&server, &wanted);
            scope.spawn(move || {
                for round in 0..REQUESTS {
                    let body = body(client * REQUESTS + round);
                    let mut asked = body.clone();
                    if client.is_multiple_of(2) {
                        asked["stream"] = true.into();
                    }
                    let (status, text) = server.request("POST", "/v1/completions", &asked.to_string());
                    assert_eq!(status, 200, "{text}");
                    let found = match client.is_multiple_of(2) {
                        true => streamed(&text),
                        false => {
                            let answer: Value = serde_json::from_str(&text).expect("JSON");
                            answer["choices"][0]["text"].as_str().expect("a text").to_owned()
                        }
                    };
                    assert_eq!(found, wanted[&body.to_string()], "{body}");
                }
            });
        }
    });
    assert!(is_idle(&server));
}

#[test]
fn clients_that_leave_free_their_slots() {
    const LEAVING: usize = 200;
    let wanted = expected(0..16);
    let server = Running::start(server(ServerOptions { queue_max: 1000, ..ServerOptions::default() }, 4));
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(worker);
                for number in 0..LEAVING / 8 {
                    let mut body = body(number);
                    body["stream"] = random.bool().into();
                    body["max_tokens"] = 200.into();
                    let text = http("POST", "/v1/completions", &body.to_string());
                    // Within the request, right behind it, or somewhere within the answer.
                    let sent = if random.u8(..4) == 0 { random.usize(..text.len()) } else { text.len() };
                    let mut stream = server.connect();
                    stream.write_all(&text.as_bytes()[..sent]).expect("written");
                    std::thread::sleep(Duration::from_millis(random.u64(..30)));
                    if random.bool() {
                        stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
                        let _ = stream.read(&mut [0; 300]);
                    }
                }
            });
        }
        // Those who stay get their answers.
        for client in 0..4 {
            let (server, wanted) = (&server, &wanted);
            scope.spawn(move || {
                for number in client * 4..client * 4 + 4 {
                    let body = body(number);
                    let (status, answer) = server.post("/v1/completions", &body);
                    assert_eq!(status, 200, "{answer}");
                    assert_eq!(answer["choices"][0]["text"], wanted[&body.to_string()]);
                }
            });
        }
    });
    // When the last sequence ends, the engine checks its cache metadata, and stops if it is inconsistent.
    assert!(is_idle(&server), "a slot has leaked");
    let (status, answer) = server.post("/v1/completions", &body(3));
    assert_eq!((status, answer["choices"][0]["text"].as_str()), (200, Some(&*wanted[&body(3).to_string()])));
}

/// Sends a request and leaves its connection open.
fn begun(server: &Running, body: &Value) -> TcpStream {
    let mut stream = server.connect();
    stream.write_all(http("POST", "/v1/completions", &body.to_string()).as_bytes()).expect("written");
    stream
}

#[test]
fn a_full_queue_says_so() {
    let (server, paused) = busy_server(ServerOptions { queue_max: 1, ..ServerOptions::default() });
    let waiting = [begun(&server, &body(1)), begun(&server, &body(2))];
    server.wait_for("vllm:num_requests_waiting 2.0");
    let mut third = begun(&server, &body(3));
    let mut text = String::new();
    third.read_to_string(&mut text).expect("a response");
    assert!(
        text.starts_with("HTTP/1.1 429") && text.to_ascii_lowercase().contains("retry-after: "),
        "{text}"
    );
    assert!(text.contains("the queue is full: 2 requests run or wait"), "{text}");
    // One that leaves the queue makes room in it.
    let [mut first, second] = waiting;
    drop(second);
    server.wait_for("vllm:num_requests_waiting 1.0");
    let mut third = begun(&server, &body(3));
    server.wait_for("vllm:num_requests_waiting 2.0");
    drop(paused);
    assert_eq!((read_response(&mut first).0, read_response(&mut third).0), (200, 200));
    assert!(is_idle(&server));
}

#[test]
fn slow_clients_are_not_waited_for() {
    let options = ServerOptions { io_timeout: Duration::from_millis(300), ..ServerOptions::default() };
    let server = Running::start(server(options, 1));
    // Half of the headers, and half of a body.
    let whole = http("POST", "/v1/completions", r#"{"prompt": "a", "max_tokens": 1}"#);
    let started = Instant::now();
    let mut slow = Vec::new();
    for part in [&whole[..30], &whole[..whole.len() - 10]] {
        let mut stream = server.connect();
        stream.write_all(part.as_bytes()).expect("written");
        slow.push(stream);
    }
    // Meanwhile others are served.
    assert_eq!(server.request("POST", "/v1/completions", r#"{"prompt": "a", "max_tokens": 1}"#).0, 200);
    let mut answers = slow.into_iter().map(|mut stream| {
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it is closed");
        text
    });
    assert!(!answers.next().expect("headers").contains("200 OK"));
    let body = answers.next().expect("a body");
    assert!(body.starts_with("HTTP/1.1 408") && body.contains("did not arrive within"), "{body}");
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_server_that_stops_completes_its_answers() {
    let wanted = expected(0..4);
    let (mut server, paused) = busy_server(ServerOptions::default());
    let streams: Vec<_> = (0..4).map(|number| (number, begun(&server, &body(number)))).collect();
    server.wait_for("vllm:num_requests_waiting 4.0");
    server.stop();
    drop(paused);
    for (number, mut stream) in streams {
        let (status, text) = read_response(&mut stream);
        assert_eq!(status, 200, "{text}");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(answer["choices"][0]["text"], wanted[&body(number).to_string()]);
    }
    assert!(server.wait());
    assert!(TcpStream::connect(server.address).is_err(), "it still takes connections");
}

#[test]
fn answers_that_take_too_long_are_cut_when_the_server_stops() {
    let options = ServerOptions { drain_timeout: Duration::from_millis(100), ..ServerOptions::default() };
    let (mut server, paused) = busy_server(options);
    let waiting = begun(&server, &body(1));
    server.wait_for("vllm:num_requests_waiting 1.0");
    let started = Instant::now();
    assert!(!server.wait());
    assert!(started.elapsed() < Duration::from_secs(20));
    drop((waiting, paused));
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_slot() {
    let options = ServerOptions { io_timeout: Duration::from_millis(200), ..ServerOptions::default() };
    let server = server(options, 1);
    let body = json!({ "prompt": "a", "n": 4, "max_tokens": 200, "ignore_eos": true, "stream": true });
    // Its body is never asked for more.
    let response = begin(&server, "/v1/completions", &body).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut metrics = String::new();
    while !metrics.contains("vllm:request_success_total{finished_reason=\"abort\"}") {
        assert!(Instant::now() < deadline, "{metrics}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        metrics = get(&server, "/metrics").await.text;
    }
    let answer = post(&server, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 })).await;
    assert_eq!(answer.status, 200);
    drop(response);
}
