//! Answers that are sent while they are generated.

use crate::answer::{Answer, AnswerEvent, Ending, Piece, next_of};
use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

/// Frames that may wait for the connection.
const FRAMES_AHEAD: usize = 16;
/// A sign of life where nothing else is sent for so long, for proxies that close quiet connections.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(crate) const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// How an API writes a stream. Each function appends its frames to `out`; `index` is the answer's.
pub(crate) trait StreamForm: Send + 'static {
    /// The content type.
    const CONTENT_TYPE: &'static str;
    /// A frame without meaning, if there is one.
    const KEEP_ALIVE: Option<&'static str>;
    /// The answer has started.
    fn started(&mut self, index: usize, prompt_tokens: usize, cached_tokens: usize, out: &mut String);
    /// There is more of it.
    fn piece(&mut self, index: usize, piece: Piece, out: &mut String);
    /// It is complete.
    fn finished(&mut self, index: usize, ending: &Ending, out: &mut String);
    /// All answers are complete.
    fn end(&mut self, out: &mut String);
    /// An answer has failed, and with it the request.
    fn failed(&mut self, error: &ApiError, out: &mut String);
}

/// The response that streams answers. They are cancelled when the client disconnects, or reads nothing for `stall`.
pub(crate) fn response<F: StreamForm>(answers: Vec<Answer>, form: F, stall: Duration) -> Response {
    let (sender, receiver) = channel::<Result<Bytes, Infallible>>(FRAMES_AHEAD);
    tokio::spawn(async move {
        // A client that is gone or reads nothing is told nothing.
        let _ = send_all(answers, form, &sender, stall).await;
    });
    let headers = [
        (header::CONTENT_TYPE, F::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies such as nginx would collect the stream.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(ReceiverStream::new(receiver))).into_response()
}

/// The client is gone, or does not read.
struct Gone;

async fn send_all<F: StreamForm>(
    mut answers: Vec<Answer>,
    mut form: F,
    sender: &Sender<Result<Bytes, Infallible>>,
    stall: Duration,
) -> Result<(), Gone> {
    loop {
        let mut frames = String::new();
        let event = tokio::select! {
            () = sender.closed() => return Err(Gone),
            event = timeout(KEEP_ALIVE, next_of(&mut answers)) => event,
        };
        let is_over = match event {
            Err(_) => {
                frames.push_str(F::KEEP_ALIVE.unwrap_or_default());
                false
            }
            Ok(None) => {
                form.end(&mut frames);
                true
            }
            Ok(Some((index, event))) => {
                let has_failed = matches!(event, AnswerEvent::Failed(_));
                write_event(&mut form, index, event, &mut frames);
                has_failed
            }
        };
        if !frames.is_empty() {
            let sent = timeout(stall, sender.send(Ok(frames.into()))).await;
            sent.map_err(|_| Gone)?.map_err(|_| Gone)?;
        }
        if is_over {
            return Ok(());
        }
    }
}

fn write_event(form: &mut impl StreamForm, index: usize, event: AnswerEvent, out: &mut String) {
    match event {
        AnswerEvent::Started { prompt_tokens, cached_tokens, .. } => {
            form.started(index, prompt_tokens, cached_tokens, out);
        }
        AnswerEvent::Piece(piece) => form.piece(index, piece, out),
        AnswerEvent::Finished(ending) => form.finished(index, &ending, out),
        AnswerEvent::Failed(error) => form.failed(&error, out),
    }
}

/// Appends a frame of server-sent events.
pub(crate) fn push_data(out: &mut String, data: &serde_json::Value) {
    // Writing to a string cannot fail, and JSON has no line breaks.
    out.push_str("data: ");
    out.push_str(&data.to_string());
    out.push_str("\n\n");
}
