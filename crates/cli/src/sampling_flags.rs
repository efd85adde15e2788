//! The flags of sampling, by llama.cpp's names. A flag that is not given leaves what the model file recommends, or llama.cpp's
//! default.

use clap::Args;
use clap::builder::FalseyValueParser;
use verbatim_engine::{SamplerKind, Sampling};
use verbatim_text::Tokenizer;

use crate::error::UsageError;
use crate::values::{self, Limit};

/// How to choose the next token.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sampling (defaults: what the model file recommends, else those shown)")]
pub struct SamplingFlags {
    /// Temperature; 0 or less is greedy (default 0.8)
    #[arg(
        long = "temp",
        visible_alias = "temperature",
        value_name = "T",
        env = "VERBATIM_TEMP", value_parser = values::temperature)]
    pub temperature: Option<f32>,
    /// Seed; the same seed gives the same text. -1 is random, and the summary says which it was (default -1)
    #[arg(short = 's', long, value_name = "SEED", env = "VERBATIM_SEED", value_parser = seed)]
    pub seed: Option<Seed>,
    /// Keep the K most likely tokens; 0 or -1 keeps all (default 40)
    #[arg(long, value_name = "K", env = "VERBATIM_TOP_K", value_parser = values::top_k)]
    pub top_k: Option<usize>,
    /// Keep the most likely tokens until their probabilities sum to P; 1 is off (default 0.95)
    #[arg(long, value_name = "P", env = "VERBATIM_TOP_P", value_parser = values::probability)]
    pub top_p: Option<f32>,
    /// Keep tokens at least P times as likely as the most likely; 0 is off (default 0.05)
    #[arg(long, value_name = "P", env = "VERBATIM_MIN_P", value_parser = values::probability)]
    pub min_p: Option<f32>,
    /// Keep the most typical tokens until their probabilities sum to P; 1 is off (default 1)
    #[arg(
        long = "typical",
        visible_alias = "typical-p",
        value_name = "P",
        env = "VERBATIM_TYPICAL", value_parser = values::probability)]
    pub typical_p: Option<f32>,
    /// Keep logits within N standard deviations of the largest; 0 or less is off (default -1)
    #[arg(
        long = "top-nsigma",
        visible_alias = "top-n-sigma",
        value_name = "N",
        env = "VERBATIM_TOP_NSIGMA", value_parser = values::finite)]
    pub top_n_sigma: Option<f32>,
    /// Dynamic temperature: from T - N to T + N, by the entropy; 0 is off (default 0)
    #[arg(long, value_name = "N", env = "VERBATIM_DYNATEMP_RANGE", value_parser = values::not_negative)]
    pub dynatemp_range: Option<f32>,
    /// Exponent of the dynamic temperature (default 1)
    #[arg(
        long = "dynatemp-exp",
        value_name = "N",
        env = "VERBATIM_DYNATEMP_EXP", value_parser = values::not_negative)]
    pub dynatemp_exponent: Option<f32>,
    /// Divide the logits of tokens that occur in the last --repeat-last-n by N (multiply negative ones); 0 or 1 is off (default 1)
    #[arg(long, value_name = "N", env = "VERBATIM_REPEAT_PENALTY", value_parser = values::repeat_penalty)]
    pub repeat_penalty: Option<f32>,
    /// Tokens that the penalties look back; 0 is off, -1 is all (default 64)
    #[arg(long, value_name = "N", env = "VERBATIM_REPEAT_LAST_N", value_parser = values::last_n)]
    pub repeat_last_n: Option<Limit>,
    /// Subtracted from a logit if its token occurred; 0 is off (default 0)
    #[arg(long, value_name = "N", env = "VERBATIM_PRESENCE_PENALTY", value_parser = values::finite)]
    pub presence_penalty: Option<f32>,
    /// Subtracted from a logit for each time its token occurred; 0 is off (default 0)
    #[arg(long, value_name = "N", env = "VERBATIM_FREQUENCY_PENALTY", value_parser = values::finite)]
    pub frequency_penalty: Option<f32>,
    /// DRY: penalise what would continue a repeated sequence; 0 is off (default 0)
    #[arg(long, value_name = "N", env = "VERBATIM_DRY_MULTIPLIER", value_parser = values::not_negative)]
    pub dry_multiplier: Option<f32>,
    /// DRY: its penalty grows by this factor with each token of the repeat (default 1.75)
    #[arg(long, value_name = "N", env = "VERBATIM_DRY_BASE", value_parser = values::not_negative)]
    pub dry_base: Option<f32>,
    /// DRY: repeats up to this length are free (default 2)
    #[arg(long, value_name = "N", env = "VERBATIM_DRY_ALLOWED_LENGTH", value_parser = values::count)]
    pub dry_allowed_length: Option<usize>,
    /// DRY: tokens to look back; 0 is off, -1 is all (default 64)
    #[arg(long, value_name = "N", env = "VERBATIM_DRY_PENALTY_LAST_N", value_parser = values::last_n)]
    pub dry_penalty_last_n: Option<Limit>,
    /// DRY: a text that no repeat extends across, instead of \n : " *; may be given several times; `none` for none
    #[arg(long, value_name = "TEXT", env = "VERBATIM_DRY_SEQUENCE_BREAKER", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// XTC: how often to remove the most likely tokens; 0 is off (default 0)
    #[arg(long, value_name = "P", env = "VERBATIM_XTC_PROBABILITY", value_parser = values::probability)]
    pub xtc_probability: Option<f32>,
    /// XTC: of the tokens with at least this probability, all but the least likely are removed; above 0.5 is off (default 0.1)
    #[arg(long, value_name = "P", env = "VERBATIM_XTC_THRESHOLD", value_parser = values::probability)]
    pub xtc_threshold: Option<f32>,
    /// Mirostat 2.0 instead of --samplers: 0 is off, 2 is on (default 0)
    #[arg(long, value_name = "N", env = "VERBATIM_MIROSTAT", value_parser = values::mirostat)]
    pub mirostat: Option<bool>,
    /// Mirostat: learning rate (default 0.1)
    #[arg(long, value_name = "N", env = "VERBATIM_MIROSTAT_LR", value_parser = values::not_negative)]
    pub mirostat_lr: Option<f32>,
    /// Mirostat: target entropy in bits (default 5)
    #[arg(long, value_name = "N", env = "VERBATIM_MIROSTAT_ENT", value_parser = values::not_negative)]
    pub mirostat_ent: Option<f32>,
    /// Adaptive-p: prefer tokens of about this probability; negative is off (default -1)
    #[arg(long, value_name = "P", env = "VERBATIM_ADAPTIVE_TARGET", value_parser = values::target)]
    pub adaptive_target: Option<f32>,
    /// Adaptive-p: decay of the moving average of the chosen tokens' probabilities (default 0.9)
    #[arg(long, value_name = "N", env = "VERBATIM_ADAPTIVE_DECAY", value_parser = values::decay)]
    pub adaptive_decay: Option<f32>,
    /// Minimum number of tokens that top-p, min-p, typical-p and XTC leave (default 0)
    #[arg(long, value_name = "N", env = "VERBATIM_MIN_KEEP", value_parser = values::count)]
    pub min_keep: Option<usize>,
    /// Samplers to apply, in this order, separated by ; (default penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature)
    #[arg(long, value_name = "NAMES", env = "VERBATIM_SAMPLERS", value_parser = chain)]
    pub samplers: Option<Chain>,
    /// --samplers as one letter each, such as edskypmxt
    #[arg(long = "sampler-seq", visible_alias = "sampling-seq", value_name = "LETTERS", env = "VERBATIM_SAMPLER_SEQ", value_parser = chain_of_letters, conflicts_with = "samplers")]
    pub sampler_letters: Option<Chain>,
    /// Change the logit of a token: ID+BIAS or ID-BIAS, -inf to ban it; several are separated by commas
    #[arg(
        short = 'l',
        long,
        value_name = "ID+BIAS",
        env = "VERBATIM_LOGIT_BIAS",
        allow_hyphen_values = true,
        value_delimiter = ',',
        value_parser = logit_bias
    )]
    pub logit_bias: Vec<(u32, f32)>,
    /// Never choose an end token
    #[arg(long, env = "VERBATIM_IGNORE_EOS", value_parser = FalseyValueParser::new())]
    pub ignore_eos: bool,
    /// Sample from the logits after the forward pass, not by ops of its compute graph; the text is the same
    #[arg(long, env = "VERBATIM_NO_BACKEND_SAMPLING", value_parser = FalseyValueParser::new(), overrides_with = "backend_sampling")]
    pub no_backend_sampling: bool,
    /// Sample in the compute graph where --samplers allows it: this is the default
    #[arg(long, env = "VERBATIM_BACKEND_SAMPLING", value_parser = FalseyValueParser::new(), overrides_with = "no_backend_sampling")]
    pub backend_sampling: bool,
}

