//! Requests of every kind of sampling, and all that a client sees of their answers.

use super::data;
use std::sync::Arc;
use verbatim_engine::{
    DraftStats, Event, EventStream, FinishReason, LogProbs, Prompt, Request, Sampling, Speculation,
};
use verbatim_gguf::GgufFile;
use verbatim_text::Tokenizer;

pub const REQUESTS: u64 = 8;
const ANSWER: usize = 24;

pub fn tokenizer(model: &str) -> Arc<Tokenizer> {
    let file = GgufFile::open(data(&format!("models/{model}/model.gguf"))).expect("a model");
    Arc::new(Tokenizer::from_gguf(file.metadata()).expect("a vocabulary"))
}

pub fn request(number: u64, speculation: Speculation) -> Request {
    let prompt = (0..9 + number * 5).map(|i| ((i * i + number * 31) % 250) as u32).collect();
    let sampling = match number % 4 {
        0 => Sampling::greedy(),
        1 => Sampling::unfiltered(0.7, number),
        2 => Sampling { seed: Some(number), repeat_penalty: 1.2, temperature: 1.3, ..Sampling::default() },
        _ => Sampling { seed: Some(number), dry_multiplier: 0.8, ..Sampling::default() },
    };
    Request {
        sampling,
        // Log-probabilities are computed on the host from the logits; without them tokens are sampled in the graph.
        log_probs: number.is_multiple_of(3).then_some(LogProbs { top: 2, after_chain: false }),
        max_tokens: Some(ANSWER - number as usize % 5),
        speculation,
        ..Request::new(Prompt::Tokens(prompt))
    }
}

/// The bits of a token's log-probability, and of the most likely tokens and theirs.
pub type LogProbBits = (u32, Vec<(u32, u32)>);

/// All that a client sees of an answer but times and what drafts were worth.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub text: String,
    pub tokens: Vec<u32>,
    pub log_probs: Vec<Option<LogProbBits>>,
    pub reason: FinishReason,
    pub generated: usize,
}

pub fn read(stream: EventStream) -> (Answer, DraftStats) {
    let (mut text, mut tokens, mut log_probs) = (String::new(), Vec::new(), Vec::new());
    for event in stream {
        match event {
            Event::Started { .. } => {}
            Event::Text { text: more, tokens: ids, log_probs: given, .. } => {
                text += &more;
                tokens.extend(ids);
                log_probs.extend(given.into_iter().map(|given| {
                    given.map(|given| {
                        let top = given.top.iter().map(|&(token, value)| (token, value.to_bits())).collect();
                        (given.log_prob.to_bits(), top)
                    })
                }));
            }
            Event::Finished { reason, stats } => {
                let generated = stats.generated_tokens;
                return (Answer { text, tokens, log_probs, reason, generated }, stats.drafts);
            }
            Event::Failed(error) => panic!("{error}"),
        }
    }
    unreachable!("streams end with an event")
}
