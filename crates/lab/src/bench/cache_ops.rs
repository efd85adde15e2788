//! The cost of operations on a sequence's cache metadata: allocating KV cells, accepting or rejecting draft tokens, prefix-cache
//! hits, forking, saving. None of it computes with the model; a step in between is not timed.

use std::time::{Duration, Instant};

use serde::Serialize;
use verbatim_engine::{
    Backend, MAX_ROWS, Row as StepRow, RowInput, RowOutputs, SequenceId, StepError, Stepper,
};

use super::{BenchError, token_at};

/// Draft tokens of the transactions that are timed.
const DRAFT_TOKENS: usize = 8;

/// The cost of one operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheOpRow {
    /// The operation.
    pub operation: &'static str,
    /// Tokens in the sequence.
    pub depth: usize,
    /// The median time, in microseconds.
    pub us: f64,
    /// The fastest.
    pub min_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// The median time over that of a decode step at this depth.
    pub steps: f64,
}

/// The (sequences, context) to load a stepper with for measuring at this depth.
///
/// # Errors
/// If that is more than can be counted.
pub fn cache_ops_capacity(depth: usize) -> Result<(usize, usize), BenchError> {
    let tokens = 4 * DRAFT_TOKENS;
    let context = depth.checked_add(tokens).filter(|&context| context <= i32::MAX as usize);
    context.map(|context| (3, context)).ok_or(BenchError::Positions { tokens, depth })
}

/// Times every operation `repetitions` times at a depth. `None` if `should_continue` returned false between steps.
///
/// # Errors
/// If there is nothing to repeat, or a step or an operation fails.
pub fn cache_ops<B: Backend>(
    stepper: &mut Stepper<B>,
    depth: usize,
    repetitions: usize,
    should_continue: &mut dyn FnMut() -> bool,
) -> Result<Option<Vec<CacheOpRow>>, BenchError> {
    if repetitions == 0 || depth == 0 {
        return Err(BenchError::Nothing);
    }
    let sequence = stepper.begin()?;
    let measured = fill(stepper, sequence, depth, should_continue).and_then(|complete| match complete {
        true => CacheOps { stepper, sequence, depth, timed: Vec::new() }.rounds(repetitions, should_continue),
        false => Ok(None),
    });
    stepper.end(sequence)?;
    measured
}

fn tokens<B: Backend>(range: std::ops::Range<usize>, stepper: &Stepper<B>) -> Vec<u32> {
    let vocabulary = stepper.hyperparameters().vocabulary;
    range.map(|position| token_at(position, vocabulary)).collect()
}

fn compute<B: Backend>(
    stepper: &mut Stepper<B>,
    sequence: SequenceId,
    start: usize,
    tokens: &[u32],
) -> Result<(), BenchError> {
    let row = |(i, &token)| StepRow {
        sequence,
        kv_index: start + i,
        input: RowInput::Token(token),
        want: RowOutputs::NONE,
    };
    let rows: Vec<StepRow> = tokens.iter().enumerate().map(row).collect();
    stepper.step(&rows)?.all().map_err(StepError::from)?;
    Ok(())
}

fn fill<B: Backend>(
    stepper: &mut Stepper<B>,
    sequence: SequenceId,
    depth: usize,
    should_continue: &mut dyn FnMut() -> bool,
) -> Result<bool, BenchError> {
    for part in tokens(0..depth, stepper).chunks(MAX_ROWS) {
        if !should_continue() {
            return Ok(false);
        }
        let start = stepper.append(sequence, part.len())?;
        compute(stepper, sequence, start, part)?;
        stepper.commit(sequence, part.len())?;
    }
    Ok(true)
}

struct CacheOps<'a, B: Backend> {
    stepper: &'a mut Stepper<B>,
    sequence: SequenceId,
    depth: usize,
    /// Operations in the order in which they were first timed.
    timed: Vec<(&'static str, Vec<Duration>)>,
}

