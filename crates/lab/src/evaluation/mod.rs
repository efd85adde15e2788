//! The perplexity of a text.
//!
//! The text's tokens are cut into chunks, each computed from an empty sequence. Only the second half of a chunk
//! counts, so every scored token has at least half a chunk of context. This is how llama.cpp's `llama-perplexity`
//! counts, so the results are comparable. [`evaluate`] gives the mean negative log-likelihood of the tokens that
//! count and, against the same model with other KV cache types, the mean KL divergence.

mod mean;
mod report;

pub use mean::Mean;
pub use report::{Divergence, Format, Report, Subject};

use std::ops::Range;

use verbatim_engine::{
    Backend, LogSoftmax, MAX_ROWS, Row, RowInput, SequenceId, SequenceMemory, StateError, StepError, Stepper,
    Want,
};

/// Rows of a step that want logits: the logits of so many rows are in memory at a time.
const LOGITS_ROWS: usize = 64;

/// The shortest chunk with a scored token.
const CHUNK_MIN: usize = 3;

/// A text to be predicted, as the chunks in which it is computed.
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
    /// Chunks computed to their end.
    pub chunks: usize,
    /// The negative log-likelihood of each token that counts, in nats.
    pub nll: Mean,
    /// For each of them the divergence of the model's distribution from the reference's, in nats:
    /// KL(reference ‖ model). Without a reference there are none.
    pub divergence: Mean,
}

/// Why a text could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum EvaluationError {
    /// Chunks in which no token counts.
    #[error("chunks of {0} tokens are too short: one of {CHUNK_MIN} has one scored token")]
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
    /// Logits that make no distribution, or one in which what has happened is impossible.
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
    /// e to the mean negative log-likelihood: among how many equally likely tokens the model is as unsure.
    pub fn perplexity(&self) -> f64 {
        self.nll.mean().exp()
    }

    /// The standard error of the perplexity, to first order in that of the log-likelihood.
    pub fn perplexity_error(&self) -> f64 {
        self.perplexity() * self.nll.standard_error()
    }
}

impl<'a> Chunks<'a> {
    /// Cuts a text's tokens into whole chunks of `size` tokens, at most `limit` of them. What is left over at the end
    /// does not count. `bos` takes the place of each chunk's first token, for models that expect it there.
    ///
    /// # Errors
    /// If no token of a chunk would count, or the text is shorter than a chunk.
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Tokens of each.
    pub fn size(&self) -> usize {
        self.size
    }

    fn get(&self, chunk: usize) -> Chunk<'a> {
        Chunk { index: chunk, tokens: &self.tokens[chunk * self.size..][..self.size], bos: self.bos }
    }
}

/// Computes the chunks one after the other and tells `progress` how far it has come, after each. Stops, with what there
/// is, if `should_continue` returns false between steps.
///
/// With a `reference`, sequences of the same stepper ([`Stepper::new_memory`]), every chunk is computed there too.
///
/// # Errors
/// If a step fails or gives no distribution.
pub fn evaluate<B: Backend>(
    stepper: &mut Stepper<B>,
    reference: Option<SequenceMemory<B>>,
    chunks: &Chunks<'_>,
    progress: &mut dyn FnMut(&Evaluation),
    should_continue: &mut dyn FnMut() -> bool,
) -> Result<Evaluation, EvaluationError> {
    let mut evaluation = Evaluation::default();
    let mut run = Run { stepper, reference, rows: Vec::with_capacity(MAX_ROWS) };
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

/// What chunks are computed with.
struct Run<'a, B: Backend> {
    stepper: &'a mut Stepper<B>,
    reference: Option<SequenceMemory<B>>,
    rows: Vec<Row<'static>>,
}

