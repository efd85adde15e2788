//! Servers over a tiny model, with and without sockets.
#![allow(dead_code)] // Each test file uses its part.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tower::ServiceExt;
use verbatim_cpu::Cpu;
use verbatim_engine::{
    Engine, EngineOptions, Event, EventStream, LoadOptions, Prompt, Request as EngineRequest, Sampling,
    Stepper, TextProcessor,
};
use verbatim_gguf::GgufFile;
use verbatim_serve::{ModelInfo, ServedModel, Server, ServerOptions};
use verbatim_text::Tokenizer;

pub const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";

/// An engine of the tiny model.
pub fn engine(sequences: usize, template: Option<&str>) -> Engine {
    engine_with(sequences, template, EngineOptions::default())
}

pub fn engine_with(sequences: usize, template: Option<&str>, options: EngineOptions) -> Engine {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models/qwen3/model.gguf");
    let file = GgufFile::open(path).expect("a model");
    let tokenizer = Arc::new(Tokenizer::from_gguf(file.metadata()).expect("a vocabulary"));
    let load = LoadOptions { context: Some(512), sequences, cache_bytes: 1 << 24, ..LoadOptions::default() };
    let stepper = Stepper::load(Cpu::new(1).expect("a backend"), &file, &load).expect("a model");
    let text = TextProcessor { tokenizer, template: template.map(str::to_owned) };
    Engine::start(stepper, text, options).expect("a thread")
}

/// What requests have in common, unless they say otherwise: seeded, so that answers can be compared.
pub fn defaults() -> EngineRequest {
    let sampling = Sampling { seed: Some(1), ..Sampling::unfiltered(0.9, 1) };
    EngineRequest { sampling, max_tokens: Some(20), ..EngineRequest::new(Prompt::Tokens(Vec::new())) }
}

pub fn served(slots: usize, template: Option<&str>) -> ServedModel {
    let info = ModelInfo {
        names: vec!["tiny".to_owned(), "tiny:latest".to_owned()],
        path: "tiny.gguf".to_owned(),
        architecture: "qwen3".to_owned(),
        quantization: "F32".to_owned(),
        parameters: 12_345,
        ..ModelInfo::default()
    };
    ServedModel { engine: engine(slots, template), slots, defaults: defaults(), info }
}

pub fn server(options: ServerOptions, slots: usize) -> Server {
    let server = Server::new(options);
    server.set_model(served(slots, Some(TEMPLATE)));
    server
}

/// A server on a socket whose only slot is taken, by a request that waits for its client to read.
pub fn busy_server(options: ServerOptions) -> (Running, EventStream) {
    let engine =
        engine_with(1, Some(TEMPLATE), EngineOptions { event_buffer: 1, ..EngineOptions::default() });
    let request = EngineRequest { prompt: Prompt::Text("a".to_owned()), ..defaults() };
    let mut paused = engine.submit(request);
    assert!(matches!(paused.next(), Some(Event::Started { .. })));
    let server = Server::new(options);
    server.set_model(ServedModel { engine, ..served(1, None) });
    (Running::start(server), paused)
}

/// A response that has been read.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("plain"))
    }
}

/// Sends a request without a socket.
pub async fn send(
    server: &Server,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Body,
) -> Reply {
    let mut request = Request::builder().method(method).uri(path);
    if headers.iter().all(|(name, _)| *name != "host") {
        request = request.header("host", "localhost:8080");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(body).expect("a request");
    let response = server.router().oneshot(request).await.expect("infallible");
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.expect("a body");
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    Reply { status: parts.status, headers: parts.headers, text }
}

/// Sends a request; the body of the response is left to be read.
pub async fn begin(server: &Server, path: &str, body: &Value) -> Response {
    let request = Request::builder().method(Method::POST).uri(path).header("host", "localhost");
    let request = request.body(Body::from(body.to_string())).expect("a request");
    server.router().oneshot(request).await.expect("infallible")
}

pub async fn post(server: &Server, path: &str, body: &Value) -> Reply {
    send(server, Method::POST, path, &[], Body::from(body.to_string())).await
}

pub async fn get(server: &Server, path: &str) -> Reply {
    send(server, Method::GET, path, &[], Body::empty()).await
}

/// The data of each event of a stream.
pub fn events(stream: &str) -> Vec<Value> {
    let data =
        stream.split("\n\n").filter_map(|event| event.lines().find_map(|line| line.strip_prefix("data: ")));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).expect("JSON")).collect()
}

/// A conversation of one message.
pub fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// A server on a socket, until it is dropped.
pub struct Running {
    pub address: SocketAddr,
    pub server: Server,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<bool>>,
    runtime: Runtime,
}

impl Running {
    pub fn start(server: Server) -> Running {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime =
            { runtime }.worker_threads(2).max_blocking_threads(4).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a socket");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let serving = server.clone();
        let served = runtime.spawn(async move {
            serving
                .serve(listener, async {
                    let _ = stopped.await;
                })
                .await
        });
        Running { address, server, stop: Some(stop), served: Some(served), runtime }
    }

    /// Tells the server to stop.
    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until it has stopped; returns whether all answers were complete.
    pub fn wait(&mut self) -> bool {
        self.stop();
        self.runtime.block_on(self.served.take().expect("once")).expect("no panic")
    }

    /// Waits until the metrics have this line.
    pub fn wait_for(&self, line: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.request("GET", "/metrics", "").1.contains(line) {
            assert!(Instant::now() < deadline, "{line}");
        }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
        stream
    }

    /// Sends a request on a connection of its own; returns the status and the whole response.
    pub fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        stream.write_all(http(method, path, body).as_bytes()).expect("written");
        read_response(&mut stream)
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.request("POST", path, &body.to_string());
        let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (status, value)
    }
}

/// A request that closes its connection.
pub fn http(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The status and the body of a response, to the end of the connection.
pub fn read_response(stream: &mut TcpStream) -> (u16, String) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("a response");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no headers: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let is_chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, if is_chunked { unchunked(body) } else { body.to_owned() })
}

fn unchunked(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        text.push_str(&rest[..size]);
        body = rest.get(size + 2..).unwrap_or_default();
    }
    text
}
