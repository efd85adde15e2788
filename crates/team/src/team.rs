//! A persistent thread pool for parallel sections of a few microseconds.
//!
//! [`Team::run`] calls one closure on every thread, the caller's included, and returns when all calls have returned.
//! Inside, [`ThreadContext::barrier`] separates phases, and a [`TaskCounter`] assigns tasks so that cores of different
//! speed finish together. Waiting threads spin for some microseconds, because the next work usually arrives within that
//! time, and then sleep, so that they do not take CPU time from other programs. A run allocates nothing.
//!
//! A barrier synchronises: writes before it are visible to all threads after it.
#![allow(unsafe_code)] // A run lends its closure to threads that outlive it, and waits until they are done.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

use thiserror::Error;

use self::sync::{
    Arc, AtomicBool, AtomicUsize, Condvar, JobCell, JoinHandle, Mutex, Ordering, SPINS, fence, spawn,
    spin_loop,
};

/// A thread pool: the calling thread and its workers.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// Why a team could not be created.
#[derive(Debug, Error)]
pub enum TeamError {
    /// The number of threads is out of range.
    #[error("cannot create {0} threads; choose from 1 to {MAX_THREADS}")]
    Size(usize),
    /// The system could not start a thread.
    #[error("the system could not start thread {index} of {threads}; use fewer threads")]
    Spawn {
        /// The thread that could not be started.
        index: usize,
        /// The number of threads of the team.
        threads: usize,
        /// The system's error.
        source: std::io::Error,
    },
}

/// Maximum number of threads.
pub const MAX_THREADS: usize = 1024;

impl Team {
    /// A team of `threads` threads, of which the caller of [`run`](Self::run) is one.
    ///
    /// # Errors
    /// If `threads` is 0 or above [`MAX_THREADS`], or the system cannot start them.
    pub fn new(threads: usize) -> Result<Team, TeamError> {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(TeamError::Size(threads));
        }
        let mut team = Team { shared: Arc::new(Shared::new(threads)), workers: Vec::new() };
        for index in 1..threads {
            let shared = Arc::clone(&team.shared);
            let worker = spawn(format!("team-{index}"), move || shared.work(index))
                .map_err(|source| TeamError::Spawn { index, threads, source })?;
            team.workers.push(worker);
        }
        Ok(team)
    }

    /// A team of only the calling thread.
    pub fn single_threaded() -> Team {
        Team { shared: Arc::new(Shared::new(1)), workers: Vec::new() }
    }

    /// The number of threads of a run.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Calls `job` on every thread of the team and returns when all calls have returned.
    ///
    /// # Panics
    /// If a call panics, the threads that wait for it at a barrier are released, all calls end, and the
    /// (first) panic continues here. The team stays usable.
    pub fn run(&mut self, job: impl Fn(&ThreadContext<'_>) + Sync) {
        let shared = &*self.shared;
        if shared.threads > 1 {
            let finished = shared.finished.generation();
            // SAFETY: this function does not return before every worker has returned from `job` and signalled it.
            unsafe { shared.publish(&job) };
            shared.call(&job, 0);
            shared.finished.wait(finished, shared.spins);
        } else {
            shared.call(&job, 0);
        }
        shared.barrier.reset();
        let panic = lock(&shared.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.start.signal();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of its jobs, so `join` returns none.
            let _ = worker.join();
        }
    }
}

/// The context of one thread in a run.
pub struct ThreadContext<'a> {
    index: usize,
    shared: &'a Shared,
}

impl ThreadContext<'_> {
    /// This thread's index; the caller of [`Team::run`] is 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The number of threads of the run.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Waits until every thread of the run has arrived. All threads must pass the same barriers.
    ///
    /// # Panics
    /// Unwinds, silently, if another thread's call has panicked.
    pub fn barrier(&self) {
        self.shared.barrier.wait(self.shared.threads, self.shared.spins);
    }
}

/// Assigns `0..end` in chunks, each to one thread. Results must not depend on which thread takes which chunk.
#[derive(Debug, Default)]
pub struct TaskCounter(AtomicUsize);

impl TaskCounter {
    /// A counter of which nothing is taken yet.
    pub fn new() -> TaskCounter {
        TaskCounter(AtomicUsize::new(0))
    }

    /// The next `chunk` (or fewer, at the end) of `0..end`; `None` when all are taken.
    pub fn take(&self, chunk: usize, end: usize) -> Option<Range<usize>> {
        let start = self.0.fetch_add(chunk, Ordering::Relaxed);
        (start < end).then(|| start..end.min(start.saturating_add(chunk)))
    }

    /// The next chunk of `0..end`: up to `max`, shrinking towards the end, so that `consumers` threads finish together.
    pub fn take_guided(&self, consumers: usize, max: usize, end: usize) -> Option<Range<usize>> {
        let mut start = self.0.load(Ordering::Relaxed);
        while start < end {
            let taken = start..start + ((end - start) / (2 * consumers)).clamp(1, max.max(1));
            match self.0.compare_exchange_weak(start, taken.end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken),
                Err(now) => start = now,
            }
        }
        None
    }

    /// Starts over. There must be a barrier between this call and any `take` before and after.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

