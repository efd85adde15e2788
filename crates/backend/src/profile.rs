//! Where the time of runs goes, as thread 0 sees it.
//!
//! An op whose work is split into tasks keeps thread 0 busy about as long as the other threads; barrier waits are reported
//! separately. The clock is read twice after every op, so that recording it is not counted, and once after every barrier.

use std::time::{Duration, Instant};
use verbatim_quant::DType;

/// More kinds of op than any model has, so that recording does not allocate.
const MAX_OPS: usize = 64;

/// Time spent in runs, by op kind. Empty until profiling is turned on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    ops: Vec<OpTime>,
    runs: u64,
    barrier_wait: Duration,
    total: Duration,
}

/// Total time and work of all ops of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTime {
    /// The op's name.
    pub op: &'static str,
    /// For matmuls, what they read and compute, summed over all threads.
    pub matmul: Option<MatmulWork>,
    /// How often such an op was run.
    pub count: u64,
    /// Total time from start to end on thread 0.
    pub time: Duration,
}

/// The operand types of a matmul.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulKind {
    /// Quantised weights and activations: int8 dot products.
    Int8,
    /// Float weights and f32 activations.
    F32,
}

/// The work of matmuls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulWork {
    /// Format of the weights.
    pub weights: DType,
    /// The operand types.
    pub kind: MatmulKind,
    /// Bytes of packed weights, each read once however many rows there are.
    pub weight_bytes: u64,
    /// Multiplications and additions.
    pub operations: u64,
}

impl Profile {
    /// The kinds of op that were run, in the order in which they first were.
    pub fn ops(&self) -> &[OpTime] {
        &self.ops
    }

    /// Runs recorded.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// The time that thread 0 spent waiting at barriers.
    pub fn barrier_wait(&self) -> Duration {
        self.barrier_wait
    }

    /// Total time of the runs: ops, barrier waits, and waking the threads.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Clears the profile and reserves its memory.
    pub fn clear(&mut self) {
        self.ops.clear();
        self.ops.reserve(MAX_OPS);
        (self.runs, self.barrier_wait, self.total) = (0, Duration::ZERO, Duration::ZERO);
    }

    fn add(&mut self, op: &'static str, matmul: Option<MatmulWork>, time: Duration) {
        let format = |matmul: Option<MatmulWork>| matmul.map(|matmul| matmul.weights);
        let same = |entry: &&mut OpTime| entry.op == op && format(entry.matmul) == format(matmul);
        match self.ops.iter_mut().find(same) {
            Some(entry) => {
                entry.count += 1;
                entry.time += time;
                if let (Some(sum), Some(matmul)) = (&mut entry.matmul, matmul) {
                    sum.weight_bytes += matmul.weight_bytes;
                    sum.operations += matmul.operations;
                }
            }
            None => self.ops.push(OpTime { op, matmul, count: 1, time }),
        }
    }
}

/// Records one run, for backends.
pub struct Recorder<'a> {
    profile: &'a mut Profile,
    start: Instant,
    /// When the last recorded op or barrier ended.
    last: Instant,
}

impl<'a> Recorder<'a> {
    /// Starts now.
    pub fn start(profile: &'a mut Profile) -> Recorder<'a> {
        let start = Instant::now();
        Recorder { profile, start, last: start }
    }

    /// Restarts the clock: the next op starts now.
    pub fn resume(&mut self) {
        self.last = Instant::now();
    }

    /// An op has ended. The time of the call of `matmul` is not counted.
    pub fn op(&mut self, op: &'static str, matmul: impl FnOnce() -> Option<MatmulWork>) {
        let time = self.last.elapsed();
        self.profile.add(op, matmul(), time);
        self.resume();
    }

    /// A barrier has been passed.
    pub fn barrier(&mut self) {
        let now = Instant::now();
        self.profile.barrier_wait += now - self.last;
        self.last = now;
    }

    /// The run has ended.
    pub fn finish(self) {
        self.profile.runs += 1;
        self.profile.total += self.start.elapsed();
    }
}
