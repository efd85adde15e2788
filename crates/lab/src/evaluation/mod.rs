//! The perplexity of a text.
//!
//! The text's tokens are split into chunks, each computed from an empty sequence. Only the second half of a chunk is scored, so
//! every scored token has at least half a chunk of context, as in llama.cpp's `llama-perplexity`: the results are comparable.
//! [`evaluate`] returns the mean negative log-likelihood of the scored tokens and, against the same model with different KV cache
//! types, the mean KL divergence.

mod mean;
mod report;

pub use mean::RunningMean;
pub use report::{Divergence, EvaluationSetup, Format, Report};

use std::ops::Range;

use verbatim_engine::{
    Backend, LogSoftmax, MAX_ROWS, Row, RowInput, RowOutputs, SequenceId, SequenceMemory, StateError,
    StepError, Stepper,
};

/// Maximum rows with logits per step: their logits are in memory at once.
const LOGITS_ROWS: usize = 64;

/// Minimum chunk size that has a scored token.
const CHUNK_MIN: usize = 3;

/// A text to score, split into chunks.
#[derive(Clone, Copy, Debug)]
pub struct Chunks<'a> {
    tokens: &'a [u32],
    size: usize,
    count: usize,
    bos: Option<u32>,
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Completed chunks.
    pub chunks: usize,
    /// The negative log-likelihood of the scored tokens, in nats.
    pub nll: RunningMean,
    /// KL(baseline ‖ model) at each of them, in nats. Empty without a baseline.
    pub divergence: RunningMean,
}

/// Why a text could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum EvaluationError {
    /// Chunks without a scored token.
    #[error("chunks of {0} tokens are too short: use at least {CHUNK_MIN}")]
    ChunkSize(usize),
    /// Not even one chunk.
    #[error(
        "the text has {tokens} tokens, fewer than one chunk of {size}; use a longer text or shorter chunks"
    )]
    TooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        size: usize,
    },
    /// Logits that are not a valid distribution, or one in which the token has probability 0.
    #[error(
        "position {position} of chunk {chunk}: the logits give no finite likelihood; the file is damaged"
    )]
    NotFinite {
        /// The chunk, from 0.
        chunk: usize,
        /// The position within it.
        position: usize,
    },
    /// A step has failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The sequence could not be set up.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Evaluation {
    /// exp(mean NLL).
    pub fn perplexity(&self) -> f64 {
        self.nll.mean().exp()
    }

    /// The standard error of the perplexity, to first order in that of the log-likelihood.
    pub fn perplexity_error(&self) -> f64 {
        self.perplexity() * self.nll.standard_error()
    }
}

impl<'a> Chunks<'a> {
    /// Cuts a text's tokens into at most `limit` chunks of `size` tokens. The remainder is not scored. `bos` replaces
    /// each chunk's first token, for models that expect it.
    ///
    /// # Errors
    /// If chunks have no scored token, or the text is shorter than a chunk.
    pub fn new(
        tokens: &'a [u32],
        size: usize,
        limit: Option<usize>,
        bos: Option<u32>,
    ) -> Result<Chunks<'a>, EvaluationError> {
        if size < CHUNK_MIN {
            return Err(EvaluationError::ChunkSize(size));
        }
        if tokens.len() < size {
            return Err(EvaluationError::TooShort { tokens: tokens.len(), size });
        }
        let count = (tokens.len() / size).min(limit.unwrap_or(usize::MAX));
        Ok(Chunks { tokens, size, count, bos })
    }

    /// Number of chunks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens per chunk.
    pub fn size(&self) -> usize {
        self.size
    }

    fn get(&self, chunk: usize) -> Chunk<'a> {
        Chunk { index: chunk, tokens: &self.tokens[chunk * self.size..][..self.size], bos: self.bos }
    }
}

/// Computes the chunks in order and calls `progress` after each. Stops, with the result so far, if `should_continue`
/// returns false between steps.
///
/// With a `baseline`, sequences of the same stepper ([`Stepper::new_memory`]), every chunk is computed there too.
///
/// # Errors
/// If a step fails or returns logits that are not a valid distribution.
pub fn evaluate<B: Backend>(
    stepper: &mut Stepper<B>,
    baseline: Option<SequenceMemory<B>>,
    chunks: &Chunks<'_>,
    progress: &mut dyn FnMut(&Evaluation),
    should_continue: &mut dyn FnMut() -> bool,
) -> Result<Evaluation, EvaluationError> {
    let mut evaluation = Evaluation::default();
    let mut run = Run { stepper, baseline, rows: Vec::with_capacity(MAX_ROWS) };
    for index in 0..chunks.count {
        let complete = run.chunk(&chunks.get(index), &mut evaluation, should_continue)?;
        if !complete {
            break;
        }
        evaluation.chunks += 1;
        progress(&evaluation);
    }
    Ok(evaluation)
}

