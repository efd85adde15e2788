//! `verbatim synth`: a model of a known shape with random weights, for measurements.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use verbatim_lab::synth::{self, ModelSkeleton, SynthError, WriteOptions};

use crate::flags::SynthArgs;
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::session::configure_threads;
use crate::standard_io::{human_bytes, notify};

/// Far more than any config.json has.
const CONFIG_BYTES_MAX: u64 = 4 << 20;

/// Writes the file and describes it on standard error.
///
/// # Errors
/// When the shape is not known, no model can be made from its configuration, or the file cannot be written.
pub fn run(args: &SynthArgs) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let skeleton = match &args.config {
        Some(config) => ModelSkeleton::from_config(&args.shape, &read_config(config)?)
            .with_context(|| format!("no model can be made from {}", config.display()))?,
        None => ModelSkeleton::from_shape(&args.shape)?,
    };
    let options =
        WriteOptions { quant: args.quant, seed: args.seed, threads: configure_threads(&args.device)? };
    let bar = ProgressBar::new(0).with_style(ProgressStyle::with_template(
        "{bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    )?);
    let written = synth::write(&skeleton, &options, &args.out, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.written);
        !interrupt.is_raised()
    });
    bar.finish_and_clear();
    match written {
        Err(SynthError::Stopped) => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        written => {
            let (bytes, parameters) = (human_bytes(written?), skeleton.parameters() as f64 / 1e6);
            let (architecture, quant) = (skeleton.architecture(), args.quant.name());
            notify(&format!(
                "{}: {architecture}, {parameters:.1} million random weights, {quant}, {bytes}",
                args.out.display()
            ));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read_config(path: &Path) -> anyhow::Result<String> {
    let about = || format!("cannot read {}", path.display());
    let mut text = String::new();
    let file = File::open(path).with_context(about)?;
    file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).with_context(about)?;
    ensure!(text.len() as u64 <= CONFIG_BYTES_MAX, "{} is too long for a config.json", path.display());
    Ok(text)
}
