//! Continues token ids greedily and prints, for each generated token, its id and the gap between the two largest logits,
//! to compare with another engine token by token.
//!
//! `cargo run --release -p verbatim-engine --example greedy -- MODEL COUNT ID...`

use std::error::Error;
use verbatim_cpu::Cpu;
use verbatim_engine::{LoadOptions, MAX_ROWS, Row, RowInput, RowOutputs, Stepper};
use verbatim_gguf::GgufFile;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, count, ids @ ..] = &arguments[..] else {
        return Err("usage: greedy MODEL COUNT ID...".into());
    };
    let count: usize = count.parse()?;
    let mut tokens = ids.iter().map(|id| id.parse()).collect::<Result<Vec<u32>, _>>()?;
    let context = Some(tokens.len() + count);
    let options = LoadOptions { context, ..LoadOptions::default() };
    let mut engine = Stepper::load(Cpu::new(2)?, &GgufFile::open(model)?, &options)?;
    let sequence = engine.begin()?;
    for _ in 0..count {
        let mut sampled = 0;
        for chunk in tokens.chunks(MAX_ROWS) {
            let start = engine.append(sequence, chunk.len())?;
            let row = |(i, &token)| Row {
                sequence,
                kv_index: start + i,
                input: RowInput::Token(token),
                want: RowOutputs::logits_if(i + 1 == chunk.len()),
            };
            let rows: Vec<Row> = chunk.iter().enumerate().map(row).collect();
            let outputs = engine.step(&rows)?;
            let logits = outputs.logits(chunk.len() - 1).ok_or("the last row wants logits")?;
            let (best, gap) = best_and_gap(logits);
            sampled = best;
            if start + chunk.len() >= ids.len() {
                println!("{best} {gap:.4}");
            }
            engine.commit(sequence, chunk.len())?;
        }
        tokens = vec![sampled];
    }
    Ok(())
}

/// The token with the largest logit, and the gap to the second largest.
fn best_and_gap(logits: &[f32]) -> (u32, f32) {
    let (mut best, mut first, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (token, &logit) in logits.iter().enumerate() {
        if logit > first {
            (best, first, second) = (token as u32, logit, first);
        } else if logit > second {
            second = logit;
        }
    }
    (best, first - second)
}
