//! Sampling settings, with llama.cpp's names and defaults.

use std::fmt;
use std::str::FromStr;

/// One sampler of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SamplerKind {
    /// Repetition, frequency and presence penalties.
    Penalties,
    /// DRY: a penalty on tokens that would continue a repeated sequence.
    Dry,
    /// Top-n-sigma (arXiv 2411.07641).
    TopNSigma,
    /// Top-k.
    TopK,
    /// Locally typical sampling (arXiv 2202.00666).
    TypicalP,
    /// Nucleus sampling (arXiv 1904.09751).
    TopP,
    /// Min-p (arXiv 2407.01082).
    MinP,
    /// XTC: at times, removes the most likely tokens.
    Xtc,
    /// Temperature, dynamic or not.
    Temperature,
    /// Adaptive-p: prefers tokens whose probability is near a target. Always last.
    AdaptiveP,
}

/// A sampler with its name and its letter in llama.cpp.
const NAMES: [(SamplerKind, &str, char); 10] = [
    (SamplerKind::Penalties, "penalties", 'e'),
    (SamplerKind::Dry, "dry", 'd'),
    (SamplerKind::TopNSigma, "top_n_sigma", 's'),
    (SamplerKind::TopK, "top_k", 'k'),
    (SamplerKind::TypicalP, "typ_p", 'y'),
    (SamplerKind::TopP, "top_p", 'p'),
    (SamplerKind::MinP, "min_p", 'm'),
    (SamplerKind::Xtc, "xtc", 'x'),
    (SamplerKind::Temperature, "temperature", 't'),
    (SamplerKind::AdaptiveP, "adaptive_p", 'a'),
];

impl SamplerKind {
    /// llama.cpp's default order. [`SamplerKind::AdaptiveP`] must be asked for.
    pub const DEFAULT_ORDER: [SamplerKind; 9] = [
        SamplerKind::Penalties,
        SamplerKind::Dry,
        SamplerKind::TopNSigma,
        SamplerKind::TopK,
        SamplerKind::TypicalP,
        SamplerKind::TopP,
        SamplerKind::MinP,
        SamplerKind::Xtc,
        SamplerKind::Temperature,
    ];

