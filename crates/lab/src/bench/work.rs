//! The tests, and the errors of running them.

use std::fmt;

use verbatim_engine::{MAX_ROWS, RestoreError, StateError, StepError};

/// The work of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Computes a prompt of this many tokens; only the last has logits.
    Prefill(usize),
    /// Computes this many steps of one token, each with logits.
    Generate(usize),
    /// A verification batch: computes a step of this many rows of one sequence, all with logits.
    VerifyBatch(usize),
}

/// Work at a depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// What is timed.
    pub work: Work,
    /// Tokens in the sequence beforehand.
    pub depth: usize,
}

/// Which tests to run: every entry of the first three lists at every depth. 0 means none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestMatrix {
    /// Tokens of prompts.
    pub prompts: Vec<usize>,
    /// Tokens to generate.
    pub generations: Vec<usize>,
    /// Rows of verification batches.
    pub verify_batches: Vec<usize>,
    /// Context depths; an empty list means 0.
    pub depths: Vec<usize>,
}

/// Why a test could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The backend has no profiler.
    #[error("this backend has no profiler")]
    NoProfile,
    /// Nothing to repeat.
    #[error("there is nothing to measure: specify at least one repetition and one test")]
    Nothing,
    /// More rows than a step can have.
    #[error("a step has at most {MAX_ROWS} rows, not {0}")]
    TooManyRows(usize),
    /// More positions than a machine can count.
    #[error("{tokens} tokens at depth {depth} are more than a sequence can have")]
    Positions {
        /// Tokens of the test.
        tokens: usize,
        /// Tokens before it.
        depth: usize,
    },
    /// A step has failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The sequence could not be set up.
    #[error(transparent)]
    State(#[from] StateError),
    /// A sequence could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The read buffer could not be allocated.
    #[error("not enough memory for the {bytes} byte buffer of the bandwidth measurement")]
    Memory {
        /// Bytes of the buffer.
        bytes: usize,
    },
}

impl Work {
    /// Number of tokens computed.
    pub fn tokens(self) -> usize {
        match self {
            Work::Prefill(tokens) | Work::Generate(tokens) | Work::VerifyBatch(tokens) => tokens,
        }
    }

    /// The warm-up, which compiles all programs that it needs. One decode step suffices; a prompt may need several step sizes.
    pub(super) fn warm_up(self) -> Work {
        match self {
            Work::Generate(_) => Work::Generate(1),
            work => work,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work {
            Work::Prefill(tokens) => write!(f, "pp{tokens}")?,
            Work::Generate(tokens) => write!(f, "tg{tokens}")?,
            Work::VerifyBatch(rows) => write!(f, "width{rows}")?,
        }
        if self.depth > 0 { write!(f, "@d{}", self.depth) } else { Ok(()) }
    }
}

impl TestMatrix {
    /// The tests, and the positions that a sequence needs for the longest of them.
    ///
    /// # Errors
    /// If there are none, or one is impossible.
    pub fn tests(&self) -> Result<(Vec<Test>, usize), BenchError> {
        let depths: &[usize] = if self.depths.is_empty() { &[0] } else { &self.depths };
        let works = (self.prompts.iter().map(|&tokens| Work::Prefill(tokens)))
            .chain(self.generations.iter().map(|&tokens| Work::Generate(tokens)))
            .chain(self.verify_batches.iter().map(|&rows| Work::VerifyBatch(rows)))
            .filter(|work| work.tokens() > 0);
        let works: Vec<Work> = works.collect();
        let mut tests = Vec::new();
        let mut context = 0;
        for &depth in depths {
            for &work in &works {
                match work {
                    Work::VerifyBatch(rows) if rows > MAX_ROWS => return Err(BenchError::TooManyRows(rows)),
                    _ => {}
                }
                let tokens = work.tokens();
                context =
                    context.max(tokens.checked_add(depth).ok_or(BenchError::Positions { tokens, depth })?);
                tests.push(Test { work, depth });
            }
        }
        if tests.is_empty() { Err(BenchError::Nothing) } else { Ok((tests, context)) }
    }
}
