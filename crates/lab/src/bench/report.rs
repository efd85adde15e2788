//! Results of tests, and their formats.

use std::time::Duration;

use serde::Serialize;

use super::{Breakdown, Peaks, Test, Work};

/// Model, machine and settings of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchSetup {
    /// The model's name.
    pub model: String,
    /// Format of the weights, such as `Q4_K_M`.
    pub weights: String,
    /// Bytes of the model's files.
    pub bytes: u64,
    /// Number of threads.
    pub threads: usize,
    /// The instruction set.
    pub isa: String,
    /// Type of K in the KV cache.
    pub ctk: String,
    /// Type of V in the KV cache.
    pub ctv: String,
    /// The machine's peaks, if measured.
    #[serde(flatten)]
    pub peaks: Option<Peaks>,
}

/// A test's result. Values without a unit in their name are tokens per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TestResult {
    /// The test, such as `tg48@d2048`.
    pub test: String,
    /// The median.
    pub tokens_per_s: f64,
    /// The slowest.
    pub min: f64,
    /// The fastest.
    pub max: f64,
    /// Every repetition, in order.
    pub samples: Vec<f64>,
    /// The median time of a step; `None` for prompts, which take several steps of many rows.
    pub ms_per_step: Option<f64>,
    /// The profile, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Breakdown>,
    /// The setup.
    #[serde(flatten)]
    pub setup: BenchSetup,
}

/// Output format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A table for people.
    Markdown,
    /// A list of [`TestResult`]s.
    Json,
    /// CSV with a header.
    Csv,
}

impl TestResult {
    /// The result of a test from its times: of the whole work, or of one step of a verification test.
    ///
    /// # Panics
    /// If there are no times.
    pub fn new(test: Test, times: &[Duration], setup: BenchSetup) -> TestResult {
        assert!(!times.is_empty(), "a test is repeated at least once");
        let tokens = test.work.tokens() as f64;
        // A clock that has not advanced must not produce an infinity, which JSON cannot represent.
        let seconds = times.iter().map(|time| time.max(&Duration::from_nanos(1)).as_secs_f64());
        let samples: Vec<f64> = seconds.map(|seconds| tokens / seconds).collect();
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let tokens_per_s = median(&sorted);
        let tokens_per_step = match test.work {
            Work::Prefill(_) => None,
            Work::Generate(_) => Some(1.0),
            Work::VerifyBatch(rows) => Some(rows as f64),
        };
        TestResult {
            test: test.to_string(),
            tokens_per_s,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            samples,
            ms_per_step: tokens_per_step.map(|tokens| tokens / tokens_per_s * 1e3),
            profile: None,
            setup,
        }
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] }
}

impl Format {
    /// Text before the rows.
    pub fn begin(self, setup: &BenchSetup) -> String {
        match self {
            Format::Markdown => {
                let BenchSetup { model, weights, bytes, threads, isa, ctk, ctv, peaks } = setup;
                let megabytes = *bytes as f64 / 1e6;
                let peak = peaks.map(|Peaks { read_gb_per_s, int8_gops, f32_gops }| {
                    format!(
                        "peaks: memory read {read_gb_per_s:.1} GB/s, int8 {int8_gops:.0} GOPS, f32 {f32_gops:.0} GOPS\n"
                    )
                });
                format!(
                    "{model}: {weights}, {megabytes:.1} MB; {threads} threads, {isa}; K {ctk}, V {ctv}\n{}\n\
                     | test             | tokens/s |      min |      max | ms/step |\n\
                     | :--------------- | -------: | -------: | -------: | ------: |\n",
                    peak.unwrap_or_default()
                )
            }
            Format::Json => "[".to_owned(),
            Format::Csv => {
                "test,tokens_per_s,min,max,samples,ms_per_step,model,weights,bytes,threads,isa,ctk,\
                            ctv,read_gb_per_s,int8_gops,f32_gops\n"
                    .to_owned()
            }
        }
    }

