//! `verbatim perplexity`: the perplexity of a text.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use verbatim_engine::{KvType, LoadOptions};
use verbatim_lab::evaluation::{Chunks, Evaluation, EvaluationSetup, Format, Report, evaluate};
use verbatim_text::SpecialTokens;

use crate::flags::{PerplexityArgs, PerplexityFormat};
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::model_file::weights_format;
use crate::session::{load, open_device, open_model};
use crate::standard_io::{self, escape, notify};
use crate::store::Store;

/// Prints the result. Ctrl-C ends the computation and prints the result so far.
///
/// # Errors
/// When there is no model, or no text of at least one chunk.
pub fn run(args: &PerplexityArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let text = standard_io::read_text_file(&args.file)?;
    ensure!(!text.is_empty(), "{} is empty", name(&args.file));
    let file = open_model(store, &args.model)?;
    let tokenizer = file.tokenizer()?;
    // Special tokens are not parsed, as in llama-perplexity.
    let tokens = tokenizer.encode(&text, SpecialTokens::Ignore, true);
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let limit = args.chunks.map(|chunks| chunks.get() as usize);
    let chunks = Chunks::new(&tokens, args.ctx, limit, bos).with_context(|| name(&args.file))?;

    let cache = [args.cache.cache_type_k, args.cache.cache_type_v];
    let (device, _) = open_device(&args.device)?;
    let ([k, v], hadamard) = (cache, !args.cache.no_kv_rotation);
    let options = LoadOptions { context: Some(args.ctx), k, v, hadamard, ..LoadOptions::default() };
    let mut stepper = load(&file, device, &options)?;
    let baseline = args.kl_against.map(|pair| pair.0);
    // The same weights, with memory of different KV cache types besides.
    let other = baseline.map(|[k, v]| stepper.new_memory(k, v, hadamard)).transpose()?;
    let watched = io::stderr().is_terminal();
    let mut progress = |so_far: &Evaluation| {
        if watched {
            notify(&format!(
                "chunk {} of {}: perplexity {:.4}",
                so_far.chunks,
                chunks.count(),
                so_far.perplexity()
            ));
        }
    };
    let should_continue = &mut || !interrupt.is_raised();
    let evaluation = evaluate(&mut stepper, other, &chunks, &mut progress, should_continue)?;
    if evaluation.nll.count() > 0 {
        let setup = EvaluationSetup {
            model: escape(&name(&file.path)),
            weights: weights_format(&file.gguf).into(),
            text: escape(&name(&args.file)),
            cache: cache.map(name_of),
            baseline: baseline.map(|cache| cache.map(name_of)),
        };
        let format = match args.format {
            PerplexityFormat::Text => Format::Text,
            PerplexityFormat::Markdown => Format::Markdown,
            PerplexityFormat::Json => Format::Json,
        };
        let report = format.write(&Report::new(setup, &chunks, &evaluation));
        standard_io::write(report.as_bytes())?;
    }
    let complete = evaluation.chunks == chunks.count();
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INTERRUPTED) })
}

fn name_of(kind: KvType) -> String {
    kind.name().to_owned()
}

/// A path's file name, for display.
fn name(path: &Path) -> String {
    if path == Path::new("-") {
        return "standard input".into();
    }
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
