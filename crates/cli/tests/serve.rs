//! `verbatim serve`: it answers over HTTP, and ends when it is told to.
#![cfg(unix)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::{Value, json};
use support::{data, stdout, verbatim};

/// A server that is killed with its test.
struct Server {
    child: Child,
    address: String,
    log: BufReader<ChildStderr>,
}

impl Server {
    fn start(command: &mut Command) -> Server {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains(" is ready at http://") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        let address = line.trim().rsplit_once("http://").unwrap().1.to_owned();
        Server { child, address, log }
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}");
        write!(stream, "{head}Content-Length: {length}\r\n\r\n{body}").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Sends SIGTERM; returns the exit status and the rest of the log.
    fn terminate(mut self) -> (Option<i32>, String) {
        let killed = Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        assert!(killed.success());
        let mut log = String::new();
        self.log.read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn serve(home: &Path, arguments: &[&str]) -> Command {
    let mut command = verbatim(home);
    command.args(["serve", "--port", "0", "-np", "2", "--ctx-size", "256", "--chat-template", "chatml"]);
    command.arg(data("models/qwen3/model.gguf")).args(arguments);
    command
}

#[test]
fn it_answers_as_run_does_and_ends_when_it_is_told_to() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(&mut serve(home.path(), &["--log-format", "json"]));
    let body = json!({ "model": "model", "messages": [{ "role": "user", "content": "hello" }], "seed": 5,
        "max_tokens": 12 });
    let (status, text) = server.send("POST", "/v1/chat/completions", "", &body.to_string());
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let mut run = verbatim(home.path());
    run.args(["run", "--chat-template", "chatml", "--seed", "5", "-n", "12", "-c", "256", "--json", "-m"]);
    let output = run.arg(data("models/qwen3/model.gguf")).arg("hello").output().unwrap();
    let wanted: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(answer["choices"][0]["message"]["content"], wanted["text"]);
    assert_eq!(server.send("GET", "/health", "", "").0, 200);
    let (status, log) = server.terminate();
    assert_eq!(status, Some(0), "{log}");
    let line = log.lines().find(|line| line.contains("/v1/chat/completions")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["status"], &line["level"]), (&json!(200), &json!("INFO")));
    assert!(line["request"].as_str().unwrap().starts_with("req-"));
    assert!(!log.contains("hello"), "prompts are not logged");
}

#[test]
fn it_takes_llama_servers_options_and_variables() {
    let home = tempfile::tempdir().unwrap();
    let keys = home.path().join("keys");
    std::fs::write(&keys, "# ours\nfrom-file\n\n").unwrap();
    let mut command =
        serve(home.path(), &["-a", "one,two", "-to", "9", "--metrics", "--slots", "-ngl", "99"]);
    command.args(["--api-key-file"]).arg(&keys).env("LLAMA_API_KEY", "from-variable");
    let server = Server::start(&mut command);
    assert_eq!(server.send("GET", "/v1/models", "", "").0, 401);
    for key in ["from-file", "from-variable"] {
        let (status, text) =
            server.send("GET", "/v1/models", &format!("Authorization: Bearer {key}\r\n"), "");
        let models: Value = serde_json::from_str(&text).unwrap();
        let models = models["data"].as_array().unwrap().iter();
        let names: Vec<&str> = models.map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!((status, names), (200, vec!["one", "two"]));
    }
}

#[test]
fn what_stops_it_from_starting_is_said() {
    let home = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut command = serve(home.path(), &["--port", &port]);
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(said.contains(&format!("cannot listen on 127.0.0.1, port {port}")), "{said}");
    let mut command = verbatim(home.path());
    let output = command.args(["serve", "--port", "0", "no-such-model"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("no model") && said.contains("no-such-model"), "{said}");
}