    /// A row; `index` counts them.
    pub fn row(self, index: usize, row: &TestResult) -> String {
        match self {
            Format::Markdown => {
                let TestResult { test, tokens_per_s, min, max, ms_per_step, .. } = row;
                let step = ms_per_step.map_or_else(String::new, |ms| format!("{ms:.2}"));
                format!("| {test:<16} | {tokens_per_s:>8.2} | {min:>8.2} | {max:>8.2} | {step:>7} |\n")
            }
            Format::Json => {
                let comma = if index == 0 { "" } else { "," };
                // Numbers and strings can always be written.
                let row = serde_json::to_string_pretty(row).unwrap_or_default();
                format!("{comma}\n{}", indented(&row))
            }
            Format::Csv => csv_line(row),
        }
    }

    /// Text after the rows.
    pub fn end(self) -> &'static str {
        match self {
            Format::Markdown | Format::Csv => "",
            Format::Json => "\n]\n",
        }
    }
}

fn indented(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

fn csv_line(row: &TestResult) -> String {
    let BenchSetup { model, weights, bytes, threads, isa, ctk, ctv, peaks } = &row.setup;
    let optional = |number: Option<f64>| number.map_or_else(String::new, |number| number.to_string());
    let samples: Vec<String> = row.samples.iter().map(f64::to_string).collect();
    let fields = [
        row.test.clone(),
        row.tokens_per_s.to_string(),
        row.min.to_string(),
        row.max.to_string(),
        samples.join(" "),
        optional(row.ms_per_step),
        quoted(model),
        quoted(weights),
        bytes.to_string(),
        threads.to_string(),
        isa.clone(),
        ctk.clone(),
        ctv.clone(),
        optional(peaks.map(|peaks| peaks.read_gb_per_s)),
        optional(peaks.map(|peaks| peaks.int8_gops)),
        optional(peaks.map(|peaks| peaks.f32_gops)),
    ];
    fields.join(",") + "\n"
}

/// A field of CSV that may hold anything (RFC 4180).
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> BenchSetup {
        BenchSetup {
            model: "a \"b\", c".into(),
            weights: "Q4_0".into(),
            bytes: 5,
            threads: 2,
            isa: "scalar".into(),
            ctk: "f16".into(),
            ctv: "f32".into(),
            peaks: None,
        }
    }

    fn row(work: Work, times_ms: &[u64]) -> TestResult {
        let times: Vec<Duration> = times_ms.iter().map(|&ms| Duration::from_millis(ms)).collect();
        TestResult::new(Test { work, depth: 0 }, &times, setup())
    }

    #[test]
    fn a_row_has_the_median_and_the_extremes() {
        let prefill = row(Work::Prefill(100), &[100, 50, 200, 1000]);
        assert_eq!(prefill.samples, [1000.0, 2000.0, 500.0, 100.0]);
        assert_eq!((prefill.tokens_per_s, prefill.min, prefill.max), (750.0, 100.0, 2000.0));
        assert_eq!(prefill.ms_per_step, None);
        let width = row(Work::VerifyBatch(4), &[20, 10, 40]);
        assert_eq!((width.tokens_per_s, width.ms_per_step), (200.0, Some(20.0)));
        assert_eq!(row(Work::Generate(10), &[500]).ms_per_step, Some(50.0));
        assert!(row(Work::Generate(10), &[0]).tokens_per_s.is_finite());
    }

    #[test]
    fn json_is_a_list_of_rows() {
        let rows = [row(Work::Prefill(8), &[4]), row(Work::VerifyBatch(2), &[1])];
        let mut text = Format::Json.begin(&setup());
        rows.iter().enumerate().for_each(|(index, row)| text += &Format::Json.row(index, row));
        text += Format::Json.end();
        let list: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(list.as_array().unwrap().len(), 2, "{text}");
        assert_eq!(list[0]["test"], "pp8");
        assert_eq!(list[1]["tokens_per_s"], 2000.0);
        assert_eq!(list[1]["model"], "a \"b\", c");
        assert_eq!(list[0]["ms_per_step"], serde_json::Value::Null);
    }

    #[test]
    fn csv_has_as_many_fields_as_names() {
        let mut plain = row(Work::Prefill(8), &[4, 5]);
        plain.setup.model = "plain".into();
        let names = Format::Csv.begin(&setup());
        let line = Format::Csv.row(0, &plain);
        assert_eq!(names.split(',').count(), line.split(',').count(), "{names}{line}");
        assert!(Format::Csv.row(0, &row(Work::Prefill(8), &[4])).contains(",\"a \"\"b\"\", c\","));
    }
}