type Job<'a> = dyn Fn(&ThreadContext<'_>) + Sync + 'a;

struct Shared {
    threads: usize,
    /// How often a waiting thread polls before it sleeps.
    spins: u32,
    /// Signalled once per run, and once to stop.
    start: EventCount,
    job: JobCell,
    is_stopping: AtomicBool,
    barrier: Barrier,
    /// Workers that have not finished the run.
    running: AtomicUsize,
    /// Signalled by the last worker that finishes.
    finished: EventCount,
    /// The first panic of a run, to be resumed by the caller.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Shared {
    fn new(threads: usize) -> Shared {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Shared {
            threads,
            // With fewer cores than threads, a spinning thread can keep the thread that it waits for from running.
            spins: if threads <= cores { SPINS } else { 0 },
            start: EventCount::new(),
            job: JobCell::new(),
            is_stopping: AtomicBool::new(false),
            barrier: Barrier::new(),
            running: AtomicUsize::new(0),
            finished: EventCount::new(),
            panic: Mutex::new(None),
        }
    }

    /// Publishes a job to the workers.
    ///
    /// # Safety
    /// No worker is running a job, and `job` lives until `finished` is signalled.
    unsafe fn publish(&self, job: &Job<'_>) {
        let job: *const Job<'_> = job;
        // SAFETY: only the lifetime changes, and the caller guarantees that it is long enough.
        let job = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: the workers read it only between `start` and `finished`.
        unsafe { self.job.set(job) };
        self.running.store(self.threads - 1, Ordering::Relaxed);
        self.start.signal();
    }

    fn work(&self, index: usize) {
        // A run does not end without this thread, so there is exactly one signal between two waits.
        let mut generation = 0;
        loop {
            self.start.wait(generation, self.spins);
            generation = generation.wrapping_add(1);
            if self.is_stopping.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: `start` was signalled, so a job is published, and it lives until `finished` is signalled.
            self.call(unsafe { &*self.job.get() }, index);
            if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.finished.signal();
            }
        }
    }

    fn call(&self, job: &Job<'_>, index: usize) {
        let context = ThreadContext { index, shared: self };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(&context))) {
            if !panic.is::<Abandoned>() {
                lock(&self.panic).get_or_insert(panic);
            }
            self.barrier.abandon();
        }
    }
}

/// The panic of a thread that leaves a barrier because another thread has panicked.
struct Abandoned;

struct Barrier {
    arrived: AtomicUsize,
    event: EventCount,
    is_abandoned: AtomicBool,
}

impl Barrier {
    fn new() -> Barrier {
        Barrier {
            arrived: AtomicUsize::new(0),
            event: EventCount::new(),
            is_abandoned: AtomicBool::new(false),
        }
    }

    fn wait(&self, threads: usize, spins: u32) {
        // Read first: the event is not signalled before this thread has arrived, unless the barrier is abandoned; and a thread
        // that sees the generation of that signal also sees the flag.
        let generation = self.event.generation();
        self.leave_if_abandoned();
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.event.signal();
        } else {
            self.event.wait(generation, spins);
        }
        self.leave_if_abandoned();
    }

    fn leave_if_abandoned(&self) {
        if self.is_abandoned.load(Ordering::Relaxed) {
            // Not `panic!`: the original panic has been reported.
            resume_unwind(Box::new(Abandoned));
        }
    }

    fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
        self.event.signal();
    }

    /// Call only while no thread is in a run.
    fn reset(&self) {
        self.arrived.store(0, Ordering::Relaxed);
        self.is_abandoned.store(false, Ordering::Relaxed);
    }
}

/// An event count: a thread reads the generation and then waits until it has changed.
struct EventCount {
    /// The number of signals, wrapping.
    generation: AtomicUsize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    signalled: Condvar,
}

impl EventCount {
    fn new() -> EventCount {
        EventCount {
            generation: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            signalled: Condvar::new(),
        }
    }

    fn generation(&self) -> usize {
        self.generation.load(Ordering::Acquire)
    }

    /// Waits until there was a signal after `generation` was read.
    fn wait(&self, generation: usize, spins: u32) {
        for _ in 0..spins {
            if self.generation() != generation {
                return;
            }
            spin_loop();
        }
        let mut guard = lock(&self.lock);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // Pairs with the fence of `signal`: either this thread sees the new generation, or `signal` sees the
        // sleeper.
        fence(Ordering::SeqCst);
        while self.generation() == generation {
            guard = self.signalled.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn signal(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            // A sleeper holds the lock from its last check until it sleeps, so once the lock was taken, no thread is in
            // between.
            drop(lock(&self.lock));
            self.signalled.notify_all();
        }
    }
}

/// Locks, ignoring poison: a panic cannot leave the data behind these locks half written.
fn lock<T>(mutex: &Mutex<T>) -> sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The primitives: the standard library's, or those of the model checker under `--cfg loom`.
#[cfg(not(loom))]
mod sync {
    pub(super) use std::hint::spin_loop;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(super) use std::thread::JoinHandle;

