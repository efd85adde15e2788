//! Sampling settings of requests, by the names of OpenAI and llama.cpp.

use crate::error::ApiError;
use crate::fields::Fields;
use serde::Deserialize;
use serde_json::{Map, Value};
use verbatim_engine::{SamplerKind, Sampling};
use verbatim_text::{SpecialTokens, Tokenizer};

/// The most stop strings, and the most bytes of one.
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 4096;
/// The most entries of `logit_bias`: as many as OpenAI takes, and more.
const BIASES_MAX: usize = 4096;
/// The longest chain: each sampler takes time at each token.
const SAMPLERS_MAX: usize = 32;
/// The most breakers of DRY's sequences, each of which is looked up in the whole vocabulary, and the most bytes of one.
const BREAKERS_MAX: usize = 64;
const BREAKER_BYTES_MAX: usize = 64;

type Setting = (&'static [&'static str], fn(&mut Sampling) -> &mut f32);

/// Settings that are numbers, with their names.
const SETTINGS: [Setting; 18] = [
    (&["temperature"], |s| &mut s.temperature),
    (&["dynatemp_range"], |s| &mut s.dynatemp_range),
    (&["dynatemp_exponent"], |s| &mut s.dynatemp_exponent),
    (&["top_p"], |s| &mut s.top_p),
    (&["min_p"], |s| &mut s.min_p),
    (&["typical_p", "typ_p"], |s| &mut s.typical_p),
    (&["top_n_sigma"], |s| &mut s.top_n_sigma),
    (&["xtc_probability"], |s| &mut s.xtc_probability),
    (&["xtc_threshold"], |s| &mut s.xtc_threshold),
    (&["repeat_penalty", "repetition_penalty"], |s| &mut s.repeat_penalty),
    (&["frequency_penalty"], |s| &mut s.frequency_penalty),
    (&["presence_penalty"], |s| &mut s.presence_penalty),
    (&["dry_multiplier"], |s| &mut s.dry_multiplier),
    (&["dry_base"], |s| &mut s.dry_base),
    (&["mirostat_tau"], |s| &mut s.mirostat_tau),
    (&["mirostat_eta"], |s| &mut s.mirostat_eta),
    (&["adaptive_target"], |s| &mut s.adaptive_target),
    (&["adaptive_decay"], |s| &mut s.adaptive_decay),
];

/// Takes the sampling settings of a request; `base` are those of the server.
///
/// # Errors
/// If one is of another type or out of range.
pub(crate) fn take_sampling(
    fields: &mut Fields,
    base: &Sampling,
    tokenizer: &Tokenizer,
) -> Result<Sampling, ApiError> {
    let mut sampling = base.clone();
    for (names, setting) in SETTINGS {
        if let Some(value) = fields.take_any::<f32>(names)? {
            *setting(&mut sampling) = value;
            sampling.validate().map_err(|error| fields.error(names[0], error))?;
        }
    }
    if let Some(k) = fields.take::<i64>("top_k")? {
        sampling.top_k = usize::try_from(k).unwrap_or(0);
    }
    // -1 is the whole context.
    if let Some(last) = fields.take::<i64>("repeat_last_n")? {
        sampling.repeat_last_n = usize::try_from(last).ok();
    }
    if let Some(last) = fields.take::<i64>("dry_penalty_last_n")? {
        sampling.dry_penalty_last_n = usize::try_from(last).ok();
    }
    if let Some(length) = fields.take::<usize>("dry_allowed_length")? {
        sampling.dry_allowed_length = length;
    }
    if let Some(breakers) = fields.take::<Vec<String>>("dry_sequence_breakers")? {
        if breakers.len() > BREAKERS_MAX || breakers.iter().any(|text| text.len() > BREAKER_BYTES_MAX) {
            let problem = format!("there may be {BREAKERS_MAX} of at most {BREAKER_BYTES_MAX} bytes each");
            return Err(fields.error("dry_sequence_breakers", problem));
        }
        sampling.dry_sequence_breakers = breakers;
    }
    if let Some(keep) = fields.take::<usize>("min_keep")? {
        sampling.min_keep = keep;
    }
    if let Some(version) = fields.take::<i64>("mirostat")? {
        sampling.mirostat = match version {
            0 => false,
            2 => true,
            _ => return Err(fields.error("mirostat", "only 0 (off) and 2 are supported")),
        };
    }
    if let Some(samplers) = fields.take::<Samplers>("samplers")? {
        let kinds = samplers.kinds().map_err(|error| fields.error("samplers", error))?;
        if kinds.len() > SAMPLERS_MAX {
            return Err(fields.error("samplers", format!("there may be at most {SAMPLERS_MAX}")));
        }
        sampling.samplers = kinds;
    }
    if let Some(seed) = fields.take::<Seed>("seed")? {
        sampling.seed = seed.value();
    }
    if let Some(biases) = fields.take::<Biases>("logit_bias")? {
        let biases = biases.resolve(tokenizer).map_err(|problem| fields.error("logit_bias", problem))?;
        sampling.logit_bias.extend(biases);
    }
    if fields.take::<bool>("ignore_eos")? == Some(true) {
        let ids = 0..tokenizer.vocab_len() as u32;
        let ends = ids.filter(|&id| tokenizer.is_eog(id)).map(|id| (id, f32::NEG_INFINITY));
        sampling.logit_bias.extend(ends);
    }
    sampling.validate().map_err(|error| ApiError::bad(error.to_string()))?;
    Ok(sampling)
}

