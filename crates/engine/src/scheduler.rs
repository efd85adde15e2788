//! Which requests run, and how many rows of each the next step computes.

use crate::MAX_ROWS;
use std::time::Duration;
use verbatim_draft::StepCosts;

/// How much longer than without prompts a step may take where that alone is above the budget.
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

/// Shares out the rows of a step.
///
/// All decoding requests advance in each step, so that none waits for another's text. Prompts share, in the order of the
/// requests, what is left of the time budget; the first of them always advances, so that none waits for ever.
#[derive(Debug)]
pub(crate) struct Scheduler {
    /// What a step takes by its rows, measured.
    pub(crate) costs: StepCosts,
    /// A step that holds up decoding requests should not take longer.
    step_budget: Duration,
    /// The request to begin with where not all decoding requests fit.
    turn: usize,
}

impl Scheduler {
    pub(crate) fn new(step_budget: Duration) -> Scheduler {
        Scheduler { costs: StepCosts::default(), step_budget, turn: 0 }
    }

    /// The rows of each request in the next step; 0 leaves it out.
    pub(crate) fn share(&mut self, demands: &[Demand]) -> Vec<usize> {
        let mut shares = vec![0; demands.len()];
        let mut used = 0;
        let order = (0..demands.len()).map(|i| (i + self.turn) % demands.len());
        let mut left_out = None;
        for i in order {
            if let Demand::Decode { rows } = demands[i] {
                if used + rows.min(MAX_ROWS) <= MAX_ROWS {
                    shares[i] = rows.min(MAX_ROWS);
                    used += shares[i];
                } else {
                    left_out = left_out.or(Some(i));
                }
            }
        }
        self.turn = left_out.unwrap_or(0);
        let mut left = self.prefill_rows(used);
        for (share, demand) in shares.iter_mut().zip(demands) {
            if let Demand::Prefill { rows } = *demand {
                *share = rows.min(left);
                left -= *share;
            }
        }
        shares
    }

    /// How many rows of prompts fit into a step beside `decode_rows` others.
    fn prefill_rows(&self, decode_rows: usize) -> usize {
        let room = MAX_ROWS - decode_rows;
        if decode_rows == 0 {
            return room;
        }
        // Unknown costs are found out with small steps.
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
            Scheduler::new(BUDGET).share(&[Prefill { rows: 2000 }, Prefill { rows: 5 }]),
            [MAX_ROWS, 0]
        );
        assert_eq!(Scheduler::new(BUDGET).share(&[Prefill { rows: 20 }, Prefill { rows: 5 }]), [20, 5]);
        assert_eq!(Scheduler::new(BUDGET).share(&[]), [0; 0]);
    }

    #[test]
    fn prompts_beside_answers_keep_to_the_budget() {
        let shares = measured().share(&[
            Prefill { rows: 2000 },
            Decode { rows: 1 },
            Prefill { rows: 9 },
            Decode { rows: 3 },
        ]);
        assert_eq!((shares[1], shares[3]), (1, 3));
        assert!(shares[0] >= 16 && shares[2] == 0, "{shares:?}");
        assert!(time(shares.iter().sum()) <= BUDGET, "{shares:?}");
    }

    #[test]
    fn a_prompt_advances_beside_slow_answers() {
        let mut scheduler = Scheduler::new(Duration::from_millis(1));
        assert_eq!(scheduler.share(&[Decode { rows: 1 }, Prefill { rows: 100 }]), [1, 1]);
        (1..=MAX_ROWS).for_each(|rows| scheduler.costs.observe(rows, time(rows)));
        let shares = scheduler.share(&[Decode { rows: 1 }, Prefill { rows: 100 }]);
        assert!(shares[1] >= 1 && time(1 + shares[1]) <= time(1).mul_f64(SLOWDOWN), "{shares:?}");
    }

    #[test]
    fn answers_that_do_not_fit_take_turns() {
        let mut scheduler = measured();
        let demands = vec![Decode { rows: 16 }; 50];
        let mut served = [0; 50];
        for _ in 0..50 {
            let shares = scheduler.share(&demands);
            assert!(
                shares.iter().sum::<usize>() <= MAX_ROWS
                    && shares.iter().all(|share| [0, 16].contains(share))
            );
            served.iter_mut().zip(&shares).for_each(|(served, &share)| *served += usize::from(share > 0));
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
                let shares = scheduler.share(&demands);
                let rows: usize = shares.iter().sum();
                assert!((1..=MAX_ROWS).contains(&rows), "seed {seed}: {shares:?}");
                let first_prompt = demands.iter().position(|demand| matches!(demand, Prefill { .. }));
                assert!(first_prompt.is_none_or(|first| shares[first] > 0), "seed {seed}: {shares:?}");
                now += takes(rows);
                scheduler.costs.observe(rows, takes(rows));
                for (request, (demand, share)) in running.iter_mut().zip(demands.iter().zip(shares)) {
                    match *demand {
                        Prefill { .. } => request.prompt -= share,
                        Decode { rows } => {
                            assert_eq!(share, rows, "seed {seed}: an answer waits");
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
