//! Finds the tool calls in an answer as it arrives.

use crate::tools::format::ToolFormat;
use serde_json::{Map, Value};

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
}

impl ToolCall {
    fn new(name: &str, arguments: Map<String, Value>) -> ToolCall {
        // Nine letters and digits: Mistral's templates accept no other.
        let id = std::iter::repeat_with(fastrand::alphanumeric).take(9).collect();
        ToolCall { id, name: name.to_owned(), arguments }
    }

    /// The arguments as JSON text.
    pub(crate) fn arguments_text(&self) -> String {
        Value::Object(self.arguments.clone()).to_string()
    }
}

/// Text and calls that are certain.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) text: String,
    pub(crate) calls: Vec<ToolCall>,
}

/// The tags around a call of [`ToolFormat::Hermes`].
const TAGS: (&str, &str) = ("<tool_call>", "</tool_call>");
/// What an answer that calls begins with, if the control token is visible.
const MISTRAL: &str = "[TOOL_CALLS]";
const LLAMA: &str = "<|python_tag|>";

/// Parses one answer.
#[derive(Debug)]
pub(crate) struct ToolParser {
    format: ToolFormat,
    /// What may be a call, or the beginning of one.
    held: String,
    state: State,
    /// Whether there has been a call: white space around calls is not text.
    has_called: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come.
    Start,
    Text,
    /// Within tags, or within an answer that may be a call as a whole.
    Call,
}

impl ToolParser {
    pub(crate) fn new(format: ToolFormat) -> ToolParser {
        ToolParser { format, held: String::new(), state: State::Start, has_called: false }
    }

    /// Whether there has been a call.
    pub(crate) fn has_called(&self) -> bool {
        self.has_called
    }

    /// Takes the next piece of text.
    pub(crate) fn push(&mut self, text: &str) -> Parsed {
        self.held.push_str(text);
        let mut parsed = Parsed::default();
        match self.format {
            ToolFormat::Hermes => while self.advance(&mut parsed) {},
            ToolFormat::Llama3 | ToolFormat::Mistral => self.advance_whole(&mut parsed),
        }
        parsed
    }

    /// Ends the answer.
    pub(crate) fn finish(&mut self) -> Parsed {
        let held = std::mem::take(&mut self.held);
        let calls = match (self.format, self.state) {
            (ToolFormat::Hermes, State::Call) => tagged_call(&held).into_iter().collect(),
            (ToolFormat::Llama3 | ToolFormat::Mistral, State::Call) => bare_calls(&held),
            (_, State::Start | State::Text) => Vec::new(),
        };
        if !calls.is_empty() {
            self.has_called = true;
            return Parsed { text: String::new(), calls };
        }
        let is_open = self.format == ToolFormat::Hermes && self.state == State::Call;
        let text = if is_open { format!("{}{held}", TAGS.0) } else { held };
        let is_space = self.has_called && text.trim().is_empty();
        Parsed { text: if is_space { String::new() } else { text }, calls }
    }

    /// Moves held text to where it belongs; whether more may follow.
    fn advance(&mut self, parsed: &mut Parsed) -> bool {
        if self.state == State::Call {
            let Some(end) = self.held.find(TAGS.1) else { return false };
            match tagged_call(&self.held[..end]) {
                Some(call) => {
                    self.has_called = true;
                    parsed.calls.push(call);
                }
                // What cannot be read is shown.
                None => parsed.text.push_str(&format!("{}{}{}", TAGS.0, &self.held[..end], TAGS.1)),
            }
            self.held.drain(..end + TAGS.1.len());
            self.state = State::Text;
            return true;
        }
        if let Some(start) = self.held.find(TAGS.0) {
            // White space in front of a call is not text.
            let certain = self.held[..start].trim_end().len();
            self.show(certain, parsed);
            self.held.drain(..start - certain + TAGS.0.len());
            self.state = State::Call;
            return true;
        }
        let begun = (1..TAGS.0.len()).rev().find(|&len| self.held.ends_with(&TAGS.0[..len])).unwrap_or(0);
        let certain = self.held[..self.held.len() - begun].trim_end().len();
        self.show(certain, parsed);
        false
    }

