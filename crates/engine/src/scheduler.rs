//! Which requests run, and how many rows of each the next step computes.

use crate::MAX_ROWS;
use std::time::Duration;
use verbatim_draft::StepCosts;

/// Prefill may stretch a step to this multiple of its decode-only time, even if that exceeds the time budget.
const SLOWDOWN: f64 = 1.5;

/// A running request that could use rows of the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demand {
    /// A generated token, with what is forced or drafted after it: all or nothing.
    Decode {
        /// Rows.
        rows: usize,
    },
    /// The rest of a prompt, which can be cut anywhere.
    Prefill {
        /// Rows.
        rows: usize,
    },
}

/// Schedules the rows of a step.
///
/// Every decoding request advances in each step, as long as all fit into [`MAX_ROWS`]; those left out come first in the next step.
/// Prompts get what is left of the time budget, in the order of the requests; the first of them advances wherever a row is left,
/// so that none waits for ever.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// Measured step times by row count.
    pub(crate) costs: StepCosts,
    /// Time budget of a step that mixes prefill with decoding (chunked prefill).
    step_budget: Duration,
    /// The request to schedule first where not all decoding requests fit.
    first: usize,
}

impl Scheduler {
    pub(crate) fn new(step_budget: Duration) -> Scheduler {
        Scheduler { costs: StepCosts::default(), step_budget, first: 0 }
    }

    /// The rows of each request in the next step; 0 leaves it out.
    pub(crate) fn schedule(&mut self, demands: &[Demand]) -> Vec<usize> {
        let mut scheduled = vec![0; demands.len()];
        let mut used = 0;
        let order = (0..demands.len()).map(|i| (i + self.first) % demands.len());
        let mut left_out = None;
        for i in order {
            if let Demand::Decode { rows } = demands[i] {
                if used + rows.min(MAX_ROWS) <= MAX_ROWS {
                    scheduled[i] = rows.min(MAX_ROWS);
                    used += scheduled[i];
                } else {
                    left_out = left_out.or(Some(i));
                }
            }
        }
        self.first = left_out.unwrap_or(0);
        let mut left = self.prefill_rows(used);
        for (scheduled, demand) in scheduled.iter_mut().zip(demands) {
            if let Demand::Prefill { rows } = *demand {
                *scheduled = rows.min(left);
                left -= *scheduled;
            }
        }
        scheduled
    }

