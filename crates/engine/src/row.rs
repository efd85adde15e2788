//! Rows of a step: what goes in, what is wanted back, and what came of it.

use crate::MAX_ROWS;
use verbatim_backend::{Outputs, PrepareError, RunError};
use verbatim_graph::GraphError;
use verbatim_models::{HiddenOutput, outputs};
use verbatim_sample::{LogSoftmax, Sampler};
use verbatim_state::{BatchError, SequenceId, StateError};

/// One position to be computed.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The sequence that it belongs to.
    pub sequence: SequenceId,
    /// Its index in the sequence's KV cache, reserved by [`crate::Stepper::append`] or [`crate::Stepper::append_tree`]. Equal to
    /// the position unless a tree is in flight, whose rows share positions.
    pub kv_index: usize,
    /// Its token or embedding.
    pub input: RowInput<'a>,
    /// The outputs that are wanted.
    pub want: Want<'a>,
}

/// The input of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowInput<'a> {
    /// A token of the vocabulary.
    Token(u32),
    /// An embedding of `hidden` elements that replaces the token's. The prefix cache goes by tokens, so it has nothing of the sequence
    /// from here on.
    Embedding(&'a [f32]),
}

/// The outputs of a row. Outputs that no row of a step wants are not computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want<'a> {
    /// What follows the row.
    pub next: Next<'a>,
    /// Hidden states of the row.
    pub hidden: &'a [HiddenOutput],
}

/// What is wanted of the next token after a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Next<'a> {
    /// Nothing.
    #[default]
    None,
    /// The token itself.
    Token(&'a Sampler),
    /// The log-probabilities of all tokens.
    LogProbs,
    /// The logits.
    Logits,
}

impl<'a> Want<'a> {
    /// Nothing: the row only becomes part of its sequence.
    pub const NONE: Want<'static> = Want { next: Next::None, hidden: &[] };
    /// The logits of the token after it.
    pub const LOGITS: Want<'static> = Want { next: Next::Logits, hidden: &[] };

    /// The token after it.
    pub fn token(sampler: &'a Sampler) -> Want<'a> {
        Want { next: Next::Token(sampler), hidden: &[] }
    }

    /// The logits, if that holds.
    pub fn logits_if(wanted: bool) -> Want<'static> {
        if wanted { Want::LOGITS } else { Want::NONE }
    }

    pub(crate) fn wants_logits(&self) -> bool {
        self.next != Next::None
    }
}

/// Why one sequence's rows could not be computed. It is as it was before; the rows of the others were computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A token id that the model does not have.
    #[error("token {token} is not one of the model's {vocabulary}")]
    Token {
        /// The id.
        token: u32,
        /// Tokens of the model.
        vocabulary: usize,
    },
    /// An embedding of another size than the model's.
    #[error("the embedding has {given} elements; the model's hidden size is {hidden}")]
    Embedding {
        /// Elements given.
        given: usize,
        /// The model's hidden size.
        hidden: usize,
    },
    /// The row cannot be computed in this step.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The draft would attend to positions that it has not computed.
    #[error("the draft has not computed the positions before {start}, which KV index {kv_index} sees")]
    DraftNotComputed {
        /// The row's KV index.
        kv_index: usize,
        /// The start of the contiguous range that it has computed up to the row.
        start: usize,
    },
    /// All logits of a row are NaN.
    #[error("all logits are NaN; the model file is damaged")]
    AllNan,
}

/// Why a step has failed. The sequences are as they were before.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// No rows, or more than a step can have.
    #[error("a step has 1 to {MAX_ROWS} rows, not {0}")]
    RowCount(usize),
    /// The rows of a sequence cannot be computed.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The sequence cannot take the rows.
    #[error(transparent)]
    State(#[from] StateError),
    /// The step's graph could not be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The step's graph could not be planned or does not fit the weights.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The run has failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The outcome of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowOutcome {
    /// It was computed: as this row of the run, and this output row if it wants something of the next token.
    Computed { row: u32, output_row: Option<u32>, token: Option<u32> },
    /// It was left out, or what came out of it is no number: the index of the error.
    Refused(u32),
}

