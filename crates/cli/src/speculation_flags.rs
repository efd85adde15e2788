//! The flags of speculative decoding, with llama.cpp's names.

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use verbatim_engine::{MAX_DRAFT, Speculation};

/// How an answer is drafted. The text is the same with any of these.
#[derive(Debug, Clone, Args)]
pub struct SpeculationFlags {
    /// Draft tokens to verify in each step: auto (as many as are worth verifying, often none), off, or at most this many [default:
    /// off, or auto with --spec-type or --spec-draft-n-max]
    #[arg(
        long = "spec",
        value_name = "auto|off|N",
        env = "VERBATIM_SPEC",
        value_parser = speculation,
        help_heading = "Speculative decoding"
    )]
    pub speculation: Option<Speculation>,
    /// Drafter: ngram-simple (what followed the last occurrence of the latest tokens) or none [default: ngram-simple]
    #[arg(
        long,
        value_name = "TYPE",
        env = "VERBATIM_SPEC_TYPE",
        ignore_case = true,
        help_heading = "Speculative decoding"
    )]
    pub spec_type: Option<SpecType>,
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

/// The drafter.
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
        // --spec-type or --spec-draft-n-max alone turns speculation on.
        let is_requested = self.spec_type.is_some() || self.spec_draft_n_max.is_some();
        let chosen =
            self.speculation.unwrap_or(if is_requested { Speculation::AUTO } else { Speculation::Off });
        match chosen {
            _ if self.spec_type == Some(SpecType::None) => Speculation::Off,
            Speculation::Fixed(length) => Speculation::Fixed(length.min(limit)),
            Speculation::Auto { max } => Speculation::Auto { max: max.min(limit) },
            Speculation::Off => Speculation::Off,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_about_drafts_ask_for_drafts() {
        let says = |speculation, spec_type, spec_draft_n_max| {
            SpeculationFlags { speculation, spec_type, spec_draft_n_max }.speculation()
        };
        assert_eq!(says(None, None, None), Speculation::Off);
        assert_eq!(says(None, Some(SpecType::Ngram), None), Speculation::AUTO);
        assert_eq!(says(None, None, Some(4)), Speculation::Auto { max: 4 });
        assert_eq!(says(Some(Speculation::Fixed(9)), None, Some(4)), Speculation::Fixed(4));
        assert_eq!(says(Some(Speculation::Off), Some(SpecType::Ngram), Some(4)), Speculation::Off);
        assert_eq!(says(Some(Speculation::AUTO), Some(SpecType::None), None), Speculation::Off);
    }
}