    /// How many rows of prompts fit into a step beside `decode_rows` others.
    fn prefill_rows(&self, decode_rows: usize) -> usize {
        let room = MAX_ROWS - decode_rows;
        if decode_rows == 0 {
            return room;
        }
        // Unknown costs are measured with small steps.
        let Some(alone) = self.costs.estimate(decode_rows) else { return room.min(1) };
        let budget = self.step_budget.as_secs_f64().max(SLOWDOWN * alone);
        let fits = |rows: &usize| self.costs.estimate(decode_rows + rows).is_some_and(|cost| cost <= budget);
        // Steps of these sizes reuse programs.
        let sizes = (0..).map(|i| 1usize << i).take_while(|&size| size < room);
        sizes.chain([room]).take_while(fits).last().unwrap_or(1).min(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Demand::{Decode, Prefill};

    const BUDGET: Duration = Duration::from_millis(50);

    /// A step takes 10 ms, and 1 ms more for each row.
    fn time(rows: usize) -> Duration {
        Duration::from_millis(10 + rows as u64)
    }

    fn measured() -> Scheduler {
        let mut scheduler = Scheduler::new(BUDGET);
        (1..=MAX_ROWS).for_each(|rows| scheduler.costs.observe(rows, time(rows)));
        scheduler
    }

    #[test]
    fn a_prompt_alone_takes_all_rows() {
        assert_eq!(
            Scheduler::new(BUDGET).schedule(&[Prefill { rows: 2000 }, Prefill { rows: 5 }]),
            [MAX_ROWS, 0]
        );
        assert_eq!(Scheduler::new(BUDGET).schedule(&[Prefill { rows: 20 }, Prefill { rows: 5 }]), [20, 5]);
        assert_eq!(Scheduler::new(BUDGET).schedule(&[]), [0; 0]);
    }

    #[test]
    fn prompts_beside_answers_keep_to_the_budget() {
        let scheduled = measured().schedule(&[
            Prefill { rows: 2000 },
            Decode { rows: 1 },
            Prefill { rows: 9 },
            Decode { rows: 3 },
        ]);
        assert_eq!((scheduled[1], scheduled[3]), (1, 3));
        assert!(scheduled[0] >= 16 && scheduled[2] == 0, "{scheduled:?}");
        assert!(time(scheduled.iter().sum()) <= BUDGET, "{scheduled:?}");
    }

    #[test]
    fn a_prompt_advances_beside_slow_answers() {
        let mut scheduler = Scheduler::new(Duration::from_millis(1));
        assert_eq!(scheduler.schedule(&[Decode { rows: 1 }, Prefill { rows: 100 }]), [1, 1]);
        (1..=MAX_ROWS).for_each(|rows| scheduler.costs.observe(rows, time(rows)));
        let scheduled = scheduler.schedule(&[Decode { rows: 1 }, Prefill { rows: 100 }]);
        assert!(scheduled[1] >= 1 && time(1 + scheduled[1]) <= time(1).mul_f64(SLOWDOWN), "{scheduled:?}");
    }

    #[test]
    fn answers_that_do_not_fit_take_turns() {
        let mut scheduler = measured();
        let demands = vec![Decode { rows: 16 }; 50];
        let mut served = [0; 50];
        for _ in 0..50 {
            let scheduled = scheduler.schedule(&demands);
            assert!(
                scheduled.iter().sum::<usize>() <= MAX_ROWS
                    && scheduled.iter().all(|rows| [0, 16].contains(rows))
            );
            served.iter_mut().zip(&scheduled).for_each(|(served, &rows)| *served += usize::from(rows > 0));
        }
        assert!(served.iter().all(|&served| served >= 31), "{served:?}");
    }

    struct Request {
        prompt: usize,
        answer: usize,
        last: Duration,
        started: bool,
    }

    /// Random arrivals, prompts and answers, on a clock that a step advances by what its rows cost.
    #[test]
    fn no_schedule_starves_a_request_or_holds_up_answers() {
        for seed in 0..2000u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut scheduler = Scheduler::new(BUDGET);
            let (row_us, step_us) = (random.u64(10..2000), random.u64(100..40_000));
            let takes = |rows: usize| Duration::from_micros(step_us + row_us * rows as u64);
            let mut arriving = random.usize(1..20);
            let mut running: Vec<Request> = Vec::new();
            let (mut now, mut steps) = (Duration::ZERO, 0);
            while arriving > 0 || !running.is_empty() {
                if arriving > 0 && (running.is_empty() || random.u8(..8) == 0) {
                    arriving -= 1;
                    let (prompt, answer) = (random.usize(1..1500), random.usize(1..40));
                    running.push(Request { prompt, answer, last: now, started: false });
                }
                let demands: Vec<Demand> = running
                    .iter()
                    .map(|request| match request.prompt {
                        0 => Decode { rows: random.usize(1..5) },
                        rows => Prefill { rows },
                    })
                    .collect();
                let scheduled = scheduler.schedule(&demands);
                let rows: usize = scheduled.iter().sum();
                assert!((1..=MAX_ROWS).contains(&rows), "seed {seed}: {scheduled:?}");
                let first_prompt = demands.iter().position(|demand| matches!(demand, Prefill { .. }));
                assert!(first_prompt.is_none_or(|first| scheduled[first] > 0), "seed {seed}: {scheduled:?}");
                now += takes(rows);
                scheduler.costs.observe(rows, takes(rows));
                for (request, (demand, scheduled)) in running.iter_mut().zip(demands.iter().zip(scheduled)) {
                    match *demand {
                        Prefill { .. } => request.prompt -= scheduled,
                        Decode { rows } => {
                            assert_eq!(scheduled, rows, "seed {seed}: an answer waits");
                            // Costs are exact after some steps; a new size is off by its extrapolation.
                            let limit = BUDGET.max(takes(5 * 20).mul_f64(SLOWDOWN)) * 2;
                            assert!(!request.started || now - request.last <= limit, "seed {seed}");
                            (request.last, request.started) = (now, true);
                            request.answer -= 1;
                        }
                    }
                }
                running.retain(|request| request.answer > 0);
                steps += 1;
                assert!(steps < 60_000, "seed {seed}");
            }
        }
    }
}