/// A seed; -1 is a random one, as in llama.cpp.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected an integer")]
enum Seed {
    Positive(u64),
    Negative(i64),
}

impl Seed {
    fn value(self) -> Option<u64> {
        match self {
            Seed::Positive(seed) => Some(seed),
            Seed::Negative(-1) => None,
            Seed::Negative(seed) => Some(seed as u64),
        }
    }
}

/// Samplers by name, or by llama.cpp's letters.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected an array of names of samplers, or a string of their letters")]
enum Samplers {
    Names(Vec<String>),
    Letters(String),
}

impl Samplers {
    fn kinds(self) -> Result<Vec<SamplerKind>, verbatim_engine::UnknownSampler> {
        match self {
            Samplers::Names(names) => names.iter().map(|name| name.parse()).collect(),
            Samplers::Letters(letters) => letters.chars().map(SamplerKind::from_letter).collect(),
        }
    }
}

/// Biases: OpenAI's object of token ids, or llama.cpp's list of pairs.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected an object of token ids and numbers, or an array of pairs")]
enum Biases {
    Object(Map<String, Value>),
    Pairs(Vec<(Target, Value)>),
}

/// A token, or a text whose tokens are meant.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Target {
    Id(u32),
    Text(String),
}

impl Biases {
    fn resolve(self, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>, String> {
        let pairs: Vec<(Target, Value)> = match self {
            Biases::Pairs(pairs) => pairs,
            Biases::Object(entries) => entries
                .into_iter()
                .map(|(id, bias)| (id.parse().map_or(Target::Text(id), Target::Id), bias))
                .collect(),
        };
        if pairs.len() > BIASES_MAX {
            return Err(format!("it has {} entries, more than {BIASES_MAX}", pairs.len()));
        }
        let mut biases = Vec::new();
        for (target, bias) in pairs {
            let bias = match bias {
                Value::Bool(false) => f32::NEG_INFINITY,
                Value::Number(number) => number.as_f64().unwrap_or(f64::NAN) as f32,
                other => return Err(format!("a bias is a number, or false to ban a token, not {other}")),
            };
            if bias.is_nan() || bias == f32::INFINITY {
                return Err("a bias must be finite".to_owned());
            }
            match target {
                Target::Id(id) if (id as usize) < tokenizer.vocab_len() => biases.push((id, bias)),
                Target::Id(id) => return Err(format!("there is no token {id}")),
                Target::Text(text) => {
                    let ids = tokenizer.encode(&text, SpecialTokens::Parse, false);
                    biases.extend(ids.into_iter().map(|id| (id, bias)));
                }
            }
        }
        Ok(biases)
    }
}

/// One text or several.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// Takes stop strings.
///
/// # Errors
/// If one is empty or too long, or there are too many.
pub(crate) fn take_stop(fields: &mut Fields, name: &str, base: &[String]) -> Result<Vec<String>, ApiError> {
    let stop = match fields.take::<OneOrMore>(name)? {
        None => return Ok(base.to_vec()),
        Some(OneOrMore::One(text)) => vec![text],
        Some(OneOrMore::More(texts)) => texts,
    };
    if stop.len() > STOPS_MAX {
        return Err(fields.error(name, format!("{} stop strings are more than {STOPS_MAX}", stop.len())));
    }
    if stop.iter().any(|text| text.is_empty() || text.len() > STOP_BYTES_MAX) {
        return Err(fields.error(name, format!("a stop string must have 1 to {STOP_BYTES_MAX} bytes")));
    }
    Ok(stop)
}

/// Takes the maximum number of tokens to generate; -1 and -2, until the context is full, are no limit.
///
/// # Errors
/// If it is not an integer from -1 on.
pub(crate) fn take_max_tokens(
    fields: &mut Fields,
    names: &[&str],
    base: Option<usize>,
) -> Result<Option<usize>, ApiError> {
    match fields.take_any::<i64>(names)? {
        None => Ok(base),
        Some(-2 | -1) => Ok(None),
        Some(tokens) => usize::try_from(tokens).map(Some).map_err(|_| {
            fields.error(names[0], format!("it must be a number of tokens, or -1 for no limit, not {tokens}"))
        }),
    }
}
