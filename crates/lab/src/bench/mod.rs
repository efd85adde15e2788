//! Benchmarks: prompt processing (pp), token generation (tg), and verification batches: one forward pass over N tokens (width).
//!
//! A [`Test`] is one kind of work at one depth, named as llama-bench names them: `pp512` computes a prompt of 512 tokens, `tg128`
//! generates 128 tokens, both from an empty KV cache, or at depth 2048 with `@d2048`. `width4` is a verification batch: one step of
//! 4 rows of one sequence, all with logits, as when verifying draft tokens, then rolled back. [`measure`] repeats a test after a
//! warm-up; [`TestResult`] is the result. [`profile`] returns where its time goes ([`Breakdown`]), which [`chart`] draws.

mod breakdown;
pub mod cache_ops;
pub mod chart;
mod peaks;
mod report;
mod work;

pub use breakdown::{Breakdown, MatmulRate, ProfileRow};
pub use peaks::{Peaks, read_gb_per_s};
pub use report::{BenchSetup, Format, TestResult};
pub use work::{BenchError, Test, TestMatrix, Work};

use std::time::{Duration, Instant};

use verbatim_engine::{
    Backend, MAX_ROWS, Row as StepRow, RowInput, RowOutputs, SequenceId, StepError, Stepper,
};

/// A step of few rows is short: a sample of a verification test is the mean over this many steps.
const STEPS_PER_SAMPLE: usize = 8;

/// Runs a test `repetitions` times after a warm-up, and returns the time of each: of the whole work, or of one step of
/// a verification test. `None` if `should_continue` returned false between steps.
///
/// # Errors
/// If there are no repetitions, or a step fails.
pub fn measure<B: Backend>(
    stepper: &mut Stepper<B>,
    test: Test,
    repetitions: usize,
    should_continue: &mut dyn FnMut() -> bool,
) -> Result<Option<Vec<Duration>>, BenchError> {
    if repetitions == 0 {
        return Err(BenchError::Nothing);
    }
    on_a_sequence(stepper, should_continue, |runner| runner.samples(test, repetitions))
}

/// Profiles one run of a test after a warm-up. `None` if `should_continue` returned false between steps.
///
/// # Errors
/// If a step fails.
pub fn profile<B: Backend>(
    stepper: &mut Stepper<B>,
    test: Test,
    peaks: &Peaks,
    should_continue: &mut dyn FnMut() -> bool,
) -> Result<Option<Breakdown>, BenchError> {
    on_a_sequence(stepper, should_continue, |runner| {
        let warm = runner.set_depth(test.depth)? && runner.time(test.work.warm_up())?.is_some();
        if !warm || !runner.set_depth(test.depth)? {
            return Ok(None);
        }
        runner.stepper.set_profiling(true);
        let time = runner.time(test.work);
        runner.stepper.set_profiling(false);
        let profile = runner.stepper.profile().ok_or(BenchError::NoProfile)?;
        Ok(time?.map(|_| Breakdown::new(test, profile, peaks)))
    })
}

/// Runs `work` with a fresh sequence, which is always freed.
fn on_a_sequence<B: Backend, T>(
    stepper: &mut Stepper<B>,
    should_continue: &mut dyn FnMut() -> bool,
    work: impl FnOnce(&mut Runner<'_, B>) -> Result<T, BenchError>,
) -> Result<T, BenchError> {
    let sequence = stepper.begin()?;
    let result = work(&mut Runner { stepper, sequence, rows: Vec::with_capacity(MAX_ROWS), should_continue });
    let ended = stepper.end(sequence);
    let result = result?;
    ended?;
    Ok(result)
}

/// A sequence on which tests run. Methods return `None` or `false` once the caller wants to stop.
struct Runner<'a, B: Backend> {
    stepper: &'a mut Stepper<B>,
    sequence: SequenceId,
    rows: Vec<StepRow<'static>>,
    should_continue: &'a mut dyn FnMut() -> bool,
}

/// Which rows of a step have logits.
#[derive(Clone, Copy)]
enum Logits {
    None,
    Last,
    All,
}

