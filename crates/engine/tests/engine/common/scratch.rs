//! The expected logits of a sequence: computed from the start in an engine of its own.

use std::collections::HashMap;
use verbatim_engine::{Backend, Row, RowInput, RowOutputs, Stepper};

/// An operation on a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Token(u32),
    Removed(usize, usize),
}

pub fn events(tokens: &[u32]) -> Vec<Event> {
    tokens.iter().map(|&token| Event::Token(token)).collect()
}

/// Replays histories from the start in an engine of its own: one sequence, one step between removals, nothing shared, nothing
/// dropped.
pub struct FromScratch<B: Backend> {
    engine: Stepper<B>,
    known: HashMap<Vec<Event>, Vec<u32>>,
}

impl<B: Backend> FromScratch<B> {
    pub fn new(engine: Stepper<B>) -> FromScratch<B> {
        FromScratch { engine, known: HashMap::new() }
    }

    /// The bits of the logits after the last token; `None` if something was removed that this model cannot remove.
    pub fn logits(&mut self, history: &[Event]) -> Option<&[u32]> {
        if !self.known.contains_key(history) {
            if self.known.len() > 10_000 {
                self.known.clear();
            }
            self.replay(history);
        }
        self.known.get(history).map(|bits| &bits[..])
    }

    fn replay(&mut self, history: &[Event]) {
        let sequence = self.engine.begin().expect("free");
        let mut at = 0;
        while at < history.len() {
            let tokens: Vec<u32> = history[at..]
                .iter()
                .map_while(|event| if let Event::Token(token) = event { Some(*token) } else { None })
                .collect();
            if !tokens.is_empty() {
                let start = self.engine.append(sequence, tokens.len()).expect("room");
                let row = |(i, &token)| Row {
                    sequence,
                    kv_index: start + i,
                    input: RowInput::Token(token),
                    want: RowOutputs::LOGITS,
                };
                let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
                let outputs = self.engine.step(&rows).expect("a step");
                for i in 0..tokens.len() {
                    let bits = outputs.logits(i).expect("wanted").iter().map(|x| x.to_bits()).collect();
                    self.known.insert(history[..=at + i].to_vec(), bits);
                }
                drop(outputs);
                self.engine.commit(sequence, tokens.len()).expect("computed");
            }
            at += tokens.len();
            if let Some(&Event::Removed(start, end)) = history.get(at) {
                if self.engine.remove_and_shift(sequence, start..end).is_err() {
                    break;
                }
                at += 1;
            }
        }
        self.engine.end(sequence).expect("begun");
    }
}