/// A seed; `None` is a random one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

/// A chain of samplers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain(pub Vec<SamplerKind>);

fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed(None)),
        _ => text
            .parse()
            .map(|seed| Seed(Some(seed)))
            .map_err(|_| "a seed is a whole number, or -1".to_owned()),
    }
}

fn chain(text: &str) -> Result<Chain, String> {
    let names = text.split([';', ',']).filter(|name| !name.trim().is_empty());
    names
        .map(|name| name.trim().parse())
        .collect::<Result<_, _>>()
        .map(Chain)
        .map_err(|error: verbatim_engine::UnknownSampler| error.to_string())
}

fn chain_of_letters(text: &str) -> Result<Chain, String> {
    text.chars()
        .map(SamplerKind::from_letter)
        .collect::<Result<_, _>>()
        .map(Chain)
        .map_err(|error| error.to_string())
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.find(['+', '-']).and_then(|sign| {
        let (id, bias) = text.split_at(sign);
        Some((id.trim().parse().ok()?, bias.trim().parse::<f32>().ok()?))
    });
    parsed
        .filter(|(_, bias)| *bias < f32::INFINITY)
        .ok_or_else(|| "a bias is written as 15043+1 or 15043-inf".to_owned())
}

impl SamplingFlags {
    /// The settings: the flags over `base`.
    ///
    /// # Errors
    /// When a bias is for a token that the vocabulary does not have, or a setting of `base` is out of range.
    pub fn settings(&self, base: Sampling, tokenizer: &Tokenizer) -> anyhow::Result<Sampling> {
        let Sampling { repeat_last_n, dry_penalty_last_n, .. } = base;
        let or = |flag: Option<f32>, base: f32| flag.unwrap_or(base);
        let mut settings = Sampling {
            seed: self.seed.map_or(base.seed, |seed| seed.0),
            temperature: or(self.temperature, base.temperature),
            dynatemp_range: or(self.dynatemp_range, base.dynatemp_range),
            dynatemp_exponent: or(self.dynatemp_exponent, base.dynatemp_exponent),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: or(self.top_p, base.top_p),
            min_p: or(self.min_p, base.min_p),
            typical_p: or(self.typical_p, base.typical_p),
            top_n_sigma: or(self.top_n_sigma, base.top_n_sigma),
            xtc_probability: or(self.xtc_probability, base.xtc_probability),
            xtc_threshold: or(self.xtc_threshold, base.xtc_threshold),
            repeat_penalty: or(self.repeat_penalty, base.repeat_penalty),
            repeat_last_n: self.repeat_last_n.map_or(repeat_last_n, |Limit(n)| n),
            frequency_penalty: or(self.frequency_penalty, base.frequency_penalty),
            presence_penalty: or(self.presence_penalty, base.presence_penalty),
            dry_multiplier: or(self.dry_multiplier, base.dry_multiplier),
            dry_base: or(self.dry_base, base.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(base.dry_allowed_length),
            dry_penalty_last_n: self.dry_penalty_last_n.map_or(dry_penalty_last_n, |Limit(n)| n),
            mirostat: self.mirostat.unwrap_or(base.mirostat),
            mirostat_tau: or(self.mirostat_ent, base.mirostat_tau),
            mirostat_eta: or(self.mirostat_lr, base.mirostat_eta),
            adaptive_target: or(self.adaptive_target, base.adaptive_target),
            adaptive_decay: or(self.adaptive_decay, base.adaptive_decay),
            min_keep: self.min_keep.unwrap_or(base.min_keep),
            ..base
        };
        self.choose_samplers(&mut settings);
        if !self.dry_sequence_breaker.is_empty() {
            settings.dry_sequence_breakers.clone_from(&self.dry_sequence_breaker);
            settings.dry_sequence_breakers.retain(|text| text != "none" && !text.is_empty());
        }
        self.add_biases(&mut settings, tokenizer)?;
        settings.validate()?;
        Ok(settings)
    }

    fn choose_samplers(&self, settings: &mut Sampling) {
        if let Some(Chain(samplers)) = self.samplers.as_ref().or(self.sampler_letters.as_ref()) {
            settings.samplers.clone_from(samplers);
        } else if self.adaptive_target.is_some_and(|target| target >= 0.0)
            && !settings.samplers.contains(&SamplerKind::AdaptiveP)
        {
            settings.samplers.push(SamplerKind::AdaptiveP);
        }
    }

    fn add_biases(&self, settings: &mut Sampling, tokenizer: &Tokenizer) -> anyhow::Result<()> {
        let tokens = tokenizer.vocab_len();
        if let Some((id, bias)) = self.logit_bias.iter().find(|(id, _)| *id as usize >= tokens) {
            let last = tokens - 1;
            return Err(UsageError(format!(
                "--logit-bias {id}{bias:+}: this model has no token {id}, its last one is {last}"
            ))
            .into());
        }
        settings.logit_bias.extend(&self.logit_bias);
        if self.ignore_eos {
            let ends = (0..tokens as u32).filter(|&id| tokenizer.is_eog(id));
            settings.logit_bias.extend(ends.map(|id| (id, f32::NEG_INFINITY)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_read_by_name_and_by_letter() {
        let all = chain("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature");
        assert_eq!(all, Ok(Chain(SamplerKind::DEFAULT_ORDER.to_vec())));
        assert_eq!(chain_of_letters("edskypmxt"), all);
        assert_eq!(chain("Top-K, temp").unwrap().0, [SamplerKind::TopK, SamplerKind::Temperature]);
        assert!(chain("top_k;top_q").unwrap_err().contains("there is no sampler \"top_q\""));
        assert!(chain_of_letters("kz").unwrap_err().contains("\"z\""));
        assert_eq!(chain(""), Ok(Chain(vec![])));
    }

    #[test]
    fn biases_have_a_sign() {
        assert_eq!(logit_bias("15043+1.5"), Ok((15043, 1.5)));
        assert_eq!(logit_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for wrong in ["7", "7+inf", "+1", "x-1", "7-", "7+nan", "-3-1"] {
            assert!(logit_bias(wrong).is_err(), "{wrong} was taken");
        }
    }

    #[test]
    fn a_seed_is_a_number_or_minus_one() {
        assert_eq!((seed("-1"), seed("7")), (Ok(Seed(None)), Ok(Seed(Some(7)))));
        assert_eq!(seed("18446744073709551615"), Ok(Seed(Some(u64::MAX))));
        for wrong in ["-2", "x", "1.5", ""] {
            assert!(seed(wrong).is_err(), "{wrong} was taken");
        }
    }
}
