//! Checks the guarantee on the user's own machine and model: answers that were batched, drafted, cached or computed by another
//! number of threads are compared, bit for bit, with those of plain decoding, one request at a time.
//!
//! Every second request asks for log-probabilities: with them tokens are sampled outside the graph, without them in it.

use std::sync::Arc;
use std::time::Duration;
use verbatim_engine::{
    DrafterFactory, Engine, EngineError, EngineOptions, Event, EventStream, FinishReason, KvType,
    LoadOptions, LogProbs, MAX_DRAFT, NgramDrafter, Prompt, Request, RequestError, Sampling, Script,
    ScriptedDrafter, Speculation,
};
use verbatim_text::{SpecialTokens, Tokenizer};

/// How much is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// A minute on a small model.
    Quick,
    /// Three KV cache types (f16, q8_0, q4_0), every draft length, more and longer answers.
    Full,
}

/// How the engine of a comparison is loaded.
#[derive(Clone, Debug)]
pub struct EngineSetting {
    /// Threads.
    pub threads: usize,
    /// Options for loading the model.
    pub load: LoadOptions,
    /// Options of the engine.
    pub engine: EngineOptions,
    /// The draft model is to be loaded, and to draft.
    pub draft_model: bool,
}

/// What a comparison varies.
#[derive(Clone, Debug)]
struct Variant {
    name: String,
    threads: usize,
    at_once: usize,
    cache_bytes: usize,
    backend_sampling: bool,
    step_budget: Duration,
    drafter: DrafterKind,
    speculation: Speculation,
}

#[derive(Clone, Copy, Debug)]
enum DrafterKind {
    Ngram,
    /// The right tokens up to a random position, then wrong ones.
    Scripted,
    /// The draft model.
    Model,
}

/// The result of one comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What was varied.
    pub name: String,
    /// The KV cache type.
    pub kv: KvType,
    /// Tokens compared.
    pub tokens: usize,
    /// Draft tokens that were verified, and accepted.
    pub drafts: (usize, usize),
    /// The first difference.
    pub difference: Option<Difference>,
}

/// Where an answer differs from that of plain decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The request, from 0.
    pub request: usize,
    /// Tokens of the answer before it.
    pub position: usize,
    /// The token of plain decoding; `None` at the end of its answer.
    pub wanted: Option<u32>,
    /// The token that was found.
    pub found: Option<u32>,
    /// Whether the tokens are the same, and only the text, log-probabilities or the reason for the end
    /// differ.
    pub same_tokens: bool,
}

/// Why nothing was compared.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A request failed.
    #[error("a request failed: {0}")]
    Request(#[from] RequestError),
    /// The engine could not be started.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model could not be loaded.
    #[error("{0}")]
    Load(String),
}

