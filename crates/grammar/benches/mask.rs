//! The time of a mask, with a vocabulary of 128,256 tokens: median, mean and the slowest hundredth, for each grammar.
//!
//! Random outputs are followed. Each starts with the caches of a new request: what others have computed is not shared.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;
use support::{LLAMA3, Random, own_data, vocabulary};
use verbatim_grammar::{Grammar, Vocabulary};

const OUTPUTS: u64 = 10;
const TOKENS: usize = 100;

fn main() {
    let start = Instant::now();
    let vocabulary = vocabulary(LLAMA3);
    println!("{} tokens, prepared in {:.2} s", vocabulary.vocab_len(), start.elapsed().as_secs_f64());
    println!(
        "{:<28} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "microseconds", "compile", "masks", "median", "mean", "p99", "max"
    );
    let text = std::fs::read_to_string(own_data("schemas.json")).expect("schemas");
    let cases: Vec<serde_json::Value> = serde_json::from_str(&text).expect("JSON");
    let mut all = Vec::new();
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        all.extend(measure(
            &format!("schema: {name}"),
            &Grammar::JsonSchema(case["schema"].clone()),
            &vocabulary,
        ));
    }
    for name in ["json", "arithmetic", "chess", "list", "csv", "tool_call"] {
        let text = std::fs::read_to_string(own_data(&format!("gbnf/{name}.gbnf"))).expect("a grammar");
        all.extend(measure(&format!("gbnf: {name}"), &Grammar::Gbnf(text), &vocabulary));
    }
    report("all", 0.0, all);
}

fn measure(name: &str, grammar: &Grammar, vocabulary: &Vocabulary) -> Vec<f64> {
    let start = Instant::now();
    let compiled = grammar.compile(vocabulary).expect("a grammar");
    let compile_us = start.elapsed().as_secs_f64() * 1e6;
    let mut times = Vec::new();
    for seed in 0..OUTPUTS {
        let mut constraint = compiled.constraint();
        let mut random = Random(seed);
        for _ in 0..TOKENS {
            if constraint.is_stopped() {
                break;
            }
            let start = Instant::now();
            let mask = constraint.mask().expect("a mask");
            times.push(start.elapsed().as_secs_f64() * 1e6);
            let allowed: Vec<u32> = mask.tokens().collect();
            let ends = vocabulary.ends();
            let texts: Vec<u32> = allowed.iter().copied().filter(|id| !ends.contains(id)).collect();
            if texts.is_empty() {
                break;
            }
            constraint.accept(*random.choose(&texts)).expect("an allowed token");
        }
    }
    report(name, compile_us, times.clone());
    times
}

fn report(name: &str, compile_us: f64, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{name:<28.28} {compile_us:>9.0} {:>7} {:>9.1} {mean:>9.1} {:>9.1} {:>9.1}",
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
