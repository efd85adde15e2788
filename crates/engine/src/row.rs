//! Rows of a step: inputs, wanted outputs and results.

use crate::MAX_ROWS;
use verbatim_backend::{Outputs, PrepareError, RunError};
use verbatim_graph::GraphError;
use verbatim_models::{HiddenOutput, outputs};
use verbatim_sample::{LogSoftmax, Sampler, SamplerState, TokenLogProbs};
use verbatim_state::{BatchError, SequenceId, StateError};

/// One position to compute.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// The sequence that it belongs to.
    pub sequence: SequenceId,
    /// Its index in the sequence's KV cache, allocated by [`crate::Stepper::append`] or [`crate::Stepper::append_tree`]. Equal to
    /// the position unless a tree is in flight, whose rows share positions.
    pub kv_index: usize,
    /// Its token or embedding.
    pub input: RowInput<'a>,
    /// The outputs to return.
    pub want: RowOutputs<'a>,
}

/// The input of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowInput<'a> {
    /// A token of the vocabulary.
    Token(u32),
    /// An embedding of `hidden` elements that replaces the token's. The prefix cache is keyed by tokens, so the
    /// sequence is not cached from here on.
    Embedding(&'a [f32]),
}

/// The outputs to return for a row. Outputs that no row of a step requests are not computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowOutputs<'a> {
    /// What to return about the next token.
    pub next: NextOutput<'a>,
    /// Hidden states of the row to return.
    pub hidden: &'a [HiddenOutput],
}

/// What to return about the token after a row.
#[derive(Clone, Copy, Debug, Default)]
pub enum NextOutput<'a> {
    /// No output.
    #[default]
    None,
    /// The sampled token.
    Token(Draw<'a>),
    /// The log-probabilities of all tokens.
    LogProbs,
    /// The logits.
    Logits,
}

/// What sampling one token needs.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// The sampler.
    pub sampler: &'a Sampler,
    /// Its state after the tokens so far.
    pub state: SamplerState,
    /// The tokens so far, the row's included, for penalties.
    pub history: &'a [u32],
    /// One bit for each token that a grammar allows, 32 to a word; `None` allows all.
    pub mask: Option<&'a [u32]>,
}

impl<'a> From<&'a Sampler> for Draw<'a> {
    /// The first draw of a sampler, without a history or a mask.
    fn from(sampler: &'a Sampler) -> Draw<'a> {
        Draw { sampler, state: sampler.start(), history: &[], mask: None }
    }
}

impl<'a> RowOutputs<'a> {
    /// No outputs: the row only extends its sequence.
    pub const NONE: RowOutputs<'static> = RowOutputs { next: NextOutput::None, hidden: &[] };
    /// The logits of the next token.
    pub const LOGITS: RowOutputs<'static> = RowOutputs { next: NextOutput::Logits, hidden: &[] };

    /// The next token, sampled.
    pub fn token(draw: impl Into<Draw<'a>>) -> RowOutputs<'a> {
        RowOutputs { next: NextOutput::Token(draw.into()), hidden: &[] }
    }

    /// The logits if `wanted`, else nothing.
    pub fn logits_if(wanted: bool) -> RowOutputs<'static> {
        if wanted { RowOutputs::LOGITS } else { RowOutputs::NONE }
    }

    pub(crate) fn is_output_row(&self) -> bool {
        !matches!(self.next, NextOutput::None)
    }
}

/// Why one sequence's rows were not computed. That sequence is not modified; the rows of other sequences were computed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The token id is not in the vocabulary.
    #[error("token id {token} is out of range: the vocabulary has {vocabulary} tokens")]
    Token {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// The embedding does not have the model's hidden size.
    #[error("the embedding has {given} elements; the model's hidden size is {hidden}")]
    Embedding {
        /// Elements of the embedding.
        given: usize,
        /// The model's hidden size.
        hidden: usize,
    },
    /// The row cannot be computed in this step.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The draft model would attend to positions that it has not computed.
    #[error(
        "KV index {kv_index} attends to positions before {start}, which the draft model has not computed"
    )]
    DraftNotComputed {
        /// The row's KV index.
        kv_index: usize,
        /// The start of the contiguous range that it has computed up to the row.
        start: usize,
    },
    /// All logits of a row are NaN.
    #[error("all logits are NaN; the model file is damaged")]
    AllNan,
    /// The mask of a row allows no token.
    #[error("the grammar allows no token here")]
    NoTokenAllowed,
}

