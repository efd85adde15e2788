//! Tells a model's reasoning from its answer, as they arrive.
//!
//! Two conventions are known: a pair of tags around the reasoning at the beginning of an answer (`<think>` and `</think>`, as Qwen 3,
//! DeepSeek R1 and many others have it), and the channels of the harmony format (gpt-oss): `<|channel|>analysis<|message|>…<|end|>`,
//! whose markers are control tokens.

/// The tags that begin and end reasoning.
const TAGS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")];
/// A header of the harmony format is longer only if it is none.
const HEADER_BYTES_MAX: usize = 200;

/// Text that has arrived, by what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SplitText {
    /// Part of the answer.
    pub answer: String,
    /// Part of the reasoning, without its tags.
    pub reasoning: String,
}

/// Splits one answer. It can be cloned to return to an earlier point of the text.
///
/// ```
/// let mut splitter = verbatim_text::ReasoningSplitter::new("");
/// assert_eq!(splitter.text("<think>Paris is in").reasoning, "Paris is in");
/// assert_eq!(splitter.text(" France.</th").reasoning, " France.");
/// assert_eq!(splitter.text("ink>\n\nYes.").answer, "Yes.");
/// ```
#[derive(Debug, Clone)]
pub struct ReasoningSplitter {
    state: State,
    /// What may be the beginning of a tag, or is a header.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but white space has come.
    Start,
    /// Within tags; the end tag.
    Tagged(&'static str),
    /// In a channel that is not for the user.
    Channel,
    /// Between a control token that begins a header and `<|message|>`.
    Header,
    /// Behind reasoning: white space in front of the answer belongs to neither.
    Behind,
    Answer,
}

impl ReasoningSplitter {
    /// A splitter of the answer to this prompt, of which the end suffices: it may have opened the reasoning.
    pub fn new(prompt: &str) -> ReasoningSplitter {
        let end = prompt.trim_end();
        let opened = TAGS.iter().find(|(start, _)| end.ends_with(start));
        let state = opened.map_or(State::Start, |(_, end)| State::Tagged(end));
        ReasoningSplitter { state, held: String::new() }
    }

    /// Takes the name of a control token, which is not part of the text.
    pub fn control(&mut self, name: &str) {
        match (name, self.state) {
            ("<|start|>" | "<|channel|>", _) => {
                // `<|start|>assistant<|channel|>final` is one header.
                self.held.clear();
                self.state = State::Header;
            }
            ("<|message|>", State::Header) => {
                let channel = self.held.split_whitespace().next().unwrap_or_default();
                let is_hidden = matches!(channel, "analysis" | "commentary");
                self.state = if is_hidden { State::Channel } else { State::Answer };
                self.held.clear();
            }
            ("<|end|>", State::Channel) => self.state = State::Behind,
            (_, State::Start | State::Tagged(_) | State::Behind) => {
                // Some vocabularies have the tags as control tokens.
                if let Some((_, end)) = TAGS.iter().find(|(start, _)| *start == name) {
                    self.state = State::Tagged(end);
                } else if matches!(self.state, State::Tagged(end) if end == name) {
                    self.state = State::Behind;
                }
            }
            _ => {}
        }
    }

    /// Takes the next piece of text and returns what is certain of the text so far.
    pub fn text(&mut self, text: &str) -> SplitText {
        let mut split = SplitText::default();
        self.held.push_str(text);
        while self.advance(&mut split) {}
        split
    }

    /// Ends the text: returns what was held back.
    pub fn finish(&mut self) -> SplitText {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Tagged(_) | State::Channel => SplitText { reasoning: held, ..SplitText::default() },
            State::Start | State::Answer => SplitText { answer: held, ..SplitText::default() },
            State::Header | State::Behind => SplitText::default(),
        }
    }

