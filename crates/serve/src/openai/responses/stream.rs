//! A response as a stream of events.

use crate::answer::{Ending, Piece};
use crate::error::{ApiError, ErrorForm};
use crate::openai::responses::object::{Head, function_call, message, new_id, reasoning, text_part};
use crate::stream::{EVENT_STREAM, StreamForm};
use crate::tools::parser::ToolCall;
use serde_json::{Value, json};

/// The item that is being sent.
#[derive(Debug)]
struct Open {
    id: String,
    is_reasoning: bool,
    text: String,
}

/// A response while it is sent: items, one after another.
pub(crate) struct ResponseStream {
    head: Head,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Open>,
    /// Number of events so far.
    events: usize,
}

impl ResponseStream {
    pub(crate) fn new(head: Head) -> ResponseStream {
        ResponseStream { head, output: Vec::new(), open: None, events: 0 }
    }

    fn push(&mut self, kind: &str, mut event: Value, out: &mut String) {
        event["type"] = kind.into();
        event["sequence_number"] = self.events.into();
        self.events += 1;
        out.push_str(&format!("event: {kind}\ndata: {event}\n\n"));
    }

    /// Sends more of the reasoning or of the text.
    fn add(&mut self, is_reasoning: bool, text: &str, out: &mut String) {
        if self.open.as_ref().is_none_or(|open| open.is_reasoning != is_reasoning) {
            self.close(out);
            self.begin(is_reasoning, out);
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let mut event = json!({ "item_id": open.id, "output_index": self.output.len(), "content_index": 0, "delta": text });
        let kind = if is_reasoning {
            "response.reasoning_text.delta"
        } else {
            event["logprobs"] = json!([]);
            "response.output_text.delta"
        };
        self.push(kind, event, out);
    }

    fn begin(&mut self, is_reasoning: bool, out: &mut String) {
        let id = new_id(if is_reasoning { "rs" } else { "msg" });
        let index = self.output.len();
        let item = match is_reasoning {
            true => json!({ "id": id, "type": "reasoning", "summary": [] }),
            false => message(&id, "in_progress", &[]),
        };
        self.push("response.output_item.added", json!({ "output_index": index, "item": item }), out);
        if !is_reasoning {
            let part =
                json!({ "item_id": id, "output_index": index, "content_index": 0, "part": text_part("") });
            self.push("response.content_part.added", part, out);
        }
        self.open = Some(Open { id, is_reasoning, text: String::new() });
    }

    /// Ends the item that is open.
    fn close(&mut self, out: &mut String) {
        let Some(Open { id, is_reasoning, text }) = self.open.take() else { return };
        let index = self.output.len();
        let place = json!({ "item_id": id, "output_index": index, "content_index": 0 });
        let mut done = place.clone();
        done["text"] = text.as_str().into();
        let item = if is_reasoning {
            self.push("response.reasoning_text.done", done, out);
            reasoning(&id, &text)
        } else {
            done["logprobs"] = json!([]);
            self.push("response.output_text.done", done, out);
            let mut part = place;
            part["part"] = text_part(&text);
            self.push("response.content_part.done", part, out);
            message(&id, "completed", &[text_part(&text)])
        };
        self.push("response.output_item.done", json!({ "output_index": index, "item": item }), out);
        self.output.push(item);
    }

    fn add_call(&mut self, call: &ToolCall, out: &mut String) {
        self.close(out);
        let (id, index, arguments) = (new_id("fc"), self.output.len(), call.arguments_text());
        let begun = function_call(&id, call, "");
        self.push("response.output_item.added", json!({ "output_index": index, "item": begun }), out);
        let place = json!({ "item_id": id, "output_index": index });
        let mut delta = place.clone();
        delta["delta"] = arguments.as_str().into();
        self.push("response.function_call_arguments.delta", delta, out);
        let mut done = place;
        done["arguments"] = arguments.as_str().into();
        done["name"] = call.name.as_str().into();
        self.push("response.function_call_arguments.done", done, out);
        let item = function_call(&id, call, &arguments);
        self.push("response.output_item.done", json!({ "output_index": index, "item": item }), out);
        self.output.push(item);
    }
}

impl StreamForm for ResponseStream {
    const CONTENT_TYPE: &'static str = EVENT_STREAM;
    const KEEP_ALIVE: Option<&'static str> = Some(":\n\n");

    fn started(&mut self, _index: usize, _prompt_tokens: usize, _cached_tokens: usize, out: &mut String) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.head.object("in_progress", &[]);
            self.push(kind, json!({ "response": response }), out);
        }
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut String) {
        if !piece.reasoning.is_empty() {
            self.add(true, &piece.reasoning, out);
        }
        if !piece.text.is_empty() {
            self.add(false, &piece.text, out);
        }
        piece.calls.iter().for_each(|call| self.add_call(call, out));
    }

    fn finished(&mut self, _index: usize, ending: &Ending, out: &mut String) {
        let has_message = self.open.as_ref().is_some_and(|open| !open.is_reasoning);
        if !has_message && self.output.iter().all(|item| item["type"] == "reasoning") {
            self.close(out);
            self.begin(false, out);
        }
        self.close(out);
        let response = self.head.complete(&self.output, ending);
        let kind = format!("response.{}", response["status"].as_str().unwrap_or("completed"));
        self.push(&kind, json!({ "response": response }), out);
    }

    fn end(&mut self, _out: &mut String) {}

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        let mut response = self.head.object("failed", &self.output);
        let message = error.body(ErrorForm::OpenAi)["error"]["message"].take();
        response["error"] = json!({ "code": "server_error", "message": message });
        self.push("response.failed", json!({ "response": response }), out);
    }
}
