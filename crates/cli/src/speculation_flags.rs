//! The flags of speculative decoding, with llama.cpp's names.

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use verbatim_engine::{MAX_DRAFT, Speculation};

/// How an answer is drafted. The text is the same with any of these.
#[derive(Debug, Clone, Args)]
pub struct SpeculationFlags {
    /// Draft tokens to verify in each step: auto (as many as pay, often none), off, or at most this many
    #[arg(
        long = "spec",
        value_name = "auto|off|N",
        env = "VERBATIM_SPEC",
        default_value = "off",
        value_parser = speculation,
        help_heading = "Speculative decoding"
    )]
    pub speculation: Speculation,
    /// What drafts: ngram-simple (what followed the last time in prompt or answer) or none
    #[arg(
        long,
        value_name = "TYPE",
        env = "VERBATIM_SPEC_TYPE",
        default_value = "ngram-simple",
        ignore_case = true,
        help_heading = "Speculative decoding"
    )]
    pub spec_type: SpecType,
    /// At most this many draft tokens in each step
    #[arg(
        long,
        visible_aliases = ["draft-max", "draft"],
        value_name = "N",
        env = "VERBATIM_SPEC_DRAFT_N_MAX",
        help_heading = "Speculative decoding"
    )]
    pub spec_draft_n_max: Option<usize>,
}

/// What drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecType {
    /// Nothing.
    None,
    /// The n-gram drafter.
    Ngram,
}

impl ValueEnum for SpecType {
    fn value_variants<'a>() -> &'a [SpecType] {
        &[SpecType::None, SpecType::Ngram]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            SpecType::None => PossibleValue::new("none"),
            SpecType::Ngram => PossibleValue::new("ngram-simple").alias("ngram"),
        })
    }
}

impl SpeculationFlags {
    /// What the flags say together.
    pub fn speculation(&self) -> Speculation {
        let limit = self.spec_draft_n_max.unwrap_or(MAX_DRAFT);
        match (self.spec_type, self.speculation) {
            (SpecType::None, _) => Speculation::Off,
            (SpecType::Ngram, Speculation::Fixed(length)) => Speculation::Fixed(length.min(limit)),
            (SpecType::Ngram, Speculation::Auto { max }) => Speculation::Auto { max: max.min(limit) },
            (SpecType::Ngram, Speculation::Off) => Speculation::Off,
        }
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
