//! Continues a text and streams the answer.
//!
//! `cargo run --release -p verbatim-engine --example complete -- MODEL.gguf "Once upon a time"`

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use verbatim_cpu::Cpu;
use verbatim_engine::{Engine, EngineOptions, Event, LoadOptions, Prompt, Request, Stepper, TextProcessor};
use verbatim_gguf::GgufFile;
use verbatim_text::{Tokenizer, VocabSource};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments, &mut std::io::stdout())
}

/// Runs the example with these arguments: a model and a text.
pub fn run(arguments: &[String], out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let [model, text] = arguments else { return Err("usage: complete MODEL TEXT".into()) };
    let file = GgufFile::open(model)?;
    let vocabulary = VocabSource::from_gguf(file.metadata())?;
    let stepper = Stepper::load(Cpu::new(2)?, &file, &LoadOptions::default())?;
    let text_processor = TextProcessor {
        tokenizer: Arc::new(Tokenizer::new(&vocabulary)?),
        template: vocabulary.chat_template,
    };
    // From here on, the engine's own thread owns the model. Clones of the engine can send requests from any thread.
    let engine = Engine::start(stepper, text_processor, EngineOptions::default())?;
    let answer = engine.submit(Request { max_tokens: Some(64), ..Request::new(Prompt::Text(text.clone())) });
    write!(out, "{text}")?;
    for event in answer {
        match event {
            Event::Started { .. } => {}
            Event::Text { text, .. } => {
                write!(out, "{text}")?;
                out.flush()?;
            }
            Event::Finished { reason, stats } => {
                writeln!(out, "\n[{} tokens, {reason:?}]", stats.generated_tokens)?;
            }
            Event::Failed(error) => return Err(error.into()),
        }
    }
    Ok(())
}
