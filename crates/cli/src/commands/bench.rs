//! `verbatim bench`: how fast a model runs on this machine.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use verbatim_device::Device;
use verbatim_engine::{Backend, LoadOptions, Stepper};
use verbatim_lab::bench::{
    self, BenchSetup, Breakdown, Format, Peaks, Test, TestMatrix, TestResult, cache_ops, chart,
};

use crate::error::UsageError;
use crate::flags::{BenchArgs, BenchOutput};
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::model_file::{ModelFile, weights_format};
use crate::session::{load, open_device, open_model};
use crate::standard_io::{self, escape};
use crate::store::Store;

/// Prints a row for each test as soon as it is measured.
///
/// # Errors
/// When there is no model, nothing to measure or not enough memory.
pub fn run(args: &BenchArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    if args.cache_ops {
        return measure_cache_ops(args, store, interrupt);
    }
    let selection = TestMatrix {
        prompts: args.prompts.clone(),
        generations: args.generations.clone(),
        verify_batches: args.widths.clone(),
        depths: args.depths.clone(),
    };
    let (tests, context) = selection.tests()?;
    let chart = args.profile_out.as_deref().map(ChartFile::new).transpose()?;
    let is_profiling = args.profile || chart.is_some();
    if is_profiling && matches!(args.output, BenchOutput::Csv) {
        return Err(UsageError("CSV cannot represent a profile: use --output md or json".into()).into());
    }
    let file = open_model(store, &args.model)?;
    let (device, threads) = open_device(&args.device)?;
    let options = LoadOptions {
        context: Some(context),
        k: args.cache.cache_type_k,
        v: args.cache.cache_type_v,
        hadamard: !args.cache.no_kv_rotation,
        ..LoadOptions::default()
    };
    let mut stepper = load(&file, device, &options)?;
    if is_profiling && stepper.profile().is_none() {
        let backend = args.device.backend;
        return Err(UsageError(format!("backend {backend} has no profiler: use --backend cpu")).into());
    }
    let peaks = args.peaks || is_profiling;
    let peaks = peaks.then(|| Peaks::measure(threads, stepper.backend_mut())).transpose()?;
    let setup = setup(args, &file, &stepper, threads, peaks);
    let format = match args.output {
        BenchOutput::Md => Format::Markdown,
        BenchOutput::Json => Format::Json,
        BenchOutput::Csv => Format::Csv,
    };
    standard_io::write(format.begin(&setup).as_bytes())?;
    let profile_peaks = setup.peaks.filter(|_| is_profiling);
    let mut rows =
        Rows { stepper: &mut stepper, setup: &setup, profile_peaks, profiles: Vec::new(), interrupt };
    let complete = rows.print(&tests, args.repetitions.get() as usize, format);
    let profiles = rows.profiles;
    // Results before an error remain valid output.
    standard_io::write(format.end().as_bytes())?;
    if format == Format::Markdown {
        profiles.iter().try_for_each(|profile| standard_io::write(profile.table().as_bytes()))?;
    }
    if let Some(chart) = chart {
        chart.write(&setup, &profiles)?;
    }
    Ok(if complete? { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INTERRUPTED) })
}

