//! Checks a Lark grammar before llguidance sees it, and prepares the JSON schemas in it.

use crate::error::GrammarError;
use crate::limits::{MAX_LARK_SYMBOLS, MAX_LARK_TERMINALS};
use crate::{numbers, schema};
use serde_json::{Deserializer, Value};
use verbatim_text::Tokenizer;

/// The same grammar, with all checks and options for JSON schemas that a schema outside gets.
///
/// # Errors
/// Schemas that cannot be enforced, tokens that end the output, and grammars with too many parts.
pub(crate) fn prepare(lark: &str, tokenizer: &Tokenizer) -> Result<String, GrammarError> {
    let mut scanner =
        Scanner { rest: lark.strip_prefix('\u{FEFF}').unwrap_or(lark), line: 1, output: String::new() };
    let (mut symbols, mut terminals) = (0, 0);
    while let Some(symbol) = scanner.next() {
        match symbol {
            "%json" => scanner.schema()?,
            "%llguidance" | "%regex" => scanner.value()?,
            _ if symbol.starts_with('<') => {
                check_token(symbol, tokenizer).map_err(|what| scanner.error(&what))?
            }
            _ => {}
        }
        symbols += usize::from(!symbol.trim().is_empty());
        terminals +=
            usize::from(symbol.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase()));
        for (what, count, max) in
            [("symbols", symbols, MAX_LARK_SYMBOLS), ("names of terminals", terminals, MAX_LARK_TERMINALS)]
        {
            if count > max {
                let what = format!("it has more than {max} {what}");
                return Err(GrammarError::TooComplex { kind: "Lark grammar", what });
            }
        }
    }
    Ok(scanner.output)
}

/// Splits a grammar as llguidance does, as far as it matters here.
struct Scanner<'t> {
    rest: &'t str,
    line: usize,
    /// What has been read, with prepared schemas.
    output: String,
}

impl<'t> Scanner<'t> {
    /// The next symbol: a string, expression, token, word or other character. Comments are skipped.
    fn next(&mut self) -> Option<&'t str> {
        loop {
            let first = self.rest.chars().next()?;
            let is_comment = first == '#' || self.rest.starts_with("//");
            let length = match first {
                _ if is_comment => self.rest.find('\n').unwrap_or(self.rest.len()),
                '"' => numbers::string_length(self.rest),
                '/' => regex_length(self.rest),
                '<' => self.rest.find(['>', '\n']).map_or(self.rest.len(), |end| end + 1),
                '%' => 1 + word_length(&self.rest[1..]),
                _ if is_word(first) => word_length(self.rest),
                _ => first.len_utf8(),
            };
            let symbol = self.take(length);
            self.output += symbol;
            if !is_comment {
                return Some(symbol);
            }
        }
    }

    fn take(&mut self, length: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }

    /// A JSON value, copied.
    fn value(&mut self) -> Result<(), GrammarError> {
        let (_, text) = self.json()?;
        self.output += text;
        Ok(())
    }

    /// A JSON schema, prepared. It keeps its number of lines, so that llguidance's errors name the right ones.
    fn schema(&mut self) -> Result<(), GrammarError> {
        let (value, text) = self.json()?;
        numbers::check_literals(text).map_err(|what| self.error(&what))?;
        let prepared = schema::prepare(&value).map_err(|error| self.error(&error.to_string()))?.to_string();
        self.output += "{";
        self.output.extend(text.matches('\n'));
        self.output += &prepared[1..];
        Ok(())
    }

    fn json(&mut self) -> Result<(Value, &'t str), GrammarError> {
        let mut values = Deserializer::from_str(self.rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                let length = values.byte_offset();
                Ok((value, self.take(length)))
            }
            Some(Err(error)) => Err(self.error(&format!("what follows is not JSON: {error}"))),
            None => Err(self.error("JSON must follow")),
        }
    }

    fn error(&self, what: &str) -> GrammarError {
        GrammarError::Lark { what: format!("line {}: {what}", self.line) }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

fn word_length(text: &str) -> usize {
    text.find(|c| !is_word(c)).unwrap_or(text.len())
}

/// The length of `/.../`.
fn regex_length(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let is_end = byte == b'/' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Refuses `<|im_end|>` and `<[2]>` for tokens that end the output. A mask allows them only where the output is complete.
fn check_token(symbol: &str, tokenizer: &Tokenizer) -> Result<(), String> {
    let is_end = match symbol.strip_prefix("<[").and_then(|ids| ids.strip_suffix("]>")) {
        Some(ids) if ids.starts_with('^') => false,
        Some(ids) => ids.split(',').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bound = |text: &str| text.trim().parse::<u32>();
            let (Ok(first), Ok(last)) = (bound(first), bound(last)) else { return false };
            (first..=last.min(tokenizer.vocab_len() as u32)).any(|id| tokenizer.is_eog(id))
        }),
        None => tokenizer.find(symbol.as_bytes()).is_some_and(|id| tokenizer.is_eog(id)),
    };
    match is_end {
        true => Err(format!(
            "{symbol:.40} ends the output, so that nothing can follow it; remove it: every output may end where the grammar is complete"
        )),
        false => Ok(()),
    }
}
