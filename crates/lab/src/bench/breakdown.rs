//! The profile of a test: time by op, and its matmuls compared with the machine's peaks.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use verbatim_engine::{MatmulKind, OpTime, Profile};

use super::{Peaks, Test};

/// The time of one test, by op.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Breakdown {
    /// The test, such as `pp512`.
    pub test: String,
    /// Steps of the engine.
    pub steps: u64,
    /// Total time, in microseconds.
    pub total_us: f64,
    /// Ops, the longest first; then the barrier wait of thread 0, and the rest: waking the threads at the start of a step.
    pub parts: Vec<ProfileRow>,
}

/// The time of one op.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileRow {
    /// The op; for matmuls also the format of the weights.
    pub name: String,
    /// Number of calls; `None` for entries that are not ops.
    pub count: Option<u64>,
    /// Time on thread 0, in microseconds.
    pub us: f64,
    /// Share of the total, from 0 to 1.
    pub share: f64,
    /// Throughput, for matmuls.
    pub rate: Option<MatmulRate>,
}

/// Throughput of matmuls, all threads together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MatmulRate {
    /// Bytes of packed weights over time, in GB/s. Each weight counts once per step, however many rows there are.
    pub gb_per_s: f64,
    /// Relative to the memory read peak. Above 1 if the weights were in a cache.
    pub of_read_peak: f64,
    /// Multiplications and additions, in 10^9 per second.
    pub gops: f64,
    /// Relative to the int8 or f32 peak.
    pub of_gops_peak: f64,
}

impl Breakdown {
    /// The breakdown of a profile.
    pub fn new(test: Test, profile: &Profile, peaks: &Peaks) -> Breakdown {
        let total = profile.total();
        let share = |time: Duration| time.as_secs_f64() / total.max(Duration::from_nanos(1)).as_secs_f64();
        let mut kinds = profile.ops().to_vec();
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.time));
        let mut parts: Vec<ProfileRow> = kinds
            .iter()
            .map(|kind| ProfileRow {
                name: name(kind),
                count: Some(kind.count),
                us: micros(kind.time),
                share: share(kind.time),
                rate: rate(kind, peaks),
            })
            .collect();
        let ops: Duration = kinds.iter().map(|kind| kind.time).sum();
        let rest = total.saturating_sub(ops + profile.barrier_wait());
        for (name, time) in [(WAITING, profile.barrier_wait()), (STARTING, rest)] {
            parts.push(ProfileRow {
                name: name.into(),
                count: None,
                us: micros(time),
                share: share(time),
                rate: None,
            });
        }
        Breakdown { test: test.to_string(), steps: profile.runs(), total_us: micros(total), parts }
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let Breakdown { test, steps, total_us, parts } = self;
        let mut text = format!(
            "\n{test}: {steps} steps, {:.2} ms\n\n\
             | part                         |  count |       µs |  share |   GB/s | of peak |   GOPS | of peak |\n\
             | :--------------------------- | -----: | -------: | -----: | -----: | ------: | -----: | ------: |\n",
            total_us / 1e3
        );
        for ProfileRow { name, count, us, share, rate } in parts {
            let count = count.map_or_else(String::new, |count| count.to_string());
            let [gb, of_read, gops, of_gops] = rate.map_or_else(Default::default, |rate| {
                let MatmulRate { gb_per_s, of_read_peak, gops, of_gops_peak } = rate;
                [format!("{gb_per_s:.2}"), percent(of_read_peak), format!("{gops:.1}"), percent(of_gops_peak)]
            });
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {name:<28} | {count:>6} | {us:>8.0} | {:>6} | {gb:>6} | {of_read:>7} | {gops:>6} | {of_gops:>7} |",
                percent(*share)
            );
        }
        text
    }
}

pub(super) const WAITING: &str = "waiting for threads";
pub(super) const STARTING: &str = "starting a step";

fn name(kind: &OpTime) -> String {
    kind.matmul.map_or_else(|| kind.op.to_owned(), |matmul| format!("{} {:?}", kind.op, matmul.weights))
}

fn rate(kind: &OpTime, peaks: &Peaks) -> Option<MatmulRate> {
    let matmul = kind.matmul?;
    // Per nanosecond, which is 10^9 a second.
    let per_ns = |amount: u64| amount as f64 / kind.time.as_nanos().max(1) as f64;
    let (gb_per_s, gops) = (per_ns(matmul.weight_bytes), per_ns(matmul.operations));
    let peak_gops = match matmul.kind {
        MatmulKind::Int8 => peaks.int8_gops,
        MatmulKind::F32 => peaks.f32_gops,
    };
    Some(MatmulRate {
        gb_per_s,
        of_read_peak: gb_per_s / peaks.read_gb_per_s,
        gops,
        of_gops_peak: gops / peak_gops,
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}