    /// The name of llama.cpp, such as `top_k`.
    pub fn name(self) -> &'static str {
        let name = NAMES.iter().find(|(kind, ..)| *kind == self).map(|(_, name, _)| name);
        name.expect("every sampler has a name")
    }

    /// The sampler of one letter of llama.cpp's `--sampler-seq`.
    ///
    /// # Errors
    /// If no sampler has this letter.
    pub fn from_letter(letter: char) -> Result<SamplerKind, UnknownSampler> {
        let found = NAMES.iter().find(|(.., own)| *own == letter).map(|(kind, ..)| *kind);
        found.ok_or_else(|| UnknownSampler(letter.to_string()))
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No sampler has this name or letter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no sampler {0:?}; there are {names}", names = NAMES.map(|(_, name, _)| name).join(", "))]
pub struct UnknownSampler(String);

impl FromStr for SamplerKind {
    type Err = UnknownSampler;

    /// Takes the names of llama.cpp, `-` for `_` included, and the common alternatives.
    fn from_str(name: &str) -> Result<SamplerKind, UnknownSampler> {
        let lower = name.trim().to_ascii_lowercase().replace('-', "_");
        let known = match lower.as_str() {
            "temp" => "temperature",
            "typical_p" | "typical" | "typ" => "typ_p",
            "nucleus" => "top_p",
            "top_nsigma" => "top_n_sigma",
            other => other,
        };
        let found = NAMES.iter().find(|(_, own, _)| *own == known).map(|(kind, ..)| *kind);
        found.ok_or_else(|| UnknownSampler(name.trim().to_owned()))
    }
}

/// The settings of a request's sampler. The defaults are llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Seed of the noise. `None`: a random one.
    pub seed: Option<u64>,
    /// The chain, in order. Those that their own settings switch off do nothing.
    pub samplers: Vec<SamplerKind>,
    /// Each logit is divided by it; 0 is greedy.
    pub temperature: f32,
    /// Dynamic temperature: from `temperature` - range to `temperature` + range, by the entropy; 0 is off.
    pub dynatemp_range: f32,
    /// Exponent on the normalised entropy.
    pub dynatemp_exponent: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: usize,
    /// Keep the most likely tokens until their probabilities sum to p; 1 is off.
    pub top_p: f32,
    /// Keep tokens whose probability is at least this fraction of the largest; 0 is off.
    pub min_p: f32,
    /// Keep the most typical tokens until their probabilities sum to p; 1 is off.
    pub typical_p: f32,
    /// Keep logits within this many standard deviations of the largest; 0 or less is off.
    pub top_n_sigma: f32,
    /// How often XTC removes tokens; 0 is off.
    pub xtc_probability: f32,
    /// XTC removes, of the tokens with at least this probability, all but the least likely; above 0.5 is off.
    pub xtc_threshold: f32,
    /// How many tokens to look back for the penalties; 0 is off, `None` is all of them.
    pub repeat_last_n: Option<usize>,
    /// Divides the positive logits of repeated tokens, multiplies the negative ones; 1 is off.
    pub repeat_penalty: f32,
    /// Subtracted once for each time a token occurred; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once if a token occurred; 0 is off.
    pub presence_penalty: f32,
    /// DRY's penalty is this * base ^ (length of the repeat - allowed length); 0 is off.
    pub dry_multiplier: f32,
    /// See `dry_multiplier`; below 1 is off.
    pub dry_base: f32,
    /// Repeats up to this length are free.
    pub dry_allowed_length: usize,
    /// How many tokens DRY looks back; 0 is off, `None` is all of them.
    pub dry_penalty_last_n: Option<usize>,
    /// Texts that no repeat extends across.
    pub dry_sequence_breakers: Vec<String>,
    /// Mirostat 2.0 in place of the chain (arXiv 2007.14966).
    pub mirostat: bool,
    /// Mirostat's target surprise, in bits.
    pub mirostat_tau: f32,
    /// Mirostat's learning rate.
    pub mirostat_eta: f32,
    /// Adaptive-p's target probability; negative is off.
    pub adaptive_target: f32,
    /// Adaptive-p's decay of its moving average, at most 0.99.
    pub adaptive_decay: f32,
    /// Minimum number of tokens that top-p, min-p, typical-p and XTC leave.
    pub min_keep: usize,
    /// Added to the logits of these tokens before anything else. Minus infinity bans a token.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            seed: None,
            samplers: SamplerKind::DEFAULT_ORDER.to_vec(),
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            repeat_last_n: Some(64),
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: Some(64),
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            mirostat: false,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            min_keep: 0,
            logit_bias: Vec::new(),
        }
    }
}

/// A setting is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} must be {wanted}, not {value}")]
pub struct SamplingError {
    name: &'static str,
    wanted: &'static str,
    value: f64,
}

impl Sampling {
    /// The most likely token, always.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Draws from the model's own distribution at this temperature, without filters.
    pub fn unfiltered(temperature: f32, seed: u64) -> Sampling {
        let samplers = vec![SamplerKind::Temperature];
        Sampling { seed: Some(seed), samplers, temperature, ..Sampling::default() }
    }

