//! The flags of constrained decoding.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueHint};
use verbatim_engine::Grammar;

use crate::error::UsageError;

/// What answers must look like.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Constrained answers")]
#[group(multiple = false)]
pub struct GrammarFlags {
    /// Constrain the answer to JSON that satisfies this schema; `{}` allows any JSON object
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
            Some(text) => {
                is_not_a_file("--json-schema", text, text.trim_start().starts_with('{'))?;
                Some(text.clone())
            }
            None => from_file("--json-schema-file", &self.json_schema_file)?,
        };
        let grammar = match &self.grammar {
            Some(text) => {
                is_not_a_file("--grammar", text, text.contains("::=") || text.contains('\n'))?;
                Some(text.clone())
            }
            None => from_file("--grammar-file", &self.grammar_file)?,
        };
        Ok(match (schema, grammar) {
            // As in llama.cpp, the empty schema is any object, not any value.
            (Some(schema), _) if schema.split_whitespace().collect::<String>() == "{}" => {
                Some(Grammar::json_object())
            }
            (Some(schema), _) => Some(self.schema(&schema)?),
            (None, Some(grammar))
                if grammar.trim_start_matches('\u{FEFF}').trim_start().starts_with("%llguidance") =>
            {
                Some(Grammar::Lark(grammar))
            }
            (None, Some(grammar)) => Some(Grammar::Gbnf(grammar)),
            (None, None) => None,
        })
    }

    fn schema(&self, text: &str) -> anyhow::Result<Grammar> {
        match Grammar::json_schema(text) {
            Ok(grammar) => Ok(grammar),
            Err(error) if self.json_schema.is_some() => {
                bail!(UsageError(format!("--json-schema: {error}")))
            }
            Err(error) => {
                let path = self.json_schema_file.as_deref().unwrap_or(Path::new("-"));
                Err(anyhow::Error::new(error).context(format!("--json-schema-file {}", path.display())))
            }
        }
    }
}

/// Rejects the name of a file where its text is expected.
fn is_not_a_file(flag: &str, text: &str, is_text: bool) -> anyhow::Result<()> {
    if !is_text && Path::new(text).is_file() {
        bail!(UsageError(format!("{flag} {text}: this is a file; use {flag}-file {text}")));
    }
    Ok(())
}
