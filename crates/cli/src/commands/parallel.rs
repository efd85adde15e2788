//! `verbatim run --parallel FILE.jsonl`: many prompts at once, one JSON line for each answer.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc;

use anyhow::{Context, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use verbatim_engine::{Engine, Event, FinishReason, GenerationStats, Request};

use crate::batch_line::{self, BatchLine, LineId};
use crate::error::UsageError;
use crate::flags::RunArgs;
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::session::{Defaults, open_engine};
use crate::standard_io::{self, notify, reject_model_output};
use crate::store::Store;

/// Requests that are submitted beyond those that run, so that none waits for the next line to be read.
const AHEAD: usize = 4;

/// Answers each line of the file. Lines that already have an answer in the output file are skipped, so that an interrupted run
/// continues.
///
/// # Errors
/// When there is no model, a file cannot be read or written, or a line is not a request.
pub fn run(args: &RunArgs, file: &Path, store: &Store) -> anyhow::Result<ExitCode> {
    let has_prompt = !args.words.is_empty() || args.prompt.prompt.is_some() || args.prompt.file.is_some();
    if has_prompt || args.inference.sequence.session.is_some() {
        return Err(UsageError(
            "--parallel takes its prompts from the file: leave out PROMPT and --session".into(),
        )
        .into());
    }
    if is_count(file) {
        return Err(UsageError(format!(
            "--parallel takes a file, and there is no file {}: the number of slots is --np",
            file.display()
        ))
        .into());
    }
    let output = args.parallel.out.as_deref();
    let done = output.map_or(Ok(HashSet::new()), answered)?;
    let lines = read_lines(file)?;
    let left: Vec<BatchLine> = lines.into_iter().filter(|line| !done.contains(&line.id)).collect();
    let sink = Sink::open(output)?;
    if !done.is_empty() {
        notify(&format!("{} lines are answered already, {} are left", done.len(), left.len()));
    }
    let at_once = args.parallel.slots();
    let (engine, defaults) = open_engine(store, args, at_once)?;
    // Until here, Ctrl-C ends the program.
    let interrupt = Interrupt::install()?;
    let progress = progress_bar(left.len() as u64);
    let failed = answer_all(&engine, &defaults, left, at_once, interrupt, &sink, &progress)?;
    progress.finish_and_clear();
    if interrupt.is_raised() {
        notify(match output {
            Some(_) => "interrupted; run the same command again to continue",
            None => "interrupted; with -o FILE, an interrupted run can be continued",
        });
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    if failed > 0 {
        notify(&format!("{failed} requests failed: see their lines"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether llama.cpp's `--parallel N` was meant, which is a number of slots.
fn is_count(file: &Path) -> bool {
    file.to_str().is_some_and(|text| text.parse::<usize>().is_ok()) && !file.exists()
}

fn progress_bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos} of {len}, {eta} left").expect("a template");
    ProgressBar::new(total).with_style(style)
}

/// Answers the lines on one thread per submitted request; returns how many have failed.
fn answer_all(
    engine: &Engine,
    defaults: &Defaults,
    lines: Vec<BatchLine>,
    at_once: usize,
    interrupt: Interrupt,
    sink: &Sink,
    progress: &ProgressBar,
) -> anyhow::Result<usize> {
    let queue = Mutex::new(lines.into_iter());
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..at_once + AHEAD {
            let (queue, sender) = (&queue, sender.clone());
            scope.spawn(move || {
                while !interrupt.is_raised() {
                    let line = queue.lock().expect("no thread panics with it").next();
                    let Some(line) = line else { break };
                    if let Some(answer) = answer(engine, defaults, line, interrupt)
                        && sender.send(answer).is_err()
                    {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut failed = 0;
        for (answer, is_failure) in results {
            sink.write(&answer)?;
            failed += usize::from(is_failure);
            progress.inc(1);
        }
        Ok(failed)
    })
}

/// The answer to a line as JSON, and whether it is an error. `None` if it was interrupted.
fn answer(
    engine: &Engine,
    defaults: &Defaults,
    line: BatchLine,
    interrupt: Interrupt,
) -> Option<(Value, bool)> {
    let BatchLine { id, is_openai, request } = line;
    let request = match request.and_then(|fields| fields.request(engine, defaults)) {
        Ok(request) => request,
        Err(error) => return Some((batch_line::failure(&id, is_openai, &format!("{error:#}")), true)),
    };
    match read(engine, request, interrupt) {
        Ok(Some((text, seed, reason, stats))) => Some((
            batch_line::success(&id, is_openai, engine.model_name(), &text, seed, &reason, &stats),
            false,
        )),
        Ok(None) => None,
        Err(error) => Some((batch_line::failure(&id, is_openai, &format!("{error:#}")), true)),
    }
}

type Completion = (String, u64, FinishReason, GenerationStats);

fn read(engine: &Engine, request: Request, interrupt: Interrupt) -> anyhow::Result<Option<Completion>> {
    let (mut text, mut used_seed) = (String::new(), 0);
    let stream = engine.submit(request);
    let canceller = stream.canceller();
    for event in stream {
        if interrupt.is_raised() {
            canceller.cancel();
        }
        match event {
            Event::Started { seed, .. } => used_seed = seed,
            Event::Text { text: more, .. } => text += &more,
            Event::Finished { reason: FinishReason::Cancelled, .. } => return Ok(None),
            Event::Finished { reason, stats } => return Ok(Some((text, used_seed, reason, stats))),
            Event::Failed(error) => return Err(error.into()),
        }
    }
    bail!("the answer ended without a final event: this is a bug, please report it")
}

fn read_lines(file: &Path) -> anyhow::Result<Vec<BatchLine>> {
    let text = standard_io::read_text_file(file)?;
    let mut lines = Vec::new();
    let mut ids = HashSet::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let line = BatchLine::parse(line, lines.len());
        let line = line.with_context(|| format!("{}, line {number}", file.display()))?;
        ensure!(
            ids.insert(line.id.clone()),
            "{}, line {number}: the id {} occurs twice",
            file.display(),
            line.id
        );
        lines.push(line);
    }
    ensure!(!lines.is_empty(), "{} has no requests: one JSON object per line", file.display());
    Ok(lines)
}

/// The ids of the lines that an output file has answers for.
fn answered(path: &Path) -> anyhow::Result<HashSet<LineId>> {
    if !path.exists() {
        return Ok(HashSet::new());
    }
    let mut ids = HashSet::new();
    for (number, line) in (1..).zip(BufReader::new(File::open(path)?).lines()) {
        let line = line.with_context(|| format!("{}, line {number}", path.display()))?;
        // The last line may have been cut off when the program was killed.
        let Ok(value) = serde_json::from_str::<Value>(&line) else { continue };
        let is_error = value.get("error").is_some_and(|error| !error.is_null());
        if let Some(id) = LineId::of_answer(&value).filter(|_| !is_error) {
            ids.insert(id);
        }
    }
    Ok(ids)
}

/// Where answers go: a file, whole lines at a time, or standard output.
struct Sink(Option<Mutex<File>>);

impl Sink {
    fn open(path: Option<&Path>) -> anyhow::Result<Sink> {
        let Some(path) = path else { return Ok(Sink(None)) };
        reject_model_output(path)?;
        let file = OpenOptions::new().create(true).read(true).append(true).open(path);
        let mut file = file.with_context(|| format!("cannot write {}", path.display()))?;
        // A line that was cut off stays a line of its own.
        if ends_within_a_line(path)? {
            file.write_all(b"\n")?;
        }
        Ok(Sink(Some(Mutex::new(file))))
    }

    fn write(&self, answer: &Value) -> anyhow::Result<()> {
        let line = format!("{answer}\n");
        match &self.0 {
            None => standard_io::write(line.as_bytes()),
            Some(file) => {
                let mut file = file.lock().expect("no thread panics with it");
                file.write_all(line.as_bytes()).context("cannot write the answers")
            }
        }
    }
}

fn ends_within_a_line(path: &Path) -> anyhow::Result<bool> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// The id as it is written to the output.
impl std::fmt::Display for LineId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LineId::Index(index) => write!(formatter, "{index}"),
            LineId::Custom(id) => write!(formatter, "{}", json!(id)),
        }
    }
}