    /// Shows so many bytes of the held text, unless they are white space around calls.
    fn show(&mut self, bytes: usize, parsed: &mut Parsed) {
        let text: String = self.held.drain(..bytes).collect();
        if !text.trim().is_empty() {
            parsed.text.push_str(&text);
            self.state = State::Text;
        }
    }

    /// An answer is a call as a whole, or text.
    fn advance_whole(&mut self, parsed: &mut Parsed) {
        if self.state == State::Start {
            let (tag, bracket) = match self.format {
                ToolFormat::Mistral => (MISTRAL, '['),
                ToolFormat::Llama3 | ToolFormat::Hermes => (LLAMA, '{'),
            };
            let begun = self.held.trim_start();
            if tag.starts_with(begun) && begun.len() < tag.len() && !begun.starts_with(bracket) {
                return;
            }
            let is_call = begun.starts_with(bracket) || begun.starts_with(tag);
            self.state = if is_call { State::Call } else { State::Text };
        }
        if self.state == State::Text {
            parsed.text.push_str(&std::mem::take(&mut self.held));
        }
    }
}

/// A call within tags.
fn tagged_call(body: &str) -> Option<ToolCall> {
    let body = body.trim();
    if body.starts_with("<function=") { xml_call(body) } else { call_of(&serde_json::from_str(body).ok()?) }
}

/// Calls as an array, as an object, or as objects one after another with a semicolon or white space between them.
fn bare_calls(text: &str) -> Vec<ToolCall> {
    let text = text.trim();
    let text = text.strip_prefix(MISTRAL).or_else(|| text.strip_prefix(LLAMA)).unwrap_or(text);
    let mut calls = Vec::new();
    for part in text.split_inclusive(';').fold(Vec::<String>::new(), joined) {
        let values =
            serde_json::Deserializer::from_str(part.trim().trim_end_matches(';')).into_iter::<Value>();
        for value in values {
            let found: Option<Vec<ToolCall>> = match value {
                Ok(Value::Array(list)) => list.iter().map(call_of).collect(),
                Ok(value) => call_of(&value).map(|call| vec![call]),
                Err(_) => None,
            };
            let Some(found) = found else { return Vec::new() };
            calls.extend(found);
        }
    }
    calls
}

/// Joins pieces until each is JSON: a semicolon may be within a text.
fn joined(mut parts: Vec<String>, piece: &str) -> Vec<String> {
    let is_whole = |part: &String| {
        let part = part.trim().trim_end_matches(';');
        serde_json::Deserializer::from_str(part).into_iter::<Value>().all(|value| value.is_ok())
    };
    match parts.last_mut().filter(|part| !is_whole(part)) {
        Some(part) => part.push_str(piece),
        None => parts.push(piece.to_owned()),
    }
    parts
}

fn call_of(value: &Value) -> Option<ToolCall> {
    let name = value.get("name")?.as_str()?;
    let arguments = value.get("arguments").or_else(|| value.get("parameters"));
    let arguments = match arguments {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(Value::String(text)) => serde_json::from_str(text).ok()?,
        Some(_) => return None,
    };
    Some(ToolCall::new(name, arguments))
}

