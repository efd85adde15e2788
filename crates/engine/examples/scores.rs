//! Prints the probability of every token of a text given the tokens before it, and the text's perplexity. It uses the stepper,
//! which computes rows and returns logits, without the engine on top.
//!
//! `cargo run --release -p verbatim-engine --example scores -- MODEL.gguf "The quick brown fox"`

use std::error::Error;
use std::io::Write;
use verbatim_cpu::Cpu;
use verbatim_engine::{LoadOptions, MAX_ROWS, NextOutput, Row, RowInput, RowOutputs, Stepper};
use verbatim_gguf::GgufFile;
use verbatim_text::{SpecialTokens, Tokenizer};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    run(&arguments, &mut std::io::stdout())
}

/// Runs the example with these arguments: a model and a text.
pub fn run(arguments: &[String], out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let [model, text] = arguments else { return Err("usage: scores MODEL TEXT".into()) };
    let file = GgufFile::open(model)?;
    let tokenizer = Tokenizer::from_gguf(file.metadata())?;
    let mut stepper = Stepper::load(Cpu::new(2)?, &file, &LoadOptions::default())?;

    let tokens = tokenizer.encode(text, SpecialTokens::Ignore, true);
    let sequence = stepper.begin()?;
    let want = RowOutputs { next: NextOutput::LogProbs, ..RowOutputs::NONE };
    let mut scores = Vec::new();
    // A row is one token at one position. All rows of a step are computed together.
    for (inputs, targets) in tokens.chunks(MAX_ROWS).zip(tokens[1..].chunks(MAX_ROWS)) {
        let start = stepper.append(sequence, inputs.len())?;
        let row = |(i, &token)| Row { sequence, kv_index: start + i, input: RowInput::Token(token), want };
        let rows: Vec<Row> = inputs.iter().enumerate().map(row).collect();
        let outputs = stepper.step(&rows)?;
        for (i, &target) in targets.iter().enumerate() {
            let probabilities = outputs.log_probs(i).ok_or("the logits are not a valid distribution")?;
            scores.push((target, probabilities.nll(target as usize).ok_or("an impossible token")?));
        }
        stepper.commit(sequence, inputs.len())?;
    }
    for (token, nll) in &scores {
        let piece = String::from_utf8_lossy(tokenizer.piece(*token)).into_owned();
        writeln!(out, "{:10.6} {piece:?}", (-nll).exp())?;
    }
    let mean = scores.iter().map(|(_, nll)| nll).sum::<f64>() / scores.len() as f64;
    writeln!(out, "perplexity {:.4}", mean.exp())?;
    Ok(())
}