/// Measures operations on a sequence's cache metadata.
fn measure_cache_ops(args: &BenchArgs, store: &Store, interrupt: Interrupt) -> anyhow::Result<ExitCode> {
    let file = open_model(store, &args.model)?;
    let mut all = Vec::new();
    for depth in args.depths.iter().map(|&depth| if depth == 0 { CACHE_OPS_DEPTH } else { depth }) {
        let (sequences, context) = cache_ops::cache_ops_capacity(depth)?;
        let (device, _) = open_device(&args.device)?;
        let options = LoadOptions {
            sequences,
            context: Some(context),
            k: args.cache.cache_type_k,
            v: args.cache.cache_type_v,
            hadamard: !args.cache.no_kv_rotation,
            cache_bytes: CACHE_OPS_CACHE_BYTES,
            ..LoadOptions::default()
        };
        let mut stepper = load(&file, device, &options)?;
        let should_continue = &mut || !interrupt.is_raised();
        let rows =
            cache_ops::cache_ops(&mut stepper, depth, args.repetitions.get() as usize, should_continue)?;
        let Some(rows) = rows else { return Ok(ExitCode::from(EXIT_INTERRUPTED)) };
        all.extend(rows);
    }
    let text = match args.output {
        BenchOutput::Md => cache_ops::table(&all),
        BenchOutput::Json => format!("{}\n", serde_json::to_string_pretty(&all)?),
        BenchOutput::Csv => cache_ops::csv(&all),
    };
    standard_io::write(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// The depth of [`measure_cache_ops`] unless a different one is requested.
const CACHE_OPS_DEPTH: usize = 8192;
/// Enough for recurrent states in the prefix cache.
const CACHE_OPS_CACHE_BYTES: usize = 1 << 30;

fn setup(
    args: &BenchArgs,
    file: &ModelFile,
    stepper: &Stepper<Device>,
    threads: usize,
    peaks: Option<Peaks>,
) -> BenchSetup {
    let name = file.path.file_name().unwrap_or(file.path.as_os_str()).to_string_lossy();
    BenchSetup {
        model: escape(&name),
        weights: weights_format(&file.gguf).into(),
        bytes: file.gguf.bytes_total() as u64,
        threads,
        isa: stepper.backend().describe(),
        ctk: args.cache.cache_type_k.name().into(),
        ctv: args.cache.cache_type_v.name().into(),
        peaks,
    }
}

/// State of the run.
struct Rows<'a> {
    stepper: &'a mut Stepper<Device>,
    setup: &'a BenchSetup,
    /// Peaks that profiles are compared with, if profiling.
    profile_peaks: Option<Peaks>,
    profiles: Vec<Breakdown>,
    interrupt: Interrupt,
}

impl Rows<'_> {
    /// Returns whether all tests were run.
    fn print(&mut self, tests: &[Test], repetitions: usize, format: Format) -> anyhow::Result<bool> {
        for (index, &test) in tests.iter().enumerate() {
            let Some(row) = self.row(test, repetitions).with_context(|| format!("test {test}"))? else {
                return Ok(false);
            };
            standard_io::write(format.row(index, &row).as_bytes())?;
            self.profiles.extend(row.profile);
        }
        Ok(true)
    }

    fn row(&mut self, test: Test, repetitions: usize) -> anyhow::Result<Option<TestResult>> {
        let interrupt = self.interrupt;
        let should_continue = &mut || !interrupt.is_raised();
        let Some(times) = bench::measure(self.stepper, test, repetitions, should_continue)? else {
            return Ok(None);
        };
        let mut row = TestResult::new(test, &times, self.setup.clone());
        if let Some(peaks) = &self.profile_peaks {
            // If it was interrupted, the row is complete without it.
            row.profile = bench::profile(self.stepper, test, peaks, should_continue)?;
        }
        Ok(Some(row))
    }
}

/// The file of the profile chart.
struct ChartFile<'a> {
    path: &'a Path,
    draw: fn(&str, &[Breakdown]) -> String,
}

impl<'a> ChartFile<'a> {
    /// Checks the name before anything is measured.
    fn new(path: &'a Path) -> anyhow::Result<ChartFile<'a>> {
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        let draw = match extension.as_ref().and_then(|extension| extension.to_str()) {
            Some("svg") => chart::svg,
            Some("html") => chart::html,
            _ => {
                let message = format!("--profile-out {}: the name must end in .svg or .html", path.display());
                return Err(UsageError(message).into());
            }
        };
        standard_io::reject_model_output(path)?;
        Ok(ChartFile { path, draw })
    }

    fn write(&self, setup: &BenchSetup, profiles: &[Breakdown]) -> anyhow::Result<()> {
        let BenchSetup { model, weights, threads, isa, .. } = setup;
        let title = format!("{model}: {weights}; {threads} threads, {isa}");
        fs::write(self.path, (self.draw)(&title, profiles))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}
