//! Step times by row count: measured on this machine, with this model, while it runs.

use std::time::Duration;

/// Row counts up to this one have a bucket each; above it there are two buckets per power of two.
const EXACT_ROWS: usize = 16;
const BUCKETS: usize = EXACT_ROWS + 24;
/// The weight of a new measurement in the moving average.
const WEIGHT: f64 = 0.15;
/// A measurement counts as at most this many times the average: a pause of the machine is not a cost of the step.
const OUTLIER: f64 = 3.0;

/// Moving averages of step times by row count, in seconds.
#[derive(Clone, Debug)]
pub struct StepCosts {
    /// Rows (of the last measurement) and seconds, by bucket.
    measured: [Option<(f64, f64)>; BUCKETS],
}

impl Default for StepCosts {
    fn default() -> Self {
        StepCosts { measured: [None; BUCKETS] }
    }
}

impl StepCosts {
    /// Records that a step of `rows` rows took this long. Leave out steps that compiled a program.
    pub fn observe(&mut self, rows: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        let entry = &mut self.measured[bucket(rows)];
        let average = entry
            .map_or(seconds, |(_, average)| average + WEIGHT * (seconds.min(OUTLIER * average) - average));
        *entry = Some((rows as f64, average));
    }

    /// The expected seconds of a step; `None` before anything was measured.
    ///
    /// Between two measured row counts it is interpolated; beyond them, a row costs as much as in the nearest.
    pub fn estimate(&self, rows: usize) -> Option<f64> {
        let at = bucket(rows);
        let rows = rows as f64;
        if let Some((_, seconds)) = self.measured[at] {
            return Some(seconds);
        }
        let below = self.measured[..at].iter().rev().find_map(|entry| *entry);
        let above = self.measured[at..].iter().find_map(|entry| *entry);
        match (below, above) {
            (Some((low, from)), Some((high, to))) => Some(from + (to - from) * (rows - low) / (high - low)),
            (nearest, None) | (None, nearest) => nearest.map(|(known, seconds)| seconds * rows / known),
        }
    }
}

fn bucket(rows: usize) -> usize {
    let rows = rows.max(1);
    if rows <= EXACT_ROWS {
        return rows - 1;
    }
    // 17 to 24 rows, 25 to 32, 33 to 48, and so on.
    let octave = (rows - 1).ilog2() as usize;
    let upper_half = (rows - 1) >> (octave - 1) & 1;
    (EXACT_ROWS + 2 * (octave - 4) + upper_half).min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: f64) -> Duration {
        Duration::from_secs_f64(time / 1e3)
    }

    #[test]
    fn buckets_are_exact_and_then_halves_of_octaves() {
        assert_eq!((1..=16).map(bucket).collect::<Vec<_>>(), (0..16).collect::<Vec<_>>());
        for (rows, wanted) in
            [(17, 16), (24, 16), (25, 17), (32, 17), (33, 18), (48, 18), (49, 19), (512, 25)]
        {
            assert_eq!(bucket(rows), wanted, "{rows}");
        }
        assert_eq!((bucket(0), bucket(usize::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn estimates_are_measurements_or_lie_between_them() {
        let mut costs = StepCosts::default();
        assert_eq!(costs.estimate(3), None);
        costs.observe(1, ms(4.0));
        assert_eq!((costs.estimate(1), costs.estimate(3)), (Some(0.004), Some(0.012)));
        costs.observe(5, ms(8.0));
        assert!((costs.estimate(3).unwrap() - 0.006).abs() < 1e-12);
        assert!((costs.estimate(10).unwrap() - 0.016).abs() < 1e-12);
        assert_eq!(StepCosts::default().estimate(1), None);
        let mut only_large = StepCosts::default();
        only_large.observe(64, ms(30.0));
        assert_eq!(only_large.estimate(16), Some(0.0075));
    }

    #[test]
    fn a_pause_hardly_changes_an_average() {
        let mut costs = StepCosts::default();
        (0..50).for_each(|_| costs.observe(2, ms(5.0)));
        costs.observe(2, ms(900.0));
        assert!(costs.estimate(2).unwrap() < 0.0066);
        (0..100).for_each(|_| costs.observe(2, ms(10.0)));
        assert!((costs.estimate(2).unwrap() - 0.01).abs() < 1e-4);
    }
}