impl<B: Backend> CacheOps<'_, B> {
    fn time<T>(&mut self, operation: &'static str, work: impl FnOnce(&mut Stepper<B>) -> T) -> T {
        let start = Instant::now();
        let result = work(self.stepper);
        self.add(operation, start.elapsed());
        result
    }

    fn add(&mut self, operation: &'static str, time: Duration) {
        match self.timed.iter_mut().find(|(other, _)| *other == operation) {
            Some((_, times)) => times.push(time),
            None => self.timed.push((operation, vec![time])),
        }
    }

    fn rounds(
        mut self,
        repetitions: usize,
        should_continue: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Vec<CacheOpRow>>, BenchError> {
        // The first round compiles the programs that the others use.
        self.round()?;
        self.timed.clear();
        for _ in 0..repetitions {
            if !should_continue() {
                return Ok(None);
            }
            self.round()?;
        }
        let median = |times: &[Duration]| {
            let mut sorted = times.to_vec();
            sorted.sort_unstable();
            let middle = [sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]];
            (middle[0] + middle[1]).as_secs_f64() / 2.0 * 1e6
        };
        let step =
            self.timed.iter().find(|(name, _)| *name == STEP).map_or(f64::NAN, |(_, times)| median(times));
        let row = |(operation, times): &(&'static str, Vec<Duration>)| {
            let us = times.iter().map(|time| time.as_secs_f64() * 1e6);
            CacheOpRow {
                operation,
                depth: self.depth,
                us: median(times),
                min_us: us.clone().fold(f64::INFINITY, f64::min),
                max_us: us.fold(0.0, f64::max),
                steps: median(times) / step,
            }
        };
        Ok(Some(self.timed.iter().map(row).collect()))
    }

    fn round(&mut self) -> Result<(), BenchError> {
        let (sequence, depth) = (self.sequence, self.depth);
        let draft = tokens(depth..depth + DRAFT_TOKENS, self.stepper);

        // A decode step, for comparison.
        self.stepper.append(sequence, 1)?;
        let input = RowInput::Token(draft[0]);
        let row = StepRow { sequence, kv_index: depth, input, want: RowOutputs::LOGITS };
        self.time(STEP, |stepper| stepper.step(&[row]).map(drop))?;
        self.stepper.rollback(sequence)?;

        // Rejected: KV cells are allocated and released.
        let start = Instant::now();
        let kv_index = self.stepper.append(sequence, DRAFT_TOKENS)?;
        let allocated = start.elapsed();
        compute(self.stepper, sequence, kv_index, &draft)?;
        let start = Instant::now();
        self.stepper.rollback(sequence)?;
        self.add("reject 8", allocated + start.elapsed());

        // Half accepted, in a copy, so that the sequence stays as it is.
        let fork = self.time("fork", |stepper| stepper.fork(sequence))?;
        let kv_index = self.time("append 8 after a fork", |stepper| stepper.append(fork, DRAFT_TOKENS))?;
        compute(self.stepper, fork, kv_index, &draft)?;
        self.time("accept 4 of 8", |stepper| stepper.commit(fork, DRAFT_TOKENS / 2))?;
        let parents: Vec<Option<usize>> = (0..DRAFT_TOKENS).map(|i| i.checked_sub(2)).collect();
        let kv_index = self.stepper.append_tree(fork, &parents)?;
        compute(self.stepper, fork, kv_index, &draft)?;
        // The second of two branches: its cells are compacted.
        self.time("accept 4 of a tree of 8", |stepper| stepper.commit_path(fork, &[1, 3, 5, 7]))?;
        if self.stepper.can_shift().is_ok() && depth >= 4 {
            self.time("context shift by half", |stepper| {
                stepper.remove_and_shift(fork, depth / 4..3 * depth / 4)
            })?;
        }
        self.time("end", |stepper| stepper.end(fork))?;

        let all = tokens(0..depth, self.stepper);
        let other = self.stepper.begin()?;
        self.time("prefix-cache hit", |stepper| stepper.resume_prefix(other, &all))?;
        self.stepper.end(other)?;

        let saved = self.time("save to memory", |stepper| stepper.save(sequence))?;
        let restored = self.time("restore from memory", |stepper| stepper.restore(&saved, Vec::new()))?;
        self.stepper.end(restored.sequence)?;
        Ok(())
    }
}

const STEP: &str = "decode step (tg)";

/// The rows as a table for people.
pub fn table(rows: &[CacheOpRow]) -> String {
    let mut table = String::from(
        "| operation                | depth  |         µs |        min |        max | % of a step |\n\
         | :----------------------- | -----: | ---------: | ---------: | ---------: | ----------: |\n",
    );
    for CacheOpRow { operation, depth, us, min_us, max_us, steps } in rows {
        let percent = steps * 100.0;
        table += &format!(
            "| {operation:24} | {depth:6} | {us:10.1} | {min_us:10.1} | {max_us:10.1} | {percent:10.2}% |\n"
        );
    }
    table
}

/// The rows as CSV with a header.
pub fn csv(rows: &[CacheOpRow]) -> String {
    let mut lines = String::from("operation,depth,us,min_us,max_us,steps\n");
    for CacheOpRow { operation, depth, us, min_us, max_us, steps } in rows {
        lines += &format!("{operation},{depth},{us},{min_us},{max_us},{steps}\n");
    }
    lines
}