    use std::cell::UnsafeCell;

    /// About 30 to 100 µs of `pause`, depending on the CPU: longer than the skew between threads in a phase, shorter than a
    /// time slice.
    pub(super) const SPINS: u32 = 2000;

    pub(super) fn spawn(
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name).spawn(work)
    }

    /// The job of a run, shared with the workers.
    pub(super) struct JobCell(UnsafeCell<Option<*const super::Job<'static>>>);

    // SAFETY: the contracts of `get` and `set` exclude concurrent access.
    unsafe impl Sync for JobCell {}
    // SAFETY: the job behind the pointer is `Sync`.
    unsafe impl Send for JobCell {}

    impl JobCell {
        pub(super) fn new() -> JobCell {
            JobCell(UnsafeCell::new(None))
        }

        /// # Safety
        /// No other thread uses the cell at the same time.
        pub(super) unsafe fn set(&self, job: *const super::Job<'static>) {
            // SAFETY: the caller guarantees it.
            unsafe { *self.0.get() = Some(job) }
        }

        /// # Safety
        /// No other thread sets the cell at the same time.
        pub(super) unsafe fn get(&self) -> *const super::Job<'static> {
            // SAFETY: the caller guarantees it.
            unsafe { *self.0.get() }.expect("a run publishes its job before it starts")
        }
    }
}

#[cfg(loom)]
mod sync {
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    pub(super) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
    pub(super) use loom::thread::JoinHandle;

    use loom::cell::UnsafeCell;

    pub(super) const SPINS: u32 = 0;

    pub(super) fn spawn(
        name: String,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle<()>> {
        loom::thread::Builder::new().name(name).spawn(work)
    }

    /// The standard one with loom's check that `set` and `get` are ordered.
    pub(super) struct JobCell(UnsafeCell<Option<*const super::Job<'static>>>);

    // SAFETY: loom checks it.
    unsafe impl Sync for JobCell {}
    // SAFETY: loom checks it.
    unsafe impl Send for JobCell {}

    impl JobCell {
        pub(super) fn new() -> JobCell {
            JobCell(UnsafeCell::new(None))
        }

        pub(super) unsafe fn set(&self, job: *const super::Job<'static>) {
            // SAFETY: loom checks that no other thread uses the cell.
            self.0.with_mut(|cell| unsafe { *cell = Some(job) });
        }

        pub(super) unsafe fn get(&self) -> *const super::Job<'static> {
            // SAFETY: loom checks that no other thread sets the cell.
            self.0.with(|cell| unsafe { *cell }).expect("a run publishes its job before it starts")
        }
    }
}

/// Every interleaving of small runs. Run with `RUSTFLAGS="--cfg loom" cargo test -p verbatim-team --lib
/// --release`.
#[cfg(all(test, loom))]
mod model {
    use super::*;

    fn check(threads: usize, preemptions: Option<usize>, test: impl Fn(&mut Team) + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(move || test(&mut Team::new(threads).unwrap()));
    }

    /// Each thread writes its cell, and after the barrier reads its neighbour's: loom reports any race.
    fn exchange(team: &mut Team) {
        let threads = team.threads();
        let cells: Vec<_> = (0..threads).map(|_| Racy(loom::cell::UnsafeCell::new(0))).collect();
        team.run(|context| {
            // SAFETY: loom checks it.
            cells[context.index()].0.with_mut(|cell| unsafe { *cell = context.index() + 1 });
            context.barrier();
            let neighbour = (context.index() + 1) % threads;
            // SAFETY: loom checks it.
            assert_eq!(cells[neighbour].0.with(|cell| unsafe { *cell }), neighbour + 1);
        });
        for (index, cell) in cells.iter().enumerate() {
            // SAFETY: loom checks it.
            assert_eq!(cell.0.with(|cell| unsafe { *cell }), index + 1);
        }
    }

    struct Racy(loom::cell::UnsafeCell<usize>);
    // SAFETY: loom checks it.
    unsafe impl Sync for Racy {}

    #[test]
    fn two_threads_exchange_twice() {
        check(2, Some(3), |team| {
            exchange(team);
            exchange(team);
        });
    }

    #[test]
    fn three_threads_exchange() {
        check(3, Some(2), exchange);
    }

    #[test]
    fn a_panic_releases_the_barrier() {
        check(2, Some(3), |team| {
            let run = catch_unwind(AssertUnwindSafe(|| {
                team.run(|context| {
                    if context.index() == 1 {
                        resume_unwind(Box::new("lost"));
                    }
                    context.barrier();
                });
            }));
            assert_eq!(run.unwrap_err().downcast_ref(), Some(&"lost"));
            exchange(team);
        });
    }
}