/// State of an evaluation.
struct Run<'a, B: Backend> {
    stepper: &'a mut Stepper<B>,
    baseline: Option<SequenceMemory<B>>,
    rows: Vec<Row<'static>>,
}

impl<B: Backend> Run<'_, B> {
    /// Returns whether the chunk was completed.
    fn chunk(
        &mut self,
        chunk: &Chunk<'_>,
        evaluation: &mut Evaluation,
        should_continue: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EvaluationError> {
        let sequence = self.stepper.begin()?;
        let of_baseline = self.on_baseline(|run| run.stepper.begin()).transpose()?;
        let complete = self.score(chunk, sequence, of_baseline, evaluation, should_continue);
        // The sequences are always freed.
        self.stepper.end(sequence)?;
        let ended = of_baseline.and_then(|sequence| self.on_baseline(|run| run.stepper.end(sequence)));
        ended.transpose()?;
        complete
    }

    fn score(
        &mut self,
        chunk: &Chunk<'_>,
        sequence: SequenceId,
        of_baseline: Option<SequenceId>,
        evaluation: &mut Evaluation,
        should_continue: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EvaluationError> {
        for positions in chunk.steps() {
            if !should_continue() {
                return Ok(false);
            }
            let vocabulary = self.stepper.hyperparameters().vocabulary;
            let mut expected: Vec<f32> = Vec::new();
            if let Some(sequence) = of_baseline {
                let step = |run: &mut Self| {
                    run.step(chunk, sequence, positions.clone(), |_, logits| {
                        expected.extend_from_slice(logits);
                        Ok(())
                    })
                };
                self.on_baseline(step).transpose()?;
            }
            let mut expected = expected.chunks_exact(vocabulary.max(1));
            self.step(chunk, sequence, positions, |position, logits| {
                let expected = of_baseline.and_then(|_| expected.next());
                let scored = LogSoftmax::new(logits).and_then(|model| {
                    let nll = model.nll(chunk.tokens[position + 1] as usize)?;
                    let divergence = match expected {
                        Some(expected) => Some(LogSoftmax::new(expected)?.divergence(&model)?),
                        None => None,
                    };
                    Some((nll, divergence))
                });
                let not_finite = EvaluationError::NotFinite { chunk: chunk.index, position };
                let (nll, divergence) = scored.ok_or(not_finite)?;
                evaluation.nll.add(nll);
                divergence.into_iter().for_each(|divergence| evaluation.divergence.add(divergence));
                Ok(())
            })?;
        }
        Ok(true)
    }

    /// Runs `work` on the baseline's sequences; `None` if there are none.
    fn on_baseline<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let baseline = self.baseline.take()?;
        let own = self.stepper.swap_memory(baseline);
        let result = work(self);
        self.baseline = Some(self.stepper.swap_memory(own));
        Some(result)
    }

    /// Computes positions and passes the logits of the scored ones to `sink`.
    fn step(
        &mut self,
        chunk: &Chunk<'_>,
        sequence: SequenceId,
        positions: Range<usize>,
        mut sink: impl FnMut(usize, &[f32]) -> Result<(), EvaluationError>,
    ) -> Result<(), EvaluationError> {
        self.stepper.append(sequence, positions.len())?;
        self.rows.clear();
        self.rows.extend(positions.clone().map(|position| Row {
            sequence,
            kv_index: position,
            input: RowInput::Token(chunk.token(position)),
            want: RowOutputs::logits_if(chunk.is_scored(position)),
        }));
        let outputs = self.stepper.step(&self.rows)?;
        outputs.all().map_err(StepError::from)?;
        for (row, position) in positions.clone().enumerate() {
            outputs.logits(row).map_or(Ok(()), |logits| sink(position, logits))?;
        }
        drop(outputs);
        Ok(self.stepper.commit(sequence, positions.len())?)
    }
}

/// Some consecutive tokens of the text.
struct Chunk<'a> {
    index: usize,
    tokens: &'a [u32],
    bos: Option<u32>,
}

impl Chunk<'_> {
    /// The input token at a position.
    fn token(&self, position: usize) -> u32 {
        self.bos.filter(|_| position == 0).unwrap_or(self.tokens[position])
    }

    /// Whether the token after this position is scored.
    fn is_scored(&self, position: usize) -> bool {
        position >= self.tokens.len() / 2
    }

    /// Positions by step. The last token predicts nothing, so it is not computed.
    fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        let (end, half) = (self.tokens.len() - 1, self.tokens.len() / 2);
        let cut = |from: usize, to: usize, size: usize| {
            (from..to).step_by(size).map(move |start| start..to.min(start + size))
        };
        cut(0, half, MAX_ROWS).chain(cut(half, end, LOGITS_ROWS))
    }
}
