//! Ends a text at a stop string, and never shows the beginning of one.

use std::sync::Arc;
use thiserror::Error;

/// Why a list of stop strings cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StopError {
    /// An empty string would end every text at once.
    #[error("stop string {index} is empty; leave it out")]
    Empty {
        /// Its index in the list.
        index: usize,
    },
}

/// Watches a text for stop strings.
///
/// The text ends at the first position where some stop string is complete; if several are complete there, at the longest. That does
/// not depend on how the text is split into pieces. Each byte costs one step per stop string (Knuth, Morris and Pratt's automaton),
/// however the strings repeat themselves. It can be cloned to return to an earlier point of the text.
///
/// ```
/// let mut stops = verbatim_text::StopMatcher::new(["\nUser:"])?;
/// assert_eq!(stops.push("Hello.\nUs").text, "Hello.");
/// assert_eq!(stops.push("age").text, "\nUsage");
/// let last = stops.push("!\nUser: hi");
/// assert_eq!((last.text, last.stopped_by), ("!", Some(0)));
/// # Ok::<(), verbatim_text::StopError>(())
/// ```
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Arc<[StopString]>,
    /// For each stop string, how many of its bytes the text ends with.
    matched: Vec<usize>,
    /// Text that has not been shown: `held[..shown]` has, the rest may be the beginning of a stop string.
    held: String,
    shown: usize,
    stopped_by: Option<usize>,
}

/// The outcome of adding a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopOutput<'m> {
    /// Text that is certainly part of the answer.
    pub text: &'m str,
    /// The index of the stop string that ended the text, if one has. All further text is ignored.
    pub stopped_by: Option<usize>,
}

impl StopMatcher {
    /// Watches for any of `stops`. With an empty list nothing is ever held back.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Result<Self, StopError> {
        let stops: Vec<StopString> = stops.into_iter().map(|stop| StopString::new(stop.into())).collect();
        if let Some(index) = stops.iter().position(|stop| stop.bytes.is_empty()) {
            return Err(StopError::Empty { index });
        }
        let matched = vec![0; stops.len()];
        Ok(Self { stops: stops.into(), matched, held: String::new(), shown: 0, stopped_by: None })
    }

    /// Takes the next piece of text and returns what can be shown of the text so far.
    pub fn push(&mut self, text: &str) -> StopOutput<'_> {
        self.forget_shown();
        if self.stopped_by.is_some() {
            return self.output();
        }
        let from = self.held.len();
        self.held.push_str(text);
        for position in from..self.held.len() {
            self.step(self.held.as_bytes()[position]);
            let complete =
                (0..self.stops.len()).filter(|&index| self.matched[index] == self.stops[index].bytes.len());
            // Of equally long strings, which are equal, the first one counts.
            if let Some(index) = complete.min_by_key(|&index| std::cmp::Reverse(self.matched[index])) {
                self.stopped_by = Some(index);
                self.shown = position + 1 - self.matched[index];
                return self.output();
            }
        }
        self.shown = self.held.len() - self.matched.iter().max().copied().unwrap_or(0);
        self.output()
    }

    /// Ends the text: returns what was held back, which has turned out not to be a stop string.
    pub fn finish(&mut self) -> StopOutput<'_> {
        self.forget_shown();
        if self.stopped_by.is_none() {
            self.shown = self.held.len();
        }
        self.matched.fill(0);
        self.output()
    }

    fn step(&mut self, byte: u8) {
        for (matched, stop) in self.matched.iter_mut().zip(self.stops.iter()) {
            *matched = stop.step(*matched, byte);
        }
    }

    fn forget_shown(&mut self) {
        self.held.drain(..self.shown);
        self.shown = 0;
        if self.stopped_by.is_some() {
            self.held.clear();
        }
    }

    fn output(&self) -> StopOutput<'_> {
        // Stop strings start with a whole character, and so does what is left of the text after removing one.
        StopOutput { text: &self.held[..self.shown], stopped_by: self.stopped_by }
    }
}

/// A stop string and its failure function.
#[derive(Debug)]
struct StopString {
    bytes: Vec<u8>,
    /// `fallback[n]`: the length of the longest proper prefix of the first `n + 1` bytes that they also end with.
    fallback: Vec<usize>,
}

impl StopString {
    fn new(text: String) -> Self {
        let mut stop = Self { bytes: text.into_bytes(), fallback: Vec::new() };
        let mut matched = 0;
        for position in 0..stop.bytes.len() {
            if position > 0 {
                matched = stop.step(matched, stop.bytes[position]);
            }
            stop.fallback.push(matched);
        }
        stop
    }

    /// How many bytes match after `byte`, when `matched` did before it.
    fn step(&self, mut matched: usize, byte: u8) -> usize {
        loop {
            if self.bytes.get(matched) == Some(&byte) {
                return matched + 1;
            }
            if matched == 0 {
                return 0;
            }
            matched = self.fallback[matched - 1];
        }
    }
}
