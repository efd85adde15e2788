//! The flags of speculative decoding, with llama.cpp's names.

use clap::builder::{FalseyValueParser, PossibleValue};
use clap::{Args, ValueEnum};
use clap_complete::ArgValueCompleter;
use verbatim_engine::{DrafterFactory, KvType, MAX_DRAFT, Speculation};

use crate::{completer, values};

/// How an answer is drafted. The text is the same with any of these.
#[derive(Debug, Clone, Args)]
pub struct SpeculationFlags {
    /// Draft tokens to verify in each step: auto (as many as are worth verifying, often none), off, or at most this many [default:
    /// off, or auto with --model-draft, --spec-type or --spec-draft-n-max]
    #[arg(
        long = "spec",
        value_name = "auto|off|N",
        env = "VERBATIM_SPEC",
        value_parser = speculation,
        help_heading = "Speculative decoding"
    )]
    pub speculation: Option<Speculation>,
    /// Draft model (EAGLE-3 or DFlash): a file, a name in the store, or what `verbatim pull` takes
    #[arg(
        long,
        visible_alias = "spec-draft-model",
        value_name = "MODEL",
        env = "VERBATIM_MODEL_DRAFT",
        help_heading = "Speculative decoding",
        add = ArgValueCompleter::new(completer::models)
    )]
    pub model_draft: Option<String>,
    /// Drafters in order of precedence: ngram-simple (what followed the last occurrence of the latest tokens), draft-eagle3 or
    /// draft-dflash (as --model-draft is), or none [default: the draft model, or ngram-simple without one]
    #[arg(
        long,
        value_name = "TYPE",
        env = "VERBATIM_SPEC_TYPE",
        ignore_case = true,
        value_delimiter = ',',
        help_heading = "Speculative decoding"
    )]
    pub spec_type: Vec<SpecType>,
    /// At most this many draft tokens in each step
    #[arg(
        long,
        visible_aliases = ["draft-max", "draft"],
        value_name = "N",
        env = "VERBATIM_SPEC_DRAFT_N_MAX",
        help_heading = "Speculative decoding"
    )]
    pub spec_draft_n_max: Option<usize>,
    /// Drafts of the draft model that are shorter are not verified
    #[arg(
        long,
        visible_alias = "draft-min",
        value_name = "N",
        env = "VERBATIM_SPEC_DRAFT_N_MIN",
        default_value_t = 0,
        help_heading = "Speculative decoding"
    )]
    pub spec_draft_n_min: usize,
    /// A draft ends before a token that the draft model holds to be less likely
    #[arg(
        long,
        visible_alias = "draft-p-min",
        value_name = "P",
        env = "VERBATIM_SPEC_DRAFT_P_MIN",
        default_value_t = 0.0,
        value_parser = values::probability,
        help_heading = "Speculative decoding"
    )]
    pub spec_draft_p_min: f32,
    /// Type of K in the draft model's KV cache
    #[arg(
        long,
        visible_alias = "spec-draft-type-k",
        value_name = "FORMAT",
        env = "VERBATIM_CTKD",
        default_value = "f16",
        ignore_case = true,
        value_parser = values::kv_type(),
        help_heading = "Speculative decoding"
    )]
    pub cache_type_k_draft: KvType,
    /// Type of V in the draft model's KV cache
    #[arg(
        long,
        visible_alias = "spec-draft-type-v",
        value_name = "FORMAT",
        env = "VERBATIM_CTVD",
        default_value = "f16",
        ignore_case = true,
        value_parser = values::kv_type(),
        help_heading = "Speculative decoding"
    )]
    pub cache_type_v_draft: KvType,
    /// Sample the draft model's tokens from its logits after the forward pass, not by ops of its compute graph
    #[arg(
        long,
        env = "VERBATIM_NO_SPEC_DRAFT_BACKEND_SAMPLING",
        value_parser = FalseyValueParser::new(),
        overrides_with = "spec_draft_backend_sampling",
        help_heading = "Speculative decoding"
    )]
    pub no_spec_draft_backend_sampling: bool,
    /// Sample the draft model's tokens in its compute graph where --samplers allows it: this is the default
    #[arg(
        long,
        env = "VERBATIM_SPEC_DRAFT_BACKEND_SAMPLING",
        value_parser = FalseyValueParser::new(),
        overrides_with = "no_spec_draft_backend_sampling",
        help_heading = "Speculative decoding"
    )]
    pub spec_draft_backend_sampling: bool,
}

/// The drafter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecType {
    /// Nothing.
    None,
    /// The n-gram drafter.
    Ngram,
    /// A draft model with EAGLE-3.
    Eagle3,
    /// A draft model with DFlash.
    DFlash,
}

