//! A message as a stream of events.

use crate::answer::{Ending, Piece};
use crate::anthropic::parts::{stop_reason, tool_id, usage};
use crate::error::{ApiError, ErrorForm};
use crate::stats::timings;
use crate::stream::{EVENT_STREAM, StreamForm};
use crate::tools::parser::ToolCall;
use serde_json::{Value, json};

/// The kind of a block of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
}

/// A message while it is sent: blocks of content, one after another.
pub(crate) struct MessageStream {
    message: Value,
    open: Option<Block>,
    /// Blocks that have begun.
    blocks: usize,
}

impl MessageStream {
    /// A stream of this message, which has no content yet.
    pub(crate) fn new(message: Value) -> MessageStream {
        MessageStream { message, open: None, blocks: 0 }
    }

    fn close(&mut self, out: &mut String) {
        if self.open.take().is_some() {
            push(out, &json!({ "type": "content_block_stop", "index": self.blocks - 1 }));
        }
    }

    fn add(&mut self, block: Block, text: &str, out: &mut String) {
        if self.open != Some(block) {
            self.close(out);
            let empty = match block {
                Block::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
                Block::Text => json!({ "type": "text", "text": "" }),
            };
            push(
                out,
                &json!({ "type": "content_block_start", "index": self.blocks, "content_block": empty }),
            );
            self.open = Some(block);
            self.blocks += 1;
        }
        if text.is_empty() {
            return;
        }
        let delta = match block {
            Block::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
            Block::Text => json!({ "type": "text_delta", "text": text }),
        };
        push(out, &json!({ "type": "content_block_delta", "index": self.blocks - 1, "delta": delta }));
    }
}

impl MessageStream {
    /// A call is a block of its own.
    fn add_call(&mut self, call: &ToolCall, out: &mut String) {
        self.close(out);
        let block = json!({ "type": "tool_use", "id": tool_id(&call.id), "name": call.name, "input": {} });
        let index = self.blocks;
        self.blocks += 1;
        push(out, &json!({ "type": "content_block_start", "index": index, "content_block": block }));
        let delta = json!({ "type": "input_json_delta", "partial_json": call.arguments_text() });
        push(out, &json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        push(out, &json!({ "type": "content_block_stop", "index": index }));
    }
}

/// Appends an event, which has its type as its name.
fn push(out: &mut String, event: &Value) {
    let name = event["type"].as_str().unwrap_or_default();
    out.push_str(&format!("event: {name}\ndata: {event}\n\n"));
}

impl StreamForm for MessageStream {
    const CONTENT_TYPE: &'static str = EVENT_STREAM;
    const KEEP_ALIVE: Option<&'static str> = Some("event: ping\ndata: {\"type\":\"ping\"}\n\n");

    fn started(&mut self, _index: usize, prompt_tokens: usize, cached_tokens: usize, out: &mut String) {
        self.message["usage"] = usage(prompt_tokens, cached_tokens);
        push(out, &json!({ "type": "message_start", "message": self.message }));
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut String) {
        if !piece.reasoning.is_empty() {
            self.add(Block::Thinking, &piece.reasoning, out);
        }
        if !piece.text.is_empty() {
            self.add(Block::Text, &piece.text, out);
        }
        piece.calls.iter().for_each(|call| self.add_call(call, out));
    }

    fn finished(&mut self, _index: usize, ending: &Ending, out: &mut String) {
        let stats = &ending.stats;
        if self.blocks == 0 {
            self.add(Block::Text, "", out);
        }
        self.close(out);
        let (reason, sequence) = stop_reason(ending);
        let mut usage = usage(stats.prompt_tokens, stats.cached_tokens);
        usage["output_tokens"] = stats.generated_tokens.into();
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        push(
            out,
            &json!({ "type": "message_delta", "delta": delta, "usage": usage, "timings": timings(stats) }),
        );
    }

    fn end(&mut self, out: &mut String) {
        push(out, &json!({ "type": "message_stop" }));
    }

    fn failed(&mut self, error: &ApiError, out: &mut String) {
        push(out, &error.body(ErrorForm::Anthropic));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbatim_engine::{FinishReason, GenerationStats};

    #[test]
    fn blocks_open_and_close_one_after_another() {
        let mut stream = MessageStream::new(json!({ "type": "message" }));
        let mut out = String::new();
        let piece = |reasoning: &str, text: &str| Piece {
            text: text.to_owned(),
            reasoning: reasoning.to_owned(),
            ..Piece::default()
        };
        stream.started(0, 10, 4, &mut out);
        stream.piece(0, piece("Hm", ""), &mut out);
        stream.piece(0, piece(".", "4"), &mut out);
        stream.piece(0, piece("", " it is"), &mut out);
        let reason = FinishReason::StopString("x".into());
        stream.finished(
            0,
            &Ending { reason, stats: GenerationStats::default(), calls_tools: false },
            &mut out,
        );
        stream.end(&mut out);
        let names: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        let [start, delta, stop] = ["content_block_start", "content_block_delta", "content_block_stop"];
        let wanted = [
            "message_start",
            start,
            delta,
            delta,
            stop,
            start,
            delta,
            delta,
            stop,
            "message_delta",
            "message_stop",
        ];
        assert_eq!(names, wanted);
        assert!(out.contains(r#""input_tokens":6"#) && out.contains(r#""stop_sequence":"x""#), "{out}");
    }
}
