//! What the machine can do at most: a step of one token reads every weight once, so no engine can generate faster than
//! memory is read.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use super::BenchError;

/// Far more than any cache holds, shared between the threads.
const BUFFER_BYTES: usize = 1 << 30;
const PASSES: usize = 5;

/// The fastest of several passes in which all threads read memory side by side, in GB/s.
///
/// # Errors
/// If there is no memory for the buffer.
pub fn read_gb_per_s(threads: usize) -> Result<f64, BenchError> {
    let threads = threads.max(1);
    let words = BUFFER_BYTES / threads / size_of::<u64>();
    let barrier = Barrier::new(threads);
    let seconds = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..threads).map(|_| scope.spawn(|| pass_seconds(words, &barrier))).collect();
        readers.into_iter().map(|reader| reader.join().unwrap_or(None)).collect::<Option<Vec<_>>>()
    });
    let seconds = seconds.ok_or(BenchError::Memory { bytes: BUFFER_BYTES })?;
    // A pass has ended when its slowest thread has.
    let passes = (0..PASSES).map(|pass| seconds.iter().map(|times| times[pass]).fold(0.0, f64::max));
    let best = passes.fold(f64::INFINITY, f64::min);
    Ok((words * threads * size_of::<u64>()) as f64 / best / 1e9)
}

/// The seconds of each pass of one thread; `None` without memory. All threads meet before each pass, also those without.
fn pass_seconds(words: usize, barrier: &Barrier) -> Option<[f64; PASSES]> {
    let mut buffer: Vec<u64> = Vec::new();
    if buffer.try_reserve_exact(words).is_ok() {
        // Written by the thread that reads it, so that it lies in memory near to it.
        buffer.extend((0..words as u64).map(|word| word | 1));
    }
    let seconds = std::array::from_fn(|_| {
        barrier.wait();
        let start = Instant::now();
        black_box(sum(black_box(&buffer)));
        start.elapsed().as_secs_f64()
    });
    (!buffer.is_empty()).then_some(seconds)
}

/// Several sums at a time, so that none waits for another.
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
