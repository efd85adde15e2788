//! `verbatim verify`: compares answers with those of plain decoding, bit for bit.

use std::process::ExitCode;
use std::sync::Arc;

use verbatim_device::Device;
use verbatim_engine::{DraftOptions, LoadOptions, Stepper};
use verbatim_lab::verify::{Comparison, Coverage, EngineSetting, VerifyError, engine_of, verify};

use crate::draft_model::Draft;
use crate::flags::VerifyArgs;
use crate::interrupt::{EXIT_INTERRUPTED, Interrupt};
use crate::session::{configure_threads, draft_opener, open_model};
use crate::standard_io::{notify, write};
use crate::store::Store;

/// Prints a line for each comparison; the exit status is 1 if an answer differs.
///
/// # Errors
/// When there is no model, it cannot be loaded, or a request fails.
pub fn run(args: &VerifyArgs, store: &Store) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let file = open_model(store, &args.model)?;
    let tokenizer = Arc::new(file.tokenizer()?);
    let draft = args.model_draft.as_deref().map(draft_opener(store, &args.model)).transpose()?;
    let draft = draft.map(Draft::of_file);
    let threads = configure_threads(&args.device)?;
    let mut start = |setting: EngineSetting| {
        let device = Device::open(args.device.backend, setting.threads)
            .map_err(|error| VerifyError::Load(error.to_string()))?;
        let stepper = Stepper::load(device, &file.gguf, &setting.load);
        let mut stepper = stepper.map_err(|error| VerifyError::Load(error.to_string()))?;
        let mut options = setting.engine;
        if let Some(draft) = draft.as_ref().filter(|_| setting.draft_model) {
            let LoadOptions { k, v, hadamard, backend_sampling, .. } = setting.load;
            let like = DraftOptions { k, v, hadamard, backend_sampling };
            let appended = draft.append_like(&mut stepper, &file, like);
            options.draft_model = Some(appended.map_err(|error| VerifyError::Load(format!("{error:#}")))?);
        }
        engine_of(stepper, &tokenizer, options)
    };
    let (mut compared, mut differing, mut shown) = (0, 0, Ok(()));
    let mut show = |comparison: &Comparison| {
        compared += comparison.tokens;
        differing += usize::from(comparison.difference.is_some());
        shown = write(format!("{}\n", line(comparison)).as_bytes());
        shown.is_ok() && !interrupt.is_raised()
    };
    let coverage = if args.full { Coverage::Full } else { Coverage::Quick };
    verify(&tokenizer, coverage, (threads, draft.is_some()), &mut start, &mut show)?;
    shown?;
    if interrupt.is_raised() {
        notify(&format!("interrupted after {compared} tokens"));
        return Ok(ExitCode::from(EXIT_INTERRUPTED));
    }
    if differing > 0 {
        notify(&format!(
            "{differing} comparisons differ: please report this, with the model and the lines above"
        ));
        return Ok(ExitCode::FAILURE);
    }
    notify(&format!(
        "{compared} tokens compared with plain decoding, and their log-probabilities: all the same"
    ));
    Ok(ExitCode::SUCCESS)
}

fn line(comparison: &Comparison) -> String {
    let Comparison { name, kv, tokens, drafts: (drafted, accepted), difference } = comparison;
    let drafts =
        if *drafted > 0 { format!(", {accepted} of {drafted} draft tokens accepted") } else { String::new() };
    let verdict = match difference {
        None => "the same".to_owned(),
        Some(at) if at.same_tokens => {
            format!("DIFFERS in request {}: in log-probabilities or its end", at.request)
        }
        Some(at) => {
            let token =
                |token: Option<u32>| token.map_or("the end".to_owned(), |token| format!("token {token}"));
            let (found, wanted) = (token(at.found), token(at.wanted));
            format!("DIFFERS in request {} at token {}: {found}, not {wanted}", at.request, at.position)
        }
    };
    format!("{:<5} {name:<44} {tokens:>6} tokens{drafts}: {verdict}", kv.name())
}