/// The outcome of each row of a step.
#[derive(Debug, Default)]
pub(crate) struct RowOutcomes {
    pub(crate) rows: Vec<RowOutcome>,
    errors: Vec<RowError>,
}

impl RowOutcomes {
    /// Begins a step of so many rows.
    pub(crate) fn begin(&mut self, rows: usize) {
        self.errors.clear();
        self.rows.clear();
        self.rows.resize(rows, RowOutcome::Computed { row: 0, output_row: None, token: None });
    }

    /// Refuses a row.
    pub(crate) fn refuse_row(&mut self, row: usize, error: RowError) {
        self.rows[row] = RowOutcome::Refused(self.errors.len() as u32);
        self.errors.push(error);
    }

    /// Refuses all rows of the sequence of the one that is at fault.
    pub(crate) fn refuse(&mut self, rows: &[Row<'_>], at_fault: usize, error: RowError) {
        let sequence = rows[at_fault].sequence;
        let index = self.errors.len() as u32;
        for (outcome, _) in self.rows.iter_mut().zip(rows).filter(|(_, row)| row.sequence == sequence) {
            *outcome = RowOutcome::Refused(index);
        }
        self.errors.push(error);
    }

    pub(crate) fn is_refused(&self, row: usize) -> bool {
        matches!(self.rows[row], RowOutcome::Refused(_))
    }
}

/// What a step has computed, row by row in the order in which they were given. The stepper stays borrowed until it has been
/// read.
pub struct StepOutputs<'a, O> {
    /// `None` if nothing could be computed.
    pub(crate) run: Option<O>,
    pub(crate) outcomes: &'a RowOutcomes,
}

impl<O: Outputs> StepOutputs<'_, O> {
    /// Whether every row was computed.
    ///
    /// # Errors
    /// Why the first that was not could not be.
    pub fn all(&self) -> Result<(), RowError> {
        (0..self.outcomes.rows.len()).try_for_each(|row| self.row(row))
    }

    /// Whether a row was computed.
    ///
    /// # Errors
    /// Why not.
    ///
    /// # Panics
    /// If the step had no such row; so do the others here.
    pub fn row(&self, row: usize) -> Result<(), RowError> {
        match self.outcomes.rows[row] {
            RowOutcome::Computed { .. } => Ok(()),
            RowOutcome::Refused(error) => Err(self.outcomes.errors[error as usize].clone()),
        }
    }

    /// The token after a row that wanted it.
    ///
    /// # Errors
    /// Why there is none. `None` if it was not wanted.
    pub fn token(&self, row: usize) -> Result<Option<u32>, RowError> {
        match self.outcomes.rows[row] {
            RowOutcome::Computed { token, .. } => Ok(token),
            RowOutcome::Refused(error) => Err(self.outcomes.errors[error as usize].clone()),
        }
    }

    /// The logits after a row that wanted anything of the next token; `None` if it did not or was not computed.
    pub fn logits(&self, row: usize) -> Option<&[f32]> {
        match self.outcomes.rows[row] {
            RowOutcome::Computed { output_row, .. } => {
                self.run.as_ref()?.row(outputs::LOGITS, output_row? as usize)
            }
            RowOutcome::Refused(_) => None,
        }
    }

    /// The probabilities after a row that wanted anything of the next token; `None` if it did not, was not computed, or its logits
    /// make no distribution.
    pub fn log_probs(&self, row: usize) -> Option<LogSoftmax<'_>> {
        LogSoftmax::new(self.logits(row)?)
    }

    /// A hidden state of a row; `None` if no row wanted it, or the row was not computed.
    pub fn hidden(&self, output: HiddenOutput, row: usize) -> Option<&[f32]> {
        match self.outcomes.rows[row] {
            RowOutcome::Computed { row, .. } => self.run.as_ref()?.row(outputs::hidden(output), row as usize),
            RowOutcome::Refused(_) => None,
        }
    }
}