impl ValueEnum for SpecType {
    fn value_variants<'a>() -> &'a [SpecType] {
        &[SpecType::None, SpecType::Ngram, SpecType::Eagle3, SpecType::DFlash]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            SpecType::None => PossibleValue::new("none"),
            SpecType::Ngram => PossibleValue::new("ngram-simple").alias("ngram"),
            SpecType::Eagle3 => PossibleValue::new("draft-eagle3").alias("eagle3"),
            SpecType::DFlash => PossibleValue::new("draft-dflash").alias("dflash"),
        })
    }
}

impl SpeculationFlags {
    /// What the flags say together.
    pub fn speculation(&self) -> Speculation {
        let limit = self.spec_draft_n_max.unwrap_or(MAX_DRAFT);
        // --model-draft, --spec-type or --spec-draft-n-max alone turns speculation on.
        let is_requested =
            self.model_draft.is_some() || !self.spec_type.is_empty() || self.spec_draft_n_max.is_some();
        let chosen =
            self.speculation.unwrap_or(if is_requested { Speculation::AUTO } else { Speculation::Off });
        match chosen {
            _ if self.spec_type.contains(&SpecType::None) => Speculation::Off,
            Speculation::Fixed(length) => Speculation::Fixed(length.min(limit)),
            Speculation::Auto { max } => Speculation::Auto { max: max.min(limit) },
            Speculation::Off => Speculation::Off,
        }
    }

    /// What drafts without a model.
    pub fn drafters(&self) -> DrafterFactory {
        let is_default = self.spec_type.is_empty() && self.model_draft.is_none();
        let is_wanted = is_default || self.spec_type.contains(&SpecType::Ngram);
        if is_wanted { DrafterFactory::default() } else { DrafterFactory::none() }
    }

    /// Whether a draft model is to draft, by the types that the flags name.
    pub fn wants_model(&self) -> bool {
        self.spec_type.is_empty() || self.model_type().is_some()
    }

    /// The type of draft model that the flags name.
    pub fn model_type(&self) -> Option<SpecType> {
        self.spec_type.iter().copied().find(|kind| matches!(kind, SpecType::Eagle3 | SpecType::DFlash))
    }
}

fn speculation(text: &str) -> Result<Speculation, String> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(Speculation::AUTO),
        "off" | "none" => Ok(Speculation::Off),
        number => match number.parse() {
            Ok(length) if length <= MAX_DRAFT => Ok(Speculation::Fixed(length)),
            _ => Err(format!("must be auto, off, or a number up to {MAX_DRAFT}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(
        speculation: Option<Speculation>,
        spec_type: Option<SpecType>,
        spec_draft_n_max: Option<usize>,
    ) -> SpeculationFlags {
        SpeculationFlags {
            speculation,
            spec_type: spec_type.into_iter().collect(),
            spec_draft_n_max,
            model_draft: None,
            spec_draft_n_min: 0,
            spec_draft_p_min: 0.0,
            cache_type_k_draft: KvType::F16,
            cache_type_v_draft: KvType::F16,
            no_spec_draft_backend_sampling: false,
            spec_draft_backend_sampling: false,
        }
    }

    #[test]
    fn a_draft_model_drafts_alone_unless_others_are_named() {
        let model = SpeculationFlags { model_draft: Some("draft.gguf".into()), ..flags(None, None, None) };
        assert_eq!(model.speculation(), Speculation::AUTO);
        assert!(model.wants_model() && format!("{:?}", model.drafters()).contains("None"));
        let both = SpeculationFlags { spec_type: vec![SpecType::Ngram, SpecType::Eagle3], ..model.clone() };
        assert!(both.wants_model() && format!("{:?}", both.drafters()).contains("ngram"));
        assert_eq!(both.model_type(), Some(SpecType::Eagle3));
        let ngram = SpeculationFlags { spec_type: vec![SpecType::Ngram], ..model };
        assert!(!ngram.wants_model());
    }

    #[test]
    fn flags_about_drafts_ask_for_drafts() {
        let says = |speculation, spec_type: Option<SpecType>, spec_draft_n_max| {
            flags(speculation, spec_type, spec_draft_n_max).speculation()
        };
        assert_eq!(says(None, None, None), Speculation::Off);
        assert_eq!(says(None, Some(SpecType::Ngram), None), Speculation::AUTO);
        assert_eq!(says(None, None, Some(4)), Speculation::Auto { max: 4 });
        assert_eq!(says(Some(Speculation::Fixed(9)), None, Some(4)), Speculation::Fixed(4));
        assert_eq!(says(Some(Speculation::Off), Some(SpecType::Ngram), Some(4)), Speculation::Off);
        assert_eq!(says(Some(Speculation::AUTO), Some(SpecType::None), None), Speculation::Off);
    }
}