/// Compares; `start` loads the model anew for each setting, with its draft model if there is one and the setting asks for it, and
/// `show` gets each comparison. Ends early if `show` returns
/// false.
///
/// # Errors
/// If the model cannot be loaded, or a request fails.
pub fn verify(
    tokenizer: &Tokenizer,
    coverage: Coverage,
    (max_threads, has_draft_model): (usize, bool),
    start: &mut dyn FnMut(EngineSetting) -> Result<Engine, VerifyError>,
    show: &mut dyn FnMut(&Comparison) -> bool,
) -> Result<(), VerifyError> {
    let types: &[KvType] = match coverage {
        Coverage::Quick => &[KvType::F16],
        Coverage::Full => &[KvType::F16, KvType::Q8_0, KvType::Q4_0],
    };
    for &kv in types {
        let requests = requests(tokenizer, coverage);
        let plain = Variant::new("plain", max_threads);
        let engine = start(plain.setting(kv, DrafterFactory::default()))?;
        let wanted = answers(&engine, &requests, &plain)?;
        drop(engine);
        let script = Script::default();
        for (request, answer) in requests.iter().zip(&wanted) {
            let Prompt::Tokens(prompt) = &request.prompt else { continue };
            script.add(prompt.iter().chain(&answer.tokens).copied().collect());
        }
        let eog = (0..tokenizer.vocab_len() as u32).find(|&token| tokenizer.is_eog(token)).unwrap_or(0);
        let scripted = ScriptedDrafter::new(script, eog);
        let of_model = model_variants(coverage, max_threads).into_iter().filter(|_| has_draft_model);
        for variant in variants(coverage, max_threads).into_iter().chain(of_model) {
            let drafters = match variant.drafter {
                DrafterKind::Ngram => DrafterFactory::new(|| Box::new(NgramDrafter::new(1))),
                DrafterKind::Scripted => {
                    let scripted = scripted.clone();
                    DrafterFactory::new(move || Box::new(scripted.clone()))
                }
                DrafterKind::Model => DrafterFactory::none(),
            };
            let engine = start(variant.setting(kv, drafters))?;
            // With a prefix cache, the second time finds the prompts in it.
            for time in 0..if variant.cache_bytes > 0 { 2 } else { 1 } {
                let found = answers(&engine, &requests, &variant)?;
                let name = if time == 0 { variant.name.clone() } else { format!("{}, again", variant.name) };
                if !show(&compare(name, kv, &wanted, &found)) {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

fn compare(name: String, kv: KvType, wanted: &[Answer], found: &[Answer]) -> Comparison {
    let mut comparison = Comparison { name, kv, tokens: 0, drafts: (0, 0), difference: None };
    for (request, (wanted, found)) in wanted.iter().zip(found).enumerate() {
        comparison.tokens += found.tokens.len();
        comparison.drafts.0 += found.drafts.0;
        comparison.drafts.1 += found.drafts.1;
        if wanted.is_same(found) || comparison.difference.is_some() {
            continue;
        }
        let both = wanted.tokens.iter().zip(&found.tokens);
        let position = both.take_while(|(a, b)| a == b).count();
        comparison.difference = Some(Difference {
            request,
            position,
            wanted: wanted.tokens.get(position).copied(),
            found: found.tokens.get(position).copied(),
            same_tokens: wanted.tokens == found.tokens,
        });
    }
    comparison
}

impl Variant {
    fn new(name: impl Into<String>, threads: usize) -> Variant {
        Variant {
            name: name.into(),
            threads,
            at_once: 1,
            cache_bytes: 0,
            backend_sampling: true,
            step_budget: EngineOptions::default().step_budget,
            drafter: DrafterKind::Ngram,
            speculation: Speculation::Off,
        }
    }

    fn setting(&self, kv: KvType, drafters: DrafterFactory) -> EngineSetting {
        let load = LoadOptions {
            context: Some(1024),
            sequences: self.at_once,
            k: kv,
            v: kv,
            cache_bytes: self.cache_bytes,
            backend_sampling: self.backend_sampling,
            ..LoadOptions::default()
        };
        let engine = EngineOptions { step_budget: self.step_budget, drafters, ..EngineOptions::default() };
        let draft_model = matches!(self.drafter, DrafterKind::Model);
        EngineSetting { threads: self.threads, load, engine, draft_model }
    }
}

fn variants(coverage: Coverage, max_threads: usize) -> Vec<Variant> {
    let plain = |name: String| Variant::new(name, max_threads);
    let scripted = |length: usize, at_once: usize| Variant {
        at_once,
        drafter: DrafterKind::Scripted,
        speculation: Speculation::Fixed(length),
        ..plain(format!("drafts of {length}, scripted, {at_once} at once"))
    };
    let mut variants = vec![
        Variant { at_once: 8, ..plain("8 at once".into()) },
        Variant { threads: 1, ..plain("1 thread".into()) },
        Variant {
            backend_sampling: false,
            at_once: 3,
            ..plain("sampled outside the graph, 3 at once".into())
        },
        Variant {
            at_once: 4,
            step_budget: Duration::ZERO,
            ..plain("prompts in small chunks, 4 at once".into())
        },
        Variant { at_once: 2, cache_bytes: 1 << 26, ..plain("prefix cache, 2 at once".into()) },
        Variant {
            speculation: Speculation::AUTO,
            at_once: 5,
            ..plain("n-gram drafts, automatic, 5 at once".into())
        },
        scripted(MAX_DRAFT, 1),
        scripted(3, 5),
    ];
    if coverage == Coverage::Full {
        variants.extend((1..=MAX_DRAFT).map(|length| scripted(length, [1, 2, 5, 8][length % 4])));
        variants.push(Variant { threads: max_threads + 1, ..scripted(7, 3) });
        variants.push(Variant { cache_bytes: 1 << 26, ..scripted(5, 4) });
        variants.push(Variant { backend_sampling: false, ..scripted(6, 2) });
        variants.push(Variant {
            speculation: Speculation::Fixed(MAX_DRAFT),
            ..plain("n-gram drafts of 15".into())
        });
    }
    variants
}

/// Those in which a draft model drafts.
fn model_variants(coverage: Coverage, max_threads: usize) -> Vec<Variant> {
    let drafted = |length: usize, at_once: usize| Variant {
        at_once,
        drafter: DrafterKind::Model,
        speculation: Speculation::Fixed(length),
        ..Variant::new(format!("drafts of {length}, draft model, {at_once} at once"), max_threads)
    };
    let mut variants = vec![
        Variant { cache_bytes: 1 << 26, ..drafted(5, 5) },
        Variant {
            speculation: Speculation::AUTO,
            name: "draft model, automatic, 3 at once".into(),
            ..drafted(MAX_DRAFT, 3)
        },
    ];
    if coverage == Coverage::Full {
        variants.extend((1..=MAX_DRAFT).map(|length| drafted(length, [1, 2, 5, 8][length % 4])));
        variants.push(Variant { threads: max_threads + 1, ..drafted(7, 3) });
        variants.push(Variant { backend_sampling: false, ..drafted(6, 2) });
    }
    variants
}

const TEXTS: [&str; 4] = [
    "Once upon a time, in a house at the end of a long road, there lived",
    "List the numbers from one to twenty: one, two, three, four, five, six, one, two, three, four,",
    "fn main() {\n    let mut total = 0;\n    for i in 0..10 {\n        total += i;\n    }\n    for i in 0..10 {\n",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
];

fn requests(tokenizer: &Tokenizer, coverage: Coverage) -> Vec<Request> {
    let (count, max_tokens) = if coverage == Coverage::Full { (12, 96) } else { (8, 40) };
    (0..count)
        .map(|number: u64| {
            let text = TEXTS[number as usize % TEXTS.len()];
            // Longer prompts too, which take several chunks.
            let text = text.repeat(1 + number as usize % 3 * 4);
            let sampling = match number % 4 {
                0 => Sampling::greedy(),
                1 => Sampling::unfiltered(0.7, number),
                2 => Sampling {
                    seed: Some(number),
                    temperature: 1.3,
                    repeat_penalty: 1.1,
                    ..Sampling::default()
                },
                _ => Sampling { seed: Some(number), ..Sampling::default() },
            };
            Request {
                sampling,
                log_probs: number.is_multiple_of(2).then_some(LogProbs { top: 3, after_chain: false }),
                max_tokens: Some(max_tokens),
                ..Request::new(Prompt::Tokens(tokenizer.encode(&text, SpecialTokens::Ignore, true)))
            }
        })
        .collect()
}

/// What a client sees of an answer.
struct Answer {
    tokens: Vec<u32>,
    text: String,
    /// The bits of the log-probabilities.
    log_probs: Vec<u32>,
    reason: FinishReason,
    drafts: (usize, usize),
}

impl Answer {
    fn is_same(&self, other: &Answer) -> bool {
        let all = |answer: &Answer| (answer.tokens.clone(), answer.log_probs.clone(), answer.reason.clone());
        self.text == other.text && all(self) == all(other)
    }
}

fn answers(engine: &Engine, requests: &[Request], variant: &Variant) -> Result<Vec<Answer>, VerifyError> {
    let streams: Vec<EventStream> = requests
        .iter()
        .map(|request| engine.submit(Request { speculation: variant.speculation, ..request.clone() }))
        .collect();
    streams.into_iter().map(read).collect()
}

fn read(stream: EventStream) -> Result<Answer, VerifyError> {
    let (mut tokens, mut text, mut log_probs) = (Vec::new(), String::new(), Vec::new());
    for event in stream {
        match event {
            Event::Started { .. } => {}
            Event::Text { text: more, tokens: ids, log_probs: given, .. } => {
                text += &more;
                tokens.extend(ids);
                for given in given.into_iter().flatten() {
                    log_probs.push(given.log_prob.to_bits());
                    log_probs.extend(given.top.iter().flat_map(|&(token, value)| [token, value.to_bits()]));
                }
            }
            Event::Finished { reason, stats } => {
                let drafts = (stats.drafts.drafted, stats.drafts.accepted);
                return Ok(Answer { tokens, text, log_probs, reason, drafts });
            }
            Event::Failed(error) => return Err(error.into()),
        }
    }
    unreachable!("a stream ends with an event")
}

/// An engine of a loaded model, for [`verify`].
///
/// # Errors
/// If the thread cannot be started.
pub fn engine_of<B>(
    stepper: verbatim_engine::Stepper<B>,
    tokenizer: &Arc<Tokenizer>,
    options: EngineOptions,
) -> Result<Engine, VerifyError>
where
    B: verbatim_engine::Backend + 'static,
    verbatim_engine::Stepper<B>: Send,
{
    let text = verbatim_engine::TextProcessor { tokenizer: Arc::clone(tokenizer), template: None };
    Ok(Engine::start(stepper, text, options)?)
}
