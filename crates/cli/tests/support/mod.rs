//! What the tests of the `verbatim` program share: running it, and a model hub on this machine.

#![allow(dead_code, reason = "every test file uses a part of this module")]

pub mod tmux;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

/// The program, with a store of its own and none of the caller's settings.
pub fn verbatim(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbatim"));
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy().to_ascii_uppercase();
        if name.starts_with("VERBATIM_") || name.starts_with("HF_") || name.ends_with("_PROXY") {
            command.env_remove(&variable);
        }
    }
    command.env("VERBATIM_HOME", home).env("VERBATIM_CONFIG_FILE", home.join("config.toml"));
    command.stdin(Stdio::null());
    command
}

/// Runs with these bytes on standard input.
pub fn run_with_input(command: &mut Command, input: &[u8]) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A program that ends before it has read everything breaks the pipe, which is its right.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

/// Standard output of a run that must have succeeded.
#[track_caller]
pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error of a run that must have ended with this status and without output.
#[track_caller]
pub fn stderr(output: &Output, status: i32) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "a failed run printed something");
    text
}

/// A file of the golden data that is kept with the project.
pub fn data(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data")).join(path)
}

/// SHA-256 in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// A request that the fake hub received.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: String,
    /// First byte of the range that was asked for.
    pub range_start: Option<usize>,
    pub authorization: Option<String>,
}

/// What the fake hub answers.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// Close the connection after this many bytes of the body.
    pub cut: Option<usize>,
    /// Send no length: the body ends with the connection.
    pub has_no_length: bool,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn redirect(location: impl Into<String>) -> Self {
        Self::status(302).header("Location", location)
    }

    /// The file as a server that knows ranges gives it.
    pub fn file(request: &Request, content: &[u8], etag: &str) -> Self {
        let total = content.len();
        match request.range_start {
            Some(start) if start >= total => {
                Self::status(416).header("Content-Range", format!("bytes */{total}"))
            }
            Some(start) => Self { body: content[start..].to_vec(), ..Self::status(206) }
                .header("Content-Range", format!("bytes {start}-{}/{total}", total - 1)),
            None => Self { body: content.to_vec(), ..Self::status(200) },
        }
        .header("ETag", format!("\"{etag}\""))
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub fn without_length(mut self) -> Self {
        self.has_no_length = true;
        self
    }

    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }
}

/// A model hub on this machine. Its thread ends with the test's process.
pub struct FakeHub {
    pub endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl FakeHub {
    /// Starts a hub that answers every request with what `answer` makes of it. `answer` also gets the number
    /// of requests before this one.
    pub fn start(answer: impl Fn(&Request, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&requests), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
                std::thread::spawn(move || {
                    let Some(request) = read_request(&stream) else { return };
                    let before = {
                        let mut log = log.lock().unwrap();
                        log.push(request.clone());
                        log.len() - 1
                    };
                    // A client that hangs up is not the hub's problem.
                    let _ = write_reply(&stream, &answer(&request, before));
                });
            }
        });
        Self { endpoint, requests }
    }

    /// A hub whose every file has this content, and whose redirects have its SHA-256 in a header, as the real hub's do.
    pub fn with_content(content: &'static [u8]) -> Self {
        Self::start(move |request, _| {
            Reply::file(request, content, "storage")
                .header("X-Linked-Etag", format!("\"{}\"", sha256(content)))
        })
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut request =
        Request { path: first.split(' ').nth(1)?.to_owned(), range_start: None, authorization: None };
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { return Some(request) };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range_start = value.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok(),
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    None
}

fn write_reply(mut stream: &TcpStream, reply: &Reply) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {} Whatever\r\nConnection: close\r\n", reply.status);
    if !reply.has_no_length {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&reply.body[..reply.cut.unwrap_or(reply.body.len())])?;
    stream.flush()
}
