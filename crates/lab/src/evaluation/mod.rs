//! How well a model foretells a text.
//!
//! The text's tokens are cut into chunks, each computed from an empty sequence. Of a chunk only the second half counts, so
//! that every token which is judged has at least half a chunk before it; this is how llama.cpp's `llama-perplexity`
//! counts, and the numbers can be laid beside its. [`evaluate`] gives the mean negative log-likelihood of the tokens that
//! count and, against a second engine, the mean divergence of what the two say.

mod distribution;
mod mean;
mod report;

pub use mean::Mean;
pub use report::{Divergence, Format, Report, Subject};

use std::ops::Range;

use distribution::LogSoftmax;
use verbatim_engine::{Engine, MAX_ROWS, Row, SequenceId, StateError, StepError, StepOutputs};

/// Rows of a step that want logits: the logits of so many rows are in memory at a time.
const LOGITS_ROWS: usize = 64;

/// The fewest tokens of a chunk of which one can be judged.
const CHUNK_MIN: usize = 3;

/// A text to be foretold, as the chunks in which it is computed.
#[derive(Clone, Copy, Debug)]
pub struct Chunks<'a> {
    tokens: &'a [u32],
    size: usize,
    count: usize,
    bos: Option<u32>,
}

/// What a model has made of a text.
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
    #[error("chunks of {0} tokens are too short: one of {CHUNK_MIN} has one token to judge")]
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
    /// Two models that do not choose among the same tokens.
    #[error("the models have {model} and {reference} tokens, so their distributions cannot be compared")]
    Vocabularies {
        /// Tokens of the model.
        model: usize,
        /// Tokens of the reference.
        reference: usize,
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
/// is, when `go_on` says no between steps.
///
/// With a `reference`, which must have the same vocabulary, both compute every chunk.
///
/// # Errors
/// If a step fails or gives no distribution.
pub fn evaluate(
    engine: &mut Engine,
    mut reference: Option<&mut Engine>,
    chunks: &Chunks<'_>,
    progress: &mut dyn FnMut(&Evaluation),
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Evaluation, EvaluationError> {
    if let Some(reference) = &reference {
        let (model, reference) = (vocabulary(engine), vocabulary(reference));
        if model != reference {
            return Err(EvaluationError::Vocabularies { model, reference });
        }
    }
    let mut evaluation = Evaluation::default();
    for index in 0..chunks.count {
        let chunk = chunks.get(index);
        let mut model = Run::begin(engine)?;
        let mut reference = reference.as_deref_mut().map(Run::begin).transpose()?;
        let complete = judge(&mut model, reference.as_mut(), &chunk, &mut evaluation, go_on);
        // The sequence is freed whatever has happened.
        model.end()?;
        reference.map_or(Ok(()), Run::end)?;
        if !complete? {
            break;
        }
        evaluation.chunks += 1;
        progress(&evaluation);
    }
    Ok(evaluation)
}

fn vocabulary(engine: &Engine) -> usize {
    engine.hyperparameters().vocabulary
}

/// Whether the chunk was computed to its end.
fn judge(
    model: &mut Run<'_>,
    mut reference: Option<&mut Run<'_>>,
    chunk: &Chunk<'_>,
    evaluation: &mut Evaluation,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<bool, EvaluationError> {
    for positions in chunk.steps() {
        if !go_on() {
            return Ok(false);
        }
        let said = model.step(chunk, positions.clone())?;
        let against = reference.as_mut().map(|run| run.step(chunk, positions.clone())).transpose()?;
        for (index, position) in positions.clone().filter(|&position| chunk.judges(position)).enumerate() {
            let judged = distribution(&said, index).and_then(|model| {
                let nll = model.nll(chunk.tokens[position + 1] as usize);
                let divergence = match &against {
                    Some(against) => Some(distribution(against, index)?.divergence(&model)?),
                    None => None,
                };
                Some((nll?, divergence))
            });
            let (nll, divergence) =
                judged.ok_or(EvaluationError::NotFinite { chunk: chunk.index, position })?;
            evaluation.nll.add(nll);
            divergence.into_iter().for_each(|divergence| evaluation.divergence.add(divergence));
        }
        model.keep(positions.len())?;
        reference.as_mut().map_or(Ok(()), |run| run.keep(positions.len()))?;
    }
    Ok(true)
}

/// What the `index`-th of the rows that wanted logits says.
fn distribution<'a>(said: &'a StepOutputs<'_>, index: usize) -> Option<LogSoftmax<'a>> {
    said.logits(index).and_then(LogSoftmax::new)
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

/// A sequence of an engine, for one chunk.
struct Run<'a> {
    engine: &'a mut Engine,
    sequence: SequenceId,
    rows: Vec<Row>,
}

impl<'a> Run<'a> {
    fn begin(engine: &'a mut Engine) -> Result<Run<'a>, EvaluationError> {
        let sequence = engine.begin()?;
        Ok(Run { engine, sequence, rows: Vec::with_capacity(MAX_ROWS) })
    }

    /// Computes positions, which stay in flight.
    fn step(
        &mut self,
        chunk: &Chunk<'_>,
        positions: Range<usize>,
    ) -> Result<StepOutputs<'_>, EvaluationError> {
        self.engine.append(self.sequence, positions.len())?;
        self.rows.clear();
        self.rows.extend(positions.map(|position| Row {
            sequence: self.sequence,
            place: position,
            token: chunk.token(position),
            wants_logits: chunk.judges(position),
        }));
        Ok(self.engine.step(&self.rows, Vec::new())?)
    }

    fn keep(&mut self, count: usize) -> Result<(), EvaluationError> {
        Ok(self.engine.commit(self.sequence, count)?)
    }

    fn end(self) -> Result<(), EvaluationError> {
        Ok(self.engine.end(self.sequence)?)
    }
}