impl<B: Backend> Runner<'_, B> {
    fn samples(&mut self, test: Test, repetitions: usize) -> Result<Option<Vec<Duration>>, BenchError> {
        let mut samples = Vec::new();
        for work in std::iter::once(test.work.warm_up()).chain(std::iter::repeat_n(test.work, repetitions)) {
            if !self.set_depth(test.depth)? {
                return Ok(None);
            }
            let Some(time) = self.time(work)? else { return Ok(None) };
            samples.push(time);
        }
        samples.remove(0);
        Ok(Some(samples))
    }

    /// Extends or truncates the sequence to `depth` tokens.
    fn set_depth(&mut self, depth: usize) -> Result<bool, BenchError> {
        if self.stepper.len(self.sequence)? > depth && self.stepper.truncate(self.sequence, depth).is_err() {
            // A recurrent sequence can be truncated to 0 only.
            self.stepper.truncate(self.sequence, 0)?;
        }
        let missing = depth - self.stepper.len(self.sequence)?;
        self.extend(missing, Logits::None)
    }

    fn time(&mut self, work: Work) -> Result<Option<Duration>, BenchError> {
        let start = Instant::now();
        let complete = match work {
            Work::Prefill(tokens) => self.extend(tokens, Logits::Last)?,
            Work::Generate(tokens) => self.generate(tokens)?,
            Work::VerifyBatch(rows) => self.verify(rows)?,
        };
        let time = start.elapsed();
        let steps = if matches!(work, Work::VerifyBatch(_)) { STEPS_PER_SAMPLE as u32 } else { 1 };
        Ok(complete.then_some(time / steps))
    }

    /// Appends tokens in steps of up to `MAX_ROWS`.
    fn extend(&mut self, tokens: usize, logits: Logits) -> Result<bool, BenchError> {
        let mut left = tokens;
        while left > 0 {
            let count = left.min(MAX_ROWS);
            left -= count;
            let logits = if left > 0 { Logits::None } else { logits };
            if !self.step(count, logits)? {
                return Ok(false);
            }
            self.stepper.commit(self.sequence, count)?;
        }
        Ok(true)
    }

    fn generate(&mut self, tokens: usize) -> Result<bool, BenchError> {
        for _ in 0..tokens {
            if !self.step(1, Logits::All)? {
                return Ok(false);
            }
            self.stepper.commit(self.sequence, 1)?;
        }
        Ok(true)
    }

    fn verify(&mut self, rows: usize) -> Result<bool, BenchError> {
        for _ in 0..STEPS_PER_SAMPLE {
            if !self.step(rows, Logits::All)? {
                return Ok(false);
            }
            self.stepper.rollback(self.sequence)?;
        }
        Ok(true)
    }

    /// Computes the next positions, which stay in flight.
    fn step(&mut self, count: usize, logits: Logits) -> Result<bool, BenchError> {
        if !(self.should_continue)() {
            return Ok(false);
        }
        let (sequence, vocabulary) = (self.sequence, self.stepper.hyperparameters().vocabulary);
        let start = self.stepper.append(sequence, count)?;
        self.rows.clear();
        self.rows.extend((0..count).map(|row| StepRow {
            sequence,
            kv_index: start + row,
            input: RowInput::Token(token_at(start + row, vocabulary)),
            want: RowOutputs::logits_if(match logits {
                Logits::None => false,
                Logits::Last => row + 1 == count,
                Logits::All => true,
            }),
        }));
        self.stepper.step(&self.rows)?.all().map_err(StepError::from)?;
        Ok(true)
    }
}

/// Tokens without a pattern, so that MoE routing is as varied as with real text.
fn token_at(position: usize, vocabulary: usize) -> u32 {
    (crate::synth::mix(position as u64) % vocabulary.max(1) as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_after_their_work_and_depth() {
        let name = |work, depth| Test { work, depth }.to_string();
        assert_eq!(name(Work::Prefill(256), 0), "pp256");
        assert_eq!(name(Work::Generate(48), 2048), "tg48@d2048");
        assert_eq!(name(Work::VerifyBatch(4), 7), "width4@d7");
    }

    #[test]
    fn a_selection_is_every_work_at_every_depth_and_zero_is_none() {
        let selection = TestMatrix {
            prompts: vec![512, 0],
            generations: vec![0],
            verify_batches: vec![1, 2],
            depths: vec![0, 100],
        };
        let (tests, context) = selection.tests().unwrap();
        let names: Vec<String> = tests.iter().map(Test::to_string).collect();
        assert_eq!(names, ["pp512", "width1", "width2", "pp512@d100", "width1@d100", "width2@d100"]);
        assert_eq!(context, 612);
    }

    #[test]
    fn invalid_tests_are_rejected() {
        let message = |selection: TestMatrix| selection.tests().unwrap_err().to_string();
        assert!(message(TestMatrix::default()).contains("nothing to measure"));
        let wide = TestMatrix { verify_batches: vec![MAX_ROWS + 1], ..TestMatrix::default() };
        assert_eq!(message(wide), "a step has at most 512 rows, not 513");
        let long = TestMatrix { prompts: vec![1], depths: vec![usize::MAX], ..TestMatrix::default() };
        assert!(message(long).contains("more than a sequence can have"));
    }
}
