//! The machine's peak bandwidth and arithmetic throughput (roofline): memory bandwidth bounds decode, which reads every
//! weight once per step, and arithmetic bounds prefill.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::Serialize;
use verbatim_engine::{Backend, MatmulKind};

use super::BenchError;

/// Far more than any cache holds, shared between the threads.
const BUFFER_BYTES: usize = 1 << 30;
const PASSES: usize = 5;
/// A pass of multiplications: long enough for the clock, short enough to fall between interruptions.
const PASS: Duration = Duration::from_millis(20);

/// The highest rates measured, all threads together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peaks {
    /// Bytes read from memory, in GB/s.
    pub read_gb_per_s: f64,
    /// int8 multiplications and additions, as in the kernels, in 10^9 per second.
    pub int8_gops: f64,
    /// The same for f32.
    pub f32_gops: f64,
}

impl Peaks {
    /// Measures the read bandwidth of `threads` threads and the arithmetic peaks of a backend; 0 if the backend has no such
    /// microbenchmark.
    ///
    /// # Errors
    /// If the read buffer cannot be allocated.
    pub fn measure<B: Backend>(threads: usize, backend: &mut B) -> Result<Peaks, BenchError> {
        Ok(Peaks {
            read_gb_per_s: read_gb_per_s(threads, BUFFER_BYTES)
                .ok_or(BenchError::Memory { bytes: BUFFER_BYTES })?,
            int8_gops: gops(backend, MatmulKind::Int8),
            f32_gops: gops(backend, MatmulKind::F32),
        })
    }
}

/// Bytes that threads together read from a buffer of this size, in GB/s; `None` if it cannot be allocated. A buffer that fits the
/// caches measures these.
pub fn read_gb_per_s(threads: usize, buffer_bytes: usize) -> Option<f64> {
    let threads = threads.max(1);
    let words = buffer_bytes / threads / size_of::<u64>();
    let buffer = || {
        let mut buffer: Vec<u64> = Vec::new();
        buffer.try_reserve_exact(words).ok()?;
        // Written by the thread that reads it, so that it lies in memory near to it.
        buffer.extend((0..words as u64).map(|word| word | 1));
        Some(buffer)
    };
    let seconds = fastest_pass(threads, buffer, |buffer| {
        black_box(sum(black_box(buffer)));
    })?;
    Some((words * threads * size_of::<u64>()) as f64 / seconds / 1e9)
}

fn gops<B: Backend>(backend: &mut B, kind: MatmulKind) -> f64 {
    let mut pass = |rounds: usize| -> Option<(f64, Duration)> {
        let start = Instant::now();
        let operations = backend.run_peak_throughput_kernel(kind, rounds)?;
        Some((operations as f64, start.elapsed()))
    };
    let mut rounds = 1 << 10;
    loop {
        match pass(rounds) {
            None => return 0.0,
            Some((_, time)) if time >= PASS => break,
            Some(_) => rounds *= 2,
        }
    }
    let rates =
        (0..PASSES).filter_map(|_| pass(rounds)).map(|(operations, time)| operations / time.as_secs_f64());
    rates.fold(0.0, f64::max) / 1e9
}

/// The seconds of the fastest of several passes that threads make side by side, each over what it has prepared; `None`
/// if one could not prepare.
fn fastest_pass<T>(
    threads: usize,
    prepare: impl Fn() -> Option<T> + Sync,
    pass: impl Fn(&T) + Sync,
) -> Option<f64> {
    let barrier = Barrier::new(threads);
    // All threads meet before each pass, also those that could not prepare.
    let work = || {
        let prepared = prepare();
        let seconds: [f64; PASSES] = std::array::from_fn(|_| {
            barrier.wait();
            let start = Instant::now();
            prepared.iter().for_each(&pass);
            start.elapsed().as_secs_f64()
        });
        prepared.map(|_| seconds)
    };
    let seconds = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or(None)).collect::<Option<Vec<_>>>()
    })?;
    // A pass has ended when its slowest thread has.
    let passes = (0..PASSES).map(|pass| seconds.iter().map(|times| times[pass]).fold(0.0, f64::max));
    Some(passes.fold(f64::INFINITY, f64::min))
}

/// Several sums at a time, so that additions do not wait for each other.
fn sum(buffer: &[u64]) -> u64 {
    const LANES: usize = 32;
    let mut sums = [0u64; LANES];
    for chunk in buffer.as_chunks::<LANES>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |total, sum| total.wrapping_add(*sum))
}
