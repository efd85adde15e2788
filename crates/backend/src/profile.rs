//! Where the time of runs goes, as thread 0 sees it.
//!
//! An op that is dealt out in tasks keeps thread 0 about as long as everyone; what it waits for the others is counted
//! apart. The clock is read once after every op and once after every barrier.

use std::time::{Duration, Instant};
use verbatim_quant::DType;

/// More kinds than a model has: recording allocates nothing after the first run.
const KINDS_MAX: usize = 64;

/// What runs have taken, by kind of op. Empty until profiling is turned on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    kinds: Vec<KindTime>,
    runs: u64,
    waiting: Duration,
    total: Duration,
}

/// What the ops of one kind have taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KindTime {
    /// The op's name.
    pub op: &'static str,
    /// For products, what they read and compute, all threads together.
    pub product: Option<ProductWork>,
    /// How often such an op was run.
    pub count: u64,
    /// From its start to its end on thread 0, in sum.
    pub time: Duration,
}

/// What a product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Products {
    /// Quantised activations and weights: bytes.
    Bytes,
    /// Floats.
    Floats,
}

/// The work of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductWork {
    /// Format of the weights.
    pub weights: DType,
    /// What is multiplied.
    pub products: Products,
    /// Bytes of packed weights, each read once however many rows there are.
    pub weight_bytes: u64,
    /// Multiplications and additions.
    pub operations: u64,
}

impl Profile {
    /// The kinds of op that were run, in the order in which they first were.
    pub fn kinds(&self) -> &[KindTime] {
        &self.kinds
    }

    /// Runs recorded.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// What thread 0 has waited for other threads.
    pub fn waiting(&self) -> Duration {
        self.waiting
    }

    /// From the start to the end of the runs, in sum: ops, waiting, and waking the threads.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// Forgets everything and makes room.
    pub fn clear(&mut self) {
        self.kinds.clear();
        self.kinds.reserve(KINDS_MAX);
        (self.runs, self.waiting, self.total) = (0, Duration::ZERO, Duration::ZERO);
    }

    fn add(&mut self, op: &'static str, product: Option<ProductWork>, time: Duration) {
        let format = |product: Option<ProductWork>| product.map(|product| product.weights);
        let same = |kind: &&mut KindTime| kind.op == op && format(kind.product) == format(product);
        match self.kinds.iter_mut().find(same) {
            Some(kind) => {
                kind.count += 1;
                kind.time += time;
                if let (Some(sum), Some(product)) = (&mut kind.product, product) {
                    sum.weight_bytes += product.weight_bytes;
                    sum.operations += product.operations;
                }
            }
            None => self.kinds.push(KindTime { op, product, count: 1, time }),
        }
    }
}

/// Records one run, for backends.
pub struct Recorder<'a> {
    profile: &'a mut Profile,
    start: Instant,
    /// When the last thing that was recorded ended.
    last: Instant,
}

impl<'a> Recorder<'a> {
    /// Starts now.
    pub fn start(profile: &'a mut Profile) -> Recorder<'a> {
        let start = Instant::now();
        Recorder { profile, start, last: start }
    }

    /// What comes next starts now.
    pub fn resume(&mut self) {
        self.last = Instant::now();
    }

    /// An op has ended. What `product` takes is not counted.
    pub fn op(&mut self, op: &'static str, product: impl FnOnce() -> Option<ProductWork>) {
        let time = self.last.elapsed();
        self.profile.add(op, product(), time);
        self.resume();
    }

    /// A barrier has been passed.
    pub fn barrier(&mut self) {
        let now = Instant::now();
        self.profile.waiting += now - self.last;
        self.last = now;
    }

    /// The run has ended.
    pub fn finish(self) {
        self.profile.runs += 1;
        self.profile.total += self.start.elapsed();
    }
}
