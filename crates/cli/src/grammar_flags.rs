//! The flags of constrained decoding.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, ValueHint};
use verbatim_engine::Grammar;

/// What answers must look like.
#[derive(Debug, Clone, Default, Args)]
#[group(multiple = false)]
pub struct GrammarFlags {
    /// Constrain the answer to JSON that satisfies this schema; `{}` allows any JSON
    #[arg(short = 'j', long, value_name = "SCHEMA", env = "VERBATIM_JSON_SCHEMA")]
    pub json_schema: Option<String>,
    /// As --json-schema, from a file
    #[arg(long, value_name = "FILE", env = "VERBATIM_JSON_SCHEMA_FILE", value_hint = ValueHint::FilePath)]
    pub json_schema_file: Option<PathBuf>,
    /// Constrain the answer by this GBNF grammar, or by one in llguidance's Lark if it begins with %llguidance
    #[arg(long, value_name = "GBNF", env = "VERBATIM_GRAMMAR")]
    pub grammar: Option<String>,
    /// As --grammar, from a file
    #[arg(long, value_name = "FILE", env = "VERBATIM_GRAMMAR_FILE", value_hint = ValueHint::FilePath)]
    pub grammar_file: Option<PathBuf>,
}

/// A larger file is not a grammar.
const MAX_FILE_BYTES: u64 = 64 << 20;

impl GrammarFlags {
    /// The grammar that is asked for, if any.
    ///
    /// # Errors
    /// When a file cannot be read, or a schema is not JSON.
    pub fn grammar(&self) -> anyhow::Result<Option<Grammar>> {
        let from_file = |flag: &str, path: &Option<PathBuf>| -> anyhow::Result<Option<String>> {
            let Some(path) = path else { return Ok(None) };
            let problem = || format!("{flag} {} cannot be read", path.display());
            let file = fs::metadata(path).with_context(problem)?;
            ensure!(file.is_file(), "{flag} {}: this is not a regular file", path.display());
            ensure!(
                file.len() <= MAX_FILE_BYTES,
                "{flag} {}: this file is too large for a grammar",
                path.display()
            );
            fs::read_to_string(path).with_context(problem).map(Some)
        };
        let schema = match &self.json_schema {
            Some(text) => Some(text.clone()),
            None => from_file("--json-schema-file", &self.json_schema_file)?,
        };
        let grammar = match &self.grammar {
            Some(text) => Some(text.clone()),
            None => from_file("--grammar-file", &self.grammar_file)?,
        };
        Ok(match (schema, grammar) {
            (Some(schema), _) => Some(Grammar::json_schema(&schema)?),
            (None, Some(grammar))
                if grammar.trim_start_matches('\u{FEFF}').trim_start().starts_with("%llguidance") =>
            {
                Some(Grammar::Lark(grammar))
            }
            (None, Some(grammar)) => Some(Grammar::Gbnf(grammar)),
            (None, None) => None,
        })
    }
}