/// Why a step failed. Committed positions are not modified.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// No rows, or too many.
    #[error("a step must have 1 to {MAX_ROWS} rows, not {0}")]
    RowCount(usize),
    /// The rows of a sequence cannot be computed.
    #[error(transparent)]
    Row(#[from] RowError),
    /// The operation on the sequence failed.
    #[error(transparent)]
    State(#[from] StateError),
    /// The step's graph could not be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The step's graph could not be planned or does not fit the weights.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// The outcome of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowOutcome {
    /// Computed as row `row` of the run, and as `output_row` if it wants something about the next token. `sample` is the index of
    /// its sample.
    Computed { row: u32, output_row: Option<u32>, sample: Option<u32> },
    /// It was skipped, or its logits are NaN. The index of the error.
    Rejected(u32),
}

/// The outcome of each row of a step.
#[derive(Debug, Default)]
pub(crate) struct RowOutcomes {
    pub(crate) rows: Vec<RowOutcome>,
    errors: Vec<RowError>,
    pub(crate) samples: Vec<Sample>,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The token.
    pub token: u32,
    /// The sampler's state for the next one.
    pub state: SamplerState,
    /// If the sampler was asked for them.
    pub log_probs: Option<TokenLogProbs>,
    /// It was sampled outside the graph, from its logits.
    pub outside_graph: bool,
}

impl RowOutcomes {
    /// Begins a step of `rows` rows.
    pub(crate) fn begin(&mut self, rows: usize) {
        self.errors.clear();
        self.samples.clear();
        self.rows.clear();
        self.rows.resize(rows, RowOutcome::Computed { row: 0, output_row: None, sample: None });
    }

    /// Rejects a row.
    pub(crate) fn reject_row(&mut self, row: usize, error: RowError) {
        self.rows[row] = RowOutcome::Rejected(self.errors.len() as u32);
        self.errors.push(error);
    }

    /// Rejects all rows of the failing row's sequence.
    pub(crate) fn reject(&mut self, rows: &[Row<'_>], failing_row: usize, error: RowError) {
        let sequence = rows[failing_row].sequence;
        let index = self.errors.len() as u32;
        for (outcome, _) in self.rows.iter_mut().zip(rows).filter(|(_, row)| row.sequence == sequence) {
            *outcome = RowOutcome::Rejected(index);
        }
        self.errors.push(error);
    }

    pub(crate) fn is_rejected(&self, row: usize) -> bool {
        matches!(self.rows[row], RowOutcome::Rejected(_))
    }
}

/// The outputs of a step, by row in the given order. They borrow the stepper.
pub struct StepOutputs<'a, O> {
    /// `None` if no row could be computed.
    pub(crate) run: Option<O>,
    pub(crate) outcomes: &'a RowOutcomes,
}

impl<O: Outputs> StepOutputs<'_, O> {
    /// Whether every row was computed.
    ///
    /// # Errors
    /// The error of the first row that was not computed.
    pub fn all(&self) -> Result<(), RowError> {
        (0..self.outcomes.rows.len()).try_for_each(|row| self.row(row))
    }

    /// Whether a row was computed.
    ///
    /// # Errors
    /// Why it was not computed.
    ///
    /// # Panics
    /// If the step had no such row; the other methods too.
    pub fn row(&self, row: usize) -> Result<(), RowError> {
        match self.outcomes.rows[row] {
            RowOutcome::Computed { .. } => Ok(()),
            RowOutcome::Rejected(error) => Err(self.outcomes.errors[error as usize].clone()),
        }
    }

    /// The token sampled after a row; `None` if the row did not want it.
    ///
    /// # Errors
    /// Why the row was not computed or sampled.
    pub fn token(&self, row: usize) -> Result<Option<u32>, RowError> {
        self.sample(row).map(|sample| sample.map(|sample| sample.token))
    }

    /// As [`StepOutputs::token`], with the sampler's next state and the log-probabilities.
    ///
    /// # Errors
    /// Why the row was not computed or sampled.
    pub fn sample(&self, row: usize) -> Result<Option<&Sample>, RowError> {
        match self.outcomes.rows[row] {
            RowOutcome::Computed { sample, .. } => {
                Ok(sample.map(|sample| &self.outcomes.samples[sample as usize]))
            }
            RowOutcome::Rejected(error) => Err(self.outcomes.errors[error as usize].clone()),
        }
    }

    /// The logits after a row; `None` if the row did not want them, or was not computed.
    pub fn logits(&self, row: usize) -> Option<&[f32]> {
        match self.outcomes.rows[row] {
            // Logits that only other rows of the step want are not returned for a row that wanted a token.
            RowOutcome::Computed { sample: Some(_), .. } => None,
            RowOutcome::Computed { output_row, .. } => {
                self.run.as_ref()?.row(outputs::LOGITS, output_row? as usize)
            }
            RowOutcome::Rejected(_) => None,
        }
    }

    /// The log-probabilities after a row; `None` if the row wanted nothing about the next token, was not computed, or its logits are
    /// not a valid distribution.
    pub fn log_probs(&self, row: usize) -> Option<LogSoftmax<'_>> {
        LogSoftmax::new(self.logits(row)?)
    }

    /// A hidden state of a row; `None` if no row wanted it, or the row was not computed.
    pub fn hidden(&self, output: HiddenOutput, row: usize) -> Option<&[f32]> {
        match self.outcomes.rows[row] {
            RowOutcome::Computed { row, .. } => self.run.as_ref()?.row(outputs::hidden(output), row as usize),
            RowOutcome::Rejected(_) => None,
        }
    }
}
