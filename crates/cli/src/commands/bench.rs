//! `verbatim bench`: how fast a model runs on this machine.

use std::process::ExitCode;

use anyhow::Context;
use verbatim_engine::{Engine, LoadOptions};
use verbatim_lab::bench::{self, Format, Row, Selection, Subject, Test};

use crate::flags::{BenchArgs, BenchOutput};
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::model_file::{ModelFile, weights_format};
use crate::session::{open_model, threads};
use crate::standard_io::{self, escape};
use crate::store::Store;

/// Prints a row for each test as soon as it is measured.
///
/// # Errors
/// When there is no model or nothing to measure, or the memory does not suffice.
pub fn run(args: &BenchArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let selection = Selection {
        prompts: args.prompts.clone(),
        generations: args.generations.clone(),
        widths: args.widths.clone(),
        depths: args.depths.clone(),
    };
    let (tests, context) = selection.tests()?;
    let file = open_model(store, &args.model)?;
    let threads = threads(&args.threads);
    let options = LoadOptions {
        threads,
        context: Some(context),
        k: args.cache.cache_type_k,
        v: args.cache.cache_type_v,
        rotation: !args.cache.no_kv_rotation,
        ..LoadOptions::default()
    };
    let mut engine = Engine::load(&file.gguf, &options).with_context(|| file.path.display().to_string())?;
    let subject = subject(args, &file, &engine, threads)?;
    let format = match args.output {
        BenchOutput::Md => Format::Markdown,
        BenchOutput::Json => Format::Json,
        BenchOutput::Csv => Format::Csv,
    };
    standard_io::write(format.begin(&subject).as_bytes())?;
    let complete = rows(&mut engine, &tests, args, &subject, format, interrupt);
    // What was measured before an error stays readable.
    standard_io::write(format.end().as_bytes())?;
    Ok(if complete? { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INTERRUPTED) })
}

fn subject(args: &BenchArgs, file: &ModelFile, engine: &Engine, threads: usize) -> anyhow::Result<Subject> {
    let name = file.path.file_name().unwrap_or(file.path.as_os_str()).to_string_lossy();
    Ok(Subject {
        model: escape(&name),
        weights: weights_format(&file.gguf).into(),
        bytes: file.gguf.bytes_total() as u64,
        threads,
        isa: engine.isa().name().into(),
        ctk: args.cache.cache_type_k.name().into(),
        ctv: args.cache.cache_type_v.name().into(),
        read_gb_per_s: args.peaks.then(|| bench::read_gb_per_s(threads)).transpose()?,
    })
}

/// Whether all tests were run.
fn rows(
    engine: &mut Engine,
    tests: &[Test],
    args: &BenchArgs,
    subject: &Subject,
    format: Format,
    interrupt: Interrupt,
) -> anyhow::Result<bool> {
    let repetitions = args.repetitions.get() as usize;
    for (index, &test) in tests.iter().enumerate() {
        let times = bench::measure(engine, test, repetitions, &mut || !interrupt.is_raised());
        let Some(times) = times.with_context(|| format!("test {test}"))? else { return Ok(false) };
        let row = Row::new(test, &times, subject.clone());
        standard_io::write(format.row(index, &row).as_bytes())?;
    }
    Ok(true)
}