    /// Whether the largest logit that is left is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && self.dynatemp_range == 0.0
    }

    /// Whether the tokens depend on the seed. XTC, adaptive-p and mirostat draw at temperature 0, too.
    pub fn depends_on_seed(&self) -> bool {
        let draws = [SamplerKind::Xtc, SamplerKind::AdaptiveP];
        !self.is_greedy() || self.mirostat || draws.into_iter().any(|kind| self.is_on(kind))
    }

    /// Whether a sampler is in the chain and its settings do not switch it off.
    pub fn is_on(&self, kind: SamplerKind) -> bool {
        self.samplers.contains(&kind) && self.has_effect(kind)
    }

    pub(crate) fn has_effect(&self, kind: SamplerKind) -> bool {
        match kind {
            SamplerKind::Penalties => {
                self.repeat_last_n != Some(0)
                    && (self.repeat_penalty != 1.0
                        || self.frequency_penalty != 0.0
                        || self.presence_penalty != 0.0)
            }
            SamplerKind::Dry => {
                self.dry_multiplier != 0.0 && self.dry_base >= 1.0 && self.dry_penalty_last_n != Some(0)
            }
            SamplerKind::TopNSigma => self.top_n_sigma > 0.0,
            SamplerKind::TopK => self.top_k > 0,
            SamplerKind::TypicalP => self.typical_p < 1.0,
            SamplerKind::TopP => self.top_p < 1.0,
            SamplerKind::MinP => self.min_p > 0.0,
            SamplerKind::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            SamplerKind::Temperature => self.temperature != 1.0 || self.dynatemp_range > 0.0,
            SamplerKind::AdaptiveP => self.adaptive_target >= 0.0,
        }
    }

    /// Checks the range of every setting.
    ///
    /// # Errors
    /// Names the first setting that is out of range, its value, and the range.
    pub fn validate(&self) -> Result<(), SamplingError> {
        let finite = f32::is_finite as fn(f32) -> bool;
        let positive = |x: f32| x.is_finite() && x >= 0.0;
        let probability = |x: f32| (0.0..=1.0).contains(&x);
        let range = |name, value: f32, wanted, holds: bool| {
            if holds { Ok(()) } else { Err(SamplingError { name, wanted, value: f64::from(value) }) }
        };
        let not_negative = "a finite number that is not negative";
        let from_0_to_1 = "from 0 to 1";
        range("the temperature", self.temperature, not_negative, positive(self.temperature))?;
        range(
            "the dynamic temperature's range (dynatemp-range)",
            self.dynatemp_range,
            not_negative,
            positive(self.dynatemp_range),
        )?;
        range(
            "the dynamic temperature's exponent (dynatemp-exp)",
            self.dynatemp_exponent,
            not_negative,
            positive(self.dynatemp_exponent),
        )?;
        range("top-p", self.top_p, from_0_to_1, probability(self.top_p))?;
        range("min-p", self.min_p, from_0_to_1, probability(self.min_p))?;
        range("typical-p", self.typical_p, from_0_to_1, probability(self.typical_p))?;
        range("top-n-sigma", self.top_n_sigma, "finite", finite(self.top_n_sigma))?;
        range("XTC's probability", self.xtc_probability, from_0_to_1, probability(self.xtc_probability))?;
        range("XTC's threshold", self.xtc_threshold, from_0_to_1, probability(self.xtc_threshold))?;
        let invertible =
            self.repeat_penalty > 0.0 && finite(self.repeat_penalty) && finite(1.0 / self.repeat_penalty);
        range("the repetition penalty", self.repeat_penalty, "finite and above 0", invertible)?;
        range("the frequency penalty", self.frequency_penalty, "finite", finite(self.frequency_penalty))?;
        range("the presence penalty", self.presence_penalty, "finite", finite(self.presence_penalty))?;
        range("DRY's multiplier", self.dry_multiplier, not_negative, positive(self.dry_multiplier))?;
        range("DRY's base", self.dry_base, not_negative, positive(self.dry_base))?;
        range("mirostat's tau", self.mirostat_tau, not_negative, positive(self.mirostat_tau))?;
        range("mirostat's eta", self.mirostat_eta, not_negative, positive(self.mirostat_eta))?;
        range("adaptive-p's target", self.adaptive_target, "at most 1", self.adaptive_target <= 1.0)?;
        let decay = (0.0..=0.99).contains(&self.adaptive_decay);
        range("adaptive-p's decay", self.adaptive_decay, "from 0 to 0.99", decay)?;
        for &(_, bias) in &self.logit_bias {
            range("a logit bias", bias, "a number below infinity", bias < f32::INFINITY)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samplers_have_llama_cpps_names_and_letters() {
        for (kind, name, letter) in NAMES {
            assert_eq!((kind.name(), kind.to_string().as_str()), (name, name));
            assert_eq!((name.parse(), SamplerKind::from_letter(letter)), (Ok(kind), Ok(kind)));
        }
        let letters: String = SamplerKind::DEFAULT_ORDER
            .iter()
            .filter_map(|kind| NAMES.iter().find(|(known, ..)| known == kind))
            .map(|(.., letter)| letter)
            .collect();
        assert_eq!(letters, "edskypmxt");
        for (other, kind) in [
            ("temp", SamplerKind::Temperature),
            ("typ", SamplerKind::TypicalP),
            ("typical", SamplerKind::TypicalP),
            ("typical-p", SamplerKind::TypicalP),
            ("nucleus", SamplerKind::TopP),
            ("top-nsigma", SamplerKind::TopNSigma),
            (" Top-K ", SamplerKind::TopK),
        ] {
            assert_eq!(other.parse(), Ok(kind), "{other}");
        }
        let error = "topp".parse::<SamplerKind>().expect_err("unknown").to_string();
        assert!(error.starts_with("there is no sampler \"topp\"; there are penalties, dry, "), "{error}");
        assert_eq!(SamplerKind::from_letter('z'), Err(UnknownSampler("z".into())));
    }

    #[test]
    fn greedy_and_unfiltered_are_what_they_say() {
        let greedy = Sampling::greedy();
        assert_eq!(greedy, Sampling { temperature: 0.0, ..Sampling::default() });
        assert!(greedy.is_greedy() && !Sampling::default().is_greedy());
        // A range makes even a temperature of 0 dynamic.
        assert!(!Sampling { dynatemp_range: 0.5, ..greedy }.is_greedy());
        let Sampling { seed, samplers, temperature, .. } = Sampling::unfiltered(0.5, 7);
        assert_eq!((seed, samplers, temperature), (Some(7), vec![SamplerKind::Temperature], 0.5));
    }

    #[test]
    fn a_sampler_is_on_if_it_is_in_the_chain_and_has_an_effect() {
        use SamplerKind::{
            AdaptiveP, Dry, MinP, Penalties, Temperature, TopK, TopNSigma, TopP, TypicalP, Xtc,
        };
        let base = Sampling::default();
        let dry = Sampling { dry_multiplier: 0.8, ..base.clone() };
        let xtc = Sampling { xtc_probability: 0.1, xtc_threshold: 0.5, ..base.clone() };
        let repeat = Sampling { repeat_penalty: 1.1, ..base.clone() };
        let cases = [
            (Penalties, false, base.clone()),
            (Penalties, true, repeat.clone()),
            (Penalties, true, Sampling { repeat_last_n: None, ..repeat.clone() }),
            (Penalties, false, Sampling { repeat_last_n: Some(0), ..repeat }),
            (Penalties, true, Sampling { frequency_penalty: -0.1, ..base.clone() }),
            (Penalties, true, Sampling { presence_penalty: 0.1, ..base.clone() }),
            (Dry, false, base.clone()),
            (Dry, true, dry.clone()),
            (Dry, true, Sampling { dry_base: 1.0, ..dry.clone() }),
            (Dry, false, Sampling { dry_base: 0.9, ..dry.clone() }),
            (Dry, false, Sampling { dry_penalty_last_n: Some(0), ..dry }),
            (TopNSigma, false, base.clone()),
            (TopNSigma, false, Sampling { top_n_sigma: 0.0, ..base.clone() }),
            (TopNSigma, true, Sampling { top_n_sigma: 0.1, ..base.clone() }),
            (TopK, true, base.clone()),
            (TopK, false, Sampling { top_k: 0, ..base.clone() }),
            (TypicalP, false, base.clone()),
            (TypicalP, true, Sampling { typical_p: 0.9, ..base.clone() }),
            (TopP, true, base.clone()),
            (TopP, false, Sampling { top_p: 1.0, ..base.clone() }),
            (MinP, true, base.clone()),
            (MinP, false, Sampling { min_p: 0.0, ..base.clone() }),
            (Xtc, true, xtc.clone()),
            (Xtc, false, Sampling { xtc_probability: 0.0, ..xtc.clone() }),
            (Xtc, false, Sampling { xtc_threshold: 0.51, ..xtc }),
            (Temperature, true, base.clone()),
            (Temperature, false, Sampling { temperature: 1.0, ..base.clone() }),
            (Temperature, true, Sampling { temperature: 1.0, dynatemp_range: 0.1, ..base.clone() }),
            (AdaptiveP, false, base.clone()),
            (AdaptiveP, true, Sampling { adaptive_target: 0.0, ..base.clone() }),
        ];
        for (kind, on, settings) in cases {
            let settings = Sampling { samplers: vec![kind], ..settings };
            assert_eq!(settings.is_on(kind), on, "{settings:?}");
            assert!(!Sampling { samplers: Vec::new(), ..settings }.is_on(kind), "{kind} is not in the chain");
        }
    }

    #[test]
    fn each_setting_has_its_range() {
        let below_0 = -f32::MIN_POSITIVE;
        let above_1 = 1f32.next_up();
        type Set = fn(&mut Sampling, f32);
        let cases: [(&str, Set, &[f32], &[f32]); 19] = [
            ("the temperature", |s, x| s.temperature = x, &[0.0, 9.0], &[below_0, f32::INFINITY, f32::NAN]),
            (
                "the dynamic temperature's range",
                |s, x| s.dynatemp_range = x,
                &[0.0, 9.0],
                &[below_0, f32::INFINITY],
            ),
            (
                "the dynamic temperature's exponent",
                |s, x| s.dynatemp_exponent = x,
                &[0.0, 9.0],
                &[below_0, f32::INFINITY],
            ),
            ("top-p", |s, x| s.top_p = x, &[0.0, 1.0], &[below_0, above_1, f32::NAN]),
            ("min-p", |s, x| s.min_p = x, &[0.0, 1.0], &[below_0, above_1]),
            ("typical-p", |s, x| s.typical_p = x, &[0.0, 1.0], &[below_0, above_1]),
            ("top-n-sigma", |s, x| s.top_n_sigma = x, &[-1.0, 5.0], &[f32::INFINITY, f32::NAN]),
            ("XTC's probability", |s, x| s.xtc_probability = x, &[0.0, 1.0], &[below_0, above_1]),
            ("XTC's threshold", |s, x| s.xtc_threshold = x, &[0.0, 1.0], &[below_0, above_1]),
            // Logits are multiplied or divided by it, so neither it nor its inverse may be 0 or infinite.
            (
                "the repetition penalty",
                |s, x| s.repeat_penalty = x,
                &[1.1, f32::MIN_POSITIVE, f32::MAX],
                &[0.0, -1.0, f32::INFINITY, f32::NAN, 1e-40],
            ),
            ("the frequency", |s, x| s.frequency_penalty = x, &[-2.0, 2.0], &[f32::INFINITY, f32::NAN]),
            ("the presence", |s, x| s.presence_penalty = x, &[-2.0, 2.0], &[f32::INFINITY, f32::NAN]),
            ("DRY's multiplier", |s, x| s.dry_multiplier = x, &[0.0, 9.0], &[below_0, f32::INFINITY]),
            ("DRY's base", |s, x| s.dry_base = x, &[0.0, 9.0], &[below_0, f32::INFINITY]),
            ("mirostat's tau", |s, x| s.mirostat_tau = x, &[0.0, 9.0], &[below_0, f32::INFINITY]),
            ("mirostat's eta", |s, x| s.mirostat_eta = x, &[0.0, 9.0], &[below_0, f32::INFINITY]),
            ("adaptive-p's target", |s, x| s.adaptive_target = x, &[-1.0, 1.0], &[above_1, f32::NAN]),
            ("adaptive-p's decay", |s, x| s.adaptive_decay = x, &[0.0, 0.99], &[below_0, 1.0]),
            (
                "a logit bias",
                |s, x| s.logit_bias = vec![(1, 2.0), (3, x)],
                &[f32::NEG_INFINITY, f32::MAX],
                &[f32::INFINITY, f32::NAN],
            ),
        ];
        for (name, set, inside, outside) in cases {
            let validated = |&x: &f32| {
                let mut settings = Sampling::default();
                set(&mut settings, x);
                settings.validate().map_err(|error| error.to_string())
            };
            assert!(inside.iter().all(|x| validated(x) == Ok(())), "{name}");
            for x in outside {
                let error = validated(x).expect_err(name);
                assert!(error.starts_with(name) && error.contains(" must be "), "{x}: {error}");
            }
        }
    }
}