    /// Moves held text to where it belongs; whether the state has changed, so that more may follow.
    fn advance(&mut self, split: &mut SplitText) -> bool {
        let held = &self.held;
        match self.state {
            State::Start => {
                let begun = held.trim_start();
                if let Some((start, end)) = TAGS.iter().find(|(start, _)| begun.starts_with(start)) {
                    self.held = begun[start.len()..].to_owned();
                    self.state = State::Tagged(end);
                    return true;
                }
                // White space and the beginning of a tag wait.
                let waits = TAGS.iter().any(|(start, _)| start.starts_with(begun));
                if !waits {
                    self.state = State::Answer;
                }
                !waits
            }
            State::Tagged(end) => {
                if let Some(at) = held.find(end) {
                    split.reasoning.push_str(&held[..at]);
                    self.held.drain(..at + end.len());
                    self.state = State::Behind;
                    return true;
                }
                let begun = (1..end.len()).rev().find(|&len| held.ends_with(&end[..len])).unwrap_or(0);
                let certain = held.len() - begun;
                split.reasoning.push_str(&held[..certain]);
                self.held.drain(..certain);
                false
            }
            State::Channel => {
                split.reasoning.push_str(held);
                self.held.clear();
                false
            }
            State::Header => {
                let is_none = held.len() > HEADER_BYTES_MAX;
                if is_none {
                    self.state = State::Answer;
                }
                is_none
            }
            State::Behind => {
                let space = held.len() - held.trim_start().len();
                self.held.drain(..space);
                let has_begun = !self.held.is_empty();
                if has_begun {
                    self.state = State::Answer;
                }
                has_begun
            }
            State::Answer => {
                split.answer.push_str(held);
                self.held.clear();
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(prompt: &str, pieces: &[&str]) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(prompt);
        let (mut answer, mut reasoning) = (String::new(), String::new());
        let mut add = |split: SplitText| {
            answer += &split.answer;
            reasoning += &split.reasoning;
        };
        for piece in pieces {
            match piece.strip_prefix('\u{0}') {
                Some(name) => splitter.control(name),
                None => add(splitter.text(piece)),
            }
        }
        add(splitter.finish());
        (answer, reasoning)
    }

    fn both(answer: &str, reasoning: &str) -> (String, String) {
        (answer.to_owned(), reasoning.to_owned())
    }

    #[test]
    fn tags_at_the_beginning_are_reasoning() {
        let text = "\n<think>\nIs it <b>? No </thi.\n</think>\n\nIt is </think> 4.";
        let wanted = both("It is </think> 4.", "\nIs it <b>? No </thi.\n");
        assert_eq!(split("", &[text]), wanted);
        // However the text is cut.
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(split("", &pieces.iter().map(String::as_str).collect::<Vec<_>>()), wanted);
        for at in 0..=text.len() {
            assert_eq!(split("", &[&text[..at], &text[at..]]), wanted, "{at}");
        }
    }

    #[test]
    fn a_prompt_may_open_the_reasoning() {
        assert_eq!(split("<|im_start|>assistant\n<think>\n", &["Hm.</think>Yes"]), both("Yes", "Hm."));
        assert_eq!(split("<think>", &["without an end"]), both("", "without an end"));
        assert_eq!(split("<think>\n\n</think>\n\n", &["<thin", " air"]), both("<thin air", ""));
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for text in ["", "  \n", "Use the tag <think> to think </think>.", " <th", "plain"] {
            assert_eq!(split("", &[text]), both(text, ""), "{text:?}");
        }
        assert_eq!(split("", &["[THINK]a[/THINK]b"]), both("b", "a"));
    }

    #[test]
    fn channels_of_the_harmony_format() {
        let pieces = [
            "\0<|channel|>",
            "analysis",
            "\0<|message|>",
            "Simple",
            " sum.",
            "\0<|end|>",
            "\0<|start|>",
            "assistant",
            "\0<|channel|>",
            "final",
            "\0<|message|>",
            "It is 4.",
        ];
        assert_eq!(split("", &pieces), both("It is 4.", "Simple sum."));
        // Text without a header, behind an end.
        assert_eq!(
            split("", &["\0<|channel|>", "analysis", "\0<|message|>", "a", "\0<|end|>", "b"]),
            both("b", "a")
        );
        // Markers as plain text are text, and a header without an end is not lost.
        assert_eq!(split("", &["<|channel|>analysis"]), both("<|channel|>analysis", ""));
        let long = "x".repeat(300);
        assert_eq!(split("", &["\0<|channel|>", &long]), both(&long, ""));
    }

    #[test]
    fn tags_may_be_control_tokens() {
        assert_eq!(split("", &["\0<think>", "Hm. ", "\0</think>", " Yes"]), both("Yes", "Hm. "));
    }
}
