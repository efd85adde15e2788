//! The thread team: every thread runs once, barriers hold under more threads than cores, panics reach the caller. Needs nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use verbatim_team::{MAX_THREADS, TaskCounter, Team, TeamError};

#[test]
fn every_thread_runs_the_job_once() {
    for threads in [1, 2, 3, 8] {
        let mut team = Team::new(threads).unwrap();
        let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        for run in 1..=1000 {
            team.run(|context| {
                assert_eq!(context.threads(), threads);
                calls[context.index()].fetch_add(1, Relaxed);
            });
            assert!(calls.iter().all(|calls| calls.load(Relaxed) == run), "run {run} of {threads} threads");
        }
    }
}

#[test]
fn ten_thousand_barriers_hold_with_more_threads_than_cores() {
    const BARRIERS: u64 = 10_000;
    for threads in [2, 8] {
        let mut team = Team::new(threads).unwrap();
        let phases: Vec<AtomicU64> = (0..threads).map(|_| AtomicU64::new(0)).collect();
        team.run(|context| {
            for phase in 1..=BARRIERS {
                phases[context.index()].store(phase, Relaxed);
                context.barrier();
                // No thread is behind, and none can be more than one phase ahead.
                for other in &phases {
                    let other = other.load(Relaxed);
                    assert!(other == phase || other == phase + 1, "phase {phase} sees {other}");
                }
            }
        });
        assert!(phases.iter().all(|phase| phase.load(Relaxed) == BARRIERS));
    }
}

#[test]
fn writes_before_a_barrier_are_visible_after_it() {
    let mut team = Team::new(4).unwrap();
    let cells: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(0)).collect();
    team.run(|context| {
        for round in 0..2000 {
            cells[context.index()].store(round * 4 + context.index() as u64, Relaxed);
            context.barrier();
            let sum: u64 = cells.iter().map(|cell| cell.load(Relaxed)).sum();
            assert_eq!(sum, round * 16 + 6);
            context.barrier();
        }
    });
}

#[test]
fn a_counter_assigns_every_index_once() {
    let mut team = Team::new(4).unwrap();
    let counter = TaskCounter::new();
    let taken: Vec<AtomicUsize> = (0..1001).map(|_| AtomicUsize::new(0)).collect();
    for run in 1..=50 {
        team.run(|_| {
            while let Some(range) = counter.take(7, taken.len()) {
                range.for_each(|index| {
                    taken[index].fetch_add(1, Relaxed);
                });
            }
        });
        counter.reset();
        assert!(taken.iter().all(|count| count.load(Relaxed) == run));
    }
    assert_eq!(counter.take(usize::MAX, 5), Some(0..5));
}

#[test]
fn guided_chunks_shrink_towards_the_end_and_cover_the_range() {
    let chunks = |most, end| {
        let counter = TaskCounter::new();
        std::iter::from_fn(|| counter.take_guided(2, most, end)).collect::<Vec<_>>()
    };
    assert_eq!(chunks(3, 12), [0..3, 3..5, 5..6, 6..7, 7..8, 8..9, 9..10, 10..11, 11..12]);
    for (most, end) in [(0, 5), (1, 5), (10, 100), (usize::MAX, 1001), (7, 0)] {
        let chunks = chunks(most, end);
        assert_eq!(chunks.iter().cloned().flatten().collect::<Vec<_>>(), (0..end).collect::<Vec<_>>());
        assert!(chunks.iter().rev().is_sorted_by_key(|chunk| chunk.len()));
    }
    let mut team = Team::new(4).unwrap();
    let counter = TaskCounter::new();
    let taken: Vec<AtomicUsize> = (0..1001).map(|_| AtomicUsize::new(0)).collect();
    team.run(|context| {
        while let Some(chunk) = counter.take_guided(context.threads(), 20, taken.len()) {
            chunk.for_each(|index| {
                taken[index].fetch_add(1, Relaxed);
            });
        }
    });
    assert!(taken.iter().all(|count| count.load(Relaxed) == 1));
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_stays_usable() {
    for threads in [1, 2, 8] {
        let mut team = Team::new(threads).unwrap();
        for culprit in 0..threads {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(|context| {
                    context.barrier();
                    if context.index() == culprit {
                        std::panic::panic_any(culprit);
                    }
                    // The other threads would wait here forever.
                    context.barrier();
                    context.barrier();
                });
            }));
            assert_eq!(result.unwrap_err().downcast_ref(), Some(&culprit));
            let calls = AtomicUsize::new(0);
            team.run(|context| {
                context.barrier();
                calls.fetch_add(1, Relaxed);
            });
            assert_eq!(calls.into_inner(), threads);
        }
    }
}

#[test]
fn invalid_team_sizes_are_rejected() {
    for threads in [0, MAX_THREADS + 1, usize::MAX] {
        let Err(TeamError::Size(rejected)) = Team::new(threads) else { panic!("{threads} threads") };
        assert_eq!(rejected, threads);
    }
}