/// `<function=NAME><parameter=KEY>VALUE</parameter>…</function>`. A value that is JSON is that, any other a text.
fn xml_call(body: &str) -> Option<ToolCall> {
    let (name, mut rest) = body.strip_prefix("<function=")?.split_once('>')?;
    let mut arguments = Map::new();
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let (key, after) = parameter.split_once('>')?;
        let (value, after) = after.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let parsed = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        arguments.insert(key.trim().to_owned(), parsed);
        rest = after;
    }
    rest.contains("</function>").then(|| ToolCall::new(name.trim(), arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text of an answer, and its calls as `name(arguments)`, however it is cut.
    fn parsed(format: ToolFormat, answer: &str) -> (String, Vec<String>) {
        let run = |pieces: &[&str]| {
            let mut parser = ToolParser::new(format);
            let mut all = Parsed::default();
            let ends = pieces.iter().map(|piece| parser.push(piece)).collect::<Vec<_>>();
            for part in ends.into_iter().chain([parser.finish()]) {
                all.text += &part.text;
                all.calls.extend(part.calls);
            }
            assert_eq!(parser.has_called(), !all.calls.is_empty());
            let calls = all.calls.iter().map(|call| format!("{}({})", call.name, call.arguments_text()));
            (all.text, calls.collect::<Vec<_>>())
        };
        let whole = run(&[answer]);
        for at in (0..=answer.len()).filter(|&at| answer.is_char_boundary(at)) {
            assert_eq!(run(&[&answer[..at], &answer[at..]]), whole, "{at}");
        }
        let letters: Vec<String> = answer.chars().map(String::from).collect();
        assert_eq!(run(&letters.iter().map(String::as_str).collect::<Vec<_>>()), whole);
        whole
    }

    fn both(text: &str, calls: &[&str]) -> (String, Vec<String>) {
        (text.to_owned(), calls.iter().map(|&call| call.to_owned()).collect())
    }

    #[test]
    fn calls_in_tags() {
        let hermes = |answer: &str| parsed(ToolFormat::Hermes, answer);
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</b>\", \"n\": 1}}\n</tool_call>";
        let wanted = r#"f({"a":"</b>","n":1})"#;
        assert_eq!(hermes(call), both("", &[wanted]));
        assert_eq!(hermes(&format!("Let me see.\n{call}\n{call}\n")), both("Let me see.", &[wanted, wanted]));
        assert_eq!(hermes("a <tool b> <tool_cal"), both("a <tool b> <tool_cal", &[]));
        assert_eq!(hermes(" plain\ntext \n"), both(" plain\ntext \n", &[]));
        // Without an end tag, and what is no call.
        assert_eq!(hermes(call.trim_end_matches("</tool_call>")), both("", &[wanted]));
        assert_eq!(hermes("<tool_call>no</tool_call> x"), both("<tool_call>no</tool_call> x", &[]));
        assert_eq!(hermes("<tool_call>{\"name\""), both("<tool_call>{\"name\"", &[]));
        let xml = "<tool_call>\n<function=f>\n<parameter=city>\nRome\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>";
        assert_eq!(hermes(xml), both("", &[r#"f({"city":"Rome","n":3})"#]));
    }

    #[test]
    fn answers_that_are_calls_as_a_whole() {
        let llama = |answer: &str| parsed(ToolFormat::Llama3, answer);
        let call = r#"{"name": "f", "parameters": {"a": "x; y"}}"#;
        let wanted = r#"f({"a":"x; y"})"#;
        assert_eq!(llama(call), both("", &[wanted]));
        assert_eq!(llama(&format!("<|python_tag|>{call}; {call}")), both("", &[wanted, wanted]));
        assert_eq!(llama("{\"answer\": 4}"), both("{\"answer\": 4}", &[]));
        assert_eq!(llama("It is {\"name\": \"f\"}"), both("It is {\"name\": \"f\"}", &[]));
        assert_eq!(llama("<|py"), both("<|py", &[]));
        let mistral = |answer: &str| parsed(ToolFormat::Mistral, answer);
        let calls = r#"[{"name": "f", "arguments": {}}, {"name": "g", "arguments": "{\"a\": 1}"}]"#;
        assert_eq!(mistral(calls), both("", &["f({})", r#"g({"a":1})"#]));
        assert_eq!(mistral(&format!("[TOOL_CALLS]{calls}")), both("", &["f({})", r#"g({"a":1})"#]));
        assert_eq!(mistral("[1, 2]"), both("[1, 2]", &[]));
        assert_eq!(mistral("Yes [1]"), both("Yes [1]", &[]));
    }
}