impl<B: Backend> Run<'_, B> {
    /// Whether the chunk was computed to its end.
    fn chunk(
        &mut self,
        chunk: &Chunk<'_>,
        evaluation: &mut Evaluation,
        should_continue: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EvaluationError> {
        let sequence = self.stepper.begin()?;
        let of_reference = self.on_reference(|run| run.stepper.begin()).transpose()?;
        let complete = self.judge(chunk, sequence, of_reference, evaluation, should_continue);
        // The sequences are freed whatever has happened.
        self.stepper.end(sequence)?;
        let ended = of_reference.and_then(|sequence| self.on_reference(|run| run.stepper.end(sequence)));
        ended.transpose()?;
        complete
    }

    fn judge(
        &mut self,
        chunk: &Chunk<'_>,
        sequence: SequenceId,
        of_reference: Option<SequenceId>,
        evaluation: &mut Evaluation,
        should_continue: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EvaluationError> {
        for positions in chunk.steps() {
            if !should_continue() {
                return Ok(false);
            }
            let vocabulary = self.stepper.hyperparameters().vocabulary;
            let mut expected: Vec<f32> = Vec::new();
            if let Some(sequence) = of_reference {
                let step = |run: &mut Self| {
                    run.step(chunk, sequence, positions.clone(), |_, logits| {
                        expected.extend_from_slice(logits);
                        Ok(())
                    })
                };
                self.on_reference(step).transpose()?;
            }
            let mut expected = expected.chunks_exact(vocabulary.max(1));
            self.step(chunk, sequence, positions, |position, logits| {
                let expected = of_reference.and_then(|_| expected.next());
                let judged = LogSoftmax::new(logits).and_then(|model| {
                    let nll = model.nll(chunk.tokens[position + 1] as usize)?;
                    let divergence = match expected {
                        Some(expected) => Some(LogSoftmax::new(expected)?.divergence(&model)?),
                        None => None,
                    };
                    Some((nll, divergence))
                });
                let not_finite = EvaluationError::NotFinite { chunk: chunk.index, position };
                let (nll, divergence) = judged.ok_or(not_finite)?;
                evaluation.nll.add(nll);
                divergence.into_iter().for_each(|divergence| evaluation.divergence.add(divergence));
                Ok(())
            })?;
        }
        Ok(true)
    }

    /// Runs `work` on the reference's sequences; `None` if there are none.
    fn on_reference<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let reference = self.reference.take()?;
        let own = self.stepper.swap_memory(reference);
        let result = work(self);
        self.reference = Some(self.stepper.swap_memory(own));
        Some(result)
    }

    /// Computes positions and hands the logits after those that are judged to `say`.
    fn step(
        &mut self,
        chunk: &Chunk<'_>,
        sequence: SequenceId,
        positions: Range<usize>,
        mut say: impl FnMut(usize, &[f32]) -> Result<(), EvaluationError>,
    ) -> Result<(), EvaluationError> {
        self.stepper.append(sequence, positions.len())?;
        self.rows.clear();
        self.rows.extend(positions.clone().map(|position| Row {
            sequence,
            kv_index: position,
            input: RowInput::Token(chunk.token(position)),
            want: Want::logits_if(chunk.judges(position)),
        }));
        let outputs = self.stepper.step(&self.rows)?;
        outputs.all().map_err(StepError::from)?;
        for (row, position) in positions.clone().enumerate() {
            outputs.logits(row).map_or(Ok(()), |logits| say(position, logits))?;
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
    /// What the model reads at a position.
    fn token(&self, position: usize) -> u32 {
        self.bos.filter(|_| position == 0).unwrap_or(self.tokens[position])
    }

    /// Whether the token after this position counts.
    fn judges(&self, position: usize) -> bool {
        position >= self.tokens.len() / 2
    }

    /// Positions by step. Nothing comes after the last token, so it is not computed.
    fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        let (end, half) = (self.tokens.len() - 1, self.tokens.len() / 2);
        let cut = |from: usize, to: usize, size: usize| {
            (from..to).step_by(size).map(move |start| start..to.min(start + size))
        };
        cut(0, half, MAX_ROWS).chain(cut(half, end, LOGITS_ROWS))
    }
}
