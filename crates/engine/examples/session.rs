//! Continues a text across processes: run it again with the same file, and nothing is recomputed.
//!
//! `cargo run --release -p verbatim-engine --example session -- MODEL.gguf FILE "Once upon a time"`

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use verbatim_cpu::Cpu;
use verbatim_engine::{
    Engine, EngineOptions, Event, LoadOptions, Prompt, Request, Sampling, SessionOptions, Stepper,
    TextProcessor,
};
use verbatim_gguf::GgufFile;
use verbatim_text::{SpecialTokens, Tokenizer};

/// The client's own section in the session's file: all tokens so far, including the last one, which was not computed yet.
const TOKENS: &str = "tokens";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments, &mut std::io::stdout())
}

/// Runs the example with these arguments: a model, a file and a text.
pub fn run(arguments: &[String], out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let [model, file, text] = arguments else { return Err("usage: session MODEL FILE TEXT".into()) };
    let model = GgufFile::open(model)?;
    let tokenizer = Arc::new(Tokenizer::from_gguf(model.metadata())?);
    let stepper = Stepper::load(Cpu::new(2)?, &model, &LoadOptions::default())?;
    let text_processor = TextProcessor { tokenizer: Arc::clone(&tokenizer), template: None };
    let engine = Engine::start(stepper, text_processor, EngineOptions::default())?;

    // If there is no file yet, the session begins empty.
    let session = engine.open_session(SessionOptions { shift_keep: None, file: Some(file.into()) })?;
    let saved = session.restored.as_ref().and_then(|restored| restored.section(TOKENS)).unwrap_or_default();
    let mut tokens: Vec<u32> = saved.as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
    tokens.extend(match tokens.is_empty() {
        true => tokenizer.encode_prompt(text, SpecialTokens::Ignore).ids,
        false => tokenizer.encode(text, SpecialTokens::Ignore, false),
    });

    let request = Request {
        sampling: Sampling::unfiltered(0.8, 1),
        max_tokens: Some(32),
        session: Some(session.id),
        ..Request::new(Prompt::Tokens(tokens.clone()))
    };
    for event in engine.submit(request) {
        match event {
            Event::Started { prompt_tokens, cached_tokens, .. } => {
                writeln!(out, "[{cached_tokens} of {prompt_tokens} tokens are in the session]")?;
            }
            Event::Text { text, tokens: new, .. } => {
                write!(out, "{text}")?;
                out.flush()?;
                tokens.extend(new);
            }
            Event::Finished { .. } => writeln!(out)?,
            Event::Failed(error) => return Err(error.into()),
        }
    }
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    engine.save_session(session.id, file, vec![(TOKENS.to_owned(), bytes)])?;
    Ok(())
}
